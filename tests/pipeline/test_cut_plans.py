"""Cuts that are planned by the names of batches give the rows that they were planned of, in order, each once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.anchoring.batch_records import EncodedBatch
from millstream.pipeline.errors import PipelineError
from millstream.pipeline.planning.cut_plans import (
    ENCODED,
    CutRows,
    FileRows,
    NamedBatches,
    encoded_batches,
    plan_cuts,
    read_plan,
)
from millstream.pipeline.tasks.shard_task import BATCH_SCHEMA
from millstream.testing.batches import make_batches


def write(path: Path, batches: Sequence[EncodedBatch], group: int) -> None:
    """*batches* as the job ``batch`` lays them down, after a row that is a reject."""
    rows = [{"source": "", "start": 0, "ids": [7], "reason": "late"}, *map(row_of, batches)]
    table = pa.Table.from_pylist(rows, BATCH_SCHEMA)
    pq.write_table(table, path, row_group_size=group, write_page_checksum=True)


def row_of(batch: EncodedBatch) -> dict[str, Any]:
    head = batch.header
    row = {name: getattr(head, name) for name in ENCODED if hasattr(head, name)}
    return row | {"ids": list(batch.ids), "lines": batch.lines}


@settings(max_examples=30, deadline=None)
@given(
    counts=st.lists(st.integers(0, 30), min_size=1, max_size=4), size=st.integers(1, 25), group=st.integers(1, 12),
    known=st.integers(1, 7),
)  # fmt: skip
def test_every_new_batch_is_in_one_cut_in_order(
    counts: list[int], size: int, group: int, known: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("batches")
    batches, named, begin = list(make_batches(sum(counts))), list[NamedBatches](), 0
    for number, count in enumerate(counts):
        some, path = batches[begin : begin + count], folder / f"{number}.parquet"
        write(path, some, group)
        names = [batch.batch for batch in some]
        named.append(NamedBatches(path, np.arange(1, count + 1), names, [batch.root for batch in some]))
        begin += count
    old = {batch.batch for batch in batches[::known]}
    plans = list(plan_cuts(named, size, lambda names, _: np.array([name not in old for name in names], np.bool_)))
    wanted = [batch for batch in batches if batch.batch not in old]
    assert [batch for plan in plans for batch in read_plan(plan)] == wanted
    assert all(plan.batches == size for plan in plans[:-1])
    assert sum(plan.batches for plan in plans) == len(wanted)


def test_columns_give_the_batches_they_were_made_of() -> None:
    batches = list(make_batches(20))
    table = pa.Table.from_pylist(list(map(row_of, batches)), BATCH_SCHEMA)
    assert list(encoded_batches(table)) == batches
    assert list(encoded_batches(table.slice(5, 7).to_batches()[0])) == batches[5:12]
    assert list(encoded_batches(table.slice(0, 0))) == []


def test_a_file_that_decayed_is_named(tmp_path: Path) -> None:
    path = tmp_path / "data" / "part.parquet"
    path.parent.mkdir()
    write(path, list(make_batches(200)), 500)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(PipelineError, match=r"part\.parquet is damaged \("):
        list(read_plan(CutRows((FileRows(str(path), np.arange(1, 200).tobytes()),), 199)))
