"""Results of jobs as objects of a storage provider: each row once, whatever attempts of tasks left there."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pytest
import sqlalchemy as sa

from millstream.batching import BatchConfig, Rulebook
from millstream.core.message import Message
from millstream.mill.manifest import Manifest, ManifestEvent
from millstream.mill.policies.policy import Pair
from millstream.node import Node
from millstream.pipeline.errors import PipelineError
from millstream.pipeline.jobs.anchor import anchor_history
from millstream.pipeline.jobs.batch import run_batch
from millstream.pipeline.jobs.duplication import copy_missing, plan_duplication
from millstream.pipeline.jobs.integrity import run_integrity
from millstream.pipeline.jobs.report import run_report
from millstream.pipeline.output.job_folder import JobFolder, parquet_rows, remove_old_jobs
from millstream.pipeline.output.shared_output import write_output
from millstream.pipeline.result_parts import (
    SPACE,
    FolderTable,
    ParquetLayout,
    ResultPart,
    StoredTable,
    begin_table,
    commit_table,
    discard_tables,
    locations,
    part_name,
    read_table,
    shown_place,
    store_part,
)
from millstream.pipeline.schema import open_parquet, read_parquet
from millstream.pipeline.settings import RESULTS_SETTING
from millstream.settings import Settings
from millstream.stores import all_entries, open_provider

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millstream.testing.s3 import S3Server

ROWS = pa.record_batch(
    {"number": pa.array(range(1000)), "name": [f"n{n}" for n in range(1000)], "ids": [[1, 2]] * 1000}
)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return (tmp_path / "store").as_uri()


@pytest.fixture
def by_url(spark: SparkSession, url: str) -> Iterator[SparkSession]:
    spark.conf.set(RESULTS_SETTING, url)
    yield spark
    spark.conf.unset(RESULTS_SETTING)


def put(table: StoredTable, name: str, rows: pa.RecordBatch, layout: ParquetLayout | None = None) -> ResultPart:
    part = store_part([rows], table, name, layout or ParquetLayout())
    assert part is not None
    return part


def objects(url: str) -> list[str]:
    store = open_provider(url)
    return [entry.content_id for entry in all_entries(store, SPACE)] if store.has_space(SPACE) else []


def numbers(data: Path) -> list[int]:
    return [number for part in parquet_rows(data, ["number"]) for number in part.column("number").to_pylist()]


def test_a_part_has_row_groups_of_the_size_asked_for_and_dictionaries_where_values_repeat(
    tmp_path: Path, url: str
) -> None:
    table = begin_table(tmp_path / "data", url)
    part = put(table, "part-00000-1.parquet", ROWS, ParquetLayout(ROWS.nbytes // 4, ("number", "ids.list.element")))
    commit_table(tmp_path / "data", table, [part])
    (location,) = locations(tmp_path / "data")
    with open_parquet(location) as file:
        groups = [file.metadata.row_group(n) for n in range(file.num_row_groups)]
        assert pa.Table.from_batches([ROWS]) == file.read()
    assert len(groups) in (4, 5)
    columns = [groups[0].column(place) for place in range(3)]
    assert [column.has_dictionary_page for column in columns] == [False, True, False]


def test_of_two_attempts_of_a_task_the_driver_reads_the_one_that_spark_took(tmp_path: Path, url: str) -> None:
    data = tmp_path / "job" / "attempt-1" / "data"
    table = begin_table(data, url)
    attempts = [put(table, part_name("part-00000", n), ROWS.slice(0, 100 * n)) for n in (1, 2)]
    other = put(table, part_name("part-00001", 3), ROWS.slice(500, 5))
    commit_table(data, table, [other, attempts[1]])
    assert numbers(data) == [*range(200), *range(500, 505)]
    assert len(objects(url)) == 2
    put(table, part_name("part-00001", 4), ROWS)  # an attempt that goes on after the driver has decided
    assert numbers(data) == [*range(200), *range(500, 505)]
    discard_tables(tmp_path)
    assert objects(url) == []


@pytest.mark.served
def test_parts_on_s3_are_read_by_ranges_and_deleted_with_their_job(tmp_path: Path, swift: S3Server) -> None:
    url, folder = swift.new_url(), JobFolder(tmp_path / "jobs", "batch", {"log": "x"})
    folder.begin()
    table = begin_table(folder.data, url)
    first, second = (put(table, part_name("part-00000", n), ROWS, ParquetLayout(2000)) for n in (1, 2))
    assert commit_table(folder.data, table, [second]).stored() == {second.name: second.bytes}
    folder.commit(folder.record(rows_in=1000, rows_out=1000))
    assert folder.committed() is not None
    assert numbers(folder.data) == list(range(1000))
    assert shown_place(folder.data) == f"{url} x-results/{table.prefix}"
    table.discard([second.name])
    with pytest.raises(PipelineError, match=rf"s3:.*{second.name} is missing: run the job again"):
        numbers(folder.data)
    folder.begin()
    assert table.stored() == {}
    assert first.bytes == second.bytes


def test_a_new_attempt_of_a_job_deletes_what_a_killed_one_stored(tmp_path: Path, url: str) -> None:
    folder = JobFolder(tmp_path / "jobs", "batch", {"log": "x"})
    folder.begin()
    put(begin_table(folder.data, url), "part-00000-1.parquet", ROWS)  # and then the driver dies
    assert len(objects(url)) == 1
    folder.begin()
    assert (objects(url), folder.committed()) == ([], None)


@pytest.mark.parametrize("damage", ["delete", "shorten"])
def test_a_part_that_is_gone_or_shorter_is_noticed(
    tmp_path: Path, url: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = JobFolder(tmp_path / "jobs", "batch", {"log": "x"})
    folder.begin()
    table = begin_table(folder.data, url)
    part = put(table, "part-00000-1.parquet", ROWS)
    commit_table(folder.data, table, [part])
    folder.commit(folder.record(rows_in=1000, rows_out=1000))
    assert folder.committed() is not None
    if damage == "delete":
        table.discard([part.name])
        expected = f"result file {part.name} in x-results"
    else:
        put(table, part.name, ROWS.slice(0, 10))
        expected = "bytes, but its task wrote"
    assert folder.committed() is None
    assert expected in caplog.text
    with pytest.raises(PipelineError, match=r"to a storage provider that all hosts can reach"):
        commit_table(folder.data, table, [part])


def test_objects_of_old_jobs_are_removed_with_their_folders(tmp_path: Path, url: str) -> None:
    jobs = tmp_path / "jobs"
    for job in ("damaged", "old"):
        folder = JobFolder(jobs, job, {"log": "x"})
        with folder.held():
            folder.begin()
            put(begin_table(folder.data, url), "part-00000-1.parquet", ROWS)
        if job == "damaged":  # nobody knows what its objects are
            (folder.data / "parts.json").write_bytes(b"{")
    assert remove_old_jobs(jobs, before=2**62) == 1
    assert [path.name.partition("-")[0] for path in jobs.iterdir()] == ["damaged"]
    assert [name.partition("-")[0] for name in objects(url)] == ["damaged"]


@pytest.mark.spark
@pytest.mark.parametrize("rows", [0, 1000])
def test_a_table_at_a_url_has_the_rows_that_spark_computed(
    by_url: SparkSession, tmp_path: Path, url: str, rows: int
) -> None:
    folder = tmp_path / "jobs" / "one-1" / "attempt-1" / "data"
    frame = by_url.range(rows).withColumnRenamed("id", "number").repartition(5)
    assert write_output(frame, folder) == rows
    assert sorted(numbers(folder)) == list(range(rows))
    schema = pa.schema([pa.field("number", pa.int64())])
    assert sorted(row["number"] for row in read_parquet(by_url, folder, schema).collect()) == list(range(rows))
    assert [path.name for path in folder.iterdir()] == ["parts.json"]
    assert shown_place(folder).startswith(f"{url} x-results/one-1/")
    table = read_table(folder)
    assert table is not None
    assert len(objects(url)) == len(table.parts) == (5 if rows else 0)


@pytest.mark.spark
@pytest.mark.parametrize("rules", [BatchConfig(50, 20), BatchConfig(50, 20, late="amend", grace=60)])
def test_batches_at_a_url_are_those_of_a_folder(
    by_url: SparkSession,
    tmp_path: Path,
    log_url: str,
    untidy: Callable[..., list[Message]],
    write_log: Callable[..., list[Message]],
    rules: BatchConfig,
) -> None:
    write_log(log_url, "untidy", untidy(7, 2000))
    run = partial(run_batch, by_url, log="untidy", rules=rules)
    at_url = run(jobs=tmp_path / "jobs", store_url=log_url)
    assert run(jobs=tmp_path / "jobs", store_url=log_url).reused
    by_url.conf.unset(RESULTS_SETTING)
    in_folder = run(jobs=tmp_path / "other", store_url=log_url)
    assert list(at_url.data.glob("*.parquet")) == []
    assert list(at_url.batches()) == list(in_folder.batches())
    key = msgspec.structs.astuple
    assert sorted(map(key, at_url.rejects())) == sorted(map(key, in_folder.rejects()))
    assert at_url.record.counts == in_folder.record.counts
    anchors = []
    for job in (at_url, in_folder):
        with Node.open(Settings(data=str(job.data / "node")), create=True) as node:
            writer, cas = node.anchoring.batch_writer, node.anchoring.cas_url
            done = anchor_history(job, "untidy", writer, Rulebook(rules).plain, spark=by_url, cas=cas)
            anchors.append((done, sorted(node.anchoring.cas.cids())))
    assert anchors[0] == anchors[1]
    assert anchors[0][0].batches == at_url.record.counts["batches"] - at_url.record.counts.get("replaced", 0)


@pytest.mark.spark
def test_a_sweep_and_copies_at_a_url_are_those_of_a_folder(by_url: SparkSession, tmp_path: Path, url: str) -> None:
    stores = {"a": (tmp_path / "a").as_uri(), "b": (tmp_path / "b").as_uri()}
    manifest = Manifest(sa.create_engine(f"sqlite:///{tmp_path / 'm.db'}"))
    source = open_provider(stores["a"], create=True)
    open_provider(stores["b"], create=True)
    source.create_space("docs")
    for number in range(40):
        info = source.put("docs", f"item-{number}", io.BytesIO(b"x" * number * 100))
        manifest.writer.record([ManifestEvent("a", "docs", info.content_id, 2**60, info.checksum(), info.size)])
    found = []
    for jobs in (tmp_path / "jobs", tmp_path / "other"):
        sweep = run_integrity(by_url, jobs, "run", stores, manifest.rows(), spaces=["docs"], bin_bytes=10_000)
        judged = run_report(by_url, jobs, sweep)
        found.append([(space.report.store, space.report.result, space.report.checked) for space in judged.spaces()])
        assert sweep.record.counts["bins"] > 5
        assert list(jobs.rglob("bin-*.parquet" if jobs.name == "jobs" else "parts.json")) == []
        by_url.conf.unset(RESULTS_SETTING)
    assert found[0] == found[1] == [("a", "SUCCESS", 40)]
    assert objects(url) == listed_parts(tmp_path / "jobs")
    by_url.conf.set(RESULTS_SETTING, url)
    pair = Pair("a", "b")
    planned = plan_duplication(by_url, tmp_path / "jobs", "run", stores, manifest, pair=pair, space="docs")
    copied = copy_missing(by_url, planned, stores, manifest, bin_bytes=10_000)
    assert (copied.record.rows_out, copied.failures) == (40, ())
    assert plan_duplication(by_url, tmp_path / "jobs", "run", stores, manifest, pair=pair, space="docs").reused
    assert objects(url) == listed_parts(tmp_path / "jobs")
    assert remove_old_jobs(tmp_path / "jobs", before=2**62) == 3
    assert objects(url) == []


def listed_parts(jobs: Path) -> list[str]:
    """The objects that the tables below *jobs* name: there are no others."""
    tables = [read_table(listing.parent) for listing in jobs.rglob("parts.json")]
    return sorted(f"{table.prefix}/{part.name}" for table in tables if table is not None for part in table.parts)


def test_a_folder_has_the_parts_of_the_attempts_that_count_and_no_others(tmp_path: Path) -> None:
    table = FolderTable(str(tmp_path / "data")).begin()
    kept, _ = (store_part([ROWS], table, part_name("part-00000", n), ParquetLayout()) for n in (1, 2))
    assert kept is not None
    assert locations(tmp_path / "data") == []
    table.commit([kept])
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["part-00000-1.parquet"]
    with open_parquet(tmp_path / "data" / "part-00000-1.parquet") as file:
        assert file.read().equals(pa.Table.from_batches([ROWS]))


def test_a_file_that_cannot_be_read_is_not_called_damaged(tmp_path: Path) -> None:
    (tmp_path / "loop.parquet").symlink_to("loop.parquet")
    with (
        pytest.raises(PipelineError, match=r"cannot read .*loop\.parquet .*: fix the cause, and run the job"),
        open_parquet(tmp_path / "loop.parquet"),
    ):
        pass


def test_a_part_that_is_not_in_the_folder_as_its_task_wrote_it_is_named(tmp_path: Path) -> None:
    table = FolderTable(str(tmp_path / "data")).begin()
    part = store_part([ROWS], table, "part-00000-1.parquet", ParquetLayout())
    assert part is not None
    (tmp_path / "data" / "_temporary" / part.name).write_bytes(b"")
    with pytest.raises(
        PipelineError,
        match=r"part-00000-1.parquet in .* has 0 bytes, but its task wrote .*: mount the same shared folder at",
    ):
        table.commit([part])
    with pytest.raises(PipelineError, match=r"part-00001-1.parquet in .* is missing: mount the same"):
        table.commit([ResultPart("part-00001-1.parquet", 1)])
