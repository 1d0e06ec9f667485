"""``millstream pipeline duplication``: compare copies on Spark; workers or Spark copy the differences."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import click
import msgspec

from millstream.cli.common import data_options, echo_line, json_option
from millstream.cli.examples import example
from millstream.cli.mill.plan_printing import HELD, print_plan
from millstream.cli.mill.policy_rounds import listed_rounds, print_failed_plan
from millstream.cli.spark_options import master_option
from millstream.cli.spark_progress import shown
from millstream.core.amounts import size_text
from millstream.core.clock import MICROSECONDS
from millstream.core.errors import InputError
from millstream.mill.duplication.differences import DuplicationPlan, differences
from millstream.mill.duplication.planning import put_space
from millstream.mill.duplication.source_recorder import record_space
from millstream.mill.policies.policy import Pair
from millstream.mill.tasks import QueueName
from millstream.node import Node
from millstream.pipeline.errors import UnlistedSpaceError
from millstream.settings import Settings
from millstream.stores import StoreError
from millstream.stores.audit import AuditedStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@example("millstream pipeline duplication --space photos --dry-run")
@click.command("duplication")
@click.option("--space", metavar="SPACE", help="Only this space.")
@click.option(
    "--name",
    help="Name of the run; an existing plan is reused (default: with --execute that of an interrupted run, otherwise a "
    "new one).",
)
@click.option("--dry-run", is_flag=True, help="Show the plan; change nothing.")
@click.option("--execute", is_flag=True, help="Let Spark write the missing copies; queue the rest.")
@click.option("--record/--no-record", default=True, show_default=True, help="First record new items of the sources.")
@json_option
@data_options
@master_option
def duplication_command(
    settings: Settings, *, space: str | None, name: str | None, dry_run: bool, execute: bool, record: bool,
    as_json: bool,
) -> int:  # fmt: skip
    """Compare the copies of spaces by policy, and queue the differences for `millstream mill work`.

    The plan of a space that would delete or replace too much is held as a whole (see `millstream mill approve`). A
    store or space that cannot be listed does not block the others. Exit code 1 if a copy or a listing failed, 5 if the
    plan of a space is held, or with --dry-run would be.
    """
    from millstream.pipeline.jobs.duplication import copies_cut_short

    held = 0
    with Node.open(settings) as node, node.spark.session(registered=False) as spark:
        now = datetime.fromtimestamp(node.clock.now() / MICROSECONDS, UTC).isoformat(timespec="milliseconds")
        rounds, failed = listed_rounds(node, space)
        for pairs in rounds:
            for pair, found in pairs:
                run = name or (copies_cut_short(node.spark.jobs, pair, found) if execute else None) or now
                try:
                    if record and not dry_run:
                        record_space(node.stores.providers, node.stores.manifest, pair.source, found)
                    plan, failures = _duplicate(node, spark, run, pair, found, dry_run=dry_run, execute=execute)
                except (StoreError, UnlistedSpaceError) as error:
                    print_failed_plan(found, pair, error)
                    failed += 1
                    continue
                print_plan(plan, as_json)
                held += plan.hold is not None or plan.hold_reason is not None
                failed += failures
    return 1 if failed else HELD if held else 0


def _duplicate(
    node: Node, spark: SparkSession, run: str, pair: Pair, space: str, *, dry_run: bool, execute: bool
) -> tuple[DuplicationPlan, int]:
    """The plan of *space* between two stores, executed if the options say so, and the number of failed copies."""
    from millstream.pipeline.jobs.duplication import copy_missing, enqueue, plan_duplication

    if execute and isinstance(node.stores.providers[pair.destination], AuditedStore):
        raise InputError(
            f"store {pair.destination!r} is audited, and Spark tasks cannot write its audit log: omit "
            "--execute, and let workers copy (`millstream mill work`)"
        )
    if execute and node.stores.providers.is_read_only(pair.source):
        raise InputError(
            f"other programs write store {pair.source!r}, and Spark tasks do not know the checksums of its items: omit "
            "--execute, and let workers copy (`millstream mill work`)"
        )
    stores = node.settings.store_urls
    with shown(spark, f"{space} {pair}"):
        planned = plan_duplication(
            spark, node.spark.jobs, run, stores, node.stores.manifest, pair=pair, space=space, clock=node.clock,
            outbox=node.stores.outbox,
        )  # fmt: skip
        if dry_run:
            reason = node.stores.change_guard.preview(planned.plan)
            return msgspec.structs.replace(planned.plan, hold_reason=reason), 0
        parts = (node.stores.providers, node.stores.manifest, pair, space)
        items = partial(differences, *parts, same=False, outbox=node.stores.outbox)
        hold = node.stores.change_guard.check(planned.plan, items)
        if hold is not None:
            return msgspec.structs.replace(planned.plan, hold=hold), 0
        failed, copied = 0, None
        if execute:
            copied = copy_missing(
                spark, planned, stores, node.stores.manifest, clock=node.clock, audit_lookup=node.mill.audit.lookup
            )
            failed = copied.record.counts["failed"]
            click.echo(
                f"  {copied.record.rows_out:,} copied, {size_text(copied.record.bytes)}, {copied.record.seconds:.1f} s",
                err=True,
            )
            for content_id, error in copied.failures:
                echo_line(f"  {content_id}: {error}", err=True)
    queue = node.queues.open(QueueName.DUPLICATION_LOW)
    enqueue(planned, queue, copied=copied)
    put_space(node.stores.providers, pair, space, queue)
    return planned.plan, failed
