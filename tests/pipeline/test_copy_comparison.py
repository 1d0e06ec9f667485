"""Listings and manifest compared span by span: what the mill's own comparison finds, however the files are cut."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millstream.mill.duplication.differences import ItemDifference, compare
from millstream.mill.policies.policy import Pair
from millstream.pipeline.planning.row_groups import RowGroup, ValueRange, cut_spans, deal
from millstream.pipeline.planning.space_listing import INVENTORY_SCHEMA
from millstream.pipeline.tasks.copy_comparison import (
    DIFFERENCE_SCHEMA,
    RECORDED_SCHEMA,
    ComparisonTask,
    compare_spans,
    plan_work,
)

PAIR = Pair("a", "b")
Rows = list[dict[str, Any]]


class Listed(msgspec.Struct):
    size: int
    modified: int | None


class Recorded(msgspec.Struct):
    sha256: str | None
    modified: int
    deleted: bool


def draw_rows(seed: int, count: int) -> tuple[Rows, Rows]:
    """Listings and manifest rows of two ends that differ in every way, and of a third that bears on nothing."""
    draw = random.Random(seed)
    listed: Rows = []
    recorded: Rows = []
    for number in range(count):
        name = f"{draw.choice(['', 'ü/', '😀', 'a b/'])}{number:05}"
        for store in ("a", "b", "c"):
            if draw.random() < 0.9:
                size, modified = draw.choice([1, 1, 1, 2]), draw.choice([None, 1, 1, 9])
                listed.append({"store": store, "space": "docs", "content_id": name, "size": size, "modified": modified})
            if draw.random() < 0.9:
                row = {"store": store, "content_id": name, "sha256": draw.choice(["x", "x", "x", "y", None])}
                recorded.append({**row, "modified": draw.choice([1, 1, 5]), "deleted": draw.random() < 0.2})
    return listed, recorded


def expected(listed: Rows, recorded: Rows) -> list[tuple[str, str, int, bool]]:
    """The differences, item by item, by the mill's own function."""
    ends = {(row["store"], row["content_id"]): Listed(row["size"], row["modified"]) for row in listed}
    rows = {
        (row["store"], row["content_id"]): Recorded(row["sha256"], row["modified"], row["deleted"]) for row in recorded
    }
    found = []
    for name in sorted({name for store, name in ends if store != "c"}):
        source, copy = ends.get(("a", name)), ends.get(("b", name))
        kind, replaces = compare(source, copy, rows.get(("a", name)), rows.get(("b", name)))
        if kind != ItemDifference.SAME:
            found.append((name, kind.value, source.size if source else 0, replaces))
    return found


def write(folder: Path, rows: Rows, schema: pa.Schema, *, files: int, group: int) -> Path:
    folder.mkdir()
    for number in range(files):
        table = pa.Table.from_pylist(rows[number::files], schema)
        pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=group)
    return folder


def differences(work: Sequence[ComparisonTask]) -> list[tuple[str, str, int, bool]]:
    rows = pa.table({"work": pa.array([msgspec.msgpack.encode(each) for each in work], pa.binary())})
    found = list(compare_spans(rows.to_batches(max_chunksize=1), PAIR))
    assert all(batch.schema == DIFFERENCE_SCHEMA for batch in found)
    return [tuple(row.values()) for batch in found for row in batch.to_pylist()]


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize(("seed", "count", "files", "group"), [(1, 300, 1, 7), (2, 500, 3, 50), (3, 150, 2, 1000)])
def test_spans_give_what_items_give_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, count: int, files: int, group: int, *, shuffled: bool
) -> None:
    monkeypatch.setattr("millstream.pipeline.tasks.copy_comparison._LEAST_ROWS", 1)
    listed, recorded = draw_rows(seed, count)
    for rows in (listed, recorded):
        rows.sort(key=lambda row: (row["store"], row["content_id"]))
        if shuffled:
            random.Random(seed).shuffle(rows)
    listings = write(tmp_path / "listed", listed, INVENTORY_SCHEMA, files=files, group=group)
    manifest = write(tmp_path / "recorded", recorded, RECORDED_SCHEMA, files=1, group=group)
    work = plan_work(listings, manifest, 5)
    assert shuffled or group == 1000 or len(work) > 3
    found = differences(work)
    assert found == expected(listed, recorded)
    assert {kind for _, kind, _, _ in found} == {kind.value for kind in ItemDifference} - {"same"}


def test_ends_that_list_nothing_do_not_differ(tmp_path: Path) -> None:
    listings = write(tmp_path / "listed", [], INVENTORY_SCHEMA, files=1, group=10)
    manifest = write(tmp_path / "recorded", draw_rows(1, 20)[1], RECORDED_SCHEMA, files=1, group=10)
    assert differences(plan_work(listings, manifest, 4)) == []


def test_where_everything_is_the_same_nothing_is_told(tmp_path: Path) -> None:
    names = [f"item-{number:04}" for number in range(1000)]
    listed = [
        {"store": store, "space": "docs", "content_id": name, "size": 5, "modified": 1}
        for store in ("a", "b")
        for name in names
    ]
    recorded = [
        {"store": store, "content_id": name, "sha256": name, "modified": 2, "deleted": False}
        for store in ("a", "b")
        for name in names
    ]
    listings = write(tmp_path / "listed", listed, INVENTORY_SCHEMA, files=1, group=100)
    manifest = write(tmp_path / "recorded", recorded, RECORDED_SCHEMA, files=1, group=100)
    assert differences(plan_work(listings, manifest, 4)) == []


def test_spans_follow_one_another_and_a_group_goes_where_it_may_matter() -> None:
    groups = [RowGroup("f", number, 10, f"{number:02}a", f"{number:02}z") for number in range(20)]
    spans = cut_spans([*groups, RowGroup("g", 0, 10)], 50)
    assert [span.begin for span in spans] == ["", *(span.end for span in spans[:-1])]
    assert spans[-1].end is None
    assert len(spans) == 5
    anything = RowGroup("g", 0, 10)
    dealt = deal([*groups, anything], spans)
    assert all(anything in own for own in dealt)
    assert sorted(group.number for own in dealt for group in own if group.path == "f") == list(range(20))
    assert ValueRange("03", "05").holds(groups[3])
    assert not ValueRange("03b", "05").holds(groups[3])
    assert not ValueRange("", "z").holds(anything)
