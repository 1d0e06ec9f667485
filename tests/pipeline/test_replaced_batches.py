"""Replaced batches: a reader of a job's output passes over each, and holds those alone that begin where it reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.pipeline.errors import PipelineError
from millstream.pipeline.jobs.batch import BatchJob
from millstream.pipeline.output.job_folder import JobRecord, parquet_rows
from millstream.pipeline.tasks.replaced_batches import _ReplacedInOrder, replaced_ids
from millstream.pipeline.tasks.shard_task import BATCH_SCHEMA


def rows(starts: list[int], names: list[str]) -> pa.Table:
    return pa.table({"start": pa.array(starts, pa.int64()), "batch": names})


@given(
    st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=40).map(sorted),
    st.integers(1, 7),
    st.integers(1, 7),
)
def test_a_reader_is_told_of_each_replaced_batch_where_it_begins_and_holds_no_others(
    found: list[tuple[int, bool]], size: int, chunk: int
) -> None:
    starts, names = [start for start, _ in found], [f"batch-{place}" for place in range(len(found))]
    gone = [place for place, (_, replaced) in enumerate(found) if replaced]
    told = rows([starts[place] for place in gone], [names[place] for place in gone])
    reader = _ReplacedInOrder(iter(told.to_batches(max_chunksize=chunk)))
    passed: set[str] = set()
    for part in rows(starts, names).to_batches(max_chunksize=size):
        among = set(reader.among(part).to_pylist())
        passed |= among & set(part.column("batch").to_pylist())
        begins = part.column("start").to_pylist()
        assert among == {names[place] for place in gone if begins[0] <= starts[place] <= begins[-1]}
        assert reader._ahead.num_rows <= len(among) + chunk
    assert passed == {names[place] for place in gone}


@pytest.mark.parametrize("written", [None, 1])
def test_where_replaced_batches_are_missing_beside_the_output_its_amendments_name_them(
    tmp_path: Path, written: int | None
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    if written is not None:
        (tmp_path / "replaced").mkdir()
        pq.write_table(rows([1] * written, ["a"] * written), tmp_path / "replaced" / "part-0.parquet")
    named = [{"source": "s", "start": 1, "ids": [1], "batch": "c", "amends": old} for old in (["a"], None, ["b"])]
    pq.write_table(pa.Table.from_pylist(named, BATCH_SCHEMA), data / "part-0.parquet")
    ids = replaced_ids(data, 2)
    assert [ids(part).to_pylist() for part in parquet_rows(data, ["start"])] == [["a", "b"]]


def batch_job(folder: Path, files: list[list[dict[str, Any]]], replaced: list[tuple[int, str]]) -> BatchJob:
    """A job whose output are *files*, and the starts and ids of the batches that it wrote down as *replaced*."""
    data = folder / "data"
    for name in (data, folder / "replaced"):
        name.mkdir(parents=True)
    for number, found in enumerate(files):
        pq.write_table(pa.Table.from_pylist(found, BATCH_SCHEMA), data / f"part-{number}.parquet")
    starts, names = [start for start, _ in replaced], [name for _, name in replaced]
    pq.write_table(rows(starts, names), folder / "replaced" / "part-0.parquet")
    record = JobRecord(job="batch", inputs={}, rows_in=0, rows_out=0, counts={"replaced": len(replaced)})
    return BatchJob(record, data, reused=True)


def one_batch(name: str, start: int) -> dict[str, Any]:
    header = {"closed_at": start, "cut": "window", "kind": "batch", "root": "", "lines": b""}
    return {"batch": name, "source": "s", "start": start, "end": start, "ids": [start]} | header


def duplicates(count: int, start: int) -> list[dict[str, Any]]:
    """*count* refused messages that were received from *start* on."""
    return [{"source": "s", "start": start + each, "ids": [each], "reason": "duplicate"} for each in range(count)]


@pytest.mark.parametrize("count", [10, 9000])
def test_replaced_batches_are_left_out_after_refused_messages_that_were_received_later(
    tmp_path: Path, count: int
) -> None:
    files = [[one_batch("first", 0), *duplicates(count, 100)], [one_batch("old", 50), one_batch("new", 50)]]
    job = batch_job(tmp_path, files, [(50, "old")])
    assert [name for some in job.named() for name in some.names] == ["first", "new"]
    assert [batch.batch for batch in job.batches()] == ["first", "new"]


def test_a_replaced_batch_that_is_not_found_in_the_output_is_an_error(tmp_path: Path) -> None:
    job = batch_job(tmp_path, [[one_batch("first", 0), one_batch("old", 50)]], [(50, "other")])
    for read in (job.named, job.batches):
        with pytest.raises(PipelineError, match="counted 1 replaced batches, but 0 were found"):
            list(read())
