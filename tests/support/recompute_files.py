"""Input files for ``pipeline ingest``, made from a seed: rows of every kind, good and bad, in every format.

Nine tenths of the rows are of one source. Keys, times and headers are often unset; times lie around changes of the
clock in several zones and up to 2**53 - 1; numbers are beyond what a float can hold; some rows are sent twice.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import random
from base64 import b64encode
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq

SECOND = 1_000_000
WINDOW, MAX_DELAY, GRACE = 2 * SECOND, SECOND, 3 * SECOND
LAST_TIME = 2**53 - 1
LARGE = 2**53 + 1
ZONES = [
    ZoneInfo(name) for name in ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "UTC")
]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
STARTS = [
    datetime(2026, 3, 29, 0, 59, tzinfo=UTC),  # Berlin goes from 2:00 to 3:00
    datetime(2026, 10, 25, 0, 59, tzinfo=UTC),  # Berlin has 2:00 to 3:00 twice
    datetime(2026, 11, 1, 5, 59, tzinfo=UTC),  # New York has 1:00 to 2:00 twice
    datetime(2026, 4, 4, 14, 59, tzinfo=UTC),  # Lord Howe goes back by half an hour
    datetime(1969, 12, 31, 23, 59, tzinfo=UTC),
    datetime(1900, 2, 28, 23, 59, tzinfo=UTC),
]
SOURCES = ["JFK", 'Süd "3"\n', "ключ/1", "", "\U0001f600", "a\tb,c;d"]
KEYS = ["temp", "dewp", "größe", "\u2028\U00010348", 'k"\\', "a,b", "7", "0.10"]

Values = dict[str, Any]


class Sent(NamedTuple):
    """A message as somebody sends it; None is unset."""

    body: bytes
    source: str | None
    key: str | None
    event_time: int | None
    received_at: int | None
    headers: tuple[tuple[str, bytes], ...] | None


def microseconds(moment: datetime) -> int:
    """The microseconds of *moment* since the epoch, exactly."""
    return (moment - EPOCH) // timedelta(microseconds=1)


def sent_messages(draw: random.Random, count: int) -> list[Sent]:
    """*count* messages, every twentieth of which is sent twice."""
    sent: list[Sent] = []
    while len(sent) < count:
        message = _sent(draw, count, len(sent))
        sent.append(message)
        if draw.random() < 0.05 and message.event_time is not None:
            body = message.body if draw.random() < 0.5 else message.body + b"'"
            received = message.event_time + draw.randrange(MAX_DELAY)
            sent.append(message._replace(body=body, received_at=received))
    draw.shuffle(sent)
    return sent[:count]


def _sent(draw: random.Random, count: int, number: int) -> Sent:
    if draw.random() < 0.005:
        start = LAST_TIME - 120 * SECOND
    else:
        start = microseconds(draw.choice(STARTS))
    event_time: int | None = start + draw.randrange(max(count // 8, 60)) * SECOND // 4
    if draw.random() < 0.02:
        event_time = start + draw.randrange(count * SECOND)
    assert event_time is not None
    event_time = min(event_time, LAST_TIME - 10 * SECOND)
    delay = draw.randrange(MAX_DELAY + 1)
    chance = draw.random()
    if chance < 0.04:
        delay = MAX_DELAY + draw.choice([0, 1, GRACE - 1, GRACE, GRACE + 1, draw.randrange(2 * GRACE)])
    elif chance < 0.06:
        delay = -MAX_DELAY - draw.choice([0, 1, draw.randrange(SECOND), 3 * SECOND])
    received_at: int | None = event_time + delay
    if chance > 0.99:
        event_time, received_at = draw.choice(
            [(event_time, None), (None, received_at), (None, None), (LARGE, received_at), (-(2**63), 2**63 - 1)]
        )
    key = draw.choice(KEYS) if draw.random() < 0.85 else draw.choice([None, ""])
    source = SOURCES[0] if draw.random() < 0.9 else draw.choice([*SOURCES[1:], None])
    body = draw.choice(
        [b"%d" % (LARGE + number), b"39.%d" % number, f"t\u00e4xt {number}".encode(), b"", b"\xff\x00%d" % number]
    )
    if draw.random() < 0.1:
        body += b"x" * draw.randrange(400)
    headers = ((draw.choice(["unit", "größe"]), b"\xfe"), ("n", b"%d" % number)) if draw.random() < 0.05 else None
    return Sent(body, source, key, event_time, received_at, headers)


def write_message_files(folder: Path, draw: random.Random, count: int) -> None:
    """Write *count* rows and more below *folder* as files of messages, with everything that may be wrong with them."""
    rows = sent_messages(draw, count)
    share = len(rows) // 20
    cuts = [0, 8 * share, 9 * share, 10 * share, 14 * share, 15 * share, 17 * share, 18 * share, 19 * share, len(rows)]
    parts = [rows[start:end] for start, end in itertools.pairwise(cuts)]
    (folder / "deep" / "er").mkdir(parents=True)
    _json_lines(folder / "hot.jsonl", draw, parts[0])
    _json_lines(folder / "deep" / "some.ndjson", draw, parts[1])
    _json_lines(folder / "deep" / "er" / "packed.json.gz", draw, parts[2])
    _table(folder / "table.csv", draw, parts[3], ",")
    _table(folder / "deep" / "table.tsv", draw, parts[4], "\t")
    _parquet(folder / "counted.parquet", parts[5], pa.int64())
    _parquet(folder / "deep" / "zoned.parquet", _dated(parts[6]), pa.timestamp("us", "Europe/Berlin"))
    _parquet(folder / "deep" / "plain.parquet", _dated(parts[7]), pa.timestamp("ms"))
    _parquet(folder / "deep" / "fine.parquet", _dated(parts[8]), pa.timestamp("ns"))
    _unusable(folder, rows[0])


def _dated(rows: Sequence[Sent]) -> list[Sent]:
    """Rows whose times fit into nanoseconds of 64 bits and whole milliseconds."""
    return [
        row._replace(
            event_time=None if row.event_time is None else row.event_time % (2**62 // 1000),
            received_at=None if row.received_at is None else row.received_at % (2**62 // 1000),
        )
        for row in rows
    ]


def _json_lines(path: Path, draw: random.Random, rows: Sequence[Sent]) -> None:
    lines = []
    for row in rows:
        lines.append(json.dumps(_json_row(row, draw), ensure_ascii=draw.random() < 0.3).encode())
        if draw.random() < 0.05:
            lines.append(draw.choice(BAD_LINES))
    ends = [b"\r\n" if draw.random() < 0.05 else b"\n" for _ in lines]
    data = b"".join(line + end for line, end in zip(lines, ends, strict=True)).rstrip(b"\r\n")
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def _json_row(row: Sent, draw: random.Random) -> Values:
    values: Values = {}
    try:
        values["body"] = row.body.decode()
    except UnicodeDecodeError:
        values["body_base64"] = b64encode(row.body).decode()
    values |= {"source": row.source, "key": row.key}
    values |= {"event_time": _written(row.event_time, draw), "received_at": _written(row.received_at, draw)}
    if row.headers is not None:
        values["headers"] = [_json_header(name, value) for name, value in row.headers]
    unset = draw.random() < 0.5
    return {name: value for name, value in values.items() if value is not None or unset}


def _json_header(name: str, value: bytes) -> Values:
    try:
        return {"name": name, "value": value.decode()}
    except UnicodeDecodeError:
        return {"name": name, "value_base64": b64encode(value).decode()}


def _written(time: int | None, draw: random.Random) -> int | str | None:
    """A time as a number, or as ISO 8601 in one of several zones, where such a time has whole minutes of offset."""
    if time is None or draw.random() < 0.5 or abs(time) > LARGE:
        return time
    moment = (EPOCH + timedelta(microseconds=time)).astimezone(draw.choice(ZONES))
    offset = moment.utcoffset()
    assert offset is not None
    if offset.seconds % 60:
        return time
    return moment.isoformat().replace("+00:00", draw.choice(["Z", "+00:00"]))


BAD_LINES = [
    b"",
    b"  ",
    b"nonsense",
    b"[1]",
    b"null",
    b"9007199254740993",
    b"\xff\xfe",
    b"{}",
    b'{"body":null}',
    b'{"body":5}',
    b'{"body":"a","body_base64":"YQ=="}',
    b'{"body_base64":"YQ"}',
    b'{"body":"a","other":1}',
    b'{"Body":"a"}',
    b'{"body":"a","key":7}',
    b'{"body":"a","source":true}',
    b'{"body":"\\ud800"}',
    b'{"body":"\x01"}',
    b'{"body":"a","event_time":1.5}',
    b'{"body":"a","event_time":9007199254740993.0}',
    b'{"body":"a","event_time":true}',
    b'{"body":"a","event_time":9223372036854775808}',
    b'{"body":"a","event_time":"2026-10-25T02:30:00"}',
    b'{"body":"a","event_time":"yesterday"}',
    b'{"body":"a","received_at":"1700000000000000"}',
    b'{"body":NaN}',
    b'{"body":"cut',
    b'{"body":"a"} {"body":"b"}',
    b'{"body":"a","headers":{"a":"b"}}',
    b'{"body":"' + b"y" * 70_000 + b'"',
]
"""Lines that are no messages; the first two are empty and passed over."""


def _table(path: Path, draw: random.Random, rows: Sequence[Sent], delimiter: str) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        lines.writerow(["body", "source", "key", "event_time", "received_at"])
        for row in rows:
            times = [_written(row.event_time, draw), _written(row.received_at, draw)]
            body = row.body.replace(b"\xff\x00", b"0.").decode()
            lines.writerow([body, row.source, row.key, *times])
            if draw.random() < 0.03:
                lines.writerow(draw.choice(BAD_CELLS))


BAD_CELLS: list[list[object]] = [
    ["", "JFK", "temp", 1, 2],
    ["short", "JFK"],
    ["a", "JFK", "temp", 1, 2, "more"],
    ["a", "JFK", "temp", 1.5, 2],
    ["a", "JFK", "temp", "2026-10-25T02:30:00", ""],
    ["two\nlines", "JFK", "temp", "never", ""],
    ["a", "b", "c", "007", ""],
]


def _parquet(path: Path, rows: Sequence[Sent], time: pa.DataType) -> None:
    def times(values: list[int | None]) -> pa.Array:
        if pa.types.is_timestamp(time) and time.unit == "ns":
            return pa.array([None if value is None else value * 1000 + value % 3 for value in values]).cast(time)
        if pa.types.is_timestamp(time) and time.unit == "ms":
            return pa.array([None if value is None else value // 1000 for value in values]).cast(time)
        return pa.array(values, pa.int64()).cast(time)

    bodies = [None if number % 40 == 7 else row.body for number, row in enumerate(rows)]
    header = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
    headers = [
        None if row.headers is None else [{"name": name, "value": value} for name, value in row.headers] for row in rows
    ]
    table = pa.table({
        "received_at": times([row.received_at for row in rows]),
        "body": pa.array(bodies, pa.binary()),
        "key": pa.array([row.key for row in rows], pa.string()).dictionary_encode(),
        "source": pa.array([row.source for row in rows], pa.string()),
        "event_time": times([row.event_time for row in rows]),
        "headers": pa.array(headers, header),
    })  # fmt: skip
    pq.write_table(table, path, row_group_size=max(len(rows) // 3, 1))


def _unusable(folder: Path, row: Sent) -> None:
    """Files of which nothing can be taken, and files of which nothing need be taken."""
    whole = (folder / "counted.parquet").read_bytes()
    (folder / "truncated.parquet").write_bytes(whole[:-20])
    (folder / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"body":"a"}\n' * 1000)[:-9])
    (folder / "names.csv").write_text("body,body\na,b\n")
    pq.write_table(pa.table({"key": ["a"]}), folder / "bodiless.parquet")
    (folder / "empty.jsonl").write_bytes(b"")
    (folder / "names-only.tsv").write_text("body\tkey\n")
    (folder / "hot-copy.jsonl").write_bytes((folder / "hot.jsonl").read_bytes())
    (folder / "notes.txt").write_text("no format of ours")
    (folder / ".hidden.jsonl").write_text('{"body":"hidden"}\n')


def write_record_files(folder: Path, draw: random.Random, count: int) -> None:
    """Write *count* records below *folder*: members ``station``, ``sensor``, ``time`` in seconds, and ``value``."""
    (folder / "north").mkdir(parents=True)
    records = [_record(draw, number) for number in range(count)]
    half, most = count // 2, count * 3 // 4
    lines = []
    for record in records[:half]:
        lines.append(_record_line(record, draw))
        if draw.random() < 0.04:
            lines.append(draw.choice(BAD_RECORDS))
    (folder / "north" / "records.jsonl").write_bytes(b"\n".join(lines))
    with (folder / "records.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["station", "sensor", "time", "value"])
        table.writerows(
            [[record[name] for name in ("station", "sensor", "time", "value")] for record in records[half:most]]
        )
    rest = [record for record in records[most:] if record["time"] is None or not isinstance(record["time"], str)]
    numbers = [LARGE + number if record["value"] else None for number, record in enumerate(rest)]
    columns = {
        "station": pa.array([record["station"] for record in rest], pa.string()),
        "sensor": pa.array(
            [None if record["sensor"] is None else str(record["sensor"]) for record in rest], pa.string()
        ),
        "time": pa.array(
            [None if record["time"] is None else int(str(record["time"]).partition(".")[0]) for record in rest],
            pa.int64(),
        ),
        "value": pa.array(numbers, pa.int64()),
    }
    pq.write_table(pa.table(columns), folder / "records.parquet", row_group_size=max(len(rest) // 2, 1))


class _Number(NamedTuple):
    """A number that is written as its text has it."""

    text: str

    def __str__(self) -> str:
        return self.text


def _record(draw: random.Random, number: int) -> Values:
    moment = draw.choice(STARTS) + timedelta(microseconds=draw.randrange(3600 * SECOND))
    count = microseconds(moment)
    whole, rest = divmod(count, SECOND)
    time: object = draw.choice([whole, _Number(f"{whole}.{rest:06d}") if whole >= 0 else whole, None])
    if draw.random() < 0.4:
        time = moment.astimezone(draw.choice(ZONES[1:])).isoformat()
        time = time if count > 0 else whole
    return {
        "station": "hot" if draw.random() < 0.9 else draw.choice([None, "Süd", "7", "\U0001f600"]),
        "sensor": draw.choice([None, *["temp", LARGE, "größe", 'w"x'] * 4]),
        "time": time,
        "value": draw.choice([None, *[LARGE + number, _Number("1.10"), "täxt", _Number("1E400")] * 4]),
    }


def _record_line(record: Values, draw: random.Random) -> bytes:
    """The line of a record; what is unset is null or absent, and numbers are as :class:`_Number` has them."""
    unset = draw.random() < 0.5
    members = []
    for name, value in record.items():
        if value is not None or unset:
            text = str(value) if isinstance(value, _Number) else json.dumps(value, ensure_ascii=draw.random() < 0.3)
            members.append(f"{json.dumps(name)}:{text}")
    draw.shuffle(members)
    return ("{" + ", ".join(members) + "}").encode()


BAD_RECORDS = [
    b"",
    b"nonsense",
    b"[1]",
    b"\xff",
    b'{"station":"a","sensor":"b","time":NaN,"value":1}',
    b'{"station":"a","sensor":true,"time":1,"value":1}',
    b'{"station":"a","sensor":1.5,"time":1,"value":1}',
    b'{"station":"a","sensor":"b","time":"2026-10-25T02:30:00","value":1}',
    b'{"station":"","sensor":"b","time":1,"value":1}',
    b'{"station":"a","sensor":"b","time":true,"value":1}',
    b'{"station":"a","sensor":"b","time":9007199254.740993,"value":1}',
    b'{"station":"a","sensor":"b","time":9007199254.740991,"value":1}',
    b'{"station":"a","sensor":"b","time":-0.0000001,"value":1}',
    b'{"station":"a","sensor":"b","time":1.0000019,"value":[ 1 ,{"b":1,"a":9007199254740993}]}',
    b'{"station":"a","sensor":"b","time":"","value":1}',
    b'{"station":"a","sensor":"b","time":"1700000000","value":1}',
]
"""Lines that are no records, and some that just are."""
