"""The messages of a topic's log by id, with what was read last kept decoded."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Sequence

from pyarrow import RecordBatch

from millstream.core.message import from_arrow
from millstream.log import Batch, DamagedLogError, Gap, Log, LogError, Message
from millstream.log.errors import WHY_SHORTER

# Runs of blocks, and their bytes: a run has up to a MiB, or is one block, which is larger if its messages are. In
# memory, the compressed blocks come on top.
_KEPT, _KEPT_BYTES = 16, 16 << 20  # decoded runs; the one that was read last is always kept
_AHEAD, _AHEAD_BYTES = 4, 4 << 20  # read at once for a consumer that takes one message after the other


class MessageCache:
    """Reads *log*; a run of blocks is decoded once for many calls. For one event loop."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._batches: OrderedDict[int, Batch] = OrderedDict()
        self._bytes = 0

    async def read(self, first_id: int, last_id: int) -> Sequence[Message]:
        """Messages from *first_id* on, as many of those up to *last_id* as come at once; none where it was trimmed.

        Both must be durable. Raises :class:`millstream.log.LogError` for what is damaged.
        """
        found = await self.read_columns(first_id, last_id)
        return [] if found is None else list(from_arrow(found))

    async def read_columns(self, first_id: int, last_id: int) -> RecordBatch | None:
        """The result of :meth:`read` as columns (``MESSAGE_SCHEMA``); None if it was trimmed."""
        batch = self._find(first_id)
        if batch is None:
            is_continued = self._find(first_id - 1) is not None
            loaded = await asyncio.to_thread(self._load, first_id, last_id, _AHEAD if is_continued else 1)
            if not loaded:
                return None
            for each in reversed(loaded):
                self._keep(each)
            batch = loaded[0]
        start = first_id - batch.first_id
        return batch.arrow.slice(start, last_id - first_id + 1)

    async def read_ids(self, ids: Sequence[int], most_bytes: int | None = None) -> dict[int, Message]:
        """The messages *ids* (ascending), without those that were trimmed.

        Once their bodies have *most_bytes* bytes together, no further ones are read.
        """
        found: dict[int, Message] = {}
        wanted = set(ids)
        size = 0
        for number in ids:
            if number not in found:
                if most_bytes is not None and size >= most_bytes:
                    break
                last = number
                while last + 1 in wanted:
                    last += 1
                messages = await self.read(number, last)
                found.update((message.id, message) for message in messages)
                size += sum(len(message.body) for message in messages)
        return found

    def _find(self, number: int) -> Batch | None:
        for first, batch in reversed(self._batches.items()):
            if first <= number <= batch.last_id:
                self._batches.move_to_end(first)
                return batch
        return None

    def _load(self, first_id: int, last_id: int, count: int) -> list[Batch]:
        """The next *count* runs of blocks from *first_id* on, or about :data:`_AHEAD_BYTES` of them; none where it was
        trimmed. They are whole, as their messages are decoded together, and decoded: it is called in a thread, so that
        the event loop does not stand still meanwhile."""
        batches = iter(self._log.read(first_id, max(last_id, first_id + 1024 * count - 1)))
        first = next(batches, None)
        if first is None:
            raise DamagedLogError(f"log {self._log.name!r} ends before message {first_id}, which it had: {WHY_SHORTER}")
        if isinstance(first, Gap):
            return []
        found, size = [_decoded(first)], first.raw_bytes
        with contextlib.suppress(LogError, StopIteration):  # an error is told to the call that asks for those messages
            while len(found) < count and size < _AHEAD_BYTES and not isinstance(batch := next(batches), Gap):
                found.append(_decoded(batch))
                size += batch.raw_bytes
        return found

    def _keep(self, batch: Batch) -> None:
        former = self._batches.pop(batch.first_id, None)
        self._batches[batch.first_id] = batch
        self._bytes += batch.raw_bytes - (0 if former is None else former.raw_bytes)
        while len(self._batches) > 1 and (len(self._batches) > _KEPT or self._bytes > _KEPT_BYTES):
            _, oldest = self._batches.popitem(last=False)
            self._bytes -= oldest.raw_bytes


def _decoded(batch: Batch) -> Batch:
    """The whole run of blocks of *batch*, which keeps what is decoded here."""
    run = batch.extended()
    run.decode(None)
    return run
