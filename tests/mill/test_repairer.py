"""Repairs carried out on real stores: quarantine, write, verify, record; or a reason."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millstream.core.cid import cid_of
from millstream.mill.configured_stores import QUARANTINE
from millstream.mill.errors import UnresolvedError
from millstream.mill.integrity.check_processor import BitCheckProcessor
from millstream.mill.integrity.checker import BitChecker, CheckedItem
from millstream.mill.integrity.sweep import check_space
from millstream.mill.integrity_decision import CheckVerdict
from millstream.mill.item_ref import ItemRef
from millstream.mill.manifest_table import CheckResult, ManifestEvent
from millstream.mill.repair.bit_errors import BitErrorProcessor
from millstream.mill.repair.repair_log import RepairLog
from millstream.mill.repair.repairer import Repairer, RepairProcessor
from millstream.mill.repair.vote import RepairDecision
from millstream.mill.reports.report import ReportResult
from millstream.mill.tasks import BitCheck, BitError, QueueName, Repair
from millstream.mill.tombstones import record_deletions
from millstream.stores import CasStore, LocalStore, MountedStore, StoreUnavailableError
from millstream.stores.protocol import DEFAULT_MIMETYPE, Store
from millstream.stores.s3.keys import Keys
from millstream.stores.s3.metadata import Metadata, pack
from millstream.stores.wrapper import Answer, StoreCall, StoreWrapper
from millstream.testing.damage import flip_bit, remove
from millstream.testing.faulty_store import ArchivingStore, FaultyStore, UnavailableStore

BODY = b"the right bytes" * 100


@pytest.fixture
def world(new_world: Callable[..., Any], tmp_path: Path) -> Any:
    """Three local folders with the same items; store "1" is the source."""
    made = new_world({name: LocalStore(tmp_path / name) for name in "123"})
    for store in made.stores:
        for number in range(3):
            made.put(ItemRef(store, "s", f"folder/item {number}"), BODY + bytes([number]))
    return made


def repairer(world: Any, **more: Any) -> Repairer:
    more.setdefault("sources", lambda _: {"1"})
    return Repairer(world.providers, world.manifest, RepairLog(world.engine), **more)


def item(store: str, number: int = 0) -> ItemRef:
    return ItemRef(store, "s", f"folder/item {number}")


def path(world: Any, place: ItemRef) -> Path:
    found: Path = world.stores[place.store].path_of(place.space, place.content_id)
    return found


def share_file(world: Any, place: ItemRef, target: ItemRef) -> None:
    link = path(world, place)
    link.unlink()
    link.hardlink_to(path(world, target))


def sweep(world: Any) -> dict[str, Any]:
    return {store: check_space(world.providers, world.manifest, store, "s", threads=2) for store in world.stores}


def test_p6_every_found_fault_is_repaired_and_the_next_sweep_is_clean(world: Any) -> None:
    assert all(tally.result == ReportResult.SUCCESS for tally in sweep(world).values())
    flip_bit(path(world, item("2", 0)))
    remove(path(world, item("3", 1)))
    flip_bit(path(world, item("1", 2)))
    tallies = sweep(world)
    assert {store: [(f.content_id, f.row) for f in tally.findings] for store, tally in tallies.items()} == {
        "1": [("folder/item 2", "B3")],
        "2": [("folder/item 0", "B3")],
        "3": [("folder/item 1", "B18")],
    }
    assert world.manifest.get("3", "s", "folder/item 1").missing
    for number in range(3):
        result = repairer(world).repair("s", f"folder/item {number}")
        assert (result.repaired, result.refused) == (1, ())
    for store in "123":
        for number in range(3):
            assert world.read(item(store, number)) == BODY + bytes([number])
    assert all(tally.result == ReportResult.SUCCESS for tally in sweep(world).values())


def test_the_bad_bytes_are_kept_in_quarantine_with_where_they_came_from(world: Any) -> None:
    flip_bit(path(world, item("2")))
    bad = world.read(item("2"))
    event = repairer(world).repair("s", "folder/item 0", "found by a sweep").events[0]
    assert (event.store, event.healed, event.good, event.reason) == ("2", True, "1", "found by a sweep")
    kept = ItemRef("2", QUARANTINE, event.quarantined or "")
    assert world.read(kept) == bad
    assert world.stores["2"].info(QUARANTINE, kept.content_id).properties["reason"] == "found by a sweep"
    assert RepairLog(world.engine).last() == [event]


def test_a_repaired_copy_is_verified_in_the_manifest(world: Any) -> None:
    remove(path(world, item("3")))
    world.clock.advance(60)
    repairer(world).repair("s", "folder/item 0")
    row = world.manifest.get("3", "s", "folder/item 0")
    assert (row.verified_at, row.outcome, row.missing) == (world.clock.now(), "SUCCESS", False)
    assert "repaired from store 1" in row.detail


@pytest.mark.parametrize(("link", "target"), [("2", "1"), ("3", "2")], ids=["to the source", "to another copy"])
def test_a_copy_that_is_a_hard_link_is_found_by_a_check_and_written_as_a_file_of_its_own(
    world: Any, link: str, target: str
) -> None:
    share_file(world, item(link), item(target))
    found = [(store, f.content_id, f.row) for store, tally in sweep(world).items() for f in tally.findings]
    assert found == [(link, "folder/item 0", "B28")]
    result = repairer(world).repair("s", "folder/item 0", "B28")
    assert [(event.store == "1", event.healed, event.good == event.store) for event in result.events] == [
        (False, True, True)
    ]
    assert world.read(item(link)) == BODY + bytes([0])
    assert [path(world, item(store)).stat().st_nlink for store in "123"] == [1, 1, 1]
    assert all(tally.result == ReportResult.SUCCESS for tally in sweep(world).values())
    assert repairer(world).repair("s", "folder/item 0").events == ()


class CheckedMeanwhile(StoreWrapper):
    """A store in which a check by another worker finds an item damaged while it is being written."""

    def __init__(self, store: Store, world: Any) -> None:
        super().__init__(store)
        self.world = world

    def perform(self, call: StoreCall, act: Callable[[Store], Answer]) -> Answer:
        if call.method == "put" and call.space == "s":
            self.world.clock.advance(60)
            sha256 = self.world.manifest.get("2", "s", call.content_id).sha256
            failure = CheckResult(
                "2",
                "s",
                call.content_id,
                CheckVerdict.FAILURE,
                "B3",
                "corrupt",
                "x",
                self.world.clock.now(),
                manifest=sha256,
            )
            self.world.manifest.writer.apply([failure])
            self.world.clock.advance(1)
        return act(self.store)


def test_a_copy_that_is_written_anew_counts_as_good_though_a_check_failed_in_the_meantime(world: Any) -> None:
    world.stores["2"] = CheckedMeanwhile(world.stores["2"], world)
    event = repairer(world).write_anew(item("2"), "B28")
    row = world.manifest.get("2", "s", "folder/item 0")
    assert (row.outcome, row.verified_at) == ("SUCCESS", world.clock.now())
    assert event.at == world.clock.now()


def test_a_hard_link_of_the_source_leaves_the_source_alone(new_world: Callable[..., Any], tmp_path: Path) -> None:
    world = new_world({name: LocalStore(tmp_path / name) for name in "az"})
    for store in "az":
        world.put(item(store), BODY)
    share_file(world, item("z"), item("a"))
    world.seal("z")
    result = repairer(world, sources=lambda _: {"z"}).repair("s", "folder/item 0")
    assert [event.store for event in result.events] == ["a"]
    assert path(world, item("a")).stat().st_nlink == 1


def test_a_healthy_item_is_not_written(world: Any) -> None:
    for store in "123":
        world.seal(store)
    result = repairer(world).repair("s", "folder/item 0")
    assert (result.plan.decision, result.events) == (RepairDecision.HEALTHY, ())


def test_when_all_disagree_nothing_is_written_and_the_reason_is_recorded(world: Any) -> None:
    for seed, store in enumerate("123"):
        flip_bit(path(world, item(store)), seed)
    before = [world.read(item(store)) for store in "123"]
    result = repairer(world).repair("s", "folder/item 0")
    assert "no copy has the recorded checksum" in result.refused[0].reason
    assert [world.read(item(store)) for store in "123"] == before
    assert RepairLog(world.engine).last() == list(result.events)


def test_an_item_that_is_deleted_or_unknown_is_refused(world: Any) -> None:
    plan = repairer(world).plan("s", "unknown")
    assert (plan.decision, "no copy of the item" in plan.reasons[0]) == (RepairDecision.UNKNOWN, True)
    for store in "123":
        world.record(item(store), None, deleted=True)
    assert "only deleted ones" in repairer(world).plan("s", "folder/item 0").reasons[0]


def test_a_change_that_is_not_duplicated_yet_is_not_undone(world: Any) -> None:
    world.clock.advance(1)
    world.put(item("1"), b"a new version")
    assert "run `millstream mill duplicate` first" in repairer(world).plan("s", "folder/item 0").reasons[0]


def test_without_policies_every_store_counts_as_a_source(world: Any) -> None:
    world.put(item("2"), b"rewritten", record=False)
    for sources in (None, lambda _: frozenset()):
        assert "rewritten" in repairer(world, sources=sources).plan("s", "folder/item 0").reasons[0]
    assert [action.store for action in repairer(world).plan("s", "folder/item 0").actions] == ["2"]


def test_p8_a_copy_that_cannot_be_kept_in_quarantine_stays_as_it_is(world: Any, tmp_path: Path) -> None:
    (tmp_path / "cas").mkdir()
    world.stores = {"1": world.stores["1"], "4": CasStore(tmp_path / "cas")}
    world.stores["1"].create_space("cas")
    body = b"addressed"
    cid = cid_of(body)
    for store in world.stores:
        info = world.stores[store].put("cas", cid, io.BytesIO(body))
        world.record(ItemRef(store, "cas", cid), info.checksum())
    flip_bit(tmp_path / "cas" / cid)
    bad = (tmp_path / "cas" / cid).read_bytes()
    result = repairer(world).repair("cas", cid)
    assert "could not be moved to quarantine" in result.refused[0].reason
    assert (tmp_path / "cas" / cid).read_bytes() == bad


def test_a_rotted_file_of_a_mounted_cas_is_repaired_and_kept_in_its_store(world: Any, tmp_path: Path) -> None:
    (tmp_path / "cas").mkdir()
    world.stores["1"] = MountedStore(world.stores["1"], {"cas": CasStore(tmp_path / "cas")})
    cid = cid_of(BODY)
    for store in "12":
        world.put(ItemRef(store, "cas", cid), BODY)
    flip_bit(tmp_path / "cas" / cid)
    event = repairer(world).repair("cas", cid).events[0]
    assert (event.store, event.healed, event.good) == ("1", True, "2")
    assert (tmp_path / "cas" / cid).read_bytes() == BODY
    assert world.has(ItemRef("1", QUARANTINE, event.quarantined or ""))


def test_a_very_long_id_has_room_in_quarantine(world: Any) -> None:
    name = "/".join(["x" * 100] * 10)
    for store in "123":
        world.put(ItemRef(store, "s", name), BODY)
    flip_bit(world.stores["2"].path_of("s", name))
    event = repairer(world).repair("s", name).events[0]
    assert event.healed
    assert world.stores["2"].info(QUARANTINE, event.quarantined).properties["from-content-id"] == name


@pytest.mark.parametrize("name", ["\u6f22" * 340, "x" * 1015, "\U0001f33e" * 255])
def test_an_id_that_a_bucket_has_no_room_for_in_quarantine_is_shortened_there(world: Any, name: str) -> None:
    class LikeS3(FaultyStore):
        def put(self, space: str, content_id: str, source: Any, **more: Any) -> Any:
            pack(Metadata(more.get("properties") or {}, "ab" * 32, "0123456789abcdef"))
            Keys("a/").item(space, content_id)
            return super().put(space, content_id, source, **more)

    for store in "12":
        world.put(ItemRef(store, "s", name), BODY)
    world.stores["2"] = LikeS3(world.stores["2"])
    flip_bit(world.stores["2"].store.path_of("s", name))
    event = repairer(world).repair("s", name, "\U0001f33e" * 300).events[0]
    assert event.healed, event.reason
    note = world.stores["2"].info(QUARANTINE, event.quarantined).properties
    digest = hashlib.sha256(name.encode()).hexdigest()
    assert (note["from-content-id-sha256"], name.startswith(note["from-content-id"])) == (digest, True)
    assert world.read(ItemRef("2", "s", name)) == BODY


def test_a_write_that_reads_back_wrong_is_not_a_repair(world: Any) -> None:
    rotting = world.stores["2"]

    class Forgetful(FaultyStore):
        def put(self, space: str, content_id: str, source: Any, **more: Any) -> Any:
            info = super().put(space, content_id, source, **more)
            flip_bit(rotting.path_of(space, content_id))
            return info

    remove(path(world, item("2")))
    world.stores["2"] = Forgetful(rotting)
    result = repairer(world).repair("s", "folder/item 0")
    assert result.repaired == 0
    assert "but reads back with SHA-256" in result.refused[0].reason


def test_a_provider_that_does_not_answer_leaves_the_repair_to_be_tried_again(world: Any) -> None:
    remove(path(world, item("2")))
    world.stores["2"] = UnavailableStore(world.stores["2"], when=lambda call: call.method == "put")
    flip_bit(path(world, item("1")))
    with pytest.raises(StoreUnavailableError):
        repairer(world).repair("s", "folder/item 0")
    (event,) = RepairLog(world.engine).last()
    assert (event.store, event.healed) == ("1", True)


def test_a_check_task_hands_a_finding_to_repair_where_another_copy_is_recorded_good(world: Any) -> None:
    flip_bit(path(world, item("2")))
    result = BitCheckProcessor(BitChecker(world.providers, world.manifest)).process(
        BitCheck("2", "s", "folder/item 0"), 1
    )
    assert result.tasks == ((QueueName.REPAIR, Repair("s", "folder/item 0", "2: B3 checksum-mismatch")),)
    assert result.checks[0].verdict == CheckVerdict.FAILURE


def test_a_repair_task_that_is_refused_becomes_a_bit_error_for_people(world: Any) -> None:
    for seed, store in enumerate("123"):
        flip_bit(path(world, item(store)), seed)
    result = RepairProcessor(repairer(world)).process(Repair("s", "folder/item 0"), 1)
    queue, error = result.tasks[0]
    assert queue == QueueName.BIT_ERROR
    assert isinstance(error, BitError) and "no copy has the recorded checksum" in error.detail


def refused_task(world: Any) -> BitError:
    """The task for people after a repair of "folder/item 0" was refused."""
    ((_, error),) = RepairProcessor(repairer(world)).process(Repair("s", "folder/item 0"), 1).tasks
    assert isinstance(error, BitError)
    return error


def retry(world: Any, error: BitError) -> str:
    processor = BitErrorProcessor(BitChecker(world.providers, world.manifest), repairer(world))
    return processor.process(error, 1).summary


def test_a_refused_repair_ends_well_when_it_is_redriven_after_the_content_was_put_back(world: Any) -> None:
    for seed, store in enumerate("123"):
        flip_bit(path(world, item(store)), seed)
    error = refused_task(world)
    with pytest.raises(UnresolvedError, match="no copy has the recorded checksum"):
        retry(world, error)
    assert len(RepairLog(world.engine).last()) == 1  # the retry reads, and records no further refusal
    world.stores["3"].put("s", "folder/item 0", io.BytesIO(BODY + bytes([0])))
    assert retry(world, error) == "'folder/item 0': 2 copies repaired"
    assert all(world.read(item(store)) == BODY + bytes([0]) for store in "123")
    assert retry(world, error) == "'folder/item 0' is in order"


def test_a_refused_repair_ends_well_when_it_is_redriven_after_the_deletion_was_recorded(world: Any) -> None:
    for seed, store in enumerate("123"):
        flip_bit(path(world, item(store)), seed)
    error, log = refused_task(world), RepairLog(world.engine)
    before = len(log.last())
    for store in "123":
        path(world, item(store)).unlink()
        record_deletions(world.providers, world.manifest, store, "s", ["folder/item 0"])
    assert retry(world, error) == "'folder/item 0': its deletion is recorded"
    assert len(log.last()) == before
    with pytest.raises(UnresolvedError, match="check SPACE and CONTENT_ID"):
        retry(world, msgspec.structs.replace(error, content_id="never recorded"))
    assert len(log.last()) == before


def test_a_retried_repair_that_is_refused_names_the_present_reason(world: Any) -> None:
    for seed, store in enumerate("123"):
        flip_bit(path(world, item(store)), seed)
    error = refused_task(world)
    for store in "123":
        world.stores[store].put("s", "folder/item 0", io.BytesIO(b"new content"))
    with pytest.raises(UnresolvedError, match=r"^'folder/item 0': all copies have the same content"):
        retry(world, error)


@pytest.mark.parametrize("store", ["1", "2"], ids=["source", "copy"])
def test_content_that_a_store_does_not_give_out_is_neither_intact_nor_repaired(world: Any, store: str) -> None:
    file = path(world, item(store))
    world.stores[store] = ArchivingStore(world.stores[store], lambda call: call.content_id == "folder/item 0")
    followed: list[CheckedItem] = []
    tally = check_space(
        world.providers, world.manifest, store, "s", threads=2, on_checked=lambda group: followed.extend(group.others)
    )
    assert (tally.result, [finding.row for finding in tally.findings]) == (ReportResult.INCOMPLETE, ["B32"])
    assert [checked.task for checked in followed if checked.outcome.row == "B32"] == [None]
    before = file.stat()
    world.seal(store)
    result = repairer(world).repair("s", "folder/item 0", restore_source=True)
    assert "does not give out the content" in result.refused[0].reason
    assert file.stat() == before


def test_a_repaired_copy_keeps_its_own_properties(world: Any) -> None:
    for store in "123":
        world.put(ItemRef(store, "s", "conf"), b"/etc/shadow", mtime="5")
    for store in "12":
        world.stores[store].set_properties("s", "conf", {"kind": "symlink", "planted": "yes"})
    flip_bit(world.stores["3"].path_of("s", "conf"))
    (event,) = repairer(world).repair("s", "conf").events
    assert (event.store, event.healed) == ("3", True)
    assert world.stores["3"].info("s", "conf").properties == {"mtime": "5"}


def test_a_repaired_copy_gets_the_properties_of_a_source_that_other_programs_write(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for store in "123":
        world.put(ItemRef(store, "s", "conf"), b"/etc/shadow", mtime="5")
    world.stores["3"].set_properties("s", "conf", {"mtime": "9"})
    flip_bit(world.stores["3"].path_of("s", "conf"))
    monkeypatch.setattr("millstream.mill.repair.repairer.is_source_url", world.stores["1"].url.__eq__)
    (event,) = repairer(world).repair("s", "conf").events
    assert (event.store, event.healed) == ("3", True)
    assert world.stores["3"].info("s", "conf").properties == {"mtime": "5"}


def test_a_lost_copy_has_the_properties_of_the_source(world: Any) -> None:
    for store in "123":
        world.put(ItemRef(store, "s", "conf"), b"/etc/shadow", mtime="5")
    world.stores["2"].delete("s", "conf")
    for store, source in (("1", "3"), ("3", "1")):
        world.stores[store].set_properties("s", "conf", {"kind": "symlink", "planted": "yes"})
        world.stores[source].set_properties("s", "conf", {"mtime": "5"})
        (event,) = repairer(world, sources=lambda _, source=source: {source}).repair("s", "conf").events
        assert (event.store, event.healed) == ("2", True)
        assert world.stores["2"].info("s", "conf").properties == {"mtime": "5"}
        world.stores["2"].delete("s", "conf")


def test_a_repair_never_makes_a_symbolic_link_of_what_the_manifest_has_as_a_file(world: Any) -> None:
    for store, mimetype in (("1", "text/plain"), ("2", DEFAULT_MIMETYPE)):
        sha256 = world.put(ItemRef(store, "s", "conf"), b"/etc/shadow", record=False, mtime="5")
        event = ManifestEvent(store, "s", "conf", world.clock.now(), sha256, 11, mimetype)
        world.manifest.writer.record([event])
    world.stores["1"].set_properties("s", "conf", {"kind": "symlink", "note": "n"})
    world.stores["2"].delete("s", "conf")
    (event,) = repairer(world).repair("s", "conf").events
    assert event.healed and world.stores["2"].info("s", "conf").properties == {"note": "n"}
