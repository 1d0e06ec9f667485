"""A topic: a log with a type, shared out over queues."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
from pyarrow import RecordBatch

from millstream.core.clock import Clock, SystemClock
from millstream.log import (
    FencedError,
    Gap,
    LogError,
    LogSpec,
    LogStore,
    Message,
    Writer,
    WriterBusyError,
    WriterFailedError,
)
from millstream.messaging.async_batcher import AsyncBatcher, Patience
from millstream.messaging.batch_accumulator import BatchingLimits
from millstream.messaging.broker.storage.deduplication_index import DEDUPLICATION_WINDOW, DeduplicationIndex, NameRun
from millstream.messaging.broker.storage.message_cache import MessageCache
from millstream.messaging.broker.storage.wire_codec import ID
from millstream.messaging.errors import StatusError, TopicError, TopicNotFoundError
from millstream.messaging.protocol import v2
from millstream.messaging.protocol.siphash import group_queue

TYPES: Final = ("NORMAL", "FIFO", "DELAY", "TRANSACTION")
MAX_QUEUES: Final = 256
MIN_COLUMNS: Final = 64
"""Calls with fewer messages go together, and cost less as objects than as columns."""
PATIENCE: Final = Patience(items=16, times=3.0, seconds=0.005)
"""For calls with few messages: a commit costs the processor as much as several of them."""
REPLACE_SECONDS: Final = 1.0
"""How long a topic whose log cannot be written to refuses messages before it tries again to write."""

_KINDS: Final[dict[str, int]] = {name: v2.MessageType.Value(name) for name in TYPES}
_log = logging.getLogger(__name__)
_NAME: Final = re.compile(r"[%a-zA-Z0-9_][%a-zA-Z0-9_-]{0,126}")


class TopicSpec(msgspec.Struct, frozen=True):
    """The description of a topic. ``name`` is 1 to 127 letters, digits and ``_ % -``; ``type`` one of :data:`TYPES`."""

    name: str
    type: str = "NORMAL"
    queues: int = 4

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise TopicError(
                f"invalid topic name {self.name[:80]!r}: use 1 to 127 letters, digits, '_', '%' and "
                "'-', and do not begin with '-'"
            )
        if self.type not in TYPES:
            raise TopicError(f"invalid topic type {self.type!r}: choose one of {', '.join(TYPES)}")
        if not 1 <= self.queues <= MAX_QUEUES:
            raise TopicError(f"topic {self.name!r} must have 1 to {MAX_QUEUES} queues, not {self.queues}")

    @property
    def kind(self) -> int:
        """The protocol's number of its type."""
        return _KINDS[self.type]


def changes_topic(found: TopicSpec | None, spec: TopicSpec) -> bool:
    """Whether there is something to do to create *spec* where its name has the topic *found*.

    Raises :class:`TopicError` where that is another topic.
    """
    if found is not None and found.type != spec.type:
        raise TopicError(
            f"topic {spec.name} already exists with messages of type {found.type}, not {spec.type}: choose another name"
        )
    if found is not None and found.queues > spec.queues:
        raise TopicError(
            f"topic {spec.name} already has {found.queues} queues: use {found.queues} or more, not {spec.queues}"
        )
    return found != spec


def missing_topic(name: str) -> TopicNotFoundError:
    """The error of an administration call that names an unknown topic."""
    return TopicNotFoundError(f"there is no topic {name}; `millstream topic list` lists all topics")


def no_topic(name: str) -> StatusError:
    """The error of a call that names an unknown topic."""
    return StatusError(v2.TOPIC_NOT_FOUND, f"there is no topic {name}; create it with `millstream topic create {name}`")


class Topic:
    """The log of *spec* in *store*, open for writing. For one event loop."""

    def __init__(self, spec: TopicSpec, store: LogStore, clock: Clock | None = None) -> None:
        self.spec = spec
        self._clock = clock or SystemClock()
        self._replace_from = 0.0  # on that clock: when a writer that failed may be replaced
        self._log = store.log(LogSpec(spec.name, kind="topic"))
        self._writer: Writer = self._log.writer("broker")
        self._is_closed = False
        self._turns = itertools.count()
        self._known: DeduplicationIndex | None = None
        self._reading_known = asyncio.Lock()
        self._batcher = AsyncBatcher(
            self._publish_together, BatchingLimits(max_in_flight=1), failure=_append_failure, patience=PATIENCE
        )
        self.message_cache = MessageCache(self._log)

    @property
    def writer(self) -> Writer:
        """The writer of its log, which others in this process may append by too; another one after it failed."""
        return self._writer

    @property
    def last_id(self) -> int:
        """The last durable message (0 in an empty topic)."""
        return self._writer.last_id

    @property
    def first_id(self) -> int:
        """The first message that its log still has; what lay before was trimmed."""
        return self._log.first_id

    def first_id_since(self, time: int) -> int:
        """The first message that was stored at *time* (microseconds) or later; one past the end without."""
        return self._log.first_id_since(time)

    def assign_queue(self, group: str) -> int | None:
        """The queue of the next message, of the message group *group* if it has one; None where there is but one."""
        queues = self.spec.queues
        if queues == 1:
            return None
        return group_queue(group, queues) if group else next(self._turns) % queues

    def assign_queues(self, count: int, group: str) -> npt.NDArray[np.int64] | None:
        """Like :meth:`assign_queue`, of the next *count* messages, which have the same message group or none."""
        queues = self.spec.queues
        if queues == 1:
            return None
        if group:
            return np.full(count, group_queue(group, queues))
        begin = next(self._turns)
        self._turns = itertools.count(begin + count)
        return np.arange(begin, begin + count) % queues

    async def publish(self, messages: Sequence[Message]) -> Sequence[int]:
        """Append *messages* and return their ids once they are durable.

        One whose id of the protocol is remembered is not appended again: its first id is returned. Calls with few
        messages that come while others are being stored are appended together. Raises the log's errors; after a commit
        that failed the same messages may be published again.
        """
        if len(messages) >= MIN_COLUMNS:
            return await self.publish_columns([_name(message) for message in messages], messages)
        return await self._batcher.submit(messages, count=len(messages))

    async def publish_columns(
        self, names: Sequence[bytes] | NameRun, messages: Sequence[Message] | RecordBatch
    ) -> Sequence[int]:
        """Like :meth:`publish`, of *messages* whose ids of the protocol are *names*; in one append."""
        known = await self._known_ids()
        if self._is_closed:
            raise _being_changed()
        writer = self._writer
        try:
            ids = self._append_new(known, names, messages)
            await writer.durable_async(max(ids))
        except (WriterFailedError, FencedError):
            self._replace(writer)
            raise
        return ids

    def replace_failed_writer(self) -> bool:
        """Take another writer where this one has failed, by a lease that it could not renew, say: without a send
        nothing else would, and what other processes wrote meanwhile would not be seen. Whether it was replaced.
        """
        writer = self._writer
        try:
            writer.append_nowait([])
        except (WriterFailedError, FencedError):
            with contextlib.suppress(LogError):
                self._replace(writer)
        return self._writer is not writer

    def close(self) -> None:
        """Close the log, so that another writer can open it."""
        self._is_closed = True
        self._batcher.close()
        self._writer.close()

    async def _publish_together(self, calls: Sequence[Sequence[Message]]) -> Sequence[Sequence[int]]:
        """Append the messages of all *calls*; the ids of each."""
        messages = list(itertools.chain.from_iterable(calls))
        ids = await self.publish_columns([_name(message) for message in messages], messages)
        ends = list(itertools.accumulate(map(len, calls)))
        return [ids[end - len(call) : end] for call, end in zip(calls, ends, strict=True)]

    async def _known_ids(self) -> DeduplicationIndex:
        """The ids of the last messages. The first call reads them, in a thread; calls that wait for it go on in their
        order, before later ones.
        """
        async with self._reading_known:
            if self._known is None and self.last_id:
                self._known = await asyncio.to_thread(self._read_known)
            elif self._known is None:
                self._known = DeduplicationIndex(DEDUPLICATION_WINDOW)
            return self._known

    def _read_known(self) -> DeduplicationIndex:
        known = DeduplicationIndex(DEDUPLICATION_WINDOW)
        first = max(self.last_id - DEDUPLICATION_WINDOW + 1, self.first_id)
        for batch in self._log.read(first, columns=["headers"], gaps="all"):
            if isinstance(batch, Gap) and batch.reason != "trimmed":
                _log.warning(
                    "messages %d to %d of topic %s cannot be read (%s): one that is sent again is stored again",
                    batch.first_id,
                    batch.last_id,
                    self.spec.name,
                    batch.reason,
                )
            found = list(_ids_of_clients(batch.arrow.column("headers")))
            known.add([name for _, name in found], [batch.first_id + row for row, _ in found])
        return known

    def _append_new(
        self,
        known: DeduplicationIndex,
        names: Sequence[bytes] | NameRun,
        messages: Sequence[Message] | RecordBatch,
    ) -> Sequence[int]:
        if isinstance(names, NameRun):
            if known.contains_none(names):
                begin = self._append(messages)
                known.add_run(names, begin)
                return range(begin, begin + len(names))
            names = names.names()
        if b"" not in names and len(set(names)) == len(names) and known.contains_none(names):
            begin = self._append(messages)
            ids: Sequence[int] = range(begin, begin + len(names))
        else:
            ids = self._append_unknown(known, names, messages)
        known.add(names, ids)
        return ids

    def _append_unknown(
        self, known: DeduplicationIndex, names: Sequence[bytes], messages: Sequence[Message] | RecordBatch
    ) -> Sequence[int]:
        """Append those of *messages* that are not remembered, each once; the ids of all."""
        rows: list[int] = []  # of those that are appended
        places: list[
            int
        ] = []  # the id of one that is remembered; else its place among those appended, less all of them
        first_of: dict[bytes, int] = {}
        for row, name in enumerate(names):
            place = known.get(name) if name else None
            if place is None and name in first_of:
                place = -1 - first_of[name]
            if place is None:
                if name:
                    first_of[name] = len(rows)
                place = -1 - len(rows)
                rows.append(row)
            places.append(place)
        begin = self._append(_rows(messages, rows)) if rows else 0
        return [place if place > 0 else begin - 1 - place for place in places]

    def _append(self, messages: Sequence[Message] | RecordBatch) -> int:
        ids = self._writer.append_nowait(messages)
        assert ids is not None
        return ids.first

    def _replace(self, failed: Writer) -> None:
        """Take a new writer in the place of the one that *failed*, and forget what that one did not store.

        While another process writes to the log, or the store does not answer, the failed one stays, and only one call
        in :data:`REPLACE_SECONDS` looks whether that is still so: each look blocks the event loop.
        """
        if self._writer is not failed or self._is_closed or self._clock.monotonic() < self._replace_from:
            return
        with contextlib.suppress(LogError):
            failed.close()
        try:
            self._writer = self._log.writer("broker")
        except LogError as error:
            self._replace_from = self._clock.monotonic() + REPLACE_SECONDS
            if isinstance(error, WriterBusyError):
                return
            raise
        if self._writer.last_id > failed.last_id:
            self._known = None  # the commit was stored although it failed, or another process has written: read it
        elif self._known is not None:
            self._known.discard_after(failed.last_id)


def _append_failure(error: BaseException) -> Exception:
    """The error of a call whose messages were to be appended; a cancellation means that the topic was closed."""
    if isinstance(error, Exception):
        return error
    return _being_changed()


def _being_changed() -> StatusError:
    return StatusError(v2.INTERNAL_SERVER_ERROR, "the topic is being changed: send the message again")


def _ids_of_clients(headers: Any) -> Iterator[tuple[int, bytes]]:
    """The rows of a column of headers whose first header is an id of the protocol, and those ids."""

    pairs, offsets = headers.flatten(), np.asarray(headers.offsets)
    begins = offsets - offsets[0]
    rows = np.flatnonzero(begins[1:] > begins[:-1])  # those with headers
    firsts = pairs.take(begins[rows])
    ids = pc.equal(firsts.field("name"), ID)
    places = rows[ids.to_numpy(zero_copy_only=False)]
    yield from zip(places.tolist(), firsts.field("value").filter(ids).to_pylist(), strict=True)


def _name(message: Message) -> bytes:
    """The id of the protocol, which :func:`~millstream.messaging.broker.storage.wire_codec.to_log` puts first."""
    if message.headers and message.headers[0][0] == ID:
        return message.headers[0][1]
    return b""


def _rows(messages: Sequence[Message] | RecordBatch, rows: Sequence[int]) -> Sequence[Message] | RecordBatch:
    return messages.take(rows) if isinstance(messages, RecordBatch) else [messages[row] for row in rows]
