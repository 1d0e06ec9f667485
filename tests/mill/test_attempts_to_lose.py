"""Ways in which content or a failure could get lost between two parts of the mill that each do right by themselves."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import msgspec
import pytest
from mill_looping import TO_2, TO_3, Producer, fill, numbered, one_policy, stale

from millstream.core.clock import VirtualClock
from millstream.mill.audit.audit_log import AuditLog
from millstream.mill.audit.audit_lookup import AuditLookup
from millstream.mill.duplication.change_guard import ChangeGuard
from millstream.mill.duplication.differences import ItemDifference, differences
from millstream.mill.duplication.duplicator import DuplicationProcessor
from millstream.mill.duplication.source_recorder import record_space
from millstream.mill.errors import ChangePendingError, DuplicationError, NoAnswerError, UnknownStoreError
from millstream.mill.integrity.bit_log import BitLog
from millstream.mill.integrity.checker import BitChecker
from millstream.mill.integrity.space_reports import BitReportProcessor, Reporter
from millstream.mill.item_ref import ItemRef
from millstream.mill.manifest import CheckResult, ManifestEvent
from millstream.mill.policies.policy import Pair, Policy
from millstream.mill.policies.repository import Policies, PolicyRepository
from millstream.mill.producers.producer_loop import LoopOutcome
from millstream.mill.repair.repair_log import RepairLog
from millstream.mill.repair.repairer import Repairer, RepairProcessor
from millstream.mill.reports.archive import reports_of
from millstream.mill.reports.folder import ReportFolder
from millstream.mill.tasks import BitReport, Duplicate, Repair
from millstream.mill.tombstones import NotDeletedError, record_deletions
from millstream.stores import LocalStore, MemoryStore
from millstream.stores.audit import AuditAction, AuditedStore, AuditEvent, AuditOutbox
from millstream.testing.damage import flip_bit, remove
from millstream.testing.faulty_store import FaultyStore, UnavailableStore

AHEAD = 3600.0


def test_p8_an_item_that_is_still_there_is_not_recorded_as_deleted(world: Any) -> None:
    for name in ("a", "b"):
        world.put(ItemRef("1", "s", name))
    with pytest.raises(NotDeletedError, match=r"'b' is still in space 's' of store '1': delete the item there first"):
        record_deletions(world.providers, world.manifest, "1", "s", ["gone", "b"])
    assert world.manifest.get("1", "s", "gone") is None
    with pytest.raises(UnknownStoreError, match="unknown store '9'"):
        record_deletions(world.providers, world.manifest, "9", "s", ["gone"])
    world.stores["1"].delete("s", "a")
    assert record_deletions(world.providers, world.manifest, "1", "s", ["a", "a", "gone"]) == ["a"]
    assert world.manifest.get("1", "s", "gone") is None
    assert world.manifest.get("1", "s", "a").deleted


@pytest.mark.parametrize("ahead", [-50.0, AHEAD])
def test_p8_the_tombstone_of_an_item_that_came_back_does_not_delete_its_copy_later(world: Any, ahead: float) -> None:
    place, copy = ItemRef("1", "s", "a"), ItemRef("2", "s", "a")
    world.put(place, b"kept in a backup", record=False)
    deleted_at = world.clock.now() + 100_000_000 + int(ahead * 1_000_000)
    world.clock.advance(100)
    world.manifest.writer.record([ManifestEvent("1", "s", "a", deleted_at, deleted=True)])
    counts = record_space(world.providers, world.manifest, "1", "s")  # the backup kept the time of before
    assert (counts.recorded, world.manifest.get("1", "s", "a").deleted) == (1, False)
    processor = DuplicationProcessor(world.providers, world.manifest)
    world.manifest.writer.record(processor.process(Duplicate("1", "2", "s", "a"), 1).events)
    world.clock.advance(100)
    world.stores["1"].delete("s", "a")
    record_space(world.providers, world.manifest, "1", "s")
    assert [one.kind for one in differences(world.providers, world.manifest, TO_2, "s")] == [ItemDifference.HELD]
    with pytest.raises(DuplicationError, match="D20"):
        processor.process(Duplicate("1", "2", "s", "a"), 1)
    assert world.read(copy) == b"kept in a backup"


def test_what_a_newer_record_overrules_does_not_count_as_recorded(world: Any) -> None:
    world.put(ItemRef("1", "s", "a"), b"older, longer", record=False)
    world.clock.advance(100)
    world.record(ItemRef("1", "s", "a"), "a" * 64, size=4)
    assert record_space(world.providers, world.manifest, "1", "s").recorded == 0
    assert world.manifest.get("1", "s", "a").sha256 == "a" * 64


def test_a_deletion_counts_however_far_ahead_the_provider_s_clock_is(world: Any) -> None:
    ahead = VirtualClock(world.clock.now() + int(AHEAD * 1_000_000))
    world.stores["1"] = MemoryStore("1", clock=ahead)
    world.put(ItemRef("1", "s", "a"), record=False)
    record_space(world.providers, world.manifest, "1", "s")
    assert record_space(world.providers, world.manifest, "1", "s").recorded == 0
    world.clock.advance(1)
    world.stores["1"].delete("s", "a")
    world.manifest.writer.record([ManifestEvent("1", "s", "a", world.clock.now(), deleted=True)])
    assert world.manifest.get("1", "s", "a").deleted


def test_a_tombstone_is_never_older_than_the_row_it_replaces(world: Any) -> None:
    world.manifest.writer.record([ManifestEvent("1", "s", "a", world.clock.now() + 10**9, "ff", 1)])
    world.stores["1"].create_space("s")
    record_deletions(world.providers, world.manifest, "1", "s", ["a"])
    assert world.manifest.get("1", "s", "a").deleted


def test_a_change_in_the_future_is_no_change_until_it_comes(world: Any) -> None:
    ahead = VirtualClock(world.clock.now() + int(AHEAD * 1_000_000))
    world.stores["1"] = MemoryStore("1", clock=ahead)
    world.put(ItemRef("1", "s", "a"), record=False)
    record_space(world.providers, world.manifest, "1", "s")
    world.put(ItemRef("2", "s", "a"))
    kinds = lambda: [one.kind for one in differences(world.providers, world.manifest, TO_2, "s")]  # noqa: E731
    assert kinds() == [ItemDifference.SAME]
    world.clock.advance(AHEAD + 1)
    assert kinds() == [ItemDifference.CHANGE]


def test_p8_a_pair_that_leaves_the_policy_in_mid_loop_is_left_alone_from_then_on(world: Any, tmp_path: Path) -> None:
    fill(world, "1", "s", numbered(1500))
    gone = stale(world, "s", 3, "3")
    producer = Producer(world, tmp_path, one_policy(TO_2, TO_3), most=1000)
    assert producer.run().outcome == LoopOutcome.QUEUE_FULL
    assert {task.destination for task in producer.taken()} == {"2"}
    producer.policies = Policies({"me": Policy("me", {}, (TO_2,))})
    assert producer.run().outcome == LoopOutcome.DONE
    assert {task.destination for task in producer.taken()} == {"2"}
    assert [(morsel.space, morsel.pair) for morsel in producer.producer.dropped] == [("s", TO_3)]
    assert all(world.has(ItemRef("3", "s", name)) for name in gone)


def test_p8_a_task_from_before_a_policy_changed_deletes_and_copies_nothing(world: Any) -> None:
    policies = Policies({"me": Policy("me", {"s": (TO_2,)})})
    processor = DuplicationProcessor(world.providers, world.manifest, policies=lambda: policies)
    world.put(ItemRef("1", "s", "new"))
    for store in "23":
        world.put(ItemRef(store, "s", "old"))
    world.record(ItemRef("1", "s", "old"), None, deleted=True)
    assert processor.process(Duplicate("1", "3", "s", "old"), 1).summary == (
        "nothing: no policy asks for 's' 1 → 3 any more"
    )
    assert processor.process_group([Duplicate("1", "3", "s", "new")] * 2) == [None, None]
    assert processor.process(Duplicate("1", "3", "s", "new"), 1).events == ()
    assert world.has(ItemRef("3", "s", "old")) and not world.has(ItemRef("3", "s", "new"))
    assert processor.process(Duplicate("1", "2", "s", "old"), 1).summary.startswith("D19")


def test_p8_a_task_waits_for_policies_that_cannot_be_found(world: Any, tmp_path: Path) -> None:
    world.put(ItemRef("1", "s", "new"))
    task, policies = Duplicate("1", "2", "s", "new"), PolicyRepository.in_folder(tmp_path).load
    processor = DuplicationProcessor(world.providers, world.manifest, policies=policies)
    for act in (lambda: processor.process(task, 1), lambda: processor.process_group([task] * 2)):
        with pytest.raises(NoAnswerError, match=r"no duplication-accounts\.json; space 's' was not copied 1 → 2"):
            act()
    (tmp_path / "duplication-accounts.json").write_text("[]")
    assert processor.process(task, 1).summary == "nothing: no policy asks for 's' 1 → 2 any more"
    assert not world.has(ItemRef("2", "s", "new"))


def test_two_producers_and_workers_at_once_delete_no_more_than_one_budget(world: Any, tmp_path: Path) -> None:
    change_guard = ChangeGuard(world.engine, world.clock, world.manifest.count)
    for store in "12":
        fill(world, store, "s", numbered(20))
    gone = stale(world, "s", 90)
    producers = [Producer(world, tmp_path / name, one_policy(), change_guard=change_guard) for name in ("a", "b")]
    for producer in producers:  # as if two nodes shared a database: each believes that it is alone
        producer.run()
    tasks = producers[0].taken()
    assert len(tasks) == 2 * (20 + 90)
    processor = DuplicationProcessor(world.providers, world.manifest, change_guard)
    for task in tasks:
        world.manifest.writer.record(processor.process(task, 1).events)
    more = [f"later {number}" for number in range(30)]
    fill(world, "2", "s", more)
    for name in more:
        world.record(ItemRef("1", "s", name), None, deleted=True)
        world.manifest.writer.record(processor.process(Duplicate("1", "2", "s", name), 1).events)
    left = [name for name in {*gone, *more} if world.has(ItemRef("2", "s", name))]
    assert len(left) == 20
    assert change_guard.pending()[0].deletes == 20


class _Meddled(FaultyStore):
    """A store whose item is written by somebody else between the vote and the repair."""

    def __init__(self, store: Any, meddle: Any) -> None:
        super().__init__(store)
        self._meddle, self.armed = meddle, False

    def after(self, call: Any) -> None:
        if self.armed and call.method in ("open", "info"):
            self.armed = False
            self._meddle()


@pytest.mark.parametrize("damage", [flip_bit, remove])
def test_p8_a_repair_does_not_undo_what_somebody_wrote_meanwhile(new_world: Any, tmp_path: Path, damage: Any) -> None:
    world = new_world({name: LocalStore(tmp_path / name) for name in "123"})
    for store in "123":
        world.put(ItemRef(store, "s", "a"), b"the old bytes")
    real = world.stores["2"]
    damage(real.path_of("s", "a"))
    good = _Meddled(world.stores["3"], lambda: real.put("s", "a", io.BytesIO(b"new bytes of a user")))
    world.stores["3"] = good  # it is looked at last: what is written then, the vote has not seen
    good.armed = True
    repairer = Repairer(world.providers, world.manifest, RepairLog(world.engine), sources=lambda _: {"1"})
    result = repairer.repair("s", "a")
    assert result.repaired == 0
    assert "changed during its repair" in result.refused[0].reason
    assert world.read(ItemRef("2", "s", "a")) == b"new bytes of a user"


@pytest.mark.parametrize("is_audited", [False, True])
@pytest.mark.parametrize("damage", [flip_bit, remove])
def test_p8_a_repair_does_not_undo_what_somebody_wrote_just_before_it_writes(
    new_world: Any, tmp_path: Path, damage: Any, is_audited: bool
) -> None:
    world = new_world({name: LocalStore(tmp_path / name) for name in "12"})
    outbox, log = AuditOutbox(world.engine, world.clock), AuditLog(world.engine)
    for store in "12":
        world.put(ItemRef(store, "s", "a"), b"the old bytes")
    damage(world.stores["1"].path_of("s", "a"))
    if is_audited:
        world.stores["1"] = AuditedStore(world.stores["1"], outbox, "1")
        event = AuditEvent(AuditAction.ADD_CONTENT, "ann", 1, "me", "1", "file", "s", "a")
        log.append([msgspec.structs.replace(event, number=1, sha256=world.manifest.get("1", "s", "a").sha256, size=13)])
    source = world.stores["1"]

    class Late(FaultyStore):
        reads = 0

        def after(self, call: Any) -> None:
            """The user puts a new version once the good copy is read to be written, after it was read for the vote."""
            self.reads += call.method == "open"
            if call.method == "open" and self.reads == 2:
                source.put("s", "a", io.BytesIO(b"new bytes of a user"))

    world.stores["2"] = Late(world.stores["2"])
    lookup = AuditLookup(log, outbox, {"1"} if is_audited else set())
    repairer = Repairer(world.providers, world.manifest, RepairLog(world.engine), audit_lookup=lookup)
    result = repairer.repair("s", "a", restore_source=True)
    assert (result.repaired, "changed during its repair" in result.refused[0].reason) == (0, True)
    assert world.read(ItemRef("1", "s", "a")) == b"new bytes of a user"


def test_two_repairs_of_one_item_at_once_are_no_matter_for_people(new_world: Any, tmp_path: Path) -> None:
    world = new_world({name: LocalStore(tmp_path / name) for name in "123"})
    for store in "123":
        world.put(ItemRef(store, "s", "a"), b"bytes")
    flip_bit(world.stores["2"].path_of("s", "a"))
    other = Repairer(world.providers, world.manifest, RepairLog(world.engine), sources=lambda _: {"1"})
    world.stores["3"] = good = _Meddled(world.stores["3"], lambda: other.repair("s", "a"))
    good.armed = True
    one = Repairer(world.providers, world.manifest, RepairLog(world.engine), sources=lambda _: {"1"})
    result = RepairProcessor(one).process(Repair("s", "a", "found twice"), 1)
    assert (result.summary, result.tasks) == ("repair: 0 copies repaired", ())
    assert world.read(ItemRef("2", "s", "a")) == b"bytes"


def test_p8_what_is_added_again_while_its_copy_is_deleted_is_copied_again(world: Any) -> None:
    world.put(ItemRef("2", "s", "a"), b"old")
    world.stores["1"].create_space("s")
    world.record(ItemRef("1", "s", "a"), None, deleted=True)
    source = world.stores["1"]

    class Late(FaultyStore):
        def after(self, call: Any) -> None:
            """The user adds the item again after the worker has looked, and before it is done."""
            if call.method == "delete":
                source.put("s", "a", io.BytesIO(b"old"))

    world.stores["2"] = Late(world.stores["2"])
    result = DuplicationProcessor(world.providers, world.manifest).process(Duplicate("1", "2", "s", "a"), 1)
    world.manifest.writer.record(result.events)
    assert result.summary.startswith("D19, then D12 copy")
    assert world.read(ItemRef("2", "s", "a")) == b"old"
    assert not world.manifest.get("2", "s", "a").deleted


def test_p8_what_could_not_be_read_and_is_there_again_is_not_overwritten(world: Any) -> None:
    for store in "123":
        world.put(ItemRef(store, "s", "a"), b"the old bytes")
    real = world.stores["1"]
    world.stores["1"] = unreadable = UnavailableStore(real, when=lambda call: call.method == "open")

    def write() -> None:
        real.put("s", "a", io.BytesIO(b"new bytes of a user"))
        unreadable.when = lambda _: False

    world.stores["3"] = good = _Meddled(world.stores["3"], write)
    good.armed = True
    repairer = Repairer(world.providers, world.manifest, RepairLog(world.engine), sources=lambda _: {"1"})
    result = repairer.repair("s", "a", restore_source=True)
    assert (result.repaired, "changed during its repair" in result.refused[0].reason) == (0, True)
    assert world.read(ItemRef("1", "s", "a")) == b"new bytes of a user"


def test_p8_late_tasks_of_a_space_that_was_deleted_and_made_again_touch_nothing_of_the_new_one(world: Any) -> None:
    for store in "12":
        for name in ("a", "b"):
            world.put(ItemRef(store, "s", name), b"of the old space")
    source, processor = world.stores["1"], DuplicationProcessor(world.providers, world.manifest)
    for name in ("a", "b"):
        source.delete("s", name)
        world.record(ItemRef("1", "s", name), None, deleted=True)
    source.delete_space("s")
    late = [Duplicate("1", "2", "s", name) for name in ("a", "b", "")]
    world.clock.advance(1)
    world.put(ItemRef("1", "s", "a"), b"of the new space")
    done = []
    for task in (late[2], late[0], late[1], *late):
        done.append(processor.process(task, 1))
        world.manifest.writer.record(done[-1].events)
    assert [result.summary.split()[0] for result in done] == ["D2", "D11", "D19", "D7", "D21", "D2"]
    assert world.read(ItemRef("2", "s", "a")) == b"of the new space" and not world.has(ItemRef("2", "s", "b"))
    rows = {(row.store, row.content_id): row.deleted for row in world.manifest.replicas("s", "a")}
    assert rows == {("1", "a"): False, ("2", "a"): False}


def test_p8_a_late_event_of_before_a_deletion_brings_nothing_back_and_one_of_after_it_is_not_lost(world: Any) -> None:
    now, place = world.clock.now(), ("1", "s", "a")
    for at, deleted in ((now + 20, True), (now + 10, False), (now + 15, True), (now + 30, False), (now + 25, True)):
        sha256 = None if deleted else f"{at - now:064d}"
        world.manifest.writer.record([ManifestEvent(*place, at, sha256, deleted=deleted)])
        row = world.manifest.get(*place)
        assert (row.deleted, row.modified) == ((at < now + 25 and row.modified == now + 20), row.modified)
    assert (row.deleted, row.modified, row.sha256) == (False, now + 30, f"{30:064d}")


def test_p9_what_is_found_while_a_report_is_made_is_in_the_next_one(world: Any, tmp_path: Path) -> None:
    for name in "ab":
        world.put(ItemRef("1", "s", name))
    bit_log, folder = BitLog(world.engine), ReportFolder(tmp_path)
    checker, since = BitChecker(world.providers, world.manifest), world.clock.now()
    bit_log.append([checker.check(ItemRef("1", "s", name)).result for name in "ab"])
    found = checker.check(ItemRef("1", "s", "a")).result

    class Late(FaultyStore):
        def after(self, call: Any) -> None:
            """A redriven check ends behind the place where the report has come to."""
            if call.method == "entries":
                world.clock.advance(5)
                bit_log.append([_failed(found, world.clock.now())])
                world.clock.advance(5)

    world.stores["1"] = Late(world.stores["1"])
    processor = BitReportProcessor(world.providers, world.manifest, bit_log, checker, Reporter(folder, bit_log))
    processor.process(BitReport("1", "s", since, 2), 1)
    assert [result.verdict for result in bit_log.results("1", "s")] == ["FAILURE"]


def test_a_report_that_is_kept_again_after_its_worker_died_forgets_no_check_of_the_next_loop(
    world: Any, tmp_path: Path
) -> None:
    world.put(ItemRef("1", "s", "a"))
    bit_log, folder = BitLog(world.engine), ReportFolder(tmp_path)
    checker, since = BitChecker(world.providers, world.manifest), world.clock.now()
    bit_log.append([checker.check(ItemRef("1", "s", "a")).result])
    processor = BitReportProcessor(world.providers, world.manifest, bit_log, checker, Reporter(folder, bit_log))
    world.clock.advance(1)
    processor.process(BitReport("1", "s", since, 1), 1)
    world.clock.advance(60)
    bit_log.append([checker.check(ItemRef("1", "s", "a")).result])
    world.clock.advance(60)
    processor.process(BitReport("1", "s", since, 1), 2)
    assert bit_log.count("1", "s") == 1
    assert len(list(reports_of(folder, "1", "s"))) == 1


def _failed(result: CheckResult, at: int) -> CheckResult:
    from msgspec.structs import replace

    from millstream.mill.integrity_decision import CheckVerdict

    return replace(result, verdict=CheckVerdict.FAILURE, row="B3", kind="checksum-mismatch", checked_at=at)


def deleted_at_both_ends(world: Any) -> None:
    """An item "a" that was copied from store 1 to store 2, and was deleted at both."""
    for store in "12":
        world.put(ItemRef(store, "s", "a"), b"old")
        world.clock.advance(1)
    for store in "12":
        world.stores[store].delete("s", "a")
        world.record(ItemRef(store, "s", "a"), None, deleted=True)
    world.clock.advance(10)


BACK = Duplicate("2", "1", "s", "a")


@pytest.mark.parametrize("body", [b"added again", b"old"])
@pytest.mark.parametrize("recorded", [True, False])
def test_p8_a_reversed_policy_does_not_delete_what_was_added_since(world: Any, recorded: bool, body: bytes) -> None:
    deleted_at_both_ends(world)
    place = ItemRef("1", "s", "a")
    world.clock.jump(0 if recorded else -60)  # a backup that is restored keeps its times
    world.put(place, body, record=recorded)
    world.clock.jump(0 if recorded else 60)
    kinds = [one.kind for one in differences(world.providers, world.manifest, Pair("2", "1"), "s")]
    assert kinds == [ItemDifference.HELD]
    processor = DuplicationProcessor(world.providers, world.manifest)
    with pytest.raises(DuplicationError, match="D18"):
        processor.process(BACK, 1)
    world.clock.advance(1)
    record_deletions(world.providers, world.manifest, "2", "s", ["a"])  # a person says that this is deleted, too
    with contextlib.nullcontext() if recorded else pytest.raises(DuplicationError, match="D18"):
        assert processor.process(BACK, 1).summary.startswith("D19")
    assert world.has(place) != recorded


@pytest.mark.parametrize(
    ("body", "is_later", "kept"), [(b"own", False, True), (b"old", True, True), (b"old", False, False)]
)
def test_p8_a_deletion_does_not_count_for_an_item_that_the_destination_had_by_itself(
    world: Any, body: bytes, is_later: bool, kept: bool
) -> None:
    """The manifest has no row of it at the destination."""
    world.put(ItemRef("1", "s", "a"), b"old")
    world.stores["1"].delete("s", "a")
    if not is_later:
        world.put(ItemRef("2", "s", "a"), body, record=False)
    world.clock.advance(1)
    world.record(ItemRef("1", "s", "a"), None, deleted=True)
    world.clock.advance(1)
    if is_later:
        world.put(ItemRef("2", "s", "a"), body, record=False)
    processor = DuplicationProcessor(world.providers, world.manifest)
    with pytest.raises(DuplicationError, match="D18") if kept else contextlib.nullcontext():
        processor.process(Duplicate("1", "2", "s", "a"), 1)
    assert world.has(ItemRef("2", "s", "a")) == kept


def test_p8_stores_copied_in_a_circle_do_not_lose_what_was_added_again(world: Any) -> None:
    deleted_at_both_ends(world)
    world.put(ItemRef("1", "s", "a"), b"old")  # the bytes of before
    policies = Policies({"me": Policy("me", {"s": (Pair("1", "2"), Pair("2", "1"))})})
    processor = DuplicationProcessor(world.providers, world.manifest, policies=lambda: policies)
    with pytest.raises(DuplicationError, match="D18"):
        processor.process(BACK, 1)
    world.manifest.writer.record(processor.process(Duplicate("1", "2", "s", "a"), 1).events)
    assert processor.process(BACK, 1).summary.startswith("D7")
    for store in "12":
        assert world.read(ItemRef(store, "s", "a")) == b"old"


def deleted_at_the_source(world: Any, user: str) -> tuple[AuditOutbox, DuplicationProcessor]:
    """An item "a" that was copied from store 2 to store 1, which is audited, and was deleted at store 2."""
    for store in "12":
        world.put(ItemRef(store, "s", "a"), b"old")
    world.clock.advance(1)
    world.stores["2"].delete("s", "a")
    world.record(ItemRef("2", "s", "a"), None, deleted=True)
    world.clock.advance(10)
    outbox = AuditOutbox(world.engine, world.clock)
    world.stores["1"] = AuditedStore(world.stores["1"], outbox, "1", user=user)
    lookup = AuditLookup(AuditLog(world.engine), outbox, {"1"})
    return outbox, DuplicationProcessor(world.providers, world.manifest, audit_lookup=lookup)


@pytest.mark.parametrize(("user", "kept"), [("ann", True), ("mill", False)])
def test_p8_what_the_audit_says_that_a_person_added_since_is_not_deleted(world: Any, user: str, kept: bool) -> None:
    _, processor = deleted_at_the_source(world, user)
    world.put(ItemRef("1", "s", "a"), b"old", record=False)
    with pytest.raises(DuplicationError, match="D18") if kept else contextlib.nullcontext():
        processor.process(BACK, 1)
    assert world.has(ItemRef("1", "s", "a")) == kept


def test_p8_a_copy_is_not_deleted_while_a_change_of_it_has_not_ended(world: Any) -> None:
    outbox, processor = deleted_at_the_source(world, "ann")
    outbox.begin(AuditEvent(AuditAction.ADD_CONTENT, "ann", 0, "me", "1", "memory", "s", "a"))
    with pytest.raises(ChangePendingError, match="has started and is not recorded as ended"):
        processor.process(BACK, 1)
    assert world.has(ItemRef("1", "s", "a"))


class _Overtaken(FaultyStore):
    """A destination during whose first call of a method one of *changes* (by method) happens."""

    def __init__(self, store: Any, **changes: Any) -> None:
        super().__init__(store)
        self._changes = changes

    def before(self, call: Any) -> None:
        self._changes.pop(call.method, lambda: None)()


def test_what_changes_at_the_source_while_it_is_copied_is_copied_again(world: Any) -> None:
    world.put(ItemRef("1", "s", "a"), b"old, and longer")
    source = world.stores["1"]
    world.stores["2"] = _Overtaken(world.stores["2"], put=lambda: source.put("s", "a", io.BytesIO(b"new")))
    processor = DuplicationProcessor(world.providers, world.manifest)
    result = processor.process(Duplicate("1", "2", "s", "a"), 1)
    assert result.summary == "D12, then D11 copy: the checksums differ"
    world.manifest.writer.record(result.events)
    assert world.read(ItemRef("2", "s", "a")) == b"new"
    assert world.manifest.get("2", "s", "a").sha256 == source.info("s", "a").checksum()
    world.stores["3"] = _Overtaken(world.stores["3"], put=lambda: source.put("s", "a", io.BytesIO(b"newest")))
    assert DuplicationProcessor(world.providers, world.manifest).copy_new(Duplicate("1", "3", "s", "a")) is None


@pytest.mark.parametrize("recorded", [True, False])
def test_what_is_deleted_at_the_source_while_it_is_copied_is_deleted_where_that_is_recorded(
    world: Any, recorded: bool
) -> None:
    world.put(ItemRef("1", "s", "a"))
    source = world.stores["1"]

    def delete() -> None:
        source.delete("s", "a")
        if recorded:
            world.clock.advance(1)
            world.record(ItemRef("1", "s", "a"), None, deleted=True)

    world.stores["2"] = _Overtaken(world.stores["2"], put=delete, delete=lambda: world.clock.jump(-60))
    result = DuplicationProcessor(world.providers, world.manifest).process(Duplicate("1", "2", "s", "a"), 1)
    assert result.summary.startswith("D12, then D19" if recorded else "D12 copy")
    world.manifest.writer.record(result.events)
    assert (world.has(ItemRef("2", "s", "a")), world.manifest.get("2", "s", "a").deleted) == (not recorded, recorded)


def test_an_item_that_is_replaced_during_each_copy_is_copied_twice_by_a_task(world: Any) -> None:
    world.put(ItemRef("1", "s", "a"))
    source, puts = world.stores["1"], []

    class Late(FaultyStore):
        def before(self, call: Any) -> None:
            if call.method == "put":
                puts.append(call)
                source.put("s", "a", io.BytesIO(b"version %d" % len(puts)))

    world.stores["2"] = Late(world.stores["2"])
    result = DuplicationProcessor(world.providers, world.manifest).process(Duplicate("1", "2", "s", "a"), 1)
    assert (len(puts), [event.store for event in result.events]) == (2, ["2", "2"])
