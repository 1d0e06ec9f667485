"""A user's own file: good rows become records, bad rows are put aside by number, other files are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millstream.demo.userfile import UserFileError, read_records

NEW_YEAR = 1_704_067_200_000_000


def write(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text, "utf-8")
    return folder / name


def test_json_lines(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "r.jsonl",
        '{"key":"a","event_time":"2024-01-01T00:00:00Z","value":{"b":1,"a":[2.0]}}\n'
        "nope\n"
        "\n"
        '{"key":"","event_time":1}\n'
        '{"key":"b","event_time":1.5}\n'
        '{"key":"b","event_time":0,"body":"x","source":"s"}\n'
        "[1]\n"
        '{"key":"b","event_time":"--5"}\n'
        '{"key":"b","event_time":"2024-01-01T00:00:00"}\n',
    )
    read = read_records(path)
    assert read.records.to_pylist() == [
        {"source": "", "key": "a", "event_time": NEW_YEAR, "body": b'{"a":[2],"b":1}'},
        {"source": "s", "key": "b", "event_time": 0, "body": b"x"},
    ]
    assert [row.line for row in read.bad] == [2, 4, 5, 7, 8, 9]
    assert "time zone" in read.bad[-1].reason
    assert read.bad[0].text == "nope"
    assert json.loads(read.bad[-1].text) == {"key": "b", "event_time": "2024-01-01T00:00:00"}


def test_csv_with_receive_times(tmp_path: Path) -> None:
    path = write(tmp_path, "r.csv", "key,event_time,received_at,colour\na,5,9,red\nb,6\nc,7,8,blue\n")
    read = read_records(path)
    assert read.timed
    assert read.records.column("received_at").to_pylist() == [9, 8]
    assert (
        read.records.column("body").to_pylist()[0] == b'{"colour":"red","event_time":"5","key":"a","received_at":"9"}'
    )
    assert [row.line for row in read.bad] == [3]
    assert json.loads(read.bad[0].text)["event_time"] == "6"


def test_parquet_with_timestamps(tmp_path: Path) -> None:
    table = pa.table(
        {
            "key": ["a", "b"],
            "event_time": pa.array([NEW_YEAR, None], pa.timestamp("us", tz="UTC")),
            "value": [1.5, 2.5],
        }
    )
    pq.write_table(table, tmp_path / "r.parquet")
    read = read_records(tmp_path / "r.parquet")
    assert read.records.to_pylist() == [{"source": "", "key": "a", "event_time": NEW_YEAR, "body": b"1.5"}]
    assert [(row.line, row.reason) for row in read.bad] == [(2, "event_time is missing")]
    assert json.loads(read.bad[0].text) == {"key": "b", "event_time": None, "value": 2.5}


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("r.txt", "x", "ends in"),
        ("r.jsonl", "", "because the file has no rows"),
        ("r.jsonl", "what\nis this\n", "no row is a valid record; the first error is in line 1"),
        ("r.csv", "a,b\n1,2\n", r"missing columns: event_time, key \(present: a, b\)"),
        ("r.parquet", "PAR0", "cannot read"),
        ("r.csv", "key,event_time,received_at\na,1,2\nb,1,\n", "received_at"),
    ],
)
def test_a_file_of_another_shape_is_refused(tmp_path: Path, name: str, text: str, reason: str) -> None:
    with pytest.raises(UserFileError, match=reason):
        read_records(write(tmp_path, name, text))


@pytest.mark.parametrize("time", [2**53, -(2**53)])
def test_a_time_in_another_unit_is_refused_with_the_limit_of_both_signs(tmp_path: Path, time: int) -> None:
    path = write(tmp_path, "r.jsonl", f'{{"key":"a","event_time":1}}\n{{"key":"b","event_time":{time}}}\n')
    (bad,) = read_records(path).bad
    assert bad.reason.endswith("the limit is ±9,007,199,254,740,991 microseconds: check the unit")


def test_an_absent_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserFileError, match="cannot read"):
        read_records(tmp_path / "absent.jsonl")


def test_a_limit_stops_reading(tmp_path: Path) -> None:
    path = write(tmp_path, "r.jsonl", '{"key":"a","event_time":1}\n' * 10)
    assert len(read_records(path, limit=3).records) == 3
