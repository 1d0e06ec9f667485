"""What ``pipeline ingest`` makes of files, computed from the files and from docs/formats/ingest-files.md alone.

Nothing here imports Millstream: the tests compare its results with these.
"""

from __future__ import annotations

import binascii
import csv
import gzip
import hashlib
import io
import json
from base64 import b64decode
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FORMATS = {".jsonl": "json", ".ndjson": "json", ".json": "json", ".csv": ",", ".tsv": "\t", ".parquet": "parquet"}
LONGEST_BODY = 65_536
MEMBERS = {"body", "body_base64", "source", "key", "event_time", "received_at", "headers", "id"}
TEXTS = ("source", "key")
LAST_TIME = 2**53 - 1

Header = tuple[str, bytes]


class Taken(NamedTuple):
    """A row that is a message; a time that is None is set when it is appended."""

    source: str
    key: str
    event_time: int | None
    received_at: int | None
    body: bytes
    headers: tuple[Header, ...]


class Rejected(NamedTuple):
    """A row, or a file, that is put aside: the message of LOG.rejects, and how its header ``why`` begins."""

    source: str
    key: str
    body: bytes
    file: str
    where: str


class Ingested(NamedTuple):
    """Messages and rejects in their order, and the paths of LOG.files with whether each could be used."""

    taken: list[Taken]
    rejected: list[Rejected]
    files: list[tuple[str, str, bool]]
    passed_over: int


class Places(NamedTuple):
    """The members of records that are source, key, and body; the time is ``time``, in seconds."""

    source: str
    key: str
    value: str


class _Bad(Exception):
    """A row with the reason why it is none."""


class _Unusable(Exception):
    """A file of which nothing is taken."""


Row = tuple[str, bytes, "dict[str, Any] | _Bad"]


def ingested(folder: Path, places: Places | None = None) -> Ingested:
    """What is taken of all files below *folder*; rows are messages, or with *places* records."""
    result = Ingested([], [], [], 0)
    known: set[str] = set()
    for path in sorted(folder.rglob("*"), key=lambda path: (_topic(folder, path), path)):
        name = path.name.removesuffix(".gz")
        kind = FORMATS.get(Path(name).suffix)
        if not path.is_file() or kind is None or name.startswith("."):
            continue
        data = path.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        if digest in known:
            result = result._replace(passed_over=result.passed_over + 1)
            continue
        topic = _topic(folder, path)
        taken: list[Taken] = []
        rejected: list[Rejected] = []
        try:
            for row in _rows(path, data, kind, places):
                _sort_row(row, places, topic, str(path), taken, rejected)
        except _Unusable:
            result.rejected.append(Rejected(topic, "file", b"", str(path), "file: "))
            result.files.append((str(path), "", False))
            continue
        known.add(digest)
        result.taken.extend(taken)
        result.rejected.extend(rejected)
        result.files.append((str(path), digest, True))
    return result


def _topic(folder: Path, path: Path) -> str:
    topic = str(path.relative_to(folder)).removesuffix(".gz")
    return topic.removesuffix(Path(topic).suffix)


def _sort_row(
    row: Row, places: Places | None, topic: str, path: str, taken: list[Taken], rejected: list[Rejected]
) -> None:
    where, written, values = row
    try:
        if isinstance(values, _Bad):
            raise values
        taken.append(_message(values) if places is None else _record(values, places))
    except _Bad as bad:
        rejected.append(Rejected(topic, str(bad), written[:LONGEST_BODY], path, where))


def _rows(path: Path, data: bytes, kind: str, places: Places | None) -> Iterator[Row]:
    if path.suffix == ".gz":
        try:
            data = gzip.decompress(data)
        except (EOFError, OSError) as error:
            raise _Unusable from error
    if kind == "json":
        return _json_rows(data, places is not None)
    if kind == "parquet":
        return _parquet_rows(path, places is not None)
    return _table_rows(data, kind, places is not None)


def _json_rows(data: bytes, raw: bool) -> Iterator[Row]:
    start = 0
    for line in data.split(b"\n"):
        text = line.removesuffix(b"\r")
        if text.strip():
            yield f"byte {start}: ", text, _json_object(text, raw)
        start += len(line) + 1


class Raw(str):
    """A JSON value as it is written."""

    __slots__ = ()


def _json_object(line: bytes, raw: bool) -> dict[str, Any] | _Bad:
    """The members of the object in *line*; with *raw* each as it is written."""
    bad = _Bad("json" if raw else "message")
    try:
        text = line.decode().strip(" \t\r")
        value = json.loads(text, parse_constant=_no_constant)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return bad
    if not isinstance(value, dict):
        return bad
    return dict(_raw_members(text)) if raw else value


def _no_constant(name: str) -> None:
    raise ValueError(name)


def _raw_members(text: str) -> Iterator[tuple[str, Raw]]:
    decoder = json.JSONDecoder()

    def after(place: int, signs: str = " \t\r\n") -> int:
        while text[place] in signs:
            place += 1
        return place

    place = after(1)
    while text[place] != "}":
        name, place = decoder.raw_decode(text, place)
        start = after(after(place), ": \t\r\n")
        _, place = decoder.raw_decode(text, start)
        yield name, Raw(text[start:place])
        place = after(place, ", \t\r\n")


def _table_rows(data: bytes, delimiter: str, records: bool) -> Iterator[Row]:
    lines = csv.reader(io.StringIO(data.decode(), newline=""), delimiter=delimiter, strict=True)
    names = next(lines, [])
    if len(set(names)) < len(names):
        raise _Unusable
    while True:
        where = f"line {lines.line_num + 1}: "
        cells = next(lines, None)
        if cells is None:
            return
        if not cells:
            continue
        if len(cells) != len(names):
            yield where, "\t".join(cells).encode(), _Bad("row")
            continue
        raw = {
            name: _cell(cell, records or "time" in name or "_at" in name)
            for name, cell in zip(names, cells, strict=True)
        }
        written = "{" + ",".join(f"{_json(name)}:{value}" for name, value in raw.items()) + "}"
        yield (
            where,
            written.encode(),
            dict(raw) if records else {name: json.loads(value) for name, value in raw.items()},
        )


def _cell(cell: str, numbers: bool) -> Raw:
    if not cell:
        return Raw("null")
    try:
        number = numbers and cell[0] in "-0123456789" and cell.isascii() and json.loads(cell) is not None
    except ValueError:
        number = False
    return Raw(cell if number else _json(cell))


def _json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _parquet_rows(path: Path, records: bool) -> Iterator[Row]:
    try:
        table = pq.read_table(path)
    except pa.ArrowInvalid as error:
        raise _Unusable from error
    if not records and "body" not in table.column_names:
        raise _Unusable
    for name in ("event_time", "received_at"):
        if not records and pa.types.is_timestamp(table.schema.field(name).type):
            table = _in_microseconds(table, name)
    for number, row in enumerate(table.to_pylist(), 1):
        if not records:
            row["headers"] = None if row.get("headers") is None else [(h["name"], h["value"]) for h in row["headers"]]
            yield f"row {number}: ", b"", row if row["body"] is not None else _Bad("message")
        else:
            raw = {
                name: Raw("null" if value is None else json.dumps(value, ensure_ascii=False))
                for name, value in row.items()
            }
            written = "{" + ",".join(f"{_json(name)}:{value}" for name, value in raw.items()) + "}"
            yield f"row {number}: ", written.encode(), dict(raw)


def _in_microseconds(table: pa.Table, name: str) -> pa.Table:
    unit = table.schema.field(name).type.unit
    factor = {"ms": (1000, 1), "us": (1, 1), "ns": (1, 1000)}[unit]
    counts = table.column(name).cast(pa.int64()).to_pylist()
    exact = [None if count is None else count * factor[0] // factor[1] for count in counts]
    return table.set_column(table.schema.get_field_index(name), name, pa.array(exact, pa.int64()))


def _message(values: dict[str, Any]) -> Taken:
    bad = _Bad("message")
    if not set(values) <= MEMBERS or not isinstance(values.get("id", 1), int):
        raise bad
    body, packed = values.get("body"), values.get("body_base64")
    if (body is None) == (packed is None):
        raise bad
    texts = [values.get(name) for name in TEXTS]
    if not all(text is None or isinstance(text, str) for text in texts):
        raise bad
    headers = values.get("headers")
    if not isinstance(headers, list | None):
        raise bad
    return Taken(
        texts[0] or "", texts[1] or "", _time(values.get("event_time")), _time(values.get("received_at")),
        _bytes(body, packed), tuple(_header(header) for header in headers or ()),
    )  # fmt: skip


def _bytes(value: object, packed: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str) and packed is None:
        return value.encode()
    if isinstance(packed, str) and value is None:
        try:
            return b64decode(packed, validate=True)
        except binascii.Error as error:
            raise _Bad("message") from error
    raise _Bad("message")


def _header(header: object) -> Header:
    if isinstance(header, tuple):
        return header
    if not isinstance(header, dict) or not isinstance(header.get("name"), str):
        raise _Bad("message")
    return header["name"], _bytes(header.get("value"), header.get("value_base64"))


def _time(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63:
        return value
    count = _iso(value)
    if count is None:
        raise _Bad("message")
    return count


def _iso(value: object) -> int | None:
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return None if moment is None or moment.tzinfo is None else (moment - EPOCH) // timedelta(microseconds=1)


def _record(values: dict[str, Any], places: Places) -> Taken:
    """The message of a record, whose members are JSON as they are written; places are looked at in this order."""
    time = values.get("time", "null")
    event_time = None if time == "null" else _counted(json.loads(time, parse_float=Decimal))
    key, source = (_name(values.get(place, "null")) for place in (places.key, places.source))
    body = values.get(places.value, "null")
    if body == "null":
        raise _Bad("member")
    return Taken(source, key, event_time, None, body.encode(), ())


def _name(written: str) -> str:
    value = json.loads(written, parse_float=Decimal)
    if value is None or value == "":
        raise _Bad("member")
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise _Bad("json")
    return str(value)


def _counted(value: object) -> int:
    count = _iso(value)
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        try:
            count = int((Decimal(value) * 1_000_000).to_integral_value("ROUND_FLOOR"))
        except InvalidOperation:
            count = None
    if count is None or abs(count) > LAST_TIME:
        raise _Bad("time")
    return count
