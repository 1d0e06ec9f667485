"""``millstream pipeline anchor``: batch and anchor the messages of a log."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
import msgspec

from millstream.anchoring.feed import AnchorSchedule
from millstream.cli.common import data_options, json_option, print_json
from millstream.cli.examples import example
from millstream.cli.log_owners import claim_logs
from millstream.cli.parameter_types import Duration
from millstream.cli.pipeline.log_stream import run_log_stream
from millstream.cli.spark_options import master_option
from millstream.cli.spark_progress import shown
from millstream.cli.stop_signals import end_if_stopped, stop_on_signals
from millstream.cli.stream_options import check_way, rules_of_option, stream_options
from millstream.core.amounts import counted
from millstream.log import LogSpec
from millstream.node import Node
from millstream.settings import Settings

if TYPE_CHECKING:
    from millstream.anchoring.feed import FeedProgress
    from millstream.pipeline.output.batch_sink import Trigger


@example("millstream pipeline anchor weather --flush")
@click.command("anchor")
@click.argument("log")
@click.option("--to", "last_id", type=click.IntRange(min=1), help="The last message id (default: the end of the log).")
@click.option(
    "--flush/--no-flush", default=False, show_default=True, help="Also anchor batches that later messages may change."
)
@rules_of_option
@click.option("--stream", is_flag=True, help="Keep running, and batch into the log --output.")
@stream_options
@click.option(
    "--every",
    type=Duration(),
    default="1m",
    show_default=True,
    help="With --stream: interval between anchors.",
)
@json_option
@data_options
@master_option
def anchor_command(settings: Settings, *, log: str, stream: bool, output: str | None, **given: Any) -> None:
    """Batch the messages of LOG, write the batch files, and anchor each batch once.

    Without --stream it processes the history, and leaves batches that later messages may change to the next run; use
    --flush only if LOG is complete. With --stream it keeps running: full anchors are written at once, others at the
    interval --every. --to, --flush and --rules-of are for runs without --stream. The log of batches is shared with
    `pipeline batch --stream` and `batch serve`. SIGTERM or Ctrl-C stops it.
    """
    check_way(stream=stream, history_options=["last_id", "flush", "rules_of"], stream_options=["every"])
    with Node.open(settings) as node:
        claim_logs(node, settings, log, *filter(None, [output]))
        began = node.clock.monotonic()
        stop: Callable[[], bool] = stop_on_signals() if output else bool
        done = _stream(node, log, output, stop, **given) if output else _history(node, log, **given)
        head = node.anchoring.ledger.head()
        seconds = round(node.clock.monotonic() - began, 3)
    figures = {
        "job": "anchor",
        "log": log,
        **msgspec.structs.asdict(done),
        "head": head.hash if head else None,
        "seconds": seconds,
    }
    if given["as_json"]:
        print_json(figures)
    else:
        click.echo(
            f"{log}: {counted(done.messages, 'message')} in {counted(done.batches, 'new batch')}, "
            f"{done.rejects:,} rejected, {done.known:,} "
            f"batches known, {counted(done.anchors, 'anchor')}, {seconds:.1f} s"
        )
        if head:
            click.echo(f"ledger entry {head.number}, {head.hash}")
    if given["available_now"]:
        end_if_stopped(stop)


def _history(node: Node, log: str, *, last_id: int | None, flush: bool, rules_of: str | None, **_: Any) -> FeedProgress:
    from millstream.anchoring.message_traces import trace_history
    from millstream.pipeline.jobs.anchor import anchor_history
    from millstream.pipeline.jobs.batch import run_batch

    rules = node.batching.rules_of(rules_of)
    with node.spark.session(registered=False) as spark:
        with shown(spark, "batch"):
            job = run_batch(
                spark, node.spark.jobs, node.settings.log_url, log, rules,
                last_id=last_id, flush=flush, clock=node.clock,
            )  # fmt: skip
        head, began = node.anchoring.ledger.head(), node.clock.now()
        with shown(spark, "anchor"):
            done = anchor_history(
                job,
                log,
                node.anchoring.batch_writer,
                rules.plain,
                spark=spark,
                cas=node.anchoring.cas_url,
                clock=node.clock,
            )
    span, source = job.record.inputs, node.logs.store.log(LogSpec(log), create=False)
    after = head.number if head else 0
    trace_history(
        node.anchoring.batch_writer.index, source, span["first_id"], span["last_id"], after=after, began=began
    )
    return done


def _stream(
    node: Node,
    log: str,
    output: str,
    stop: Callable[[], bool],
    *,
    available_now: bool,
    per_trigger: int,
    shards: int,
    ticks: bool,
    every: int,
    **_: Any,
) -> FeedProgress:
    feed = node.anchoring.feed(log, output)
    anchoring = AnchorSchedule(feed, node.clock, every)

    def anchor_trigger(_: Trigger) -> None:
        anchoring.when_full()

    def stopped() -> bool:
        anchoring.when_due()
        return stop()

    run_log_stream(
        node,
        log,
        output,
        available_now=available_now,
        per_trigger=per_trigger,
        shards=shards,
        ticks=ticks,
        stopped=stopped,
        on_trigger=anchor_trigger,
        shown_as="anchor",
    )
    feed.step(force=True)
    return feed.total
