"""Files whose content no reader expects are unusable, or have rejected rows; they do not fail the job."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millstream.core.decoding import prepared
from millstream.core.message import TICK_SOURCE
from millstream.ingest.plain_json import PlainJson
from millstream.ingest.selectors import parse_selector
from millstream.pipeline.errors import UnusableFileError
from millstream.pipeline.jobs.ingest import SplitResult, parse_part
from millstream.pipeline.planning.source_files import SourceFile, cuts_of, file_content, find_files, splits_of
from millstream.pipeline.tasks import file_parsing
from millstream.pipeline.tasks.file_parsing import ParsingRules, RefusedRow, refused_message
from millstream.pipeline.tasks.parquet_times import in_microseconds
from support.parsed_files import parsed

TOPIC = parse_selector("topic")
MESSAGES, RECORDS = ParsingRules(), ParsingRules("record", PlainJson(TOPIC, TOPIC, parse_selector("$.at")))
BOTH = pytest.mark.parametrize("rules", [MESSAGES, RECORDS], ids=["messages", "records"])
TEXT = pa.array(["x", "y", "z"])


def table_of(path: Path, **columns: Any) -> None:
    """Write *columns* to a Parquet file at *path*, with the bodies x, y and z."""
    pq.write_table(pa.table({"body": TEXT, **columns}), path)


def not_utf8(*values: bytes) -> pa.Array:
    """*values* as texts, without a check that they are."""
    return pa.array(values, pa.binary()).view(pa.string())


@BOTH
def test_two_columns_of_one_name_make_a_parquet_file_unusable(tmp_path: Path, rules: ParsingRules) -> None:
    pq.write_table(pa.Table.from_arrays([TEXT, TEXT, TEXT], ["body", "key", "key"]), tmp_path / "x.parquet")
    with pytest.raises(UnusableFileError, match=r"x\.parquet has more than one column 'key'"):
        parsed(tmp_path, rules)


def test_two_columns_of_one_name_that_no_message_has_are_ignored_but_no_record_can_have_them(tmp_path: Path) -> None:
    for names in (["body", "a", "a"], ["body", "", ""]):
        pq.write_table(pa.Table.from_arrays([TEXT, TEXT, TEXT], names), tmp_path / "x.parquet")
        messages, _ = parsed(tmp_path, MESSAGES)
        assert [message.body for message in messages] == [b"x", b"y", b"z"]
        with pytest.raises(UnusableFileError, match=f"more than one column '{names[1]}'"):
            parsed(tmp_path, RECORDS)


@pytest.mark.parametrize(
    ("column", "named"),
    [
        (pa.StructArray.from_arrays([TEXT, TEXT], ["a", "a"]), "duplicate field names"),
        (pa.array([0, 1, 2], pa.timestamp("us", "Nowhere/City")), "UnknownTimeZone|ZoneInfoNotFound"),
    ],
    ids=["members of one name", "time zone"],
)
def test_a_parquet_file_with_a_type_that_has_no_json_is_unusable(tmp_path: Path, column: pa.Array, named: str) -> None:
    table_of(tmp_path / "x.parquet", column=column)
    with pytest.raises(UnusableFileError, match=rf"cannot read .*x\.parquet: .*({named})"):
        parsed(tmp_path, RECORDS)


@pytest.mark.parametrize("name", ["event_time", "received_at"])
@pytest.mark.parametrize(
    "kind",
    [pa.duration("us"), pa.duration("ns"), pa.time64("us"), pa.time32("ms"), pa.date32(), pa.date64(), pa.bool_()],
)
def test_a_column_that_is_no_time_is_not_taken_for_one(tmp_path: Path, name: str, kind: pa.DataType) -> None:
    table_of(tmp_path / "x.parquet", **{name: pa.nulls(3, kind)})
    with pytest.raises(
        UnusableFileError, match=rf"x\.parquet: column '{name}' of type .* is not a time: use timestamps"
    ):
        parsed(tmp_path, MESSAGES)


@pytest.mark.parametrize(
    ("column", "why"),
    [
        (pa.array([0, 2**62, 0], pa.timestamp("us")), "a date or time is out of range"),
        (pa.array([[0], [2**62], []], pa.list_(pa.timestamp("us", "UTC"))), "a date or time is out of range"),
        (pa.array([0, 2**31 - 1, 0], pa.int32()).view(pa.date32()), "a date or time is out of range"),
        (not_utf8(b"a", b"\xff", b"b"), "not UTF-8"),
    ],
    ids=["time", "list", "date", "text"],
)
def test_a_row_of_parquet_with_a_value_that_has_no_json_is_rejected(tmp_path: Path, column: pa.Array, why: str) -> None:
    table_of(tmp_path / "x.parquet", column=column)
    messages, (refused,) = parsed(tmp_path, RECORDS)
    assert [json.loads(message.body)["body"] for message in messages] == ["x", "z"]
    assert (refused.place, refused.reason, refused.row) == ("row 2", "row", b"")
    assert refused.why.startswith(why)


@pytest.mark.parametrize(
    ("column", "written"),
    [
        (
            pa.array([[("k", 1999)]] * 3, pa.map_(pa.string(), pa.timestamp("ns"))),
            [["k", "1970-01-01T00:00:00.000001Z"]],
        ),
        (pa.array([[1999]] * 3, pa.large_list(pa.timestamp("ns"))), ["1970-01-01T00:00:00.000001Z"]),
        (pa.array([[1999]] * 3, pa.list_(pa.timestamp("ns"), 1)), ["1970-01-01T00:00:00.000001Z"]),
        (pa.array([1999] * 3, pa.duration("ns")), "PT0.000001S"),
    ],
    ids=["map", "large list", "fixed list", "duration"],
)
def test_nanoseconds_within_any_type_of_parquet_are_cut_down(tmp_path: Path, column: pa.Array, written: Any) -> None:
    table_of(tmp_path / "x.parquet", column=column)
    messages, refused = parsed(tmp_path, RECORDS)
    assert refused == []
    assert json.loads(messages[0].body)["column"] == written


FARTHEST = 2**63 - 1
NS, INT = pa.timestamp("ns"), pa.int32()
BEFORE_1970 = [-1, -1000, -1001, -FARTHEST, 1999, None]
CUT_DOWN = [-1, -1, -2, -9223372036854776, 1, None]
"""Nanoseconds, and the microseconds that they become."""


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (lambda time: pa.struct([("at", time)]), lambda at: {"at": at}),
        (pa.list_, lambda at: [at, at]),
        (pa.large_list, lambda at: [at]),
        (lambda time: pa.list_(time, 2), lambda at: [at, None]),
        (lambda time: pa.map_(pa.string(), time), lambda at: [("k", at)]),
        (lambda time: pa.map_(time, pa.struct([("n", INT)])), lambda at: [(at or 0, {"n": 1})]),
        (lambda time: pa.list_(pa.struct([("at", pa.list_(time))])), lambda at: [{"at": [at]}, None]),
    ],
    ids=["struct", "list", "large list", "fixed list", "map", "map key", "list of structs"],
)
def test_times_before_1970_are_cut_down_alike_at_any_depth(
    kind: Callable[[pa.DataType], pa.DataType], value: Callable[[int | None], Any]
) -> None:
    column = pa.array([*map(value, BEFORE_1970), None, value(-1999)], kind(NS))
    expected = pa.array([*map(value, CUT_DOWN), None, value(-2)], kind(pa.timestamp("us", "UTC")))
    for start in (0, 1):
        found = in_microseconds(column.slice(start))
        found.validate(full=True)
        assert found == expected.slice(start)


@pytest.mark.parametrize(
    ("column", "path"),
    [
        (pa.array([[("k", 1000)], [("k", 2000), ("l", 1999)], None], pa.map_(pa.string(), NS)), "column[].value"),
        (pa.array([[(1000, 0)], [(1999, 0)], []], pa.map_(NS, pa.int32())), "column[].key"),
        (pa.array([[1000, 2000], [0, 1999], None], pa.list_(NS)), "column[]"),
        (pa.array([None, [0, None, -1], [1000]], pa.large_list(NS)), "column[]"),
        (pa.array([None, [0, 1999], [1000, None]], pa.list_(NS, 2)), "column[]"),
        (pa.array([{"a": [0]}, {"a": [None, 1]}, None], pa.struct([("a", pa.list_(NS))])), "column.a[]"),
        (pa.array([[{"a": 0}, None], [{"a": 1}], []], pa.list_(pa.struct([("a", pa.duration("ns"))]))), "column[].a"),
        (pa.array([1000, -1, None], pa.duration("ns")), "column"),
        (pa.array([1000, 1999, None], pa.time64("ns")), "column"),
    ],
    ids=["map", "map key", "list", "large list", "fixed list", "list of struct", "struct of list", "duration", "day"],
)
def test_rows_with_nanoseconds_within_any_type_of_parquet_are_rejected(
    tmp_path: Path, column: pa.Array, path: str
) -> None:
    table_of(tmp_path / "x.parquet", column=column)
    rules = ParsingRules("record", PlainJson(TOPIC, TOPIC, parse_selector("$.at")), nanoseconds="reject")
    messages, (refused,) = parsed(tmp_path, rules)
    assert [json.loads(message.body)["body"] for message in messages] == ["x", "z"]
    assert (refused.place, refused.reason) == ("row 2", "time")
    assert refused.why == f"the value of column {path!r} is not a whole number of microseconds"
    assert json.loads(refused.row)["body"] == "y"


def test_each_row_with_nanoseconds_is_rejected_with_its_first_such_column(tmp_path: Path) -> None:
    table = {"at": pa.array([1, 1000, 1], NS), "more": pa.array([[1], [], [1, 1]], pa.list_(NS))}
    table_of(tmp_path / "x.parquet", **table)
    messages, refused = parsed(tmp_path, ParsingRules("record", RECORDS.plain, nanoseconds="reject"))
    assert [(one.place, one.why.split("'")[1]) for one in refused] == [("row 1", "at"), ("row 3", "at")]
    assert len(messages) == 1


@pytest.mark.parametrize("number", [FARTHEST, -FARTHEST, FARTHEST // 1000 + 1, -(FARTHEST // 1000) - 1])
def test_a_time_in_milliseconds_that_microseconds_cannot_hold_makes_its_row_invalid(
    tmp_path: Path, number: int
) -> None:
    times = pa.array([1, number, None], pa.timestamp("ms"))
    table_of(tmp_path / "x.parquet", event_time=times)
    messages, (refused,) = parsed(tmp_path, MESSAGES)
    assert [(message.body, message.event_time) for message in messages] == [(b"x", 1000), (b"z", None)]
    assert (refused.place, refused.reason) == ("row 2", "message")
    assert refused.why.startswith(
        "a date or time is out of range: the value of column 'event_time' in microseconds does not fit"
    )
    table_of(tmp_path / "x.parquet", at=times)
    messages, (refused,) = parsed(tmp_path, RECORDS)
    assert [(json.loads(message.body)["body"], message.event_time) for message in messages] == [
        ("x", 1000),
        ("z", None),
    ]
    assert (refused.place, refused.reason, refused.row) == ("row 2", "row", b"")
    assert refused.why.startswith(
        "a date or time is out of range: the value of column 'at' in microseconds does not fit"
    )


@pytest.mark.parametrize("number", [FARTHEST, 2**61 + 1])
@pytest.mark.parametrize("lists", [pa.list_, pa.large_list])
def test_a_time_within_a_list_that_microseconds_cannot_hold_makes_its_row_invalid(
    tmp_path: Path, number: int, lists: Callable[[pa.DataType], pa.DataType]
) -> None:
    table_of(tmp_path / "x.parquet", times=pa.array([[1], [1, number], None], lists(pa.timestamp("ms"))))
    messages, (refused,) = parsed(tmp_path, RECORDS)
    assert [json.loads(message.body)["times"] for message in messages] == [["1970-01-01T00:00:00.001000Z"], None]
    assert (refused.place, refused.reason, refused.row) == ("row 2", "row", b"")
    assert "'times[]' in microseconds does not fit" in refused.why


def test_the_earliest_time_in_nanoseconds_is_cut_down_to_the_microsecond_before(tmp_path: Path) -> None:
    table_of(tmp_path / "x.parquet", event_time=pa.array([-FARTHEST, -1, FARTHEST], NS))
    messages, _ = parsed(tmp_path, MESSAGES)
    assert [message.event_time for message in messages] == [-9223372036854776, -1, 9223372036854775]


def test_a_parquet_file_whose_column_has_no_name_in_utf8_is_unusable(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"body": TEXT, "abcdefg": TEXT}), path, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"abcdefg", b"\xffbcdefg"))
    (file,) = find_files([path])
    assert "x.parquet cannot be read; it may be truncated or damaged: " in (why := file_content(file).unusable)
    assert "('utf-8' codec" in why


@BOTH
@pytest.mark.parametrize(
    ("header", "named"),
    [
        (b'body,"a"b', "is not valid CSV"),
        (b'body,"a', "is not valid CSV"),
        (b"body,\xff", "is not UTF-8"),
        ("body,a".encode("utf-16"), "is not UTF-8"),
        (b"body,,", "a name is empty"),
        (b"body,x,x", "'x' is repeated"),
    ],
    ids=["quote", "end", "latin-1", "utf-16", "empty", "repeated"],
)
def test_a_csv_file_whose_first_line_cannot_be_read_is_unusable(
    tmp_path: Path, rules: ParsingRules, header: bytes, named: str
) -> None:
    (tmp_path / "x.csv").write_bytes(header + b"\n1,2\n")
    with pytest.raises(UnusableFileError, match=rf"x\.csv: the first line must contain unique .*{named}"):
        parsed(tmp_path, rules)


def test_a_file_with_a_row_that_no_log_accepts_is_unusable(tmp_path: Path) -> None:
    table_of(tmp_path / "x.parquet", key=not_utf8(b"a", b"\xff", b"b"))
    (file,) = find_files([tmp_path])
    (split,) = splits_of([(file, cuts_of(file))])
    work = pa.record_batch({"work": [msgspec.msgpack.encode(split)]})
    (done,) = parse_part([work], MESSAGES, (tmp_path / "staging").as_uri(), "ingest-in")
    result = msgspec.msgpack.decode(done["done"][0].as_py(), type=prepared(SplitResult))
    assert result.unusable.startswith(f"the log does not accept a row of {file.path}: the column key must be")
    assert (result.messages, result.rejects) == (None, None)


@pytest.mark.parametrize("file", ["x.jsonl", "x.parquet"])
def test_rows_of_the_source_of_ticks_are_put_aside_but_ticks_themselves_are_kept(tmp_path: Path, file: str) -> None:
    rows = [
        {"body": body, "key": key, "source": source}
        for body, key, source in (("", "", TICK_SOURCE), ("x", "", TICK_SOURCE), ("", "k", TICK_SOURCE), ("x", "", "s"))
    ]
    if file == "x.jsonl":
        (tmp_path / file).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / file)
    messages, refused = parsed(tmp_path, MESSAGES)
    assert [(message.source, message.body) for message in messages] == [(TICK_SOURCE, b""), ("s", b"x")]
    assert [each.reason for each in refused] == ["source", "source"]
    assert "is reserved for ticks" in refused[0].why


def test_a_file_whose_path_is_not_utf8_is_unusable_and_the_others_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body":"x"}\n')
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/b\xff.jsonl")).write_text('{"body":"y"}\n')
    files = find_files([tmp_path])
    sent = [msgspec.msgpack.decode(msgspec.msgpack.encode(file), type=prepared(SourceFile)) for file in files]
    good, bad = map(file_content, sent)
    assert (good.unusable, len(good.cuts)) == ("", 1)
    why = rf"the path {tmp_path}/b\udcff.jsonl is not UTF-8: rename the file or its folder"
    assert (bad.unusable, bad.cuts) == (why, ())
    assert refused_message(files[1], RefusedRow("file", "file", why, b"")).source == r"b\udcff"


def test_a_csv_row_without_an_end_is_rejected_and_never_in_memory_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_parsing, "MAX_ROW_BYTES", 1000)
    monkeypatch.setattr(file_parsing, "_BATCH_BYTES", 1000)
    endless = b"ab," * 1_000_000
    quoted = b'"a\n",' * 500
    rows = [b"body,key", b"x,1", endless, b"y,2", quoted, b"z,3"]
    with gzip.open(tmp_path / "x.csv.gz", "wb", compresslevel=1) as file:
        file.write(b"\n".join(rows))
    tracemalloc.start()
    try:
        messages, refused = parsed(tmp_path, MESSAGES)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < len(endless) // 3
    assert [message.body for message in messages] == [b"x", b"y", b"z"]
    assert [(row.place, row.reason) for row in refused] == [("line 3", "size"), ("line 5", "row")]
    assert refused[0].row.startswith(b"ab,ab")
    assert refused[0].why.startswith("the row is longer than 1,000 bytes")


def test_a_csv_file_without_line_ends_is_unusable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_parsing, "MAX_ROW_BYTES", 1000)
    (tmp_path / "x.csv").write_bytes(b"ab," * 1000)
    with pytest.raises(UnusableFileError, match=r"the first line must .* but it is longer than 1,000 bytes"):
        parsed(tmp_path, MESSAGES)
