"""Replaced batches: a reader of a job's output passes over each, and holds those alone that begin where it reads."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.pipeline.output.job_folder import parquet_rows
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
