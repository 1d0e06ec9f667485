"""The benchmark of the log does the work that it times, on every side, and believes nobody."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from crc32c import crc32c

from millstream.bench.log.load import Sent, packs_of
from millstream.bench.log.options import Choice, Senders, parse_choice
from millstream.bench.log.ours import IN_MEMORY
from millstream.bench.log.read_check import ReadCheck, ReadCheckError
from millstream.bench.log.runs import LogRuns
from millstream.bench.log.servers import Servers
from millstream.bench.runner import measure, run_benchmark
from millstream.core.clock import SystemClock
from millstream.core.errors import InputError
from millstream.log.backends.mysql import parse_address
from millstream.log.backends.mysql.pymysql_connection import connect_pymysql

QUICK = Choice(seconds=0.005, senders=5)


@pytest.fixture(scope="module")
def work() -> Iterator[LogRuns]:
    with tempfile.TemporaryDirectory() as folder, Servers(Path(folder)) as servers:
        yield LogRuns(QUICK, servers, Path(folder), SystemClock())


@pytest.mark.smoke
@pytest.mark.parametrize("name", ["mariadb-rows", "sqlite-rows", "redis", "nats", "litequeue", "mariadb", "sqlite"])
def test_a_contender_writes_and_reads_back_all_that_it_is_timed_for(work: LogRuns, name: str) -> None:
    for run in (work.alone, work.both):
        sample = run(name, 4, 20)
        assert sample.value > 0
        assert sample.figures["read messages/s"] > 0


def test_the_minimal_program_takes_part(work: LogRuns) -> None:
    for run in (work.alone, work.both, work.two_processes):
        assert run("frame-file", 4, 20).value > 0
    assert work.lone("frame-file", 3).value > 0


@pytest.mark.served
def test_rows_and_blocks_in_postgresql_take_part(work: LogRuns) -> None:
    for name in ("postgres-copy", "postgres"):
        assert work.alone(name, 100, 20).value > 0


def test_a_bucket_takes_part_and_its_requests_are_counted(work: LogRuns) -> None:
    assert work.both("memory-bucket", 4, 20).value > 0
    sample = work.ahead("memory-bucket-far", 100, 1)
    assert sample.figures["GET/million"] >= sample.figures["PUT/million"] > 0, "a PUT and a GET for each commit"
    assert sample.figures["LIST/million"] == 0
    assert sample.figures["MB/million"] > 5
    assert sample.figures["p50 ms"] >= 100, "both requests take 50 ms"
    assert not IN_MEMORY, "nothing of it stays"


def test_buckets_are_compared_with_other_stores() -> None:
    parts = {"backends": "sqlite,memory-bucket,memory-bucket-far", "latency": "3", "packs": "9"}
    report = run_benchmark("log-buckets", size="quick", runs=1, clock=SystemClock(), show=lambda _: None, parts=parts)
    (result,) = report.results
    assert [row.contender for row in result.rows] == [
        "millstream, SQLite", "millstream, bucket (in memory)", "millstream, bucket (in memory) + 3 ms per request",
    ]  # fmt: skip


@pytest.mark.served
def test_a_bucket_on_a_server_is_read_by_another_process(work: LogRuns) -> None:
    assert work.two_processes("bucket", 4, 20).value > 0
    assert work.ahead("bucket", 4, 5).figures["server CPU µs/message"] >= 0


def test_a_bucket_in_memory_is_left_out_where_another_process_reads() -> None:
    parts = {"peers": "none", "backends": "segments,memory-bucket", "modes": "processes,ahead", "packs": "7"}
    report = run_benchmark("log", size="quick", runs=1, clock=SystemClock(), show=lambda _: None, parts=parts)
    names = [[row.contender for row in result.rows] for result in report.results]
    assert names == [["millstream, segment files"], ["millstream, segment files", "millstream, bucket (in memory)"]]
    assert [result.title for result in report.results] == [
        "Write and read at the same time in two processes: 4 B, 7 messages per append",
        "Write with 100 unconfirmed messages per sender: 4 B, 7 messages per append",
    ]


@pytest.mark.served
def test_nothing_of_a_run_stays_in_its_server(work: LogRuns) -> None:
    work.alone("mariadb-rows", 4, 20)
    work.alone("mariadb", 4, 20)
    with contextlib.closing(connect_pymysql(parse_address(work._servers.get("mariadb-whole").url))) as connection:
        tables = sorted(table for (table,) in connection.rows("SHOW TABLES"))
    assert all(table.startswith("millstream_") for table in tables)
    assert tables, "the store itself stays"


def test_a_reader_in_a_process_of_its_own_sees_everything(work: LogRuns) -> None:
    assert work.two_processes("segments", 4, 20).figures["read messages/s"] > 0


def test_arrow_and_the_wait_for_a_lone_message_are_measured(work: LogRuns) -> None:
    assert work.arrow("segments", 4).figures["read Arrow messages/s"] > 0
    assert work.lone("sqlite-rows", 3).value > 0


@pytest.mark.parametrize("kind", ["coroutines", "threads"])
def test_senders_of_either_kind_send_the_same(kind: Senders, tmp_path: Path) -> None:
    with Servers(tmp_path) as servers:
        work = LogRuns(Choice(seconds=0.01, senders=7, kind=kind), servers, tmp_path, SystemClock())
        assert work.alone("segments", 4, 3).figures["senders"] == 7
    assert list(itertools.islice(tmp_path.iterdir(), 1)) == [], "its files are removed"


def test_the_benchmark_runs_in_parts() -> None:
    parts = {"peers": "sqlite-rows", "backends": "sqlite", "modes": "alone,arrow", "packs": "50,5", "senders": "4"}
    report = run_benchmark("log", size="quick", runs=1, clock=SystemClock(), show=lambda _: None, parts=parts)
    titles = [result.title for result in report.results]
    assert titles == [
        "Write, then read: 4 B, 50 messages per append",
        "Arrow record batches: 4 B",
        "Write, then read: 4 B, 5 messages per append",
    ]
    rows, ours = report.results[0].rows
    assert (rows.ratio, rows.figures["read messages/s, ratio"]) == (1, 1)
    assert ours.figures["read messages/s, ratio"] > 0


@pytest.mark.parametrize(
    "parts", [{"peers": "kafka"}, {"payloads": "0"}, {"payloads": "x"}, {"kind": "hamsters"}, {"modes": "both,neither"}]
)
def test_a_part_that_there_is_not_is_refused(parts: dict[str, str]) -> None:
    with pytest.raises(InputError):
        parse_choice(parts)


def test_another_benchmark_has_no_such_parts() -> None:
    with pytest.raises(InputError, match="has no option payloads"):
        run_benchmark(
            "batching", size="quick", runs=1, clock=SystemClock(), show=lambda _: None, parts={"payloads": "4"}
        )


PACKS = packs_of([b"%0100d" % n for n in range(6)], 2)
SENT = Sent([(3, 1), (1, 0), (5, 2)], [0.0], 1.0)
ALL = [body for pack in PACKS for body in pack]


def test_what_was_sent_is_what_is_expected() -> None:
    seen = ReadCheck(100)
    seen.add_all([([1, 2, 3], ALL[:3]), ([4, 5, 6], ALL[3:])])
    seen.expect(SENT, PACKS)
    columns = ReadCheck(100)
    columns.add_columns(iter([pa.RecordBatch.from_pydict({"id": range(1, 7), "body": ALL})]))
    assert (columns.last_id, columns.crc) == (6, crc32c(b"".join(ALL)))


@pytest.mark.parametrize(
    "read",
    [
        lambda seen: seen.add([1, 3], ALL[:2]),
        lambda seen: seen.add([2], ALL[:1]),
        lambda seen: seen.add([1], [b"short"]),
        lambda seen: seen.add(range(1, 7), [*ALL[:4], ALL[4] + ALL[5][:1], ALL[5][1:]]),
        lambda seen: seen.add(range(1, 6), ALL[:5]),
        lambda seen: seen.add(range(1, 7), [*ALL[:4], ALL[5], ALL[4]]),
        lambda seen: seen.add(range(1, 7), [*ALL[:5], bytes(100)]),
        lambda seen: seen.add_columns(iter([pa.RecordBatch.from_pydict({"id": [1, 3], "body": ALL[:2]})])),
        lambda seen: seen.add_columns(iter([pa.RecordBatch.from_pydict({"id": [1], "body": [b"short"]})])),
    ],
)
def test_a_message_that_is_lost_moved_or_changed_ends_the_benchmark(read: Callable[[ReadCheck], None]) -> None:
    seen = ReadCheck(100)
    with pytest.raises(ReadCheckError):
        read(seen)
        seen.expect(SENT, PACKS)


def test_a_failing_sender_ends_the_benchmark(work: LogRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr("millstream_peers.log.sqlite_rows.SqliteRowSender._commit", fail)
    with pytest.raises(OSError, match="the disk is gone"):
        work.alone("sqlite-rows", 4, 20)


def test_results_are_formed_as_in_every_benchmark(work: LogRuns) -> None:
    from millstream.bench.log import LogComparisons

    plan = LogComparisons(
        Choice(seconds=0.005, senders=5, peers=("sqlite-rows",), backends=("sqlite",), modes=("lone",)), work
    )
    (comparison,) = plan.comparisons()
    result = measure(comparison, 1, lambda _: None)
    assert [row.contender for row in result.rows] == ["one row per message, SQLite", "millstream, SQLite"]
    assert result.unit == "ms"
