"""Tasks of the job ``ingest`` parse their piece of a file: rows become messages, or are rejected."""

from __future__ import annotations

import csv
import functools
import gzip
import io
import re
import zlib
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, Self, TextIO, TypeAlias, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millstream.core.message import MESSAGE_SCHEMA, TICK_SOURCE, Message, MessageError, check_source, decode_line
from millstream.ingest.errors import MalformedError
from millstream.ingest.plain_json import PlainJson
from millstream.ingest.received_message import ReceivedMessage
from millstream.pipeline.errors import UnusableFileError
from millstream.pipeline.planning.source_files import PACKED, SourceFile, Split
from millstream.pipeline.tasks.parquet_times import TimeFault, in_microseconds, inexact_times, times_out_of_range

Shape = Literal["message", "record"]
Received = Literal["now", "event"]
Nanoseconds = Literal["floor", "reject"]

STAGED_SCHEMA = pa.schema(
    [field.with_nullable(True) for field in MESSAGE_SCHEMA if field.name not in ("id", "headers")]
    + [MESSAGE_SCHEMA.field("headers")]
)
"""A message on its way into a log: without an id, and with times that may not be set."""

MAX_ROW_BYTES = 32 << 20
KEPT_BYTES = 64 << 10
"""Of a row that is put aside this many bytes are kept."""

_BATCH_ROWS = 8192
_BATCH_BYTES = 4 << 20
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")


class ParsingRules(msgspec.Struct, frozen=True):
    """How rows become messages.

    Rows of the shape ``message`` have its members (as in ``millstream log read --jsonl``, or columns of the same
    names); of the shape ``record`` they are any objects, and *plain* says where in them source, key, time and body are.
    ``received`` is ``now``, or ``event`` where history is to be batched as if it had come in time. Times of Parquet in
    nanoseconds are cut to the microsecond before (``floor``), or rows that lose something are put aside (``reject``).
    """

    shape: Shape = "message"
    plain: PlainJson = PlainJson()
    received: Received = "now"
    nanoseconds: Nanoseconds = "floor"


class RefusedRow(msgspec.Struct, frozen=True):
    """A row that is not a message: its position in the file, the reason (as a code and exactly), and its content."""

    place: str
    reason: str
    why: str
    row: bytes


class SourceRow(NamedTuple):
    """Its place in the file, its JSON object, and what is wrong with it if that is known already, and in a word."""

    place: str
    data: bytes
    why: str = ""
    reason: str = "row"


Found: TypeAlias = "pa.RecordBatch | list[RefusedRow]"


def parse_split(split: Split, rules: ParsingRules) -> Iterator[Found]:
    """The messages (:data:`STAGED_SCHEMA`) of *split*, and the rows that are put aside, a few megabytes at a time.

    Raises :class:`UnusableFileError` where the file changed since it was found, or is not a file of its format.
    """
    file = split.file
    objects = partial(_objects, nanoseconds=rules.nanoseconds)
    readers: dict[str, Callable[[Split], Iterator[SourceRow]]] = {
        "jsonl": _lines,
        "csv": partial(_table, rules=rules),
        "parquet": objects,
    }
    try:
        status = Path(file.path).stat()
        if (status.st_size, status.st_mtime_ns) != (file.size, file.modified):
            raise UnusableFileError(
                f"{file.path} changed while it was read: wait until it is complete, and run the job again"
            )
        if file.format == "parquet" and rules.shape == "message":
            yield from _message_columns(split, rules)
        else:
            yield from _in_batches(readers[file.format](split), file, rules)
    except (EOFError, OSError, zlib.error, pa.ArrowException) as error:
        raise UnusableFileError(f"cannot read {file.path}: {error}") from error
    except (ArithmeticError, LookupError, MemoryError, RecursionError, TypeError, ValueError) as error:
        if file.format != "parquet":
            raise  # pyarrow raises these for what is in a file, such as an unknown time zone; other readers do not
        raise UnusableFileError(f"cannot read {file.path}: {type(error).__name__}: {error}") from error


def refused_message(file: SourceFile, refused: RefusedRow) -> Message:
    """*refused* as a message of the log of rejects: the row, under the file's topic and the reason."""
    why = f"{refused.place}: {refused.why}".encode()
    return Message(
        refused.row[:KEPT_BYTES], refused.reason, file.topic, headers=(("why", why), ("file", file.path.encode()))
    )


def staged(messages: list[Message]) -> pa.RecordBatch:
    """*messages* as a record batch of :data:`STAGED_SCHEMA`."""
    return pa.RecordBatch.from_arrays(
        [pa.array([getattr(m, field.name) for m in messages], field.type) for field in STAGED_SCHEMA],
        schema=STAGED_SCHEMA,
    )


def _in_batches(rows: Iterator[SourceRow], file: SourceFile, rules: ParsingRules) -> Iterator[Found]:
    messages: list[Message] = []
    refused: list[RefusedRow] = []
    size = 0
    for row in rows:
        size += len(row.data)
        try:
            messages.append(_message(row, file, rules))
        except (MalformedError, MessageError) as error:
            reason = getattr(error, "reason", "message")
            refused.append(RefusedRow(row.place, reason, str(error), row.data[:KEPT_BYTES]))
        if len(messages) + len(refused) >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield from _full(messages, refused)
            messages, refused, size = [], [], 0
    yield from _full(messages, refused)


def _full(messages: list[Message], refused: list[RefusedRow]) -> Iterator[Found]:
    if messages:
        yield staged(messages)
    if refused:
        yield refused


def _message(row: SourceRow, file: SourceFile, rules: ParsingRules) -> Message:
    if row.why:
        raise MalformedError(row.reason, row.why)
    if len(row.data) > MAX_ROW_BYTES:
        raise MalformedError("size", _too_long("the row"))
    if rules.shape == "message":
        message = decode_line(row.data, written=True)
        try:
            check_source(message, ticks=True)
        except MessageError as error:
            raise MalformedError("source", str(error)) from error
    else:
        (message,) = rules.plain(ReceivedMessage(file.topic, row.data, 0))
    if rules.received == "event":
        if message.event_time is None:
            raise MalformedError(
                "time",
                "the row has no event time for --received event: add an event time to the row, or ingest with "
                "--received now",
            )
        message = msgspec.structs.replace(message, received_at=message.event_time)
    return message


def _too_long(what: str) -> str:
    return (
        f"{what} is longer than {MAX_ROW_BYTES:,} bytes, the limit of a row: put the content into a store (`millstream "
        "store put`), and write only the item's id into the row"
    )


def _lines(split: Split) -> Iterator[SourceRow]:
    """The lines that begin in *split*."""
    packed = split.file.path.endswith(PACKED)
    with _opened(split.file) as file:
        place = split.start
        if place:  # a line that begins before belongs to the piece before
            file.seek(place - 1)
            place += _read_line(file)[1] - 1
        while packed or place < split.end:
            line, length = _read_line(file)
            if not length:
                return
            line = line if place else line.removeprefix(BOM_UTF8)
            if line.strip():
                yield SourceRow(f"byte {place}", line.rstrip(b"\r\n"))
            place += length


def _read_line(file: BinaryIO) -> tuple[bytes, int]:
    """The line from here on and its length; of one that is too long only enough to show that it is."""
    line = file.readline(MAX_ROW_BYTES + 2)
    length = len(line)
    while length > MAX_ROW_BYTES + 1 and not line.endswith(b"\n"):
        rest = file.readline(_BATCH_BYTES)
        length += len(rest)
        if not rest or rest.endswith(b"\n"):
            break
    return line, length


def _table(split: Split, rules: ParsingRules) -> Iterator[SourceRow]:
    """The rows of a CSV file (tab-separated by its file ending) as objects; numbers keep their text."""
    texts = _TEXT_COLUMNS if rules.shape == "message" else frozenset()
    csv.field_size_limit(MAX_ROW_BYTES)
    delimiter = "\t" if split.file.path.removesuffix(PACKED).endswith(".tsv") else ","
    with _opened(split.file) as raw:
        lines = _RowText(io.TextIOWrapper(raw, "utf-8-sig", newline="", errors="surrogateescape"))
        rows = csv.reader(lines, delimiter=delimiter, strict=True)
        names = _column_names(split.file, rows)
        while True:
            place, lines.begin = f"line {lines.number + 1}", ""
            try:
                values = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                yield _unread_row(place, lines.begin, error)
                continue
            if values:
                yield _row_of(place, names, values, texts)


def _column_names(file: SourceFile, rows: Iterator[list[str]]) -> list[str]:
    try:
        names = next(rows, [])
        "".join(names).encode()
        wrong = "a name is empty" if "" in names else ""
        if twice := _repeated(names):
            wrong = f"{twice[:80]!r} is repeated"
    except _LineTooLongError:
        wrong = f"it is longer than {MAX_ROW_BYTES:,} bytes"
    except csv.Error as error:
        wrong = f"it is not valid CSV ({error})"
    except UnicodeEncodeError:
        wrong = "it is not UTF-8"
    if wrong:
        raise UnusableFileError(f"{file.path}: the first line must contain unique column names, but {wrong}")
    return names


def _repeated(names: Sequence[str]) -> str | None:
    """The last name, by the alphabet, that is more than once in *names*."""
    return max((name for name, count in Counter(names).items() if count > 1), default=None)


class _LineTooLongError(csv.Error):
    """A line is longer than a row may be."""


class _RowText:
    """The lines of a CSV file; ``begin``, which the reader clears before each row, is the begin of the row's text, and
    ``number`` says how many lines were read.

    Of a line that is longer than a row may be, as in a file without line ends, no more is in memory: its rest is passed
    over, and :class:`_LineTooLongError` is raised.
    """

    def __init__(self, lines: TextIO) -> None:
        self._lines = lines
        self.begin, self.number = "", 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        line = self._lines.readline(MAX_ROW_BYTES + 2)
        if not line:
            raise StopIteration
        self.number += 1
        if len(self.begin) < KEPT_BYTES:
            self.begin += line[:KEPT_BYTES]
        if len(line) <= MAX_ROW_BYTES + 1 or line[-1] in "\r\n":
            return line
        while line and line[-1] not in "\r\n":
            line = self._lines.readline(_BATCH_BYTES)
        raise _LineTooLongError


def _unread_row(place: str, begin: str, error: csv.Error) -> SourceRow:
    """A row that the module ``csv`` refuses with *error*, or that is too long."""
    text = begin.rstrip("\r\n").encode("utf-8", "surrogateescape")
    if isinstance(error, _LineTooLongError):
        return SourceRow(place, text, _too_long("the row"), "size")
    if str(error).startswith("field larger than field limit"):
        return SourceRow(place, text, _too_long("a value"), "size")
    return SourceRow(place, text, str(error))


_TEXT_COLUMNS = frozenset({"body", "body_base64", "source", "key"})
"""Columns of a message that are text, also where a value looks like a number."""


def _row_of(place: str, names: list[str], values: list[str], texts: Collection[str]) -> SourceRow:
    """A line of a table as an object; a number stays as it is written, but for the columns *texts*."""
    text = "\t".join(values).encode("utf-8", "surrogateescape")
    if len(values) != len(names):
        return SourceRow(place, text, f"{len(values)} values for {len(names)} columns")
    try:
        found = {name: _value(value, name in texts) for name, value in zip(names, values, strict=True)}
    except UnicodeEncodeError:
        return SourceRow(place, text, "not UTF-8")
    return SourceRow(place, msgspec.json.encode(found))


def _value(text: str, is_text: bool) -> msgspec.Raw | str:
    """*text* as a JSON value; an empty one is not set."""
    if not text:
        return msgspec.Raw(b"null")
    data = text.encode()
    return msgspec.Raw(data) if not is_text and _NUMBER.fullmatch(text) else text


def _objects(split: Split, nanoseconds: Nanoseconds) -> Iterator[SourceRow]:
    with pq.ParquetFile(split.file.path, page_checksum_verification=True) as parquet:
        _check_columns(split.file, parquet.schema_arrow.names)
        number = sum(parquet.metadata.row_group(group).num_rows for group in range(split.start))
        for batch in parquet.iter_batches(_BATCH_ROWS, row_groups=range(split.start, split.end)):
            too_fine = _first_faults(inexact_times(batch) if nanoseconds == "reject" else ())
            too_far = _first_faults(times_out_of_range(batch))
            whole = pa.RecordBatch.from_arrays([in_microseconds(c) for c in batch.columns], names=batch.schema.names)
            for place, (row, unread) in enumerate(_converted(whole)):
                number += 1
                why = too_far.get(place, unread)
                data = b"" if why else msgspec.json.encode(row)
                if place in too_fine:
                    yield SourceRow(f"row {number}", data, too_fine[place], "time")
                else:
                    yield SourceRow(f"row {number}", data, why)


def _check_columns(file: SourceFile, names: Sequence[str]) -> None:
    twice = _repeated(names)
    if twice is not None:
        raise UnusableFileError(f"{file.path} has more than one column {twice[:80]!r}: give each column its own name")


def _converted(batch: pa.RecordBatch) -> list[tuple[Any, str]]:
    """The rows of *batch* as objects, and of each what is wrong with it."""
    try:
        return [(row, "") for row in batch.to_pylist()]
    except (OverflowError, UnicodeDecodeError) as error:
        if batch.num_rows > 1:  # most of them can be converted
            return [found for row in range(batch.num_rows) for found in _converted(batch.slice(row, 1))]
        wrong = "not UTF-8" if isinstance(error, UnicodeDecodeError) else f"a date or time is out of range: {error}"
        return [(None, wrong)]


def _first_faults(faults: Iterable[TimeFault]) -> Mapping[int, str]:
    """What is wrong with each row that one of *faults* has, by the number of the row."""
    found: dict[int, str] = {}
    for why, rows in faults:
        for number in pc.indices_nonzero(rows).to_pylist():
            found.setdefault(number, why)
    return found


def _message_columns(split: Split, rules: ParsingRules) -> Iterator[Found]:
    """The columns of a Parquet file that are a message's, without a Python object a row."""
    with pq.ParquetFile(split.file.path, page_checksum_verification=True) as parquet:
        names = [name for name in STAGED_SCHEMA.names if name in parquet.schema_arrow.names]
        if "body" not in names:
            raise UnusableFileError(
                f"{split.file.path} has no column 'body': if its rows are not messages, use --shape record"
            )
        _check_columns(split.file, [name for name in parquet.schema_arrow.names if name in names])
        number = sum(parquet.metadata.row_group(group).num_rows for group in range(split.start))
        for batch in parquet.iter_batches(_BATCH_ROWS, row_groups=range(split.start, split.end), columns=names):
            yield from _judged(batch, _as_staged(batch, split.file), number, rules)
            number += batch.num_rows


def _as_staged(batch: pa.RecordBatch, file: SourceFile) -> pa.RecordBatch:
    arrays = []
    for field in STAGED_SCHEMA:
        unset = pa.scalar([], field.type) if field.name == "headers" else pa.scalar(None, field.type)
        if field.name not in batch.schema.names:
            arrays.append(pa.repeat(unset, batch.num_rows))
            continue
        column = batch.column(field.name)
        if field.name in ("event_time", "received_at") and _is_no_time(column.type):
            raise UnusableFileError(
                f"{file.path}: column {field.name!r} of type {column.type} is not a time: use timestamps, or integers "
                "that are microseconds since the epoch"
            )
        try:
            if pa.types.is_timestamp(column.type):
                column = in_microseconds(column)
            if column.null_count and field.name == "headers":
                column = pc.if_else(column.is_valid(), column.cast(field.type), unset)
            arrays.append(column.cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise UnusableFileError(
                f"{file.path}: column {field.name!r} of type {column.type} cannot be converted to {field.type}: {error}"
            ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=STAGED_SCHEMA)


def _is_no_time(kind: pa.DataType) -> bool:
    """Whether *kind* is none of a time, although most of these types can be cast to an integer."""
    others = (pa.types.is_duration, pa.types.is_time, pa.types.is_date, pa.types.is_boolean)
    return any(is_one(kind) for is_one in others)


def _judged(found: pa.RecordBatch, batch: pa.RecordBatch, before: int, rules: ParsingRules) -> Iterator[Found]:
    """The rows of *batch*, made of *found*, that are messages, and those that are not; *before* them rows were read."""
    body = batch.column("body")
    too_large = pc.greater(pc.binary_length(body), MAX_ROW_BYTES).fill_null(False)
    wrong: list[tuple[str, str, pa.Array]] = [
        ("message", "the row has no body", body.is_null()),
        ("size", f"the row has more than {MAX_ROW_BYTES:,} bytes", too_large),
        ("source", f"the source {TICK_SOURCE!r} is reserved for ticks: use another source", _named_like_ticks(batch)),
    ]
    wrong += [("message", why, rows) for why, rows in times_out_of_range(found)]
    if rules.received == "event":
        wrong.append(
            (
                "time",
                "there is no event time to take for the time it was received",
                batch.column("event_time").is_null(),
            )
        )
    if rules.nanoseconds == "reject":
        wrong += [("time", why, rows) for why, rows in inexact_times(found)]
    bad = functools.reduce(pc.or_, [rows for _, _, rows in wrong])
    good = batch.filter(pc.invert(bad))
    if rules.received == "event":
        place = good.schema.get_field_index("received_at")
        good = good.set_column(place, STAGED_SCHEMA.field("received_at"), good.column("event_time"))
    if good.num_rows:
        yield good
    refused: dict[int, RefusedRow] = {}
    for reason, why, rows in wrong:
        for number in cast(list[int], pc.indices_nonzero(rows).to_pylist()):
            refused.setdefault(number, RefusedRow(f"row {before + number + 1}", reason, why, b""))
    if refused:
        yield [refused[number] for number in sorted(refused)]


def _named_like_ticks(batch: pa.RecordBatch) -> pa.Array:
    """The rows that have the source of ticks and are none; see :func:`check_source`."""
    lengths = [pc.binary_length(batch.column(name)) for name in ("body", "key")]
    lengths.append(pc.list_value_length(batch.column("headers")))
    has_content = functools.reduce(pc.or_, [pc.greater(each, 0).fill_null(False) for each in lengths])
    return pc.and_(pc.equal(batch.column("source"), TICK_SOURCE).fill_null(False), has_content)


def _opened(file: SourceFile) -> BinaryIO:
    if file.path.endswith(PACKED):
        return cast(BinaryIO, gzip.open(file.path, "rb"))
    return Path(file.path).open("rb")
