"""``millstream pipeline operations``: submit and anchor the operations on identifiers in a log."""

from __future__ import annotations

import click
import msgspec

from millstream.cli.common import data_options, json_option, print_json
from millstream.cli.examples import example
from millstream.cli.spark_options import master_option
from millstream.cli.spark_progress import shown
from millstream.cli.stop_signals import end_if_stopped, stop_on_signals
from millstream.core.amounts import counted
from millstream.node import Node
from millstream.settings import Settings


@example("millstream pipeline operations operations")
@click.command("operations")
@click.argument("log")
@click.option("--available-now", is_flag=True, help="Process the existing messages, then exit.")
@click.option(
    "--per-trigger",
    type=click.IntRange(min=1),
    default=20_000,
    show_default=True,
    help="Maximum operations per trigger.",
)
@click.option(
    "--skip-failed",
    is_flag=True,
    help="Report operations that fail unexpectedly as refused (code internal), at most 1,000 in a run, and continue.",
)
@json_option
@data_options
@master_option
def operations_command(
    settings: Settings, *, log: str, available_now: bool, per_trigger: int, skip_failed: bool, as_json: bool
) -> None:
    """Submit and anchor the operations on identifiers in LOG, one JSON object per message, each once.

    Spark tasks verify them; the registry of the node accepts, batches and anchors them. The outcome of each message is
    in the log LOG.outcomes. It processes new messages until SIGTERM or Ctrl-C, and then anchors the rest.
    """
    from millstream.pipeline.jobs.operations import OperationsPlan, run_operations

    stop = stop_on_signals()
    with Node.open(settings, create=True) as node:
        registry = node.registry.instance
        folder = node.folder / "operations"
        folder.mkdir(exist_ok=True)
        plan = OperationsPlan(settings.log_url, log, folder / f"{log}.checkpoint", per_trigger)
        with node.spark.session(registered=False) as spark, shown(spark, "operations"), registry:
            registry.start()
            done = run_operations(
                spark, plan, registry.acceptance, registry.versions,
                available_now=available_now, skip_failed=skip_failed, stopped=stop, clock=node.clock,
            )  # fmt: skip
            registry.cut_once(force=True)
        head, waiting = node.registry.ledger.head(), registry.store.open_count()
    anchors = head.number if head else 0
    figures = {"job": "operations", "log": log, **msgspec.structs.asdict(done), "anchors": anchors, "waiting": waiting}
    if as_json:
        print_json(figures)
    else:
        click.echo(
            f"{log}: {counted(done.taken, 'operation')} accepted, {done.refused:,} refused (see {plan.outcomes}), "
            f"{counted(anchors, 'anchor')} in the ledger, {done.seconds:.1f} s"
        )
    if waiting and not as_json:
        click.echo(
            f"{waiting:,} operations wait for a retry or belong to another instance. If that instance sends "
            "no heartbeat for op_queue_task_expiration, this command or `millstream anchor serve` takes them over"
        )
    if available_now:
        end_if_stopped(stop)
