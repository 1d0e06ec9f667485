"""What a task of the integrity job sees and writes, without Spark."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from millstream.core.clock import VirtualClock
from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.integrity.checker import BitChecker
from millstream.mill.integrity_decision import SourceAnswer
from millstream.mill.item_ref import ItemRef
from millstream.mill.manifest import Manifest
from millstream.pipeline.errors import PipelineError
from millstream.pipeline.planning.binned_work import bin_name, check_bins
from millstream.pipeline.tasks.sweep_task import FACT_SCHEMA, PLAN_SCHEMA, Sweeper, observe, sweep_part
from millstream.stores import LocalStore, MemoryStore, Store
from millstream.stores.bulk import SMALL
from millstream.testing.damage import flip_bit
from millstream.testing.faulty_store import ArchivingStore, UnavailableStore, VanishingStore, flips_bit
from millstream.testing.s3 import S3Server

ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
BINNED = PLAN_SCHEMA.append(pa.field("bin", pa.int32(), nullable=False))


def filled(store: Store, *content_ids: str) -> Store:
    store.create_space("docs")
    for content_id in content_ids:
        store.put("docs", content_id, io.BytesIO(b"abc"))
    return store


def planned(content_id: str, *, number: int = 0, store: str = "a") -> dict[str, object]:
    return {
        "store": store,
        "space": "docs",
        "content_id": content_id,
        "manifest": ABC,
        "deleted": False,
        "elsewhere": False,
        "listed": True,
        "size": 3,
        "bin": number,
    }


def test_a_whole_item_gives_three_equal_sums() -> None:
    seen = observe(filled(MemoryStore("fixity"), "x"), "docs", "x", VirtualClock())
    assert (seen.provider, seen.content, seen.read, seen.error) == (ABC, ABC, 3, None)


def test_a_flipped_bit_shows_in_the_bytes_alone() -> None:
    seen = observe(flips_bit(filled(MemoryStore("fixity"), "x")), "docs", "x", VirtualClock())
    assert seen.provider == ABC != seen.content
    assert len(seen.content) == 64


@pytest.mark.parametrize("space", ["docs", "nowhere"])
def test_what_is_not_there_is_missing(space: str) -> None:
    seen = observe(filled(MemoryStore("fixity")), space, "x", VirtualClock())
    assert (seen.provider, seen.content, seen.error) == (SourceAnswer.MISSING, SourceAnswer.MISSING, None)


def test_a_store_that_stays_away_is_unreachable_and_the_reason_is_kept() -> None:
    clock = VirtualClock()
    seen = observe(UnavailableStore(filled(MemoryStore("fixity"), "x")), "docs", "x", clock)
    assert (seen.provider, seen.content) == (SourceAnswer.UNREACHABLE, SourceAnswer.NOT_READ)
    assert seen.error
    assert clock.monotonic() > 0


def test_a_store_that_comes_back_is_asked_again() -> None:
    store = UnavailableStore(filled(MemoryStore("fixity"), "x"), times=2)
    assert observe(store, "docs", "x", VirtualClock()).content == ABC


def test_an_item_that_cannot_be_opened_is_unreadable() -> None:
    store = UnavailableStore(filled(MemoryStore("fixity"), "x"), when=lambda call: call.method == "open")
    seen = observe(store, "docs", "x", VirtualClock())
    assert (seen.provider, seen.content) == (ABC, SourceAnswer.UNREADABLE)
    assert seen.error


def test_an_item_that_the_store_does_not_give_out_is_refused_here_as_in_a_check(tmp_path: Path) -> None:
    store, clock = ArchivingStore(filled(MemoryStore("fixity"), "x")), VirtualClock()
    seen = observe(store, "docs", "x", clock)
    assert (seen.provider, seen.content, "archived" in (seen.error or "")) == (ABC, SourceAnswer.REFUSED, True)
    engine = sa.create_engine(f"sqlite:///{tmp_path}/node.db")
    checker = BitChecker(ConfiguredStores({"a": store}, clock), Manifest(engine, clock))
    checked = checker.observe(ItemRef("a", "docs", "x"))
    assert (checked.provider, checked.content) == (seen.provider, seen.content)


def test_an_item_that_vanishes_between_asking_and_reading_is_missing() -> None:
    store = VanishingStore(filled(MemoryStore("fixity"), "x"), when=lambda call: call.method == "open")
    seen = observe(store, "docs", "x", VirtualClock())
    assert (seen.provider, seen.content) == (ABC, SourceAnswer.MISSING)


def test_the_facts_of_a_bin_are_one_file_and_writing_it_twice_changes_nothing(tmp_path: Path) -> None:
    store = filled(LocalStore(tmp_path / "a"), "x", "y", "line\nbreak")
    flip_bit(LocalStore(tmp_path / "a").path_of("docs", "y"))
    plan = pa.RecordBatch.from_pylist([planned(name, number=7) for name in ("line\nbreak", "x", "y")], BINNED)
    empty = pa.RecordBatch.from_pylist([], BINNED)
    for _ in range(2):
        (summary,) = sweep_part([empty, plan.slice(0, 2), plan.slice(2)], {"a": store.url}, tmp_path)
        assert summary.to_pylist() == [{"bin": 7, "rows": 3, "bytes": 9, "name": "bin-00007.parquet"}]
    facts = pq.read_table(tmp_path / bin_name(7))
    assert facts.schema == FACT_SCHEMA
    assert facts.column("content_id").to_pylist() == ["line\nbreak", "x", "y"]
    assert [row == ABC for row in facts.column("content").to_pylist()] == [True, True, False]
    assert [path.name for path in tmp_path.glob("*bin*")] == [bin_name(7)]


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def flip_in_a_page(path: Path) -> None:
    flip_bit(path, seed=3)  # not in the footer


@pytest.mark.parametrize("spoil", [cut_short, flip_in_a_page])
def test_a_task_names_the_bins_whose_files_are_damaged(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    store = filled(LocalStore(tmp_path / "a"), "x")
    for number in range(3):
        rows = [planned(f"{number}/{place}" * 20, number=number) for place in range(200)]
        list(sweep_part([pa.RecordBatch.from_pylist(rows, BINNED)], {"a": store.url}, tmp_path))
    resumed = pa.RecordBatch.from_pydict({"bin": [0, 1, 2]})
    assert [part.num_rows for part in check_bins([resumed], tmp_path)] == [0]
    spoil(tmp_path / bin_name(1))
    (found,) = check_bins([resumed], tmp_path)
    assert found.column("bin").to_pylist() == [1]
    assert f"{tmp_path / bin_name(1)} is damaged (" in found.column("reason")[0].as_py()


@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_items_read_together_have_the_facts_that_they_have_alone(kind: str, tmp_path: Path, moto: S3Server) -> None:
    store: Any = LocalStore(tmp_path / "a") if kind == "folder" else moto.new_store()
    names = [f"item-{number:03}" for number in range(300)]
    filled(store, *names)
    store.put("docs", "large", io.BytesIO(b"x" * (SMALL + 1)))
    if kind == "folder":
        flip_bit(store.path_of("docs", names[7]))
        store.path_of("docs", names[8]).write_bytes(b"")
    else:
        where = {"Bucket": store._address.bucket, "Key": f"{store._address.prefix}docs/{names[7]}"}
        moto.client.put_object(**where, Body=b"bad", Metadata=moto.client.head_object(**where)["Metadata"])
    store.delete("docs", names[9])
    sizes = {"large": SMALL + 1}
    plan = [{**planned(name), "size": sizes.get(name, 3)} for name in (*names, "large", "absent")]
    part = pa.RecordBatch.from_pylist(plan, BINNED).drop_columns(["bin"])
    sweeper, alone = Sweeper({"a": store}, VirtualClock()), Sweeper({"a": store}, VirtualClock())
    together = sweeper._read_together(part.to_pylist())
    assert len(together) == 299
    alone._read_together = lambda _: {}  # type: ignore[method-assign]
    facts = sweeper.check_part(part)
    assert facts.to_pylist() == alone.check_part(part).to_pylist()
    assert facts.column("content")[7].as_py() != ABC == facts.column("provider")[7].as_py()


def test_items_of_a_store_that_is_not_mounted_are_unreachable_and_not_missing(tmp_path: Path) -> None:
    store = filled(LocalStore(tmp_path / "a"), "x")
    part = pa.RecordBatch.from_pylist([planned("x"), planned("absent")], BINNED).drop_columns(["bin"])
    sweeper = Sweeper({"a": store}, VirtualClock(), filled={"a"})
    assert sweeper.check_part(part).column("provider").to_pylist() == [ABC, SourceAnswer.MISSING]
    (tmp_path / "a").rename(tmp_path / "disk")
    (tmp_path / "a").mkdir()
    facts = sweeper.check_part(part)
    assert facts.column("provider").to_pylist() == [SourceAnswer.UNREACHABLE] * 2
    assert "is its disk mounted?" in facts.column("error")[0].as_py()
    assert Sweeper({"a": store}, VirtualClock()).check_part(part).column("provider")[0].as_py() == SourceAnswer.MISSING


def test_an_empty_task_writes_nothing(tmp_path: Path) -> None:
    assert list(sweep_part([pa.RecordBatch.from_pylist([], BINNED)], {}, tmp_path)) == []
    assert list(tmp_path.iterdir()) == []


def test_items_of_two_bins_in_one_task_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    store = filled(LocalStore(tmp_path / "a"), "x")
    plan = pa.RecordBatch.from_pylist([planned("x", number=1), planned("x", number=2)], BINNED)
    with pytest.raises(PipelineError, match="bin 1"):
        list(sweep_part([plan], {"a": store.url}, tmp_path))
    assert not list(tmp_path.glob("*bin*"))


def test_seconds_and_times_come_from_the_clock() -> None:
    clock = VirtualClock()
    store = UnavailableStore(filled(MemoryStore("fixity"), "x"), times=1)
    part = pa.RecordBatch.from_pylist([planned("x")], BINNED)
    (fact,) = Sweeper({"a": store}, clock).check_part(part).to_pylist()
    assert fact["checked_at"] == clock.now()
    assert fact["seconds"] == pytest.approx(clock.monotonic())


def test_a_store_that_stays_away_is_not_waited_for_at_every_item() -> None:
    clock = VirtualClock()
    part = pa.RecordBatch.from_pylist([planned(f"item-{number}") for number in range(1000)], BINNED)
    store = UnavailableStore(filled(MemoryStore("fixity"), "item-999"), times=4 + 998)
    facts = Sweeper({"a": store}, clock).check_part(part).to_pylist()
    assert [fact["provider"] for fact in facts] == [SourceAnswer.UNREACHABLE] * 999 + [ABC]
    assert clock.monotonic() < 2
