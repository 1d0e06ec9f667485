"""The sweep of a space: every kind of damage named with its row, and coverage that is never overstated."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.core.clock import VirtualClock
from millstream.mill.check_outcomes import Observation, SourceAnswer, Verdict, decide_bit_check
from millstream.mill.column_join import ItemColumns
from millstream.mill.errors import UnknownStoreError
from millstream.mill.integrity.checker import BitChecker, BitCheckProcessor, CheckedItem, ItemReading
from millstream.mill.integrity.sweep import check_space
from millstream.mill.item_ref import ItemRef
from millstream.mill.manifest import ComparisonRow
from millstream.mill.merge_join import one_behind
from millstream.mill.providers import Providers
from millstream.mill.reports.report import ReportResult
from millstream.mill.tasks import BitCheck, BitError, QueueName, Repair
from millstream.stores import LocalStore, MemoryStore, StoreUnavailableError
from millstream.stores.bulk import SMALL
from millstream.testing.damage import flip_bit, remove
from millstream.testing.faulty_store import FaultyStore, UnavailableStore, VanishingStore, truncates


@pytest.fixture
def world(new_world: Callable[..., Any], tmp_path: Path) -> Any:
    made = new_world({name: LocalStore(tmp_path / name) for name in "12"})
    for store in "12":
        for number in range(5):
            made.put(ItemRef(store, "s", f"item {number}"), b"body %d" % number * 100)
    return made


def sweep(world: Any, store: str = "1", **more: Any) -> Any:
    return check_space(world.providers, world.manifest, store, "s", threads=2, **more)


def rows(tally: Any) -> dict[str, str]:
    return {finding.content_id: finding.row for finding in tally.findings}


def test_a_healthy_space_is_a_success_with_full_coverage(world: Any) -> None:
    tally = sweep(world)
    assert (tally.result, tally.listed, tally.checked, tally.coverage) == (ReportResult.SUCCESS, 5, 5, 1.0)
    assert tally.bytes == 5 * 600
    assert world.manifest.get("1", "s", "item 0").verified_at == world.clock.now()


def test_every_kind_of_damage_is_found_under_its_row(world: Any) -> None:
    store = world.stores["1"]
    flip_bit(store.path_of("s", "item 0"))
    remove(store.path_of("s", "item 1"))
    store.path_of("s", "item 2").write_bytes(b"cut")
    (store.path_of("s", "item 4").parent / "item 5").write_bytes(b"put there behind the provider's back")
    world.record(ItemRef("1", "s", "item 3"), None, deleted=True)
    tally = sweep(world)
    assert (tally.result, tally.listed) == (ReportResult.FAILURE, 6)
    assert rows(tally) == {"item 0": "B3", "item 1": "B18", "item 2": "B3", "item 3": "B24", "item 5": "B19"}


def test_many_items_are_found_as_one_by_one_they_are(
    world: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bodies = {f"more/{number:03}": b"%d" % number for number in range(230)} | {"large": b"x" * (SMALL + 1)}
    for name, body in bodies.items():
        world.put(ItemRef("1", "s", name), body)
    store = world.stores["1"]
    for name in ("item 0", "more/007", "large"):
        flip_bit(store.path_of("s", name))
    remove(store.path_of("s", "more/150"))
    digest = hashlib.sha256(b"more/200").hexdigest()
    (tmp_path / "1" / ".millstream" / "sidecars" / "s" / digest[0] / f"{digest}.json").write_bytes(b"{}")
    together = sweep(world)
    sour = dict.fromkeys(("item 0", "more/007", "large"), "B3")
    assert rows(together) == {**sour, "more/150": "B18", "more/200": "B27"}
    monkeypatch.setattr(store, "bulk", None)
    alone = sweep(world)
    assert rows(together) == rows(alone)
    fields = ("result", "listed", "checked", "coverage", "bytes")
    assert [getattr(together, name) for name in fields] == [getattr(alone, name) for name in fields]


def test_checks_as_tasks_are_done_together_where_all_is_in_order(world: Any) -> None:
    flip_bit(world.stores["1"].path_of("s", "item 3"))
    world.put(ItemRef("1", "s", "large"), b"x" * (SMALL + 1))
    names = [*(f"item {number}" for number in range(5)), "large", "none"]
    tasks = [BitCheck("1", "s", name) for name in names] + [BitCheck("2", "s", "item 0")]
    results = BitCheckProcessor(BitChecker(world.providers, world.manifest)).process_group(tasks)
    assert [result is not None for result in results] == [True, True, True, False, True, False, False, True]
    processor = BitCheckProcessor(BitChecker(world.providers, world.manifest))
    for task, result in zip(tasks, results, strict=True):
        assert result is None or result == processor.process(task, 1)


def test_findings_ask_for_repair_where_another_copy_is_recorded_good(world: Any) -> None:
    flip_bit(world.stores["1"].path_of("s", "item 0"))
    world.record(ItemRef("2", "s", "item 1"), None, deleted=True)
    flip_bit(world.stores["1"].path_of("s", "item 1"))
    followed: list[CheckedItem] = []
    sweep(world, on_checked=followed.extend)
    tasks = [checked.task for checked in followed if checked.task]
    assert tasks[0] == (QueueName.REPAIR, Repair("s", "item 0", "1: B3 checksum-mismatch"))
    assert tasks[1][0] == QueueName.BIT_ERROR
    assert isinstance(tasks[1][1], BitError)


def test_p9_a_listing_that_breaks_off_is_incomplete_and_says_why(world: Any) -> None:
    world.stores["1"] = UnavailableStore(world.stores["1"], when=lambda call: call.method == "entries")
    tally = sweep(world)
    assert tally.result == ReportResult.INCOMPLETE
    assert "the listing stopped before its end" in tally.notes[0]


def test_p9_what_cannot_be_read_is_no_success(world: Any) -> None:
    world.stores["1"] = UnavailableStore(
        world.stores["1"], when=lambda call: call.method == "open" and call.content_id == "item 2"
    )
    tally = sweep(world)
    assert (tally.result, tally.coverage) == (ReportResult.INCOMPLETE, 0.8)
    assert rows(tally) == {"item 2": "B4"}
    assert world.manifest.get("1", "s", "item 2").outcome == "ERROR"


def test_a_provider_that_does_not_answer_for_an_item_is_an_error_of_that_item(world: Any) -> None:
    world.stores["1"] = UnavailableStore(
        world.stores["1"], when=lambda call: call.method == "info" and call.content_id == "item 2"
    )
    assert rows(sweep(world)) == {"item 2": "B22"}


def test_an_object_that_is_listed_and_then_not_found_is_missing(world: Any) -> None:
    world.stores["1"] = VanishingStore(world.stores["1"], when=lambda call: call.content_id == "item 2")
    assert rows(sweep(world)) == {"item 2": "B18"}
    assert world.manifest.get("1", "s", "item 2").missing


def test_an_object_that_vanishes_between_question_and_reading_has_its_own_row(world: Any) -> None:
    world.stores["1"] = VanishingStore(
        world.stores["1"], when=lambda call: call.method == "open" and call.content_id == "item 2"
    )
    assert rows(sweep(world)) == {"item 2": "B3V"}


def test_truncated_bytes_are_sour(world: Any) -> None:
    world.stores["1"] = truncates(world.stores["1"])
    assert set(rows(sweep(world)).values()) == {"B3"}


def test_a_change_that_the_sweep_overtook_is_not_taken_for_damage(world: Any) -> None:
    class Changing(FaultyStore):
        """The item changes, and the manifest with it, after the sweep has read its manifest row."""

        def before(self, call: Any) -> None:
            if call.method == "info" and call.content_id == "item 2" and not changed:
                changed.append(True)
                world.clock.advance(1)
                stored = world.stores["1"]
                world.stores["1"] = self.store
                world.put(ItemRef("1", "s", "item 2"), b"a new version")
                world.stores["1"] = stored

    changed: list[bool] = []
    world.stores["1"] = Changing(world.stores["1"])
    tally = sweep(world)
    assert changed
    assert (tally.result, tally.checked) == (ReportResult.SUCCESS, 5)


def test_a_space_that_the_store_lost_altogether_is_found_from_the_manifest(world: Any) -> None:
    for number in range(5):
        world.stores["1"].delete("s", f"item {number}")
    world.stores["1"].delete_space("s")
    tally = sweep(world)
    assert set(rows(tally).values()) == {"B18"}
    assert (tally.listed, tally.failed) == (5, 5)


def test_a_store_that_is_not_configured_is_an_error(world: Any) -> None:
    with pytest.raises(UnknownStoreError):
        sweep(world, "9")


def test_p9_what_was_listed_before_a_listing_broke_off_is_checked_and_written_down(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.mill.integrity.sweep.GROUP", 2)

    def broken(_providers: Providers, _store: str, _space: str) -> Iterator[ItemColumns]:
        yield ItemColumns([f"item {number}" for number in range(4)], ())
        raise StoreUnavailableError("the disk went away")

    monkeypatch.setattr(Providers, "id_runs", broken)
    told: list[list[str]] = []
    tally = sweep(world, on_checked=lambda some: told.append([one.result.content_id for one in some]))
    assert (tally.result, tally.checked) == (ReportResult.INCOMPLETE, 4)
    assert told == [["item 0", "item 1"], ["item 2", "item 3"]]
    checked = [world.manifest.get("1", "s", f"item {n}").verified_at for n in range(5)]
    assert checked == [world.clock.now()] * 4 + [None]


def test_one_ahead_gives_everything_in_order_and_errors_last() -> None:
    made: list[int] = []

    def make(count: int, error: Exception | None = None) -> Any:
        for number in range(count):
            made.append(number)
            yield number
        if error:
            raise error

    ahead = one_behind(make(3))
    assert (next(ahead), made) == (0, [0, 1])
    assert list(ahead) == [1, 2] and list(one_behind(make(0))) == []
    broken, got = one_behind(make(2, ValueError("late"))), []
    with pytest.raises(ValueError, match="late"):
        got.extend(iter(lambda: next(broken), None))
    assert got == [0, 1]


def test_what_is_plainly_in_order_comes_to_what_the_table_says() -> None:
    for audit in ("a", SourceAnswer.NOT_KEPT):
        said = decide_bit_check(Observation("a", "a", "a", audit=audit))
        assert (said.verdict, said.row) == (Verdict.SUCCESS, "B1")
        place, row = ItemRef("1", "s", "x"), ComparisonRow("x", "a", 1, 0, False)
        checker = BitChecker(Providers({"1": MemoryStore("1")}, VirtualClock()), None)  # type: ignore[arg-type]
        checked = checker.check_row(place, row, audit, seen=ItemReading("a", "a", 1, 0, "x/y", {}, links=1))
        assert checked.outcome == said and checked.result.content == "a"
