"""``millstream pipeline batch``: batch the history of a log, or a growing log."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from millstream.cli.common import json_option, metrics_option, own_settings, print_json, store_options, write_metrics
from millstream.cli.examples import example
from millstream.cli.log_owners import claim_logs
from millstream.cli.pipeline.log_stream import run_log_stream
from millstream.cli.spark_options import master_option
from millstream.cli.spark_progress import shown
from millstream.cli.stop_signals import end_if_stopped, stop_on_signals
from millstream.cli.stream_options import check_way, rules_of_option, stream_options
from millstream.core.amounts import counted, size_text
from millstream.core.metric_collection.collector import MetricsCollector
from millstream.log import LogSpec, user_log
from millstream.node import Node
from millstream.settings import Settings

if TYPE_CHECKING:
    from millstream.pipeline.output.batch_sink import Trigger
    from millstream.pipeline.output.job_folder import JobRecord


@example("millstream pipeline batch weather --flush")
@click.command("batch")
@click.argument("log")
@click.option("--to", "last_id", type=click.IntRange(min=1), help="The last message id (default: the end of the log).")
@click.option(
    "--flush/--no-flush",
    default=False,
    show_default=True,
    help="Close open batches at the end. Use it for complete logs only: on a growing log it splits batches.",
)
@click.option(
    "--hand-over", metavar="LOG", help="Leave open batches to a later --stream or `batch serve` that batches into LOG."
)
@rules_of_option
@click.option("--stream", is_flag=True, help="Keep running, and batch into the log --output.")
@stream_options
@metrics_option
@json_option
@store_options
@master_option
def batch_command(settings: Settings, *, log: str, stream: bool, output: str | None, **given: Any) -> None:
    """Batch the messages of LOG by event time, by the rules in the settings.

    Without --stream it is a job over the history that writes Parquet files: of the batches that no message can change
    any more, and with --flush also of the others, the open ones. With --stream it keeps running like `millstream batch
    serve` and shares its log of batches and its state: either can resume the other's work. SIGTERM or Ctrl-C stops it.
    --to, --flush, --hand-over and --rules-of are for a job without --stream, --metrics for one with it.
    """
    history_options = ["last_id", "flush", "hand_over", "rules_of"]
    check_way(stream=stream, history_options=history_options, stream_options=["metrics_file"])
    if output:
        _stream(settings, log, output, **given)
    else:
        _history(settings, log, **given)


def _history(
    settings: Settings,
    log: str,
    *,
    last_id: int | None,
    flush: bool,
    hand_over: str | None,
    rules_of: str | None,
    as_json: bool,
    **_: Any,
) -> None:
    from millstream.pipeline.jobs import batch as history

    if flush and hand_over:
        raise click.UsageError(
            "--flush and --hand-over cannot be combined: --flush leaves no open records to hand over"
        )
    if rules_of and hand_over:
        raise click.UsageError(
            "--rules-of and --hand-over cannot be combined: a new output log begins with the rules in the settings; "
            "omit --rules-of"
        )
    if hand_over:
        user_log(hand_over)
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(Node.open(settings))
        if hand_over:
            node.logs.store.log(LogSpec(log), create=False)
            claim_logs(node, own_settings(), log, hand_over)
        spark = stack.enter_context(node.spark.session(registered=False))
        stack.enter_context(shown(spark, "batch"))
        jobs, rules = node.spark.jobs, node.batching.rules_of(rules_of)
        job = history.run_batch(
            spark, jobs, settings.log_url, log, rules, last_id=last_id, flush=flush, clock=node.clock
        )
        if hand_over:
            history.hand_over(
                job, node.logs.store.log(LogSpec(hand_over, kind="batches")), node.batching.state(hand_over)
            )
    print_record(job.record, job.data, as_json=as_json, reused=job.reused)


def _stream(
    settings: Settings,
    log: str,
    output: str,
    *,
    available_now: bool,
    per_trigger: int,
    shards: int,
    ticks: bool,
    metrics_file: Path | None,
    as_json: bool,
    **_: Any,
) -> None:
    stop, figures = stop_on_signals(), MetricsCollector()

    def tell(trigger: Trigger) -> None:
        write_metrics(metrics_file, figures)
        print_json(trigger) if as_json else _print_trigger(trigger)

    with Node.open(settings) as node:
        node.logs.store.log(LogSpec(log), create=False)  # a mistyped store gets no note
        claim_logs(node, own_settings(), log, output)
        done = run_log_stream(
            node,
            log,
            output,
            available_now=available_now,
            per_trigger=per_trigger,
            shards=shards,
            ticks=ticks,
            stopped=stop,
            on_trigger=tell,
            figures=figures,
        )
    if as_json:
        print_json(done)
    else:
        click.echo(
            f"{log} to {output}: at {done.position:,}; {counted(done.messages, 'message')}, "
            f"{counted(done.batches, 'batch')}, "
            f"{done.rejected:,} rejected in {done.seconds:.1f} s"
        )
    if available_now:
        end_if_stopped(stop)


def _print_trigger(trigger: Trigger) -> None:
    said = " (had been written)" if trigger.repeated else ""
    click.echo(
        f"  {trigger.first_id:,} to {trigger.last_id:,}: {counted(trigger.batches, 'batch')}, "
        f"{trigger.rejected:,} rejected, "
        f"{trigger.open_sources:,} sources open, {trigger.seconds:.1f} s{said}"
    )


def print_record(record: JobRecord, data: Path, *, as_json: bool, reused: bool) -> None:
    """Print the figures of a finished job whose output is the table in the folder *data*."""
    from millstream.pipeline.result_parts import shown_place

    place = shown_place(data)
    if as_json:
        print_json(msgspec.to_builtins(record) | {"data": place, "reused": reused})
        return
    counts = ", ".join(f"{count:,} {name}" for name, count in record.counts.items())
    done = "done before" if reused else f"{record.seconds:.1f} s"
    click.echo(f"{record.job}: {record.rows_in:,} in, {record.rows_out:,} out, {size_text(record.bytes)}, {done}")
    if counts:
        click.echo(f"  {counts}")
    click.echo(f"  {place}")
