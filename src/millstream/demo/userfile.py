"""Records of the user's own: JSON lines, CSV or Parquet.

A record has ``event_time`` (microseconds since the epoch, or ISO 8601 with a zone) and ``key``; ``source`` and
``received_at`` where there are any; and a body: the member ``body`` (text), else ``value`` (any JSON), else the whole
row as a JSON object. A row that cannot be read is put aside with its line number and the reason; a file of another
shape is refused before anything is written.
"""

from __future__ import annotations

import csv
import datetime as dt
import re
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from millstream.core.canonical import CanonicalError, canonical_json
from millstream.core.clock import MICROSECONDS
from millstream.core.errors import InputError
from millstream.demo.datasets import RECORD_SCHEMA

REQUIRED = ("event_time", "key")
_WHOLE = re.compile(r"-?[0-9]{1,19}")

MAX_ROW_BYTES = 1_000_000
"""A longer row is put aside."""


class UserFileError(InputError):
    """The file has not the shape of records."""


class BadRow(msgspec.Struct, frozen=True):
    """A row that was put aside: its line (in Parquet: row) number from 1, and why."""

    line: int
    reason: str
    text: str


class UserRecords(msgspec.Struct, frozen=True):
    """The records of a file. ``records`` has the columns of RECORD_SCHEMA, and ``received_at`` where ``timed``."""

    records: pa.Table
    bad: tuple[BadRow, ...]
    timed: bool


class _RowError(Exception):
    """The row is not a record."""


def read_records(path: Path, limit: int | None = None) -> UserRecords:
    """The records of *path* (its ending says what it is), at most the first *limit* of them.

    Raises :class:`UserFileError` where the file cannot be read or no row of it is a record.
    """
    readers = {".jsonl": _jsonl_rows, ".ndjson": _jsonl_rows, ".csv": _csv_rows, ".parquet": _parquet_rows}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise UserFileError(f"{path}: unknown file type; use a name that ends in .jsonl, .csv or .parquet")
    good: list[dict[str, Any]] = []
    bad: list[BadRow] = []
    try:
        for line, row in reader(path):
            if limit is not None and len(good) >= limit:
                break
            try:
                good.append(_record(row))
            except _RowError as error:
                bad.append(BadRow(line, str(error), _as_text(row)[:200]))
    except (OSError, UnicodeDecodeError, csv.Error, pa.ArrowException) as error:
        raise UserFileError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    return _collect(path, good, bad)


def _collect(path: Path, good: list[dict[str, Any]], bad: list[BadRow]) -> UserRecords:
    if not good:
        why = (
            f"; the first error is in line {bad[0].line:,}: {bad[0].reason}"
            if bad
            else ", because the file has no rows"
        )
        raise UserFileError(f"{path}: no row is a valid record{why}")
    timed = any(row["received_at"] is not None for row in good)
    if timed and any(row["received_at"] is None for row in good):
        raise UserFileError(f"{path}: only some rows have received_at: set received_at in all rows, or in none")
    schema = RECORD_SCHEMA.append(pa.field("received_at", pa.int64()))
    table = pa.Table.from_pylist(good, schema=schema)
    return UserRecords(table if timed else table.drop_columns(["received_at"]), tuple(bad), timed)


def _jsonl_rows(path: Path) -> Iterator[tuple[int, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_ROW_BYTES + 1), b""), 1):
            if len(line) > MAX_ROW_BYTES:
                raise UserFileError(
                    f"{path}: line {number} is longer than {MAX_ROW_BYTES:,} bytes, the limit of a record: shorten the "
                    "record, or remove the line"
                )
            line = line.removeprefix(BOM_UTF8) if number == 1 else line  # noqa: PLW2901
            if line.strip():
                try:
                    yield number, msgspec.json.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    yield number, _UnreadableValue(f"not JSON: {error}", line)


def _csv_rows(path: Path) -> Iterator[tuple[int, Any]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, restkey="", strict=True)
        _require(path, reader.fieldnames or ())
        for row in reader:
            if "" in row or None in row.values():
                yield reader.line_num, _UnreadableValue("the number of fields differs from the header", _as_text(row))
            else:
                yield reader.line_num, row


def _parquet_rows(path: Path) -> Iterator[tuple[int, Any]]:
    with pq.ParquetFile(path) as file:
        _require(path, file.schema_arrow.names)
        number = 0
        for batch in file.iter_batches(batch_size=10_000):
            for row in batch.to_pylist():
                number += 1
                yield number, row


def _require(path: Path, names: Any) -> None:
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        present = ", ".join(map(str, names)) or "none"
        raise UserFileError(
            f"{path}: missing column{'s' * (len(missing) > 1)}: {', '.join(missing)} (present: {present}): add or "
            "rename the columns"
        )


class _UnreadableValue:
    """A row that its reader could not take apart."""

    def __init__(self, reason: str, text: bytes | str) -> None:
        self.reason = reason
        self.text = text

    def __str__(self) -> str:
        return self.text if isinstance(self.text, str) else self.text.decode("utf-8", "replace").rstrip("\n")


def _as_text(row: Any) -> str:
    """*row* as it is shown to people: as JSON, unless it could not be taken apart."""
    if isinstance(row, _UnreadableValue):
        return str(row)
    names = {("" if name is None else name): value for name, value in row.items()} if isinstance(row, dict) else row
    return msgspec.json.encode(names, enc_hook=str).decode()


def _record(row: Any) -> dict[str, Any]:
    if isinstance(row, _UnreadableValue):
        raise _RowError(row.reason)
    if not isinstance(row, Mapping):
        raise _RowError("the row must be a JSON object")
    key, event_time = _text(row, "key"), _time(row.get("event_time"), "event_time")
    if not key:
        raise _RowError("key is missing")
    if event_time is None:
        raise _RowError("event_time is missing")
    return {
        "source": _text(row, "source") or "",
        "key": key,
        "event_time": event_time,
        "received_at": _time(row.get("received_at"), "received_at"),
        "body": _body(row),
    }


def _text(row: Mapping[str, Any], name: str) -> str | None:
    value = row.get(name)
    if value is None or isinstance(value, str):
        return value
    raise _RowError(f"{name} must be a string")


def _time(value: Any, name: str) -> int | None:
    if value is None or value == "":
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        moment = value
    elif isinstance(value, dt.datetime):
        moment = _microseconds(value, name)
    elif isinstance(value, str) and _WHOLE.fullmatch(value):
        moment = int(value)
    elif isinstance(value, str):
        try:
            moment = _microseconds(dt.datetime.fromisoformat(value), name)
        except ValueError as error:
            raise _RowError(
                f"{name} is neither microseconds since 1970-01-01 UTC nor ISO 8601: {value[:40]!r}"
            ) from error
    else:
        raise _RowError(f"{name} is neither microseconds since 1970-01-01 UTC nor ISO 8601")
    if not -(2**53) < moment < 2**53:
        raise _RowError(
            f"{name} is out of range: {moment:,} microseconds since 1970; the limit is ±{2**53 - 1:,} microseconds: "
            "check the unit"
        )
    return moment


def _microseconds(moment: dt.datetime, name: str) -> int:
    if moment.tzinfo is None:
        raise _RowError(f"{name} has no time zone; write it with Z or an offset")
    elapsed = moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return (elapsed.days * 86_400 + elapsed.seconds) * MICROSECONDS + elapsed.microseconds


def _body(row: Mapping[str, Any]) -> bytes:
    body = row.get("body")
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        return body.encode("utf-8")
    try:
        if "value" in row:
            return canonical_json(row["value"])
        return canonical_json({name: _plain(value) for name, value in row.items()})
    except (CanonicalError, UnicodeEncodeError) as error:
        raise _RowError(str(error)) from error


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, dt.datetime | dt.date) else value
