"""The status of an ingest, as the command line shows it."""

from __future__ import annotations

from collections.abc import Mapping

import click
import msgspec

from millstream.cli.common import print_json
from millstream.core.amounts import counted
from millstream.core.clock import Clock
from millstream.core.metric_collection.collector import MetricsCollector
from millstream.log import Log


class IngestStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of an ingest since its start; ``last_id`` is the last id of its log. ``rejects`` are invalid messages;
    ``batches``, ``refused`` and ``open_sources`` are the batcher's counts.
    """

    log: str
    last_id: int
    connected: bool
    connections: int
    messages: int
    redelivered: int
    records: int
    rejects: Mapping[str, int]
    batches: Mapping[str, int]
    refused: Mapping[str, int]
    open_sources: int


class IngestStatusPrinter:
    """Prints the status of the ingest into *log*, every *every* seconds when :meth:`show_when_due` is called."""

    def __init__(self, log: Log, figures: MetricsCollector, clock: Clock, every: float, *, as_json: bool) -> None:
        self._log, self._figures, self._clock, self._every, self._as_json = log, figures, clock, every, as_json
        self._next = clock.monotonic() + every

    def show_when_due(self) -> None:
        """Print a line if it is due."""
        if self._clock.monotonic() >= self._next:
            self.show()
            self._next = self._clock.monotonic() + self._every

    def show(self) -> None:
        """Print a line."""
        found = self.status()
        print_json(found) if self._as_json else click.echo(_line(found))

    def status(self) -> IngestStatus:
        """The current status of the ingest."""
        figures, log = self._figures.figures(), self._log
        return IngestStatus(
            log=log.name,
            last_id=log.last_id,
            connected=bool(figures.gauges.get(("ingest_connected", ()))),
            connections=figures.by_label("ingest_connections_total", "").get("", 0),
            messages=figures.by_label("ingest_messages_total", "").get("", 0),
            redelivered=figures.by_label("ingest_redelivered_total", "").get("", 0),
            records=figures.by_label("ingest_records_total", "").get("", 0),
            rejects=figures.by_label("ingest_rejects_total", "reason"),
            batches=figures.by_label("batching_batches_total", "kind"),
            refused=figures.by_label("batching_rejects_total", "reason"),
            open_sources=round(figures.gauges.get(("batching_open_sources", ()), 0)),
        )


def _line(found: IngestStatus) -> str:
    aside = sum(found.rejects.values())
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(found.rejects.items()))
    return (
        f"{found.log}: {'connected' if found.connected else 'not connected'}; {counted(found.messages, 'message')}, "
        f"{found.records:,} records, {aside:,} rejected{f' ({reasons})' if reasons else ''}"
    )
