"""``millstream pipeline integrity``: read and verify all copies on Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from millstream.cli.common import data_options, json_option, print_json
from millstream.cli.examples import example
from millstream.cli.mill.space_options import asked_spaces
from millstream.cli.parameter_types import Duration, SizeType
from millstream.cli.pipeline.report import echo_report
from millstream.cli.pipeline.run_options import name_option, run_name, space_option
from millstream.cli.spark_options import master_option
from millstream.cli.spark_progress import shown
from millstream.core.amounts import size_text
from millstream.mill.reports.report import ReportResult, SpaceTally
from millstream.node import Node
from millstream.settings import Settings
from millstream.stores import StoreError

if TYPE_CHECKING:
    from millstream.pipeline.jobs.report import JudgedSweep, SpaceSweep
    from millstream.pipeline.planning.due_items import DueRule


@example("millstream pipeline integrity --older-than 30d")
@click.command("integrity")
@name_option
@space_option
@click.option("--older-than", type=Duration(), help="Read only copies that are due at this age, such as 30d.")
@click.option(
    "--budget",
    type=SizeType(),
    help="Maximum size to read, such as 500GB; most urgent copies first (default: no limit).",
)
@json_option
@data_options
@master_option
def integrity_command(
    settings: Settings, *, name: str | None, spaces: tuple[str, ...], older_than: int | None, budget: int | None,
    as_json: bool,
) -> int:  # fmt: skip
    """Read and verify every copy on every store.

    With --older-than everything is listed and compared with the manifest, but only due copies are read. A copy is due
    if it contradicts the manifest, if it failed its last check, if it was never verified, or if it was last verified
    longer ago than the age of --older-than (half of this age if there is no other copy).

    Exit code 0 if everything was listed, the policies could be read, and every copy that is due (without --older-than:
    every copy) was checked and found intact; 1 otherwise, even if --budget postponed a copy.
    """
    from millstream.pipeline.planning.due_items import DueRule

    due, errors = DueRule(older_than or 0, budget), list[str]()
    with Node.open(settings) as node:
        judged = _sweep(node, name, spaces, due)
        failed = frozenset(node.stores.manifest.failed_since(judged.started_at()))
        overtaken = node.mill.checks.recheck_superseded(judged.findings(failed))
        node.mill.checks.writer.write(judged.results(overtaken))
        unrecorded = node.mill.checks.check_unrecorded(spaces, judged.results)
        reporter = node.mill.reports.reporter
        found = [
            msgspec.structs.replace(space, report=reporter.keep(space.report))
            for space in judged.spaces(overtaken, unrecorded)
        ]
        found += _empty_copies(node, found, errors)
    _print_spaces(found, as_json=as_json)
    return 0 if not errors and all(space.report.result == ReportResult.SUCCESS for space in found) else 1


def _empty_copies(node: Node, found: Sequence[SpaceSweep], errors: list[str]) -> list[SpaceSweep]:
    """Reports on copies of the spaces *found* that have neither listed nor recorded items; *errors* gets the reason if
    the policies cannot be read."""
    from millstream.pipeline.jobs.report import SpaceSweep

    providers, reporter, reports = node.stores.providers, node.mill.reports.reporter, list[SpaceSweep]()
    places = {(space.report.store, space.report.space) for space in found}
    for store, space in sorted(asked_spaces(node, places, errors) - places):
        if node.stores.manifest.count(store, space):
            continue  # nothing of it was due
        tally, now = SpaceTally(), node.clock.now()
        try:
            providers.spaces(store)
        except StoreError as error:
            tally.fail(f"the listing stopped before its end: {error}")
        reports.append(SpaceSweep(reporter.keep(reporter.make(tally, store, space, since=now, until=now)), 0.0))
    return reports


def _sweep(node: Node, name: str | None, spaces: tuple[str, ...], due: DueRule) -> JudgedSweep:
    from millstream.pipeline.jobs.integrity import run_integrity
    from millstream.pipeline.jobs.report import run_report
    from millstream.pipeline.planning.due_items import EVERYTHING

    jobs, stores = node.spark.jobs, node.settings.store_urls
    rule = {} if due == EVERYTHING else {"due": msgspec.to_builtins(due)}
    run = name or run_name(node, "integrity", "sweep", spaces, **rule)
    with node.spark.session(registered=False) as spark, shown(spark, "integrity"):
        sweep = run_integrity(
            spark, jobs, run, stores, node.stores.manifest.batches(), spaces=spaces or None, due=due, clock=node.clock
        )
        return run_report(spark, jobs, sweep, clock=node.clock)


def _print_spaces(found: list[SpaceSweep], *, as_json: bool) -> None:
    for space in found:
        if as_json:
            figures: dict[str, Any] = {"seconds": space.seconds, "bytes_per_second": round(space.rate)}
            print_json(msgspec.to_builtins(space.report) | figures)
        else:
            echo_report(space.report)
            click.echo(f"  {size_text(space.report.bytes)} read, {size_text(space.rate)}/s on one core")
