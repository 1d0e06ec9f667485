"""The messages of a topic's log by id, with what was read last kept decoded."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import OrderedDict
from collections.abc import Sequence

from pyarrow import RecordBatch

from millstream.core.message import from_arrow
from millstream.log import Batch, Gap, Log, LogError, Message

_KEPT = 16  # decoded runs of blocks, each of about a MiB
_AHEAD = 4  # runs that are read at once for a consumer that takes messages one after the other


class MessageCache:
    """Reads *log*; a run of blocks is decoded once for many calls. For one event loop."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._batches: OrderedDict[int, Batch] = OrderedDict()

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

    async def read_ids(self, ids: Sequence[int]) -> dict[int, Message]:
        """The messages *ids* (ascending), without those that were trimmed."""
        found: dict[int, Message] = {}
        wanted = set(ids)
        for number in ids:
            if number not in found:
                last = number
                while last + 1 in wanted:
                    last += 1
                found.update((message.id, message) for message in await self.read(number, last))
        return found

    def _find(self, number: int) -> Batch | None:
        for first, batch in reversed(self._batches.items()):
            if first <= number <= batch.last_id:
                self._batches.move_to_end(first)
                return batch
        return None

    def _load(self, first_id: int, last_id: int, count: int) -> list[Batch]:
        """The next *count* runs of blocks from *first_id* on, whole, as their messages are decoded together; none where
        it was trimmed."""
        batches = iter(self._log.read(first_id, max(last_id, first_id + 1024 * count - 1)))
        found = [next(batches)]
        with contextlib.suppress(LogError):  # it is told to the call that asks for those messages
            found += itertools.islice(batches, count - 1)
        return [batch.extended() for batch in itertools.takewhile(lambda batch: not isinstance(batch, Gap), found)]

    def _keep(self, batch: Batch) -> None:
        self._batches[batch.first_id] = batch
        self._batches.move_to_end(batch.first_id)
        while len(self._batches) > _KEPT:
            self._batches.popitem(last=False)
