"""The batch job: the same batches as in process, once, whatever became of earlier runs."""

from __future__ import annotations

import logging
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millstream.anchoring.batch_files import checked_batch
from millstream.anchoring.batch_records import EncodedBatch, encode_batch
from millstream.batching import BatchConfig, Batcher, Override, Rulebook
from millstream.batching.message_events import event_from_message
from millstream.core.clock import SystemClock
from millstream.core.message import Message
from millstream.log import LogNotFoundError
from millstream.pipeline import history
from millstream.pipeline.errors import PipelineError, PipelineInputError
from millstream.pipeline.jobs import batch
from millstream.pipeline.jobs.batch import BatchJob, run_batch
from millstream.pipeline.output.job_folder import JobBusyError, JobFile, JobFolder, JobRecord, unfinished
from millstream.pipeline.planning.log_range import plan_range
from millstream.pipeline.shard_shares import read_share
from millstream.pipeline.tasks import replaced_batches
from millstream.testing.damage import flip_bit
from millstream.testing.killed_programs import kill_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

Untidy = Callable[..., list[Message]]
WriteLog = Callable[..., list[Message]]


def in_process(
    messages: list[Message], rules: BatchConfig | Rulebook
) -> tuple[list[EncodedBatch], list[tuple[int, str]]]:
    """Batches in the job's order and rejects by id, of the batcher fed in log order."""
    batcher = Batcher.of(rules)
    received, closed = batcher.receive_many(map(event_from_message, messages)), batcher.advance(max_received(messages))
    flushed = batcher.flush()
    by_id = {message.id: message for message in messages}
    batches = [*received.batches, *closed.batches, *flushed.batches]
    batches.sort(key=lambda batch: (batch.start, batch.source, batch.batch))
    rejects = [*received.rejects, *closed.rejects, *flushed.rejects]
    encoded = [encode_batch(batch, [by_id[number] for number in batch.events]) for batch in batches]
    return encoded, sorted((reject.rejected, str(reject.reason)) for reject in rejects)


def max_received(messages: list[Message]) -> int:
    return max(message.received_at or 0 for message in messages)


def outcome(job: BatchJob) -> tuple[list[EncodedBatch], list[tuple[int, str]]]:
    return list(job.batches()), sorted((reject.rejected, str(reject.reason)) for reject in job.rejects())


@pytest.mark.smoke
@pytest.mark.parametrize(("seed", "sources", "cut"), [(1, 1, "at_event"), (2, 3, "at_event"), (3, 40, "midpoint")])
def test_p5_the_job_gives_the_batches_of_the_batcher_in_process(
    spark: SparkSession,
    tmp_path: Path,
    log_url: str,
    untidy: Untidy,
    write_log: WriteLog,
    seed: int,
    sources: int,
    cut: str,
) -> None:
    rules = BatchConfig(50, 20, conflict_cut=cut)  # type: ignore[arg-type]
    messages = write_log(log_url, "untidy", untidy(seed, 3000, sources=sources))
    job = run_batch(spark, tmp_path / "jobs", log_url, "untidy", rules)
    batches, rejects = in_process(messages, rules)
    assert outcome(job) == (batches, rejects)
    assert {reason for _, reason in rejects} == {"late", "future", "duplicate", "conflicting_duplicate"}
    counts = job.record.counts
    assert job.record.rows_in == len(messages) == counts["batched"] + counts["rejected"]
    assert (counts["batches"], counts["rejected"], counts["open"]) == (len(batches), len(rejects), 0)
    assert job.record.bytes == sum(len(batch.lines) for batch in batches)
    _check_that_only_what_comes_again_has_a_dictionary(job.data)


def _check_that_only_what_comes_again_has_a_dictionary(folder: Path) -> None:
    group = pq.read_metadata(max(folder.glob("*.parquet"), key=lambda path: path.stat().st_size)).row_group(0)
    columns = [group.column(place) for place in range(group.num_columns)]
    coded = {column.path_in_schema for column in columns if column.has_dictionary_page}
    known = {column.path_in_schema for column in columns}
    assert {"source", "cut", "kind"} <= coded
    assert {"batch", "start", "root", "lines", "ids.list.element"} <= known - coded


def test_p5_a_range_gives_the_same_batches_however_the_log_went_on(
    spark: SparkSession, tmp_path: Path, log_url: str, untidy: Untidy, write_log: WriteLog, rules: BatchConfig
) -> None:
    messages = write_log(log_url, "untidy", untidy(4, 600))
    before = run_batch(spark, tmp_path / "jobs", log_url, "untidy", rules)
    write_log(log_url, "untidy", untidy(5, 300))
    after = run_batch(spark, tmp_path / "other", log_url, "untidy", rules, last_id=len(messages))
    assert outcome(after) == outcome(before)
    assert after.record.inputs == before.record.inputs


def test_the_log_is_read_without_the_data_source_for_which_spark_starts_python_processes(
    spark: SparkSession, log_url: str, untidy: Untidy, write_log: WriteLog
) -> None:
    messages = write_log(log_url, "untidy", untidy(4, 300))
    wanted = plan_range(log_url, "untidy", None, None, SystemClock())
    shares, _ = history.share_range(spark, log_url, wanted, None, whole=True)
    assert "millstream-shards" not in shares._jdf.queryExecution().analyzed().toString()
    rows = [len(read_share(row["share"])) for row in shares.collect()]
    assert sum(rows) == len(messages)


def test_without_flush_the_last_batches_stay_open(
    spark: SparkSession, tmp_path: Path, log_url: str, untidy: Untidy, write_log: WriteLog, rules: BatchConfig
) -> None:
    messages = write_log(log_url, "untidy", untidy(6, 800))
    job = run_batch(spark, tmp_path / "jobs", log_url, "untidy", rules, flush=False)
    batches, _ = in_process(messages, rules)
    assert list(job.batches()) == [batch for batch in batches if batch.header.closed_at is not None]
    assert 0 < job.record.counts["open"] < 100


def test_a_job_that_closed_everything_has_nothing_to_hand_over(
    spark: SparkSession, tmp_path: Path, log_url: str, untidy: Untidy, write_log: WriteLog, rules: BatchConfig
) -> None:
    write_log(log_url, "untidy", untidy(10, 50))
    job = run_batch(spark, tmp_path / "jobs", log_url, "untidy", rules, flush=True)
    with pytest.raises(PipelineError, match="closed every batch"):
        job.snapshot()


def test_a_finished_job_is_not_run_again_and_an_unfinished_one_is(
    spark: SparkSession, tmp_path: Path, log_url: str, untidy: Untidy, write_log: WriteLog, rules: BatchConfig
) -> None:
    write_log(log_url, "untidy", untidy(7, 300))
    first = run_batch(spark, tmp_path / "jobs", log_url, "untidy", rules)
    expected = outcome(first)
    again = run_batch(spark, tmp_path / "jobs", log_url, "untidy", rules)
    assert (first.reused, again.reused) == (False, True)
    assert again.record == first.record
    first.data.joinpath(first.record.files[0].name).unlink()
    (first.data / "part-99999-stray.parquet").write_bytes(b"what a killed run left")
    repaired = run_batch(spark, tmp_path / "jobs", log_url, "untidy", rules)
    assert not repaired.reused
    assert outcome(repaired) == expected


BATCH = """
    import sys
    from pathlib import Path
    from millstream.batching import BatchConfig
    from millstream.pipeline.jobs.batch import run_batch
    from millstream.pipeline.session import SparkOptions, spark_session

    folder, url = Path(sys.argv[1]), sys.argv[2]
    with spark_session(folder / "work", SparkOptions(master="local[2]")) as spark:
        run_batch(spark, folder / "jobs", url, "untidy", BatchConfig(50, 20))
"""


@pytest.mark.smoke
@pytest.mark.crash
def test_p6_a_job_whose_driver_is_killed_is_done_again_and_loses_no_message(
    spark: SparkSession, tmp_path: Path, log_url: str, untidy: Untidy, write_log: WriteLog, rules: BatchConfig
) -> None:
    messages = write_log(log_url, "untidy", untidy(9, 20_000), block_messages=5000)
    command = [sys.executable, "-c", textwrap.dedent(BATCH), str(tmp_path), log_url]
    kill_at(command, lambda: any(tmp_path.glob("jobs/batch-*/attempt-1/data/*")), "some output")
    assert not list(tmp_path.glob("jobs/batch-*/job.json"))
    job = run_batch(spark, tmp_path / "jobs", log_url, "untidy", rules)
    assert not job.reused
    assert outcome(job) == in_process(messages, rules)


def test_a_finished_job_is_one_line_of_canonical_json(
    spark: SparkSession,
    tmp_path: Path,
    log_url: str,
    untidy: Untidy,
    write_log: WriteLog,
    rules: BatchConfig,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write_log(log_url, "untidy", untidy(8, 50))
    with caplog.at_level(logging.INFO, "millstream.pipeline"):
        job = run_batch(spark, tmp_path / "jobs", log_url, "untidy", rules)
    (line,) = [record.message for record in caplog.records if record.name == "millstream.pipeline"]
    told = msgspec.json.decode(line)
    assert (told["job"], told["rows_in"], told["bytes"]) == ("batch", job.record.rows_in, job.record.bytes)
    assert told["seconds"] == job.record.seconds > 0


def test_a_job_that_somebody_is_at_is_busy(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path, "batch", {"log": "x"})
    with folder.held(), pytest.raises(JobBusyError, match="another process") as caught, folder.held():
        pass
    assert caught.value.exit_code == 4


def test_a_record_that_is_damaged_is_told_and_its_job_done_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = JobFolder(tmp_path, "batch", {"log": "x"})
    with folder.held():
        folder.begin()
        folder.data.mkdir()
        folder.commit(JobRecord(job="batch", inputs=folder.inputs, rows_in=1, rows_out=1, bytes=1, seconds=0.0))
        assert folder.committed()
        (folder.path / "job.json").write_bytes(b"{")
        assert folder.committed() is None
    (folder.path / "job.json").unlink()
    assert list(unfinished(tmp_path, "batch")) == [{"log": "x"}]
    (folder.path / "inputs.json").write_bytes(b"{")
    assert list(unfinished(tmp_path, "batch")) == []
    assert [name in caplog.text for name in ("job.json is damaged", "inputs.json is damaged")] == [True, True]


def test_what_an_earlier_attempt_still_writes_is_not_in_the_output(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path, "batch", {"log": "x"})
    with folder.held():
        folder.begin()
        killed = folder.data
        folder.begin()
        assert not killed.parent.exists()
        killed.mkdir(parents=True)  # by the Java machine of the driver that was killed
        (killed / "part-00000.parquet").write_bytes(b"theirs")
        assert not folder.data.exists()  # or Spark refuses to write
        folder.data.mkdir()
        (folder.data / "part-00000.parquet").write_bytes(b"ours")
        record = folder.commit(
            JobRecord(job="batch", inputs=folder.inputs, rows_in=1, rows_out=1, bytes=1, seconds=0.0)
        )
        (killed / "part-00001.parquet").write_bytes(b"theirs")
        assert folder.committed() == record
        assert [(file.name, file.bytes) for file in record.files] == [("part-00000.parquet", 4)]
        folder.begin()
        assert not killed.exists()


def test_a_job_that_an_older_version_finished_is_read_where_it_lies(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path, "batch", {"log": "x"})
    older = folder.path / "data"
    older.mkdir(parents=True)
    (older / "part-00000.parquet").write_bytes(b"rows")
    files = (JobFile("part-00000.parquet", 4),)
    record = JobRecord(job="batch", inputs=folder.inputs, rows_in=1, rows_out=1, bytes=1, files=files)
    (folder.path / "job.json").write_bytes(msgspec.json.encode(record))
    assert (folder.committed(), folder.data) == (record, older)
    folder.begin()
    assert (folder.committed(), older.exists()) == (None, False)


def test_an_empty_or_missing_log_is_refused(
    spark: SparkSession, tmp_path: Path, log_url: str, write_log: WriteLog, rules: BatchConfig
) -> None:
    write_log(log_url, "empty", [])
    with pytest.raises(PipelineInputError, match="'empty' has no messages"):
        run_batch(spark, tmp_path, log_url, "empty", rules)
    with pytest.raises(LogNotFoundError):
        run_batch(spark, tmp_path, log_url, "missing", rules)


def test_p5_policies_caps_and_other_rules_for_some_give_the_batches_of_the_batcher_too(
    spark: SparkSession, tmp_path: Path, log_url: str, untidy: Untidy, write_log: WriteLog
) -> None:
    rules = Rulebook(
        BatchConfig(50, 20, late="amend", grace=60),
        (
            Override(BatchConfig(30, 20, max_count=3, late="side", grace=9), "station-1"),
            Override(BatchConfig(0, 40), None, "key-2"),
        ),
    )
    messages = write_log(log_url, "untidy", untidy(11, 2000, late=0.2))
    job = run_batch(spark, tmp_path / "jobs", log_url, "untidy", rules)
    batches, rejects = in_process(messages, rules)
    assert list(job.batches(final=False)) == batches
    assert sorted((reject.rejected, str(reject.reason)) for reject in job.rejects()) == rejects
    assert {batch.header.kind for batch in batches} == {"batch", "side", "amendment"}
    standing = list(job.batches())
    members = [number for batch in standing for number in batch.ids]
    assert sorted([*members, *(number for number, _ in rejects)]) == [message.id for message in messages]
    assert 0 < job.record.counts["replaced"] == len(batches) - len(standing)
    assert all(checked_batch(batch) for batch in batches)


def reading_no_amendments(parquet_rows: Callable[..., Iterator[pa.RecordBatch]]) -> Callable[..., Any]:
    def read(data: Path, columns: list[str], **options: int) -> Iterator[pa.RecordBatch]:
        assert "amends" not in columns
        return parquet_rows(data, columns, **options)

    return read


def test_the_driver_reads_no_output_to_count_it_or_to_find_what_amendments_replaced(
    spark: SparkSession,
    tmp_path: Path,
    log_url: str,
    untidy: Untidy,
    write_log: WriteLog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rules = BatchConfig(50, 20, late="amend", grace=60)
    messages = write_log(log_url, "untidy", untidy(14, 900, late=0.3))
    with monkeypatch.context() as patched:
        patched.setattr(batch, "parquet_rows", None)
        counts = dict(run_batch(spark, tmp_path / "jobs", log_url, "untidy", rules).record.counts)
    batches, rejects = in_process(messages, rules)
    job = run_batch(spark, tmp_path / "jobs", log_url, "untidy", rules)
    with monkeypatch.context() as patched:
        patched.setattr(batch, "parquet_rows", reading_no_amendments(batch.parquet_rows))
        patched.setattr(replaced_batches, "parquet_rows", reading_no_amendments(batch.parquet_rows))
        standing = list(job.batches())
    assert job.record.bytes == sum(len(each.lines) for each in batches)
    assert counts == {
        "batches": len(batches),
        "batched": sum(len(each.ids) for each in standing),
        "rejected": len(rejects),
        "replaced": len(batches) - len(standing),
        "open": 0,
        **Counter(reason for _, reason in rejects),
    }


def test_p7_what_is_final_in_a_part_of_a_log_stays_so_whatever_amends_the_rest(
    spark: SparkSession, tmp_path: Path, log_url: str, untidy: Untidy, write_log: WriteLog
) -> None:
    rules = BatchConfig(50, 20, late="amend", grace=60)
    ordered = sorted(untidy(12, 900, late=0.3), key=lambda message: message.received_at or 0)
    write_log(log_url, "untidy", ordered)
    part = run_batch(spark, tmp_path / "jobs", log_url, "untidy", rules, last_id=500, flush=False)
    whole = run_batch(spark, tmp_path / "jobs", log_url, "untidy", rules)
    early, final = ({batch.batch for batch in job.batches()} for job in (part, whole))
    assert early < final
    assert {batch.batch for batch in part.batches(final=False)} - final


def test_output_that_rotted_is_never_handed_on(
    spark: SparkSession, tmp_path: Path, log_url: str, untidy: Untidy, write_log: WriteLog, rules: BatchConfig
) -> None:
    write_log(log_url, "untidy", untidy(13, 600))
    job = run_batch(spark, tmp_path / "jobs", log_url, "untidy", rules)
    assert list(job.batches())
    for path in job.data.glob("*.parquet"):  # in the midst of a page, and not in the footer
        flip_bit(path, seed=3)
    with pytest.raises(PipelineError, match=r"\.parquet is damaged .*: remove the file, and run the job again"):
        list(job.batches(final=False))


def test_what_spark_raises_is_told_in_one_line(
    spark: SparkSession, tmp_path: Path, log_url: str, write_log: WriteLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(rows: pa.RecordBatch) -> dict[str, int]:
        raise OSError("out of paper")

    write_log(log_url, "in", [Message(b"", "k", "s", 100, 100)])
    monkeypatch.setattr(history, "count_rows", failing)
    with pytest.raises(PipelineError, match=r"^the job 'batch' failed: .*out of paper") as caught:
        run_batch(spark, tmp_path, log_url, "in", BatchConfig(50, 20))
    assert "\n" not in str(caught.value)
