"""Lines of JSON with the mark of UTF-8 before them, as some programs write it, are read as without it, everywhere."""

from __future__ import annotations

import io
import json
from codecs import BOM_UTF8
from pathlib import Path

import pytest

from millstream.batching.json_lines import EventLineError, read_events
from millstream.demo.userfile import read_records
from millstream.pipeline.planning.source_files import cuts_of, find_files, splits_of
from millstream.pipeline.tasks.file_parsing import ParsingRules, parse_split
from millstream.testing.dids import DidOwner
from support.commands import run_command

LINES = BOM_UTF8 + b'{"body":"a","event_time":1,"received_at":2}\n{"body":"b","event_time":3,"received_at":4}\n'


def test_messages_for_a_log(tmp_path: Path) -> None:
    (tmp_path / "lines.jsonl").write_bytes(LINES)
    data = ["--data", str(tmp_path / "data")]
    assert run_command("log", "append", "events", str(tmp_path / "lines.jsonl"), "--jsonl", *data).out == "1 2\n"
    assert run_command("log", "append", "events", "--jsonl", *data, stdin=LINES).out == "3 4\n"
    assert run_command("log", "read", "events", *data).out == "a\nb\na\nb\n"


def test_a_mark_elsewhere_is_named_with_its_line(tmp_path: Path) -> None:
    data = ["--data", str(tmp_path / "data")]
    answer = run_command("log", "append", "events", "--jsonl", *data, stdin=b'{"body":"a"}\n' + LINES)
    assert (answer.code, "standard input, line 2: invalid message" in answer.err) == (2, True)


def test_events_for_the_batcher() -> None:
    line = b'{"id":%d,"key":"k","event_time":1,"received_at":2}\n'
    assert [event.id for _, event in read_events(io.BytesIO(BOM_UTF8 + line % 1 + line % 2))] == [1, 2]
    assert [event.id for _, event in read_events(io.BytesIO(BOM_UTF8 + b"\n" + line % 1))] == [1]
    with pytest.raises(EventLineError, match="line 2"):
        list(read_events(io.BytesIO(line % 1 + BOM_UTF8 + line % 2)))


def test_files_for_an_ingest(tmp_path: Path) -> None:
    (tmp_path / "lines.jsonl").write_bytes(LINES)
    (split,) = splits_of((file, cuts_of(file)) for file in find_files([tmp_path]))
    (found,) = parse_split(split, ParsingRules())
    assert not isinstance(found, list)
    assert found.column("body").to_pylist() == [b"a", b"b"]


def test_records_for_the_demo(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").write_bytes(BOM_UTF8 + b'{"key":"a","event_time":1}\n{"key":"b","event_time":2}\n')
    read = read_records(tmp_path / "records.jsonl")
    assert (read.records.column("key").to_pylist(), read.bad) == (["a", "b"], ())


def test_operations_of_identifiers(tmp_path: Path) -> None:
    requests = [json.dumps(DidOwner(f"marked{number}").create.request).encode() for number in range(2)]
    (tmp_path / "operations.jsonl").write_bytes(BOM_UTF8 + b"\n".join(requests) + b"\n")
    answer = run_command("anchor", "submit", str(tmp_path / "operations.jsonl"), "--data", str(tmp_path / "data"))
    assert (answer.out, answer.code) == ("operations: 2 accepted, 0 refused\n", 0)
