"""The sweep of a space: every kind of damage named with its row, and coverage that is never overstated."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millstream.core.clock import VirtualClock
from millstream.mill.audit.audit_log import AuditLog
from millstream.mill.audit.audit_lookup import AuditLookup
from millstream.mill.column_join import ItemColumns
from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.errors import UnknownStoreError
from millstream.mill.integrity.bit_log import BitLog
from millstream.mill.integrity.check_processor import BitCheckProcessor
from millstream.mill.integrity.check_writer import CheckWriter
from millstream.mill.integrity.checker import BitChecker, CheckedGroup, CheckedItem, ItemReading
from millstream.mill.integrity.sweep import check_space, items_to_check, listed_or_known
from millstream.mill.integrity_decision import CheckVerdict, Observation, SourceAnswer, decide_bit_check
from millstream.mill.item_ref import ItemRef
from millstream.mill.manifest import ComparisonRow
from millstream.mill.manifest_table import IntactItems
from millstream.mill.merge_join import one_behind
from millstream.mill.reports.report import ReportResult
from millstream.mill.tasks import BitCheck, BitError, QueueName, Repair
from millstream.stores import LocalStore, MemoryStore, StoreUnavailableError
from millstream.stores.audit import AuditAction, AuditEvent, AuditOutbox
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


def test_checks_as_tasks_are_done_together_where_one_attempt_decides(world: Any) -> None:
    flip_bit(world.stores["1"].path_of("s", "item 3"))
    world.put(ItemRef("1", "s", "large"), b"x" * (SMALL + 1))
    names = [*(f"item {number}" for number in range(5)), "large", "none"]
    tasks = [BitCheck("1", "s", name) for name in names] + [BitCheck("2", "s", "item 0")]
    results = BitCheckProcessor(BitChecker(world.providers, world.manifest)).process_group(tasks)
    assert [result is not None for result in results] == [True, True, True, True, True, False, False, True]
    processor = BitCheckProcessor(BitChecker(world.providers, world.manifest))
    for task, result in zip(tasks, results, strict=True):
        assert result is None or result == processor.process(task, 1)


def test_findings_ask_for_repair_where_another_copy_is_recorded_good(world: Any) -> None:
    flip_bit(world.stores["1"].path_of("s", "item 0"))
    world.record(ItemRef("2", "s", "item 1"), None, deleted=True)
    flip_bit(world.stores["1"].path_of("s", "item 1"))
    followed: list[CheckedItem] = []
    sweep(world, on_checked=lambda group: followed.extend(group.others))
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

    def broken(_providers: ConfiguredStores, _store: str, _space: str) -> Iterator[ItemColumns]:
        yield ItemColumns([f"item {number}" for number in range(4)], ())
        raise StoreUnavailableError("the disk went away")

    monkeypatch.setattr(ConfiguredStores, "id_runs", broken)
    told: list[list[str]] = []
    tally = sweep(world, on_checked=lambda some: told.append(list(some.intact.content_ids)))
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
        assert (said.verdict, said.row) == (CheckVerdict.SUCCESS, "B1")
        place, row = ItemRef("1", "s", "x"), ComparisonRow("x", "a", 1, 0, False)
        checker = BitChecker(ConfiguredStores({"1": MemoryStore("1")}, VirtualClock()), None)  # type: ignore[arg-type]
        checked = checker.check_row(place, row, audit, seen=ItemReading("a", "a", 1, 0, "x/y", {}, links=1))
        assert checked.outcome == said and checked.result.content == "a"


def test_items_found_intact_together_are_recorded_like_single_ones(
    new_world: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.mill.integrity.sweep.GROUP", 7)
    found = []
    for name in ("together", "alone"):
        made = new_world({"1": LocalStore(tmp_path / name)})
        for number in range(20):
            made.put(ItemRef("1", "s", f"item {number:02}"), b"%d" % number)
        made.record(ItemRef("1", "s", "tombstone"), None, deleted=True)
        made.record(ItemRef("1", "s", "item 05"), "0" * 64, size=1)
        for number in (3, 11):
            flip_bit(made.stores["1"].path_of("s", f"item {number:02}"))
        log = BitLog(made.engine)
        if name == "alone":
            monkeypatch.setattr("millstream.mill.integrity.sweep.find_intact", find_none)
        groups: list[CheckedGroup] = []
        tally = sweep(made, writer=CheckWriter(made.manifest, log), on_checked=groups.append)
        assert [group.items for group in groups] == [7, 7, 6]
        assert sum(len(group.intact.sums) for group in groups) == (17 if name == "together" else 0)
        counts = (tally.outcomes, tally.kinds, tally.findings, tally.bytes)
        found.append((counts, list(log.results("1", "s")), list(made.manifest.scan("1", "s"))))
    assert found[0] == found[1]


def find_none(_checker: BitChecker, store: str, space: str, items: Any) -> Any:
    intact = IntactItems(store, space, 0, decide_bit_check(Observation("a", "a", "a")), [], [], [])
    return intact, list(range(len(items.content_ids)))


def test_a_row_that_changed_since_it_was_read_is_not_noted_as_intact(world: Any) -> None:
    row = world.manifest.get("1", "s", "item 0")
    world.record(ItemRef("1", "s", "item 1"), None, deleted=True)
    sums = [row.sha256, world.manifest.get("1", "s", "item 1").sha256, "0" * 64]
    outcome = decide_bit_check(Observation("a", "a", "a"))
    names = [f"item {number}" for number in range(3)]
    world.manifest.writer.apply_intact(IntactItems("1", "s", 77, outcome, names, sums, [1, 1, 1]))
    assert [world.manifest.get("1", "s", name).verified_at for name in names] == [77, None, None]


@pytest.mark.parametrize("seed", range(8))
def test_what_there_is_to_check_is_what_is_listed_or_recorded_or_lost(
    new_world: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    draw, made = random.Random(seed), new_world()
    monkeypatch.setattr("millstream.mill.integrity.sweep.GROUP", 5)
    monkeypatch.setattr("millstream.mill.manifest._PAGE", 4)
    monkeypatch.setattr("millstream.mill.audit.audit_log._SCANNED", 6)
    made.stores["1"].create_space("s")
    for number in range(24):
        place, state = ItemRef("1", "s", f"{number:02}"), draw.randrange(5)
        if state in (0, 1):
            made.put(place, record=state == 0)
        elif state in (2, 3):
            made.record(place, "1" * 64, deleted=state == 3)
    lost = sorted(
        draw.sample([f"{number:02}{mark}" for number in range(24) for mark in ("", *"uvwxyz")], 8 + 20 * seed)
    )
    lost = [name for name in lost if made.manifest.get("1", "s", name) is None]
    log = AuditLog(made.engine)
    known = [draw.choice([name, f"{name}!"]) for name in lost]  # events of items that are recorded, too
    log.append([event(number, name) for number, name in enumerate(dict.fromkeys([*lost, *known]), 1)])
    log.append([event(1000 + number, f"{name}-gone", deleted=True) for number, name in enumerate(lost)])
    audit = AuditLookup(log, AuditOutbox(made.engine, made.clock), ["1"])
    expected = listed_or_known(made.providers, made.manifest, "1", "s", audit)
    runs = list(items_to_check(made.providers, made.manifest, "1", "s", audit))
    assert max(len(run.keys) for run in runs) < 35  # a run of the store's, a page of the manifest, one of the log
    found = [row[:5] for run in runs for row in zip(run.keys, *run.columns, strict=True)]
    sums = {key: (name, sha256) for run in runs for key, *_, name, sha256 in zip(run.keys, *run.columns, strict=True)}
    logged = log.last_sums("1", "s", list(sums))
    assert sums == {key: (key, logged[key]) if key in logged else (None, None) for key in sums}
    rows = [(item.content_id, item.row) for item in expected]
    assert found == [
        (name, row.sha256, row.size, row.modified, row.deleted) if row else (name, *[None] * 4) for name, row in rows
    ]


def event(number: int, name: str, *, deleted: bool = False) -> AuditEvent:
    action = AuditAction.DELETE_CONTENT if deleted else AuditAction.ADD_CONTENT
    return AuditEvent(action, "ann", number, "local", "1", "", "s", name, f"{number:064x}", 1, number=number)


def test_an_item_whose_audit_log_has_another_sum_is_not_found_intact(world: Any) -> None:
    log, outbox = AuditLog(world.engine), AuditOutbox(world.engine, world.clock)
    names = [f"item {number}" for number in range(5)]
    sums = [world.manifest.get("1", "s", name).sha256 for name in names]
    log.append([msgspec.structs.replace(event(n, names[n]), sha256=sums[n], number=n + 1) for n in range(4)])
    log.append([event(9, "item 1")])
    checker = BitChecker(world.providers, world.manifest, AuditLookup(log, outbox, ["1"]))
    groups: list[CheckedGroup] = []
    tally = sweep(world, checker=checker, on_checked=groups.append)
    assert [group.intact.content_ids for group in groups] == [["item 0", "item 2", "item 3"]]
    assert rows(tally)["item 1"] == "A6"
