"""``millstream batch serve``: batch a log into another log until it is stopped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import click
import msgspec

from millstream.anchoring.feed import AnchorSchedule
from millstream.batching.metrics import delay_quantiles
from millstream.batching.service import BatchService
from millstream.batching.ticks import idle_log_ticker
from millstream.cli.anchor.feed import print_handed
from millstream.cli.common import (
    json_option,
    log_options,
    metrics_option,
    own_settings,
    print_json,
    store_options,
    write_metrics,
)
from millstream.cli.examples import example
from millstream.cli.log_owners import claim_logs
from millstream.cli.parameter_types import Duration, Seconds
from millstream.cli.stop_signals import end_if_stopped, stop_on_signals
from millstream.core.amounts import counted
from millstream.core.clock import Clock
from millstream.core.metric_collection.collector import MetricsCollector
from millstream.log import LogSpec
from millstream.node import Node
from millstream.settings import Settings


class ServiceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a batch service: ``position`` and ``behind`` in messages of its log, the rest since it was started.

    ``delay_seconds`` is the time from event to receipt of a message: median, 99 % and maximum. ``settle_lag_seconds``
    is for how long the next batch has been due without the log having said so.
    """

    log: str
    output: str
    position: int
    behind: int
    batches: Mapping[str, int]
    cuts: Mapping[str, int]
    rejects: Mapping[str, int]
    open_sources: int
    settle_lag_seconds: float
    delay_seconds: Mapping[str, float]


class ServiceStatusPrinter:
    """Prints the status of *service* every *every* seconds, when :meth:`show_when_due` is called.

    The figures are put into *file* at the same times, if it is given, in the text format of Prometheus.
    """

    def __init__(
        self,
        log: str,
        output: str,
        service: BatchService,
        figures: MetricsCollector,
        clock: Clock,
        every: float,
        file: Path | None = None,
    ):
        self._log, self._output = log, output
        self._service, self._figures = service, figures
        self._clock, self._every, self._file = clock, every, file
        self._next = clock.monotonic() + every

    def show_when_due(self, *, as_json: bool) -> None:
        """Print a line if it is due."""
        if self._clock.monotonic() >= self._next:
            self.show(as_json=as_json)
            self._next = self._clock.monotonic() + self._every

    def show(self, *, as_json: bool) -> None:
        """Print a line."""
        found = self.status()
        write_metrics(self._file, self._figures)
        print_json(found) if as_json else click.echo(_line(found))

    def status(self) -> ServiceStatus:
        """The current status of the service."""
        figures = self._figures.figures()
        return ServiceStatus(
            log=self._log,
            output=self._output,
            position=self._service.position,
            behind=self._service.behind,
            batches=figures.by_label("batching_batches_total", "kind"),
            cuts=figures.by_label("batching_batches_total", "cut"),
            rejects=figures.by_label("batching_rejects_total", "reason"),
            open_sources=round(figures.gauges.get(("batching_open_sources", ()), 0)),
            settle_lag_seconds=figures.gauges.get(("batching_settle_lag_seconds", ()), 0.0),
            delay_seconds=delay_quantiles(figures),
        )


@example("millstream batch serve --log weather --output weather.batches --anchor")
@click.command("serve")
@click.option("--log", "log", metavar="LOG", required=True, help="Log to batch.")
@click.option("--output", metavar="LOG", required=True, help="Log of the batches; created if missing.")
@click.option(
    "--ticks/--no-ticks",
    default=True,
    show_default=True,
    help="Append ticks (messages with a time only) to the log --log, so that batches of quiet sources close.",
)
@click.option("--once", is_flag=True, help="Process the existing messages, then exit.")
@click.option("--anchor", is_flag=True, help="Also anchor the batches.")
@click.option(
    "--anchor-every", type=Duration(), default="1m", show_default=True, help="With --anchor: interval between anchors."
)
@click.option(
    "--status", "every", type=Seconds(), default="10s", show_default=True, help="Interval between status lines."
)
@metrics_option
@json_option
@store_options
@log_options
def serve_command(
    settings: Settings,
    *,
    log: str,
    output: str,
    ticks: bool,
    once: bool,
    anchor: bool,
    anchor_every: int,
    every: float,
    metrics_file: Path | None,
    as_json: bool,
) -> None:
    """Batch the messages of one log by event time into another log, by the rules in the settings.

    An interrupted service resumes with the same command; no message is lost or batched twice. If the time of an open
    batch is over and no message has arrived since, the service appends a tick to the log, which closes the batch,
    unless another process writes to the log. SIGTERM or Ctrl-C stops it after the current commit. The rules are in the
    section batching of the settings (`millstream config show`); rules of some sources or keys are in its
    [[batching.override]] tables. If a log is batched already, `millstream batch rules` lets other rules begin at a
    later time.
    """
    stop = stop_on_signals()
    with Node.open(settings) as node:
        source, figures = node.logs.store.log(LogSpec(log), create=False), MetricsCollector()
        claim_logs(node, own_settings(), log, output)
        ticker = idle_log_ticker(source, node.clock) if ticks else None
        service = node.batching.service(log, output, ticks=ticker, metrics=figures)
        status = ServiceStatusPrinter(
            log=log, output=output, service=service, figures=figures, clock=node.clock, every=every, file=metrics_file
        )
        anchoring = AnchorSchedule(node.anchoring.feed(log, output), node.clock, anchor_every) if anchor else None
        serve(service, status, stop, anchoring, once=once, as_json=as_json)
    if once:
        end_if_stopped(stop)


def serve(
    service: BatchService,
    status: ServiceStatusPrinter,
    stop: Callable[[], bool],
    anchoring: AnchorSchedule | None = None,
    *,
    once: bool,
    as_json: bool,
) -> None:
    """Run *service* until *stop* returns True, or *once* over the existing messages; print *status* when it is due.

    With *anchoring* the batches are anchored when they are due, and all of them in the end.
    """

    def between() -> None:
        status.show_when_due(as_json=as_json)
        if anchoring is not None:
            anchoring.when_due()

    if once:
        service.step(stop, between)
    else:
        service.run(stop, between)
    status.show(as_json=as_json)
    if anchoring is not None:
        anchoring.feed.step(force=True)
        print_handed(anchoring.feed.total, as_json=as_json)


def _line(found: ServiceStatus) -> str:
    batches, refused = sum(found.batches.values()), sum(found.rejects.values())
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(found.rejects.items()))
    return (
        f"{found.log} to {found.output}: at {found.position:,}, {found.behind:,} behind; {counted(batches, 'batch')}, "
        f"{refused:,} rejected{f' ({reasons})' if reasons else ''}; {found.open_sources:,} sources open"
    )
