"""Search of the messages of a log: by key, source, header, time and text, in steps of bounded work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from millstream.core.clock import Clock, SystemClock
from millstream.core.message import Message
from millstream.core.timestamps import time_text
from millstream.log.batch import Batch
from millstream.log.errors import CorruptBlockError, LogInputError
from millstream.log.gap import Gap
from millstream.log.ids import IdRange
from millstream.log.log import Log

STEP_BYTES = 64 << 20
"""Bytes of columns that one step decodes, about, unless it is told otherwise."""

STEP_SECONDS = 1.0

_WINDOW = 65_536  # ids whose times are looked up in the store at once

Mask = npt.NDArray[np.bool_]


class MessageFilter(msgspec.Struct, frozen=True, kw_only=True):
    """The conditions on a message; all that are given must hold.

    ``key`` and ``source`` are compared as a whole. ``header`` is the name of a header, and ``value`` its whole value as
    UTF-8. The body contains ``text`` as UTF-8; upper and lower case differ. The time named by ``time`` is at ``since``
    or later and before ``until``, in microseconds since the epoch.
    """

    key: str | None = None
    source: str | None = None
    header: str | None = None
    value: str | None = None
    text: str | None = None
    since: int | None = None
    until: int | None = None
    time: Literal["received", "event"] = "received"

    def check(self) -> None:
        """Raise :class:`LogInputError` where this is no filter."""
        if self.value is not None and self.header is None:
            raise LogInputError("a header value was given without the name of the header: give both, or the name alone")
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise LogInputError(
                f"the time range from {time_text(self.since)} to {time_text(self.until)} is empty: its end must be "
                "after its beginning"
            )
        if self.text == "":
            raise LogInputError("the text to search for is empty: give at least one character")
        if not any((self.key is not None, self.source is not None, self.header, self.text, self.has_times)):
            raise LogInputError(
                "the search has no condition: give at least one of key, source, header, text, since and until"
            )

    @property
    def has_times(self) -> bool:
        """Whether there is a range of times."""
        return self.since is not None or self.until is not None

    @property
    def time_column(self) -> str:
        """The column that ``since`` and ``until`` are about."""
        return "received_at" if self.time == "received" else "event_time"


class UnreadableIds(msgspec.Struct, frozen=True):
    """Ids that could not be searched, with the reason: ``missing`` or ``corrupt``."""

    first_id: int
    last_id: int
    reason: str


class MessageSearchStep(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one step over the ids ``first_id`` to ``last_id`` (none where the last is less than the first).

    ``next_id`` is where the next step begins, None where the search is done. ``rows`` is the number of messages that
    were compared, ``bytes`` that of the columns decoded for it; blocks that the time range excludes are not read.
    """

    messages: Sequence[Message]
    first_id: int
    last_id: int
    next_id: int | None
    rows: int
    bytes: int
    unreadable: Sequence[UnreadableIds] = ()


def search_messages(
    log: Log,
    wanted: MessageFilter,
    *,
    first_id: int | None = None,
    last_id: int | None = None,
    limit: int = 100,
    most_bytes: int = STEP_BYTES,
    seconds: float = STEP_SECONDS,
    clock: Clock | None = None,
) -> MessageSearchStep:
    """Search the ids *first_id* to *last_id* (default: all) of *log* in order, until *limit* messages are found,
    *most_bytes* are decoded or *seconds* have passed; whatever the limits, a step gets further by one batch at least.

    Raises :class:`LogInputError` for a filter that is none; and what :meth:`Log.read` raises, but for messages that
    cannot be read: these are named in the step.
    """
    wanted.check()
    limits: dict[str, Any] = {"limit": limit, "most_bytes": most_bytes, "seconds": seconds}
    return _Step(log, wanted, **limits, clock=clock or SystemClock()).run(first_id, last_id)


class _Step:
    def __init__(
        self, log: Log, wanted: MessageFilter, *, limit: int, most_bytes: int, seconds: float, clock: Clock
    ) -> None:
        self._log, self._wanted, self._limit, self._most_bytes = log, wanted, limit, most_bytes
        self._clock, self._deadline = clock, clock.monotonic() + seconds
        self._found: list[Message] = []
        self._unreadable: list[UnreadableIds] = []
        self._rows = self._bytes = 0

    def run(self, first_id: int | None, last_id: int | None) -> MessageSearchStep:
        log, wanted = self._log, self._wanted
        begin = log.first_id if first_id is None else max(first_id, 1)
        end = log.last_id if last_id is None else min(last_id, log.last_id)
        start = max(begin, log.first_id)
        if wanted.since is not None and wanted.time == "received":
            start = max(start, log.first_block_since(wanted.since))
        position = start
        for ids, parts in self._windows(start, end):
            for part in parts:
                if position > start and self._is_over:
                    return self._result(begin, part.first - 1, part.first)
                position = self._search(part)
                if position <= part.last:
                    return self._result(begin, position - 1, position)
            position = ids.last + 1
            if position <= end and self._is_over:
                return self._result(begin, ids.last, position)
        return self._result(begin, end, None)

    @property
    def _is_over(self) -> bool:
        enough = len(self._found) >= self._limit
        return enough or self._bytes >= self._most_bytes or self._clock.monotonic() >= self._deadline

    def _windows(self, begin: int, end: int) -> Iterator[tuple[IdRange, Sequence[IdRange]]]:
        """Ranges of ids, in order, and the parts of each that have to be read."""
        if not self._wanted.has_times:
            if begin <= end:
                yield IdRange(begin, end), [IdRange(begin, end)]
            return
        for first in range(begin, end + 1, _WINDOW):
            ids = IdRange(first, min(end, first + _WINDOW - 1))
            yield ids, list(self._candidates(ids))

    def _candidates(self, ids: IdRange) -> Iterator[IdRange]:
        """*ids* without the blocks whose times lie outside the range."""
        begin, column = ids.first, self._wanted.time_column
        for entry in self._log.block_index(ids.first, ids.last):
            earliest, latest = getattr(entry, f"min_{column}"), getattr(entry, f"max_{column}")
            if not self._excludes(earliest, latest):
                continue
            if begin < entry.first_id:
                yield IdRange(begin, min(entry.first_id - 1, ids.last))
            begin = max(begin, entry.last_id + 1)
        if begin <= ids.last:
            yield IdRange(begin, ids.last)

    def _excludes(self, earliest: int, latest: int) -> bool:
        since, until = self._wanted.since, self._wanted.until
        return (since is not None and latest < since) or (until is not None and earliest >= until)

    def _search(self, ids: IdRange) -> int:
        """Search *ids*; returns the first id that was not searched."""
        position = ids.first
        for batch in self._log.read(ids.first, ids.last, columns=[], gaps="all"):
            if isinstance(batch, Gap):
                if batch.reason != "trimmed":
                    self._unreadable.append(UnreadableIds(batch.first_id, batch.last_id, batch.reason))
            else:
                try:
                    position = self._search_batch(batch)
                except CorruptBlockError:
                    self._unreadable.append(UnreadableIds(batch.first_id, batch.last_id, "corrupt"))
                else:
                    if position <= batch.last_id:
                        return position
            position = batch.last_id + 1
            if self._is_over:
                return position
        return ids.last + 1

    def _search_batch(self, batch: Batch) -> int:
        rows = np.flatnonzero(self._matches(batch)).tolist()
        taken = rows[: self._limit - len(self._found)]
        if taken:
            self._found += batch.at(taken)
        stop = batch.first_id + taken[-1] + 1 if len(taken) < len(rows) else batch.last_id + 1
        self._rows += stop - batch.first_id
        return stop

    def _matches(self, batch: Batch) -> Mask:
        """Which messages of *batch* match; the body is decoded last, and only where all else matches."""
        wanted, mask = self._wanted, np.ones(len(batch), np.bool_)
        if wanted.has_times:
            times = self._column(batch, wanted.time_column).to_numpy()
            if wanted.since is not None:
                mask &= times >= wanted.since
            if wanted.until is not None:
                mask &= times < wanted.until
        for name, value in (("key", wanted.key), ("source", wanted.source)):
            if value is not None and mask.any():
                mask &= _mask(pc.equal(self._column(batch, name), value))
        if wanted.header is not None and mask.any():
            mask &= _has_header(self._column(batch, "headers"), wanted.header, wanted.value)
        if wanted.text is not None and mask.any():
            mask &= _mask(pc.match_substring(self._column(batch, "body"), wanted.text))
        return mask

    def _column(self, batch: Batch, name: str) -> Any:
        column = batch.decode([name]).column(0)
        self._bytes += column.nbytes
        return column

    def _result(self, first_id: int, last_id: int, next_id: int | None) -> MessageSearchStep:
        return MessageSearchStep(
            messages=self._found,
            first_id=first_id,
            last_id=last_id,
            next_id=next_id,
            rows=self._rows,
            bytes=self._bytes,
            unreadable=self._unreadable,
        )


def _mask(array: Any) -> Mask:
    return np.asarray(array.to_numpy(zero_copy_only=False), np.bool_)


def _has_header(headers: Any, name: str, value: str | None) -> Mask:
    """Which messages have the header *name*, with that *value* where one is given."""
    mask, pairs = np.zeros(len(headers), np.bool_), headers.flatten()
    if len(pairs):
        matches = _mask(pc.equal(pairs.field("name"), name))
        if value is not None:
            matches &= _mask(pc.equal(pairs.field("value"), value.encode("utf-8", "surrogatepass")))
        mask[pc.list_parent_indices(headers).to_numpy()[matches]] = True
    return mask
