"""Read access to the contents of a node from many threads."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.anchoring.journal_reader import BatchHistogramBucket, JournalReader
from millstream.log import Log, LogSpec
from millstream.node import Node
from millstream.status.node_queues import NodeQueues


class NodeView:
    """The logs, queues and batches of *node*. What a server needs is opened at once, so that its start fails if one
    part cannot be opened.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.clock = node.clock
        for part in (node.logs, node.databases, node.anchoring, node.stores, node.mill):
            part.prepare()
        self.queues = NodeQueues(node)
        self.batches = JournalReader(node.databases.own)
        self._timeline: tuple[int, Sequence[BatchHistogramBucket]] | None = None

    def timeline(self) -> Sequence[BatchHistogramBucket]:
        """Numbers of batches by start time and end reason, counted again when batches were added."""
        last = self.batches.last_number()
        if self._timeline is None or self._timeline[0] != last:
            self._timeline = last, self.batches.starts()
        return self._timeline[1]

    def log(self, name: str) -> Log:
        """The log *name*. Raises :class:`~millstream.log.LogNotFoundError`, :class:`~millstream.log.LogInputError`."""
        return self.node.logs.store.log(LogSpec(name), create=False)
