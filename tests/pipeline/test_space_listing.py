"""Ranges of a space: every content id in one of them, whatever ids are like; and what a listing says of growth."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.pipeline.jobs import inventory
from millstream.pipeline.jobs.changes import find_changes
from millstream.pipeline.jobs.inventory import run_inventory
from millstream.pipeline.jobs.statistics import SpaceStatistics, latest_before, space_statistics
from millstream.pipeline.planning import space_listing
from millstream.pipeline.planning.binned_work import bin_name
from millstream.pipeline.planning.space_listing import MOST_PROBES, cut_space, entries_within
from millstream.stores import LocalStore, MemoryStore, all_entries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = st.text(st.sampled_from("ab/é\U0010ffff0"), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(names=st.sets(NAMES, max_size=40), wanted=st.integers(1, 12), later=st.sets(NAMES, max_size=5))
def test_every_id_is_in_one_range_also_one_that_came_later(names: set[str], wanted: int, later: set[str]) -> None:
    store = MemoryStore("s")
    store.create_space("docs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(space_listing, "PAGE", 3)
        for name in names:
            store.put("docs", name, io.BytesIO(b""))
        cut = cut_space(store, "docs", wanted)
        for name in later:
            store.put("docs", name, io.BytesIO(b""))
        found = [entry.content_id for each in cut for entry in entries_within(store, "docs", each, chunk=2)]
    assert found == [entry.content_id for entry in all_entries(store, "docs")]
    assert len(cut) <= wanted


def test_a_large_space_is_cut_where_its_ids_branch() -> None:
    store = MemoryStore("s")
    store.create_space("docs")
    for number in range(3000):
        store.put("docs", f"data/{number:04}", io.BytesIO(b""))
    cut = cut_space(store, "docs", 8)
    sizes = [len(list(entries_within(store, "docs", each))) for each in cut]
    assert sum(sizes) == 3000
    assert len(cut) == 8
    assert max(sizes) <= 700


def test_cutting_takes_no_more_requests_than_it_may() -> None:
    store = MemoryStore("s")
    store.create_space("docs")
    for number in range(1500):
        store.put("docs", f"{chr(0x4E00 + number)}", io.BytesIO(b""))
    asked = []
    entries = store.entries
    store.entries = lambda *a, **k: asked.append(1) or entries(*a, **k)  # type: ignore[method-assign,func-returns-value]
    assert len(cut_space(store, "docs", 64)) == 64
    assert len(asked) == MOST_PROBES, "no request more than it may, and there is enough to ask"


def test_a_store_without_spaces_that_should_have_items_is_not_listed_as_empty(tmp_path: Path) -> None:
    urls = {name: LocalStore(tmp_path / name, create=True).url for name in ("new", "unmounted")}
    (place,) = inventory.find_places(urls, None, lambda store: store == "unmounted").to_pylist()
    assert (place["store"], place["space"]) == ("unmounted", "")
    assert "is its disk mounted?" in place["error"]


@pytest.mark.spark
def test_a_listing_in_ranges_is_the_listing_and_the_next_one_says_what_changed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path / "store", create=True)
    store.create_space("docs")
    for name in ("a", "b/c", "b/d", "é"):
        store.put("docs", name, io.BytesIO(name.encode()))
    monkeypatch.setattr(inventory, "_ranges", lambda provider, space: [
        {"after": each.after, "until": each.until} for each in _three(provider, space)
    ])  # fmt: skip
    jobs, urls = tmp_path / "jobs", {"one": store.url}
    first = run_inventory(spark, jobs, "2026-01-01", urls)
    assert (first.record.rows_in, first.record.rows_out) == (1, 4)
    assert latest_before(jobs, first.record) is None
    assert space_statistics(spark, first) == [SpaceStatistics("one", "docs", 4, 9, 3)]
    store.delete("docs", "a")
    store.put("docs", "b/c", io.BytesIO(b"longer than before"))
    store.put("docs", "new", io.BytesIO(b"n"))
    second = run_inventory(spark, jobs, "2026-01-02", urls)
    before = latest_before(jobs, second.record)
    assert before is not None
    assert before.record == first.record
    (figures,) = space_statistics(spark, second, before)
    assert figures == SpaceStatistics("one", "docs", 4, 24, 18, added=1, removed=1, changed=1, grown=15)
    changes = find_changes(spark, jobs, second, before)
    assert changes.record.counts == {"added": 1, "removed": 1, "changed": 1, "unlisted": 0}
    rows = pq.read_table(changes.data).to_pylist()
    found = {row["content_id"]: (row["kind"], row["old_size"], row["size"]) for row in rows}
    assert found == {"a": ("removed", 1, None), "b/c": ("changed", 3, 18), "new": ("added", None, 1)}
    assert find_changes(spark, jobs, second, before).reused


@pytest.mark.spark
def test_a_listing_that_was_killed_goes_on_with_the_ranges_that_are_left(spark: SparkSession, tmp_path: Path) -> None:
    stores = {name: LocalStore(tmp_path / name, create=True) for name in ("one", "two")}
    for store in stores.values():
        store.create_space("docs")
        store.put("docs", "a", io.BytesIO(b"a"))
    urls = {name: store.url for name, store in stores.items()}
    first = run_inventory(spark, tmp_path / "jobs", "now", urls)
    one, two = (first.data / bin_name(number) for number in range(2))
    (first.data.parent.parent / "job.json").unlink()
    two.unlink()
    stores["two"].put("docs", "later", io.BytesIO(b"l"))
    stamp = one.stat().st_mtime_ns
    second = run_inventory(spark, tmp_path / "jobs", "now", urls)
    assert (second.reused, second.record.rows_out) == (False, 3)
    assert one.stat().st_mtime_ns == stamp
    one.write_bytes(b"")  # of a finished listing: that is damage, and all is listed again
    third = run_inventory(spark, tmp_path / "jobs", "now", urls)
    assert (third.reused, third.record.rows_out) == (False, 3)


@pytest.mark.spark
def test_what_could_not_be_listed_does_not_look_removed(spark: SparkSession, tmp_path: Path) -> None:
    stores = {name: LocalStore(tmp_path / name, create=True) for name in ("one", "two")}
    for store in stores.values():
        store.create_space("docs")
        store.put("docs", "a", io.BytesIO(b"a"))
    urls = {name: store.url for name, store in stores.items()}
    before = run_inventory(spark, tmp_path / "jobs", "1", urls)
    stores["one"].delete("docs", "a")
    shutil.rmtree(tmp_path / "two")
    now = run_inventory(spark, tmp_path / "jobs", "2", urls)
    changes = find_changes(spark, tmp_path / "jobs", now, before)
    assert [row["store"] for row in pq.read_table(changes.data).to_pylist()] == ["one"]
    assert changes.record.counts == {"added": 0, "removed": 1, "changed": 0, "unlisted": 1}


def _three(provider: LocalStore, space: str) -> list[space_listing.ContentIdRange]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(space_listing, "PAGE", 1)
        return cut_space(provider, space, 3)
