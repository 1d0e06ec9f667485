"""The columns of a run of messages on their way into a block: what everyone leaves at its default costs nothing."""

from __future__ import annotations

import operator
from array import array
from collections.abc import Sequence
from typing import Any, cast

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.core.message import MESSAGE_SCHEMA, Message
from millstream.log.errors import LogInputError

Times = npt.NDArray[np.int64] | int | None

MESSAGE_BYTES = 8
"""Approximate bytes that a message takes in a block besides its contents: lengths and times."""

_FEW, _SMALL = 20, 1 << 20

HEADERS = MESSAGE_SCHEMA.field("headers").type


class Columns(msgspec.Struct, frozen=True):
    """*n* messages, column by column, without their ids.

    ``body`` is an Arrow binary array. ``received_at`` and ``event_time`` are microseconds: an array of *n*, one
    number for all, or None (to be stamped; an event time that is None is the receive time). ``unstamped`` marks the
    rows of ``received_at`` that wait for the clock, ``undated`` those of ``event_time`` that take the receive time.
    ``source``, ``key`` and ``headers`` are Arrow arrays, or None where all are empty.
    """

    body: Any
    received_at: Times = None
    event_time: Times = None
    source: Any = None
    key: Any = None
    headers: Any = None
    unstamped: npt.NDArray[np.bool_] | None = None
    undated: npt.NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.body)

    @property
    def is_bare(self) -> bool:
        """Whether there is nothing but bodies."""
        more = (self.received_at, self.event_time, self.source, self.key, self.headers)
        return all(column is None for column in more)

    def slice(self, start: int, stop: int) -> Columns:
        """The messages from *start* up to *stop*, without copying. The columns must be stamped."""
        return Columns(
            body=self.body[start:stop],
            received_at=_slice(self.received_at, start, stop),
            event_time=_slice(self.event_time, start, stop),
            source=_slice(self.source, start, stop),
            key=_slice(self.key, start, stop),
            headers=_slice(self.headers, start, stop),
        )

    def stamped(self, now: int) -> Columns:
        """The same messages, with *now* as the receive time of those that have none, and every event time known."""
        received, event = self.received_at, self.event_time
        if received is None:
            received = now
        elif self.unstamped is not None:
            received = np.where(self.unstamped, now, received)
        if event is not None and self.undated is not None:
            event = np.where(self.undated, received, event)
        return msgspec.structs.replace(self, received_at=received, event_time=event, unstamped=None, undated=None)

    @property
    def memory_bytes(self) -> int:
        """About the bytes of all messages, without a look at each: what Arrow has for them."""
        sizes = [int(each.nbytes) for each in (self.body, self.source, self.key, self.headers) if each is not None]
        return MESSAGE_BYTES * len(self) + sum(sizes)

    def sizes(self) -> npt.NDArray[np.int64]:
        """The bytes of each message that a block has to hold: an array of *n*."""
        sizes = lengths_of(self.body) + MESSAGE_BYTES
        for column in (self.source, self.key):
            if column is not None:
                sizes += lengths_of(column)
        if self.headers is not None:
            sizes += _header_sizes(self.headers)
        return sizes


def from_messages(messages: Sequence[Message]) -> Columns:
    """The columns of *messages*; their ids are ignored. Raises :class:`LogInputError`."""
    try:
        received, unstamped = _times([m.received_at for m in messages])
        event, undated = _times([m.event_time for m in messages])
        return Columns(
            body=_array(_only(bytes, [m.body for m in messages]), pa.binary()),
            received_at=received,
            event_time=event,
            source=_texts([m.source for m in messages]),
            key=_texts([m.key for m in messages]),
            headers=pa.array([m.headers for m in messages], HEADERS) if any(m.headers for m in messages) else None,
            unstamped=unstamped,
            undated=undated,
        )
    except (pa.ArrowException, AttributeError, TypeError, ValueError, OverflowError) as error:
        found = ((number, fault) for number, message in enumerate(messages, 1) if (fault := _fault(message)))
        number, fault = next(found, (0, ""))
        where = f"message {number} of {len(messages)} is invalid, so none was stored: " if number else ""
        raise LogInputError(f"{where}{fault or error}") from error


def from_record_batch(batch: pa.RecordBatch) -> Columns:
    """The columns of an Arrow record batch of ``MESSAGE_SCHEMA``; every column but ``body`` may be absent.

    The ids are ignored, and null stands for what is not set. Raises :class:`LogInputError`.
    """
    unknown = set(batch.schema.names) - set(MESSAGE_SCHEMA.names)
    if unknown or "body" not in batch.schema.names:
        raise LogInputError(
            f"invalid columns {', '.join(batch.schema.names) or '(none)'}: a record batch for a log can "
            f"have {', '.join(MESSAGE_SCHEMA.names)}, and needs at least body"
        )
    body = _column(batch, "body")
    if body.null_count:
        raise LogInputError("the column body has nulls: use an empty value for a message without a body")
    received, unstamped = _time_column(_column(batch, "received_at"))
    event, undated = _time_column(_column(batch, "event_time"))
    return Columns(
        body,
        received,
        event,
        _text_column(_column(batch, "source")),
        _text_column(_column(batch, "key")),
        _header_column(_column(batch, "headers")),
        unstamped,
        undated,
    )


def concat(parts: Sequence[Columns]) -> Columns:
    """All messages of *parts*, which must be stamped, one after the other."""
    if len(parts) == 1:
        return parts[0]
    lengths = [len(part) for part in parts]
    return Columns(
        body=pa.concat_arrays([part.body for part in parts]),
        received_at=_concat_times([part.received_at for part in parts], lengths),
        event_time=_concat_times([_event_time(part) for part in parts], lengths)
        if any(part.event_time is not None for part in parts)
        else None,
        source=_concat_arrays([part.source for part in parts], lengths, pa.string(), ""),
        key=_concat_arrays([part.key for part in parts], lengths, pa.string(), ""),
        headers=_concat_arrays([part.headers for part in parts], lengths, HEADERS, ()),
    )


def lengths_of(array: Any) -> npt.NDArray[np.int64]:
    """The length of each value of a binary, string or list array, as int64."""
    offsets = offsets_of(array)
    return (offsets[1:] - offsets[:-1]).astype(np.int64)  # np.diff takes four times as long for a few values


def offsets_of(array: Any) -> npt.NDArray[np.int32]:
    """The *n* + 1 offsets of a binary, string or list array into its values."""
    if not len(array):
        return np.zeros(1, np.int32)
    return np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]


def _slice(column: Any, start: int, stop: int) -> Any:
    return column if column is None or isinstance(column, int) else column[start:stop]


def _event_time(part: Columns) -> Times:
    return part.received_at if part.event_time is None else part.event_time


def _times(values: list[int | None]) -> tuple[Times, npt.NDArray[np.bool_] | None]:
    first = values[0]
    if values.count(first) == len(values) and (first is None or -(2**63) <= first < 2**63):
        return (None if first is None else operator.index(first)), None
    if None not in values:
        return np.array(array("q", cast(list[int], values))), None
    if any(issubclass(kind, float) for kind in set(map(type, values))):  # Arrow alone would cut off the fraction
        raise TypeError("a time must be a whole number")
    return _time_column(pa.array(values, pa.int64()))


def _texts(values: list[str]) -> Any:
    return _array(_only(str, values), pa.string()) if any(values) else None


def _array(values: list[Any], kind: Any) -> Any:
    """An array of the type *kind*, text or binary. For a few values, a builder takes half of the time.

    ``pa.array`` first imports pandas, where that is installed: a quarter of a second for the first append of a process.
    """
    if len(values) > _FEW or max(map(len, values), default=0) > _SMALL:  # the builder checks no limit of memory
        return pa.array(values, kind)
    builder = pa.lib.StringBuilder()
    builder.append_values(values)
    return builder.finish().view(kind)


def _fault(message: Any) -> str:
    """The fault of *message*; empty if there is none."""
    for name in ("event_time", "received_at"):
        time = getattr(message, name)
        if time is not None and not (isinstance(time, int) and -(2**63) <= time < 2**63):
            return (
                f"its {name} is {str(time)[:40]}, not a whole number of microseconds since 1970 that fits into 64 bits"
            )
    if not isinstance(message.body, bytes):
        return f"its body is {type(message.body).__name__}, not bytes"
    for name in ("source", "key"):
        if fault := _text_fault(getattr(message, name)):
            return f"its {name} {fault}"
    return _headers_fault(message.headers)


def _headers_fault(headers: Any) -> str:
    """The fault of *headers*; empty if there is none."""
    try:
        for name, value in headers:
            if fault := _text_fault(name):
                return f"the name of a header {fault}"
            if not isinstance(value, bytes):
                return f"its header {name[:40]!r} is {type(value).__name__}, not bytes"
    except (TypeError, ValueError):
        return "its headers are not pairs of text and bytes"
    return ""


def _text_fault(text: Any) -> str:
    """The fault of *text*; empty if there is none."""
    if not isinstance(text, str):
        return f"is {type(text).__name__}, not text"
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return f"is {text[:40]!r}, which is not valid Unicode: replace the surrogate at index {error.start}"
    return ""


def _only(kind: type, values: list[Any]) -> list[Any]:
    """*values*, all of which must be of *kind*: Arrow alone would take text for bytes and bytes for text."""
    if set(map(type, values)) != {kind}:
        number = next(number for number, value in enumerate(values, 1) if type(value) is not kind)
        raise TypeError(
            f"the body, source or key of message {number} of {len(values)} is of a subclass of {kind.__name__}: "
            "convert it"
        )
    return values


def _column(batch: pa.RecordBatch, name: str) -> Any:
    if name not in batch.schema.names:
        return None
    column, wanted = batch.column(name), MESSAGE_SCHEMA.field(name).type
    try:
        column = column if column.type == wanted else column.cast(wanted)
        column.validate(full=True)
    except pa.ArrowException as error:
        raise LogInputError(f"the column {name} must be of type {wanted}: {error}") from error
    return column


def _time_column(column: Any) -> tuple[Times, npt.NDArray[np.bool_] | None]:
    if column is None or column.null_count == len(column):
        return None, None
    if not column.null_count:
        return column.to_numpy(), None
    return column.fill_null(0).to_numpy(), column.is_null().to_numpy(zero_copy_only=False)


def _text_column(column: Any) -> Any:
    if column is None:
        return None
    column = column.fill_null("") if column.null_count else column
    offsets = offsets_of(column)
    return column if offsets[-1] > offsets[0] else None


def _header_column(column: Any) -> Any:
    if column is None or not len(column.flatten()):
        return None
    pairs = column.flatten()
    if pairs.null_count or any(part.null_count for part in pairs.flatten()):
        raise LogInputError(
            "the column 'headers' has a header without a name or value: give each header a name and a value"
        )
    return column.fill_null([]) if column.null_count else column


def _header_sizes(headers: Any) -> npt.NDArray[np.int64]:
    offsets = offsets_of(headers)
    pairs = headers.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))  # flatten() releases the interpreter
    each = np.concatenate(([0], np.cumsum(lengths_of(pairs.field("name")) + lengths_of(pairs.field("value")) + 8)))
    ends: npt.NDArray[np.int64] = each[offsets - offsets[0]]
    return np.diff(ends)


def _concat_times(parts: list[Times], lengths: list[int]) -> Times:
    if all(isinstance(part, int) and part == parts[0] for part in parts):
        return parts[0]
    return np.concatenate([_spread(part, n) for part, n in zip(parts, lengths, strict=True)])


def _spread(times: Times, count: int) -> npt.NDArray[np.int64]:
    return times if isinstance(times, np.ndarray) else np.full(count, times, np.int64)


def _concat_arrays(parts: list[Any], lengths: list[int], kind: Any, default: Any) -> Any:
    if all(part is None for part in parts):
        return None
    empty = pa.scalar(default, kind)
    filled = [pa.repeat(empty, n) if part is None else part for part, n in zip(parts, lengths, strict=True)]
    return pa.concat_arrays(filled)
