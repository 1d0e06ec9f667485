"""Files into a log: every row once, or put aside with the reason, however they are cut and whichever driver dies."""

from __future__ import annotations

import contextlib
import csv
import gzip
import json
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.cli.main import run
from millstream.core.message import Message, encode_line
from millstream.ingest.plain_json import PlainJson
from millstream.ingest.selectors import parse_selector
from millstream.log import Log, LogSpec, WriterBusyError, open_store
from millstream.node.spark import SparkPart
from millstream.pipeline.errors import PipelineError, PipelineInputError, StagedPartGoneError, UnusableFileError
from millstream.pipeline.jobs.ingest import FileRecord, IngestLogs, IngestResult, known_files, run_ingest
from millstream.pipeline.planning import source_files
from millstream.pipeline.planning.source_files import cuts_of, file_content, find_files, splits_of
from millstream.pipeline.staging import Staging
from millstream.pipeline.tasks import file_parsing
from millstream.pipeline.tasks.file_parsing import ParsingRules, parse_split
from millstream.testing.killed_programs import kill_at
from support.parsed_files import parsed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

on_spark = [pytest.mark.spark, pytest.mark.timeout(600)]

TOPIC = parse_selector("topic")
RECORDS = ParsingRules("record", PlainJson(TOPIC, key=parse_selector("$.sensor"), time=parse_selector("$.at")))


def lines(path: Path, first: int, count: int) -> list[Message]:
    made = [Message(b"%d" % n, f"k{n % 3}", "JSON", 1000 + n, 2000 + n, (("h", b"\xff"),)) for n in range(first, count)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(encode_line(message) + b"\n" for message in made))
    return made


def read(url: str, log: str) -> list[Message]:
    with open_store(url) as store:
        return [message for batch in store.log(LogSpec(log), create=False).read() for message in batch]


def simple(messages: Sequence[Message]) -> list[tuple[Any, ...]]:
    return [(m.body, m.key, m.source, m.event_time, m.headers) for m in messages]


def ingest(
    spark: SparkSession, url: str, folder: Path, rules: ParsingRules | None = None, log: str = "in"
) -> IngestResult:
    staging = (folder.parent / "staging").as_uri()
    return run_ingest(spark, url, log, find_files([folder]), rules or ParsingRules(), staging=staging)


INGEST = """
    import sys
    from pathlib import Path
    from millstream.pipeline.jobs.ingest import run_ingest
    from millstream.pipeline.tasks.file_parsing import ParsingRules
    from millstream.pipeline.planning.source_files import find_files
    from millstream.pipeline.session import SparkOptions, spark_session

    folder, url = Path(sys.argv[1]), sys.argv[2]
    with spark_session(folder / "work", SparkOptions(master="local[2]")) as spark:
        staging = (folder / "staging").as_uri()
        run_ingest(spark, url, "in", find_files([folder / "files"]), ParsingRules(), staging=staging)
"""


def has_messages(url: str) -> bool:
    """Whether the log has some."""
    with open_store(url) as store:
        return "in" in store.logs() and store.log(LogSpec("in")).last_id > 0


class TestOnSpark:
    pytestmark = on_spark

    def test_each_file_is_taken_once_in_order_in_pieces_and_what_is_no_message_is_put_aside(
        self, spark: SparkSession, tmp_path: Path, log_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(source_files, "SPLIT_BYTES", 1000)
        first = lines(tmp_path / "files/a.jsonl", 0, 100)
        with (tmp_path / "files/a.jsonl").open("ab") as file:
            file.write(b'{"no": 1}\nnot JSON\n')
        second = lines(tmp_path / "files/b/c.jsonl", 100, 150)
        done = ingest(spark, log_url, tmp_path / "files")
        assert simple(read(log_url, "in")) == simple(first + second)
        assert (done.record.rows_in, done.record.rows_out, done.record.counts["rejected"]) == (152, 150, 2)
        rejects = read(log_url, "in.rejects")
        assert [(m.body, m.source, m.key) for m in rejects] == [
            (b'{"no": 1}', "a", "message"),
            (b"not JSON", "a", "message"),
        ]
        assert dict(rejects[1].headers)["why"].startswith(b"byte ")
        again = ingest(spark, log_url, tmp_path / "files")
        assert (again.record.rows_out, again.record.counts["passed_over"]) == (0, 2)
        (tmp_path / "files/copy of a.jsonl").write_bytes((tmp_path / "files/a.jsonl").read_bytes())
        third = lines(tmp_path / "files/d.ndjson", 150, 160)
        assert ingest(spark, log_url, tmp_path / "files").record.counts == {
            "files": 1,
            "passed_over": 3,
            "rejected": 0,
            "unusable": 0,
        }
        assert simple(read(log_url, "in")) == simple(first + second + third)
        assert len(read(log_url, "in.files")) == 3

    def test_a_file_that_cannot_be_used_is_put_aside_and_the_others_are_taken(
        self, spark: SparkSession, tmp_path: Path, log_url: str
    ) -> None:
        folder = tmp_path / "files"
        written = lines(folder / "a.jsonl", 0, 10)
        table = pa.table({"body": [b"x"] * 1000})
        pq.write_table(table, folder / "b.parquet")
        whole = (folder / "b.parquet").read_bytes()
        (folder / "b.parquet").write_bytes(whole[:-100])
        (folder / "c.jsonl.gz").write_bytes(gzip.compress(b'{"body":"y"}\n' * 1000)[:-9])
        pq.write_table(pa.table({"text": ["x"]}), folder / "d.parquet")
        done = ingest(spark, log_url, folder)
        assert simple(read(log_url, "in")) == simple(written)
        assert (done.record.rows_out, done.record.counts["files"], done.record.counts["unusable"]) == (10, 1, 3)
        rejects = read(log_url, "in.rejects")
        assert [(m.source, m.key) for m in rejects] == [("b", "file"), ("c", "file"), ("d", "file")]
        assert b"b.parquet cannot be read; it may be truncated or damaged" in dict(rejects[0].headers)["why"]
        (folder / "b.parquet").write_bytes(whole)
        again = ingest(spark, log_url, folder)
        assert (again.record.rows_out, again.record.counts["unusable"]) == (1000, 2)
        assert len(read(log_url, "in")) == 1010

    @pytest.mark.parametrize("steps", [0, 1, 2])
    def test_a_run_that_was_written_down_is_finished_by_the_next_even_where_its_files_are_gone(
        self, spark: SparkSession, tmp_path: Path, log_url: str, monkeypatch: pytest.MonkeyPatch, steps: int
    ) -> None:
        first = lines(tmp_path / "files/a.jsonl", 0, 50)
        commit, left = Staging.commit, iter(range(steps))

        def dying(*args: Any, **kwargs: Any) -> int:
            if next(left, None) is None:
                raise KeyboardInterrupt
            return commit(*args, **kwargs)

        with (
            monkeypatch.context() as patch,
            pytest.raises(KeyboardInterrupt) if steps < 2 else contextlib.nullcontext(),
        ):
            patch.setattr(Staging, "commit", dying)
            ingest(spark, log_url, tmp_path / "files")
        (tmp_path / "files/a.jsonl").unlink()
        second = lines(tmp_path / "files/b.jsonl", 50, 60)
        ingest(spark, log_url, tmp_path / "files")
        assert simple(read(log_url, "in")) == simple(first + second)

    def test_a_run_whose_staged_rows_are_lost_is_read_again(
        self, spark: SparkSession, tmp_path: Path, log_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        written = lines(tmp_path / "files/a.jsonl", 0, 50)
        with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
            patch.setattr(Staging, "commit", lambda *_, **__: 1 // 0)
            ingest(spark, log_url, tmp_path / "files")
        shutil.rmtree(tmp_path / "staging")
        assert ingest(spark, log_url, tmp_path / "files").record.rows_out == 50
        assert ingest(spark, log_url, tmp_path / "files").record.counts["passed_over"] == 1
        assert simple(read(log_url, "in")) == simple(written)

    @pytest.mark.crash
    def test_a_driver_that_is_killed_while_it_appends_leaves_nothing_out_and_nothing_twice(
        self, spark: SparkSession, tmp_path: Path, log_url: str
    ) -> None:
        written = [m for n in range(40) for m in lines(tmp_path / f"files/{n:03}.jsonl", 500 * n, 500 * n + 500)]
        command = [sys.executable, "-c", textwrap.dedent(INGEST), str(tmp_path), log_url]
        kill_at(command, lambda: has_messages(log_url), "some messages")
        ingest(spark, log_url, tmp_path / "files")
        assert simple(read(log_url, "in")) == simple(written)

    def test_a_run_is_told_of_its_own_files_alone_however_many_were_taken_before(
        self, spark: SparkSession, log_url: str
    ) -> None:
        with open_store(log_url) as store, store.log(LogSpec("in.files")).writer("ingest") as writer:
            writer.append([Message(b"{}", f"sha-{number}") for number in range(500)], sequence=1)
        assert known_files(spark, log_url, "in.files", {"sha-7", "sha-499", "new"}) == {"sha-7", "sha-499"}

    def test_a_second_driver_is_refused(self, spark: SparkSession, tmp_path: Path, log_url: str) -> None:
        lines(tmp_path / "files/a.jsonl", 0, 1)
        with open_store(log_url) as store, store.log(LogSpec("in.files")).writer(), pytest.raises(WriterBusyError):
            ingest(spark, log_url, tmp_path / "files")

    def test_the_command_says_what_was_taken_and_fails_where_rows_were_rejected(
        self, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        @contextlib.contextmanager
        def shared(_: SparkPart, **_options: bool) -> Iterator[SparkSession]:
            yield spark

        monkeypatch.setattr(SparkPart, "session", shared)
        table = tmp_path / "files/plant/pump.csv"
        table.parent.mkdir(parents=True)
        table.write_text("at,sensor,value\n2026-01-01T00:00:00Z,temp,21.50\nyesterday,temp,3\n")
        command = ["pipeline", "ingest", str(tmp_path / "files"), "--log", "in", "--data", str(tmp_path / "data")]
        command += ["--shape", "record", "--key", "$.sensor", "--time", "$.at", "--received", "event", "--json"]
        assert run(command) == 1
        told = capfd.readouterr()
        figures = json.loads(told.out)
        assert (figures["job"], figures["rows_in"], figures["rows_out"]) == ("ingest", 2, 1)
        assert "millstream log read in.rejects" in told.err
        (message,) = read(f"sqlite:///{tmp_path / 'data' / 'log.db'}", "in")
        assert (message.source, message.key) == ("plant/pump", "temp")
        assert message.event_time == message.received_at == 1767225600_000_000
        assert json.loads(message.body)["value"] == 21.5
        (tmp_path / "files/broken.parquet").write_bytes(b"no Parquet")
        capfd.readouterr()
        assert run(command) == 1
        assert f"not ingested: {tmp_path}/files/broken.parquet is not a Parquet file" in capfd.readouterr().err
        (tmp_path / "files/broken.parquet").unlink()
        assert run(command) == 0
        assert run([*command[:2], str(tmp_path / "nowhere"), *command[3:]]) == 2


# Without Spark: what the driver writes down.


@contextlib.contextmanager
def ingest_logs(url: str, staging: Path) -> Iterator[IngestLogs]:
    with open_store(url) as store, IngestLogs(store, "in", staging.as_uri()).held() as work:
        yield work


def staged_file(staging: Path, work: IngestLogs, name: str) -> FileRecord:
    """A file whose one message a task has staged in the folder *staging*."""
    part = Staging(staging.as_uri(), work.prefix).store_part(0, [file_parsing.staged([Message(name.encode())])])
    return FileRecord(
        path=name, sha256=f"sha-{name}", bytes=1, run=work.last_run + 1, place=1, messages=(part,), rejects=()
    )


def test_a_run_of_which_the_driver_does_not_see_the_staged_rows_is_not_written_down(
    tmp_path: Path, log_url: str
) -> None:
    with ingest_logs(log_url, tmp_path / "driver") as work:
        with pytest.raises(StagedPartGoneError, match=r"is gone in .*driver, and nothing was appended"):
            work.write_down([staged_file(tmp_path / "executor", work, "a")])
        assert work.last_run == 0
        work.write_down([staged_file(tmp_path / "driver", work, "b")])
        work.finish()
    assert [message.body for message in read(log_url, "in")] == [b"b"]


def test_a_run_whose_staged_rows_are_lost_is_given_up_where_its_files_are_given_again(
    tmp_path: Path, log_url: str
) -> None:
    staging = tmp_path / "staging"
    with ingest_logs(log_url, staging) as work:
        work.write_down([staged_file(staging, work, "a")])
    staging.rename(tmp_path / "elsewhere")
    with ingest_logs(log_url, staging) as work:
        lost = work.finish_or_lost()
        assert lost is not None
        with pytest.raises(
            PipelineInputError, match=r"ingest its 1 files again, .* 1 of them are not in this one.* a$"
        ):
            work.give_up({"sha-b"}, lost)
        work.give_up({"sha-a", "sha-b"}, lost)
        assert (work.last_run, work.finish_or_lost()) == (2, None)
        work.write_down([staged_file(staging, work, "a")])
        work.finish()
        assert work.finish_or_lost() is None
    with ingest_logs(log_url, tmp_path / "elsewhere") as work:  # it is not appended any more
        work.finish()
    assert [message.body for message in read(log_url, "in")] == [b"a"]
    assert [message.key for message in read(log_url, "in.files")] == ["sha-a", "lost/sha-a", "sha-a"]


def test_a_lost_run_of_unusable_files_alone_is_given_up_although_no_file_is_new(tmp_path: Path, log_url: str) -> None:
    staging = tmp_path / "staging"
    with ingest_logs(log_url, staging) as work:
        file = staged_file(staging, work, "a")
        work.write_down([msgspec.structs.replace(file, messages=(), rejects=file.messages, unusable="no CSV")])
    shutil.rmtree(staging)
    with ingest_logs(log_url, staging) as work:
        lost = work.finish_or_lost()
        assert lost is not None
        work.give_up(set(), lost)
        work.finish()
    assert [(message.key, json.loads(message.body)["unusable"]) for message in read(log_url, "in.files")] == [
        ("", "no CSV")
    ] * 2


def test_a_run_whose_messages_are_in_the_log_is_not_taken_for_lost_with_its_rejects(
    tmp_path: Path, log_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = tmp_path / "staging"
    with ingest_logs(log_url, staging) as work:
        file, other = staged_file(staging, work, "a"), staged_file(staging, work, "rejected")
        work.write_down([msgspec.structs.replace(file, rejects=other.messages)])
        with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
            commit = Staging.commit

            def fail_at_the_rejects(self: Staging, log: Log, *args: Any, **options: Any) -> int:
                return commit(self, log, *args, **options) if log.name == "in" else 1 // 0

            patch.setattr(Staging, "commit", fail_at_the_rejects)
            work.finish()
    staging.rename(tmp_path / "elsewhere")
    with (
        ingest_logs(log_url, staging) as work,
        pytest.raises(PipelineError, match=r"messages are in the log already: use the --staging of that run$"),
    ):
        work.finish_or_lost()
    shutil.rmtree(staging)
    (tmp_path / "elsewhere").rename(staging)
    with ingest_logs(log_url, staging) as work:
        assert work.finish_or_lost() is None
    assert [message.body for message in read(log_url, "in")] == [b"a"]
    assert [message.body for message in read(log_url, "in.rejects")] == [b"rejected"]


# Without Spark: what tasks do.


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.one_of(st.binary(max_size=30), st.sampled_from([b"", b" ", b"\r", b'{"body":"x"}'])), max_size=12),
    split=st.integers(1, 40),
    last=st.booleans(),
)
def test_every_line_is_read_once_however_the_file_is_cut(
    rows: list[bytes], split: int, last: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = b"\n".join(rows) + (b"\n" if last else b"")
    folder = tmp_path_factory.mktemp("cut")
    (folder / "x.jsonl").write_bytes(data)
    wanted = [line.rstrip(b"\r\n") for line in data.split(b"\n") if line.strip()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_files, "SPLIT_BYTES", split)
        messages, refused = parsed(folder, ParsingRules())
    good = sorted(m.body for m in messages)
    assert good == [b"x"] * wanted.count(b'{"body":"x"}')
    assert sorted(r.row for r in refused) == sorted(line for line in wanted if line != b'{"body":"x"}')
    for row in refused:
        place = int(row.place.removeprefix("byte "))
        assert data[place:].startswith(row.row)


def test_rows_of_tables_keep_their_numbers_and_say_what_is_wrong_with_them(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "pump.csv.gz", "wt", newline="") as file:
        writer = csv.writer(file)
        writer.writerows(
            [
                ["at", "sensor", "text"],
                ["1.000000001", "t", "two\nlines"],
                ["1767225600", "t", "007"],
                ["1767225601", "t"],
                ["yesterday", "t", "x"],
            ]
        )
    messages, refused = parsed(tmp_path, RECORDS)
    assert [(m.event_time, m.source, json.loads(m.body)["text"]) for m in messages] == [
        (1_000_000, "pump", "two\nlines"),
        (1767225600_000_000, "pump", "007"),
    ]
    assert [(r.place, r.reason) for r in refused] == [("line 5", "row"), ("line 6", "time")]
    assert refused[0].why == "2 values for 3 columns"


def test_parquet_is_read_by_its_columns_or_as_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_files, "SPLIT_BYTES", 1)
    table = pa.table(
        {
            "body": ["a", None, "c"],
            "event_time": pa.array([1, 2, 3], pa.timestamp("us")),
            "sensor": ["s", "s", None],
        }
    )
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=2)
    messages, refused = parsed(tmp_path, ParsingRules(received="event"))
    assert [(m.body, m.event_time, m.received_at) for m in messages] == [(b"a", 1, 1), (b"c", 3, 3)]
    assert [(r.place, r.reason) for r in refused] == [("row 2", "message")]
    records, refused = parsed(
        tmp_path,
        ParsingRules("record", PlainJson(TOPIC, key=parse_selector("$.sensor"), time=parse_selector("$.event_time"))),
    )
    assert [(m.key, m.event_time, json.loads(m.body)["body"]) for m in records] == [("s", 1, "a"), ("s", 2, None)]
    assert [r.place for r in refused] == ["row 3"]


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_times_of_parquet_in_nanoseconds_are_cut_down_or_refused(tmp_path: Path, zone: str | None) -> None:
    times = pa.array([-1, 2000, 2999, None], pa.timestamp("ns", zone))
    inner = pa.array([{"at": 1999}, {"at": None}, None, {"at": 5}], pa.struct([("at", pa.timestamp("ns"))]))
    table = pa.table({"body": ["a", "b", "c", "d"], "event_time": times, "inner": inner})
    pq.write_table(table, tmp_path / "x.parquet")
    messages, refused = parsed(tmp_path, ParsingRules())
    assert [(m.body, m.event_time) for m in messages] == [(b"a", -1), (b"b", 2), (b"c", 2), (b"d", None)]
    assert refused == []
    messages, refused = parsed(tmp_path, ParsingRules(nanoseconds="reject"))
    assert [m.body for m in messages] == [b"b", b"d"]
    assert [(r.place, r.reason) for r in refused] == [("row 1", "time"), ("row 3", "time")]
    plain = PlainJson(TOPIC, key=TOPIC, time=parse_selector("$.event_time"))
    messages, refused = parsed(tmp_path, ParsingRules("record", plain))
    assert [m.event_time for m in messages] == [-1, 2, 2, None]
    assert json.loads(messages[0].body)["inner"]["at"] == "1970-01-01T00:00:00.000001Z"
    messages, refused = parsed(tmp_path, ParsingRules("record", plain, nanoseconds="reject"))
    assert ([m.event_time for m in messages], [r.reason for r in refused]) == ([2], ["time", "time", "time"])


UNSET = {"key": None, "source": None, "event_time": None, "received_at": None}


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_what_is_not_set_is_the_same_in_every_format(tmp_path: Path, ending: str) -> None:
    rows = [{"body": "x", **UNSET}, {"body": None, **UNSET, "key": "k"}]
    file = tmp_path / f"x.{ending}"
    if ending == "jsonl":
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    elif ending == "csv":
        with file.open("w", newline="") as text:
            writer = csv.DictWriter(text, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        kinds = {"body": pa.string(), "key": pa.string(), "source": pa.string()}
        schema = pa.schema([(name, kinds.get(name, pa.int64())) for name in rows[0]])
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), file)
    messages, refused = parsed(tmp_path, ParsingRules())
    assert [(m.body, m.key or "", m.source or "", m.event_time) for m in messages] == [(b"x", "", "", None)]
    assert [r.reason for r in refused] == ["message"]
    record = PlainJson(TOPIC, key=parse_selector("$.key"), time=parse_selector("$.event_time"))
    messages, refused = parsed(tmp_path, ParsingRules("record", record))
    assert [(m.key, m.event_time, json.loads(m.body)["body"]) for m in messages] == [("k", None, None)]
    assert [(r.reason, r.why) for r in refused] == [("member", "the member $.key of the payload is not set (null)")]
    record = PlainJson(TOPIC, TOPIC, parse_selector("$.event_time"), parse_selector("$.key"))
    messages, refused = parsed(tmp_path, ParsingRules("record", record))
    assert ([m.body for m in messages], [(r.reason, r.why) for r in refused]) == (
        [b'"k"'],
        [("member", "the member $.key of the payload is not set (null)")],
    )


def test_texts_of_messages_in_a_table_may_look_like_numbers(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("body,key,source,event_time\n39.020,7,1e5,8\n")
    (message,), _ = parsed(tmp_path, ParsingRules())
    assert (message.body, message.key, message.source, message.event_time) == (b"39.020", "7", "1e5", 8)


def test_a_line_that_is_too_long_is_put_aside_and_the_next_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_parsing, "MAX_ROW_BYTES", 100)
    monkeypatch.setattr(file_parsing, "_BATCH_BYTES", 64)
    (tmp_path / "x.jsonl").write_bytes(b"y" * 1000 + b'\n{"body":"x"}\n')
    messages, (refused,) = parsed(tmp_path, ParsingRules())
    assert [message.body for message in messages] == [b"x"]
    assert refused.reason == "size"


def test_a_row_of_csv_that_is_too_long_is_put_aside_with_its_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_parsing, "MAX_ROW_BYTES", 100)
    monkeypatch.setattr(file_parsing, "KEPT_BYTES", 20)
    body = "y" * 1000
    (tmp_path / "x.csv").write_text(f'key,body\r\na,x\r\nb,{body}\r\nc,"x"z\r\nd,x\r\n', newline="")
    messages, refused = parsed(tmp_path, ParsingRules())
    assert [message.key for message in messages] == ["a", "d"]
    assert [(row.place, row.reason, row.row) for row in refused] == [
        ("line 3", "size", b"b," + b"y" * 18),
        ("line 4", "row", b'c,"x"z'),
    ]
    assert [row.why for row in refused] == [
        "the row is longer than 100 bytes, the limit of a row: put the content into a store (`millstream store put`), "
        "and write only the item's id into the row",
        "',' expected after '\"'",
    ]


def test_a_file_that_grows_while_it_is_read_is_refused(tmp_path: Path) -> None:
    lines(tmp_path / "a.jsonl", 0, 3)
    (split,) = splits_of((file, cuts_of(file)) for file in find_files([tmp_path]))
    lines(tmp_path / "a.jsonl", 0, 4)
    with pytest.raises(UnusableFileError, match="changed while it was read"):
        list(parse_split(split, ParsingRules()))


@pytest.mark.parametrize(
    ("name", "data", "named"),
    [
        ("x.parquet", b"no Parquet", r"x\.parquet is not a Parquet file"),
        ("x.parquet", b"PAR1 and no more", r"the Parquet file .*x\.parquet cannot be read; it may be truncated"),
        ("x.csv", b"a,a\n1,2\n", "must contain unique column names"),
        ("x.jsonl.gz", b"no gzip", r"cannot read .*x\.jsonl\.gz: Not a gzipped file"),
    ],
)
def test_files_that_are_not_what_their_ending_says_are_named(
    tmp_path: Path, name: str, data: bytes, named: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UnusableFileError, match=named):
        parsed(tmp_path, RECORDS)


@pytest.mark.parametrize("rules", [ParsingRules(), RECORDS], ids=["messages", "records"])
def test_a_parquet_file_that_rotted_is_named(tmp_path: Path, rules: ParsingRules) -> None:
    path = tmp_path / "x.parquet"
    table = pa.table({"body": [b"%d" % number for number in range(5000)]})
    pq.write_table(table, path, write_page_checksum=True, use_dictionary=False, compression="none")
    data = bytearray(path.read_bytes())
    data[9000] ^= 1
    path.write_bytes(data)
    with pytest.raises(UnusableFileError, match=r"cannot read .*x\.parquet: "):
        parsed(tmp_path, rules)


def test_a_file_that_disappears_after_it_was_found_is_unusable_for_the_reason_that_the_system_gives(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"{}")
    (file,) = find_files([path])
    path.unlink()
    assert file_content(file).unusable == f"cannot read {path}: No such file or directory"


def test_files_are_found_below_folders_by_their_endings_and_called_by_where_they_lie(tmp_path: Path) -> None:
    for name in ("a/b.jsonl", "a/b.csv.gz", "a/.hidden.jsonl", "_tmp/x.jsonl", "readme.txt", "c.d.ndjson"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    found = [(file.topic, file.format) for file in find_files([tmp_path])]
    assert found == [("a/b", "csv"), ("a/b", "jsonl"), ("c.d", "jsonl")]
    with pytest.raises(PipelineInputError, match="--format"):
        find_files([tmp_path / "readme.txt"])
    assert find_files([tmp_path / "readme.txt"], "jsonl")[0].topic == "readme.txt"
    (tmp_path / "empty").mkdir()
    with pytest.raises(PipelineInputError, match=r"no \.jsonl or "):
        find_files([tmp_path / "empty"])
