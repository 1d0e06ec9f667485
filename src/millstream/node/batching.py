"""Batching on a node: its rules, its services and where these keep their states."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from millstream.batching import Rulebook
from millstream.batching.service import BatchService
from millstream.batching.service_state import batched_pair
from millstream.batching.ticks import Ticker
from millstream.core.metrics.hook import LabelledMetrics, Metrics
from millstream.log import LogSpec
from millstream.node.context import NodeContext
from millstream.node.logs import LogsPart


class BatchingPart:
    """Makes batch services on the node's logs."""

    def __init__(self, context: NodeContext, logs: LogsPart) -> None:
        self._context = context
        self._logs = logs
        self._pairs: dict[Path, tuple[int, tuple[str, str] | None]] = {}

    @property
    def rules(self) -> Rulebook:
        """The rules by which this node batches, with what is different for some sources and keys."""
        return self._context.settings.batching.rules

    def service(
        self, log: str, output: str, *, ticks: Ticker | None = None, metrics: Metrics | None = None
    ) -> BatchService:
        """Batches *log* into the log *output* by this node's rules, from where it was; closed with the node.

        *ticks* appends ticks to *log*: see :class:`BatchService`. Without *metrics* it reports to those of the node.
        """
        store, clock = self._logs.store, self._context.clock
        source, sink = store.log(LogSpec(log), create=False), store.log(LogSpec(output, kind="batches"))
        metrics = metrics or LabelledMetrics(self._context.metrics, log=log)
        service = BatchService(
            source, sink, self.rules, self.state_file(output), ticks=ticks, clock=clock, metrics=metrics
        )
        self._context.resources.callback(service.close)
        return service

    def batched_pairs(self) -> Sequence[tuple[str, str]]:
        """The logs that are batched, each with the log that gets its batches: those of the settings, and those of each
        batch service or stream that has a state in this folder, in whichever process it runs.
        """
        found = dict.fromkeys(self._context.settings.serve.batching.items())
        for path in sorted((self._context.folder / "batching").glob("*.state")):
            changed = path.stat().st_mtime_ns
            known = self._pairs.get(path)
            if known is None or known[0] != changed:
                known = self._pairs[path] = changed, batched_pair(path)
            if known[1] is not None:
                found[known[1]] = None
        return list(found)

    def state_file(self, output: str) -> Path:
        """The file with the progress of the service that batches into the log *output*."""
        folder = self._context.folder / "batching"
        folder.mkdir(exist_ok=True)
        return folder / f"{output}.state"
