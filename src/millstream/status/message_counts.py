"""How many messages of each log are in batches, and how many were rejected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from millstream.log import DATA_KINDS
from millstream.status.models import BatchedLog, LogRow
from millstream.status.node_view import NodeView

_MOST_READS = 5


class MessageCounts(msgspec.Struct, frozen=True):
    """The messages ``in_batches`` and those ``rejected``, by log; ``batched`` are the logs that have batches, or that
    the settings batch."""

    batched: frozenset[str] = frozenset()
    in_batches: Mapping[str, int] = {}
    rejected: Mapping[str, int] = {}


def count_messages(view: NodeView) -> MessageCounts:
    """Count the messages from the journal and from the index of anchors, each message once.

    A batch moves from the journal to the index when its anchor is observed. So both are read again where the index
    went on in between, and the journal leaves out what is in the index already.
    """
    node, journal, index = view.node, view.batches, view.node.anchoring.observer.index
    for _ in range(_MOST_READS):
        position = index.position()
        observed = index.messages_by_log()
        open_ = journal.open_messages(position[0] if position else 0)
        if index.position() == position:
            break
    in_batches, rejected, named = Counter[str](), Counter[str](), Counter[str]()
    for count in journal.rejects():
        named[count.log] += count.messages
    for log in {*observed, *named}:
        in_batches[log], refused = observed.get(log, (0, 0))
        rejected[log] = max(refused, named[log])
    for one in open_:
        in_batches[one.log] += one.messages
        rejected[one.log] += one.refused
    batched = frozenset({*journal.logs(), *observed, *node.settings.serve.batching})
    return MessageCounts(batched, in_batches, rejected)


def batched_logs(counts: MessageCounts, rows: Sequence[LogRow]) -> Sequence[BatchedLog]:
    """The outcome of the messages of each log of messages of *rows*, which are to be newer than *counts*: then no log
    has more messages in batches than it has."""
    found = list[BatchedLog]()
    for row in rows:
        if row.kind not in DATA_KINDS:
            continue
        is_batched, in_batches = row.log in counts.batched, counts.in_batches.get(row.log, 0)
        rejected = counts.rejected.get(row.log, 0)
        neither = max(0, row.last_id - in_batches - rejected) if is_batched else 0
        found.append(BatchedLog(row.log, is_batched, row.last_id, in_batches, rejected, neither))
    return found
