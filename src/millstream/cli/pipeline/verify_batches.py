"""``millstream pipeline verify-batches``: recompute a range of a log, and compare it with the stored batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from millstream.cli.common import json_option, print_json, store_options
from millstream.cli.examples import example
from millstream.cli.spark_options import master_option
from millstream.cli.spark_progress import shown
from millstream.core.amounts import counted
from millstream.node import Node
from millstream.settings import Settings

if TYPE_CHECKING:
    from millstream.pipeline.jobs.verify_batches import BatchMismatch, BatchVerification


@example("millstream pipeline verify-batches weather --batches weather.batches")
@click.command("verify-batches")
@click.argument("log")
@click.option("--batches", "output", metavar="BATCHES", required=True, help="Log with the batches of LOG.")
@click.option("--first", "first_id", type=click.IntRange(min=1), help="First message id (default: the first of LOG).")
@click.option("--last", "last_id", type=click.IntRange(min=1), help="Last message id (default: the last batched one).")
@click.option(
    "--limit", type=click.IntRange(min=0), default=100, show_default=True, help="Maximum number of differences to list."
)
@json_option
@store_options
@master_option
def verify_command(
    settings: Settings, *, log: str, output: str, first_id: int | None, last_id: int | None, limit: int, as_json: bool
) -> int:
    """Batch a range of LOG again, and compare the result with the existing batches.

    Exit code 1 if a batch or rejected message is missing, extra, different or duplicated. If the range does not begin
    with the log, its first batches can depend on messages before it: they are not compared. After `pipeline batch
    --hand-over`, batches of that job are counted separately: they are in the job's own files.
    """
    from millstream.pipeline.jobs.verify_batches import verify_batches

    with Node.open(settings, reads=True) as node:
        rules = node.batching.rules_of(output)  # before Spark starts, which makes folders in the node's folder
        with node.spark.session(registered=False) as spark, shown(spark, "verify-batches"):
            found = verify_batches(
                spark, settings.log_url, log, output, rules,
                first_id=first_id, last_id=last_id, limit=limit, clock=node.clock,
            )  # fmt: skip
    print_json(found) if as_json else _show(found)
    return 0 if found.is_whole else 1


def _show(found: BatchVerification) -> None:
    said = "the same" if found.is_whole else "DIFFERENT"
    click.echo(
        f"{found.log} {found.first_id:,} to {found.last_id:,} and {found.output}: {said}; "
        f"{counted(found.agreed, 'batch')} and "
        f"{found.rejects_agreed:,} rejected messages agree, in {found.seconds:.1f} s"
    )
    if found.unjudged:
        click.echo(f"  {counted(found.unjudged, 'batch')} at the beginning of the range were not compared")
    if found.of_history:
        click.echo(
            f"  {found.of_history:,} batches were closed before the hand-over: the job over existing messages has them"
        )
    for kind, count in found.differences.items():
        click.echo(f"  {count:,} {kind.replace('_', ' ')}")
    for finding in found.findings:
        click.echo(f"  {_line(finding)}")


def _line(finding: BatchMismatch) -> str:
    if finding.message is not None:
        return f"{finding.kind}: message {finding.message} of the log of batches"
    times = f" ({finding.times} times)" if finding.times > 1 else ""
    if finding.rejected is not None:
        return f"{finding.kind}: message {finding.rejected}, {finding.reason}{times}"
    return f"{finding.kind}: batch {finding.batch} of {finding.source!r} from {finding.start}{times}"
