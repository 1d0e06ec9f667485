"""The duplication processor on real stores: every row of the table executed, and the source never written (P8)."""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.mill.configured_stores import QUARANTINE
from millstream.mill.duplication.duplicator import DuplicationProcessor
from millstream.mill.duplication.planning import plan_space_duplication
from millstream.mill.duplication.source_recorder import record_space
from millstream.mill.errors import DuplicationError, UnknownStoreError
from millstream.mill.item_ref import ItemRef
from millstream.mill.policies.policy import Pair
from millstream.mill.task_processor import TaskResult
from millstream.mill.tasks import Duplicate
from millstream.stores import (
    Checksum,
    ChecksumOrigin,
    ItemInfo,
    LocalStore,
    Store,
    StoreError,
    StoreRefusedError,
    StoreUnavailableError,
)
from millstream.stores.wrapper import StoreCall
from millstream.testing.faulty_store import FaultyStore, LostReplyStore, UnavailableStore, flips_bit

SOURCE, COPY = ItemRef("1", "s", "c"), ItemRef("2", "s", "c")
ITEM, SPACE = Duplicate("1", "2", "s", "c"), Duplicate("1", "2", "s")


@pytest.fixture(params=["memory", "local", pytest.param("swift", marks=pytest.mark.long)])
def world(request: pytest.FixtureRequest, new_world: Callable[..., Any], tmp_path: Path) -> Any:
    """A world whose stores are of one kind; those of S3 are on a real server."""
    if request.param == "memory":
        return new_world()
    if request.param == "local":
        return new_world({name: LocalStore(tmp_path / name) for name in "123"})
    server = request.getfixturevalue("swift")
    return new_world({name: server.new_store() for name in "123"})


class Recorder(FaultyStore):
    """Counts the calls of a store."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.calls: Counter[str] = Counter()

    def before(self, call: StoreCall) -> None:
        self.calls[call.method] += 1


class Lying(FaultyStore):
    """Stores whatever arrives and confirms a checksum of its own."""

    def put(self, space: str, content_id: str, source: Any, **more: Any) -> ItemInfo:
        more.pop("sha256", None)
        info = super().put(space, content_id, source, **more)
        wrong = (Checksum("sha256", "0" * 64, ChecksumOrigin.PROVIDER),)
        return msgspec.structs.replace(info, checksums=info.checksums if space == QUARANTINE else wrong)


class WithoutChecksums(FaultyStore):
    """A provider that keeps no checksums."""

    def info(self, space: str, content_id: str) -> ItemInfo:
        return msgspec.structs.replace(super().info(space, content_id), checksums=())


def duplicate(world: Any, task: Duplicate = ITEM) -> TaskResult:
    """Process *task* with a source that cannot be written, and record its events."""
    if task.source in world.stores:
        world.seal(task.source)
    result = DuplicationProcessor(world.providers, world.manifest).process(task, 1)
    world.manifest.writer.record(result.events)
    return result


def test_d1_a_task_without_a_space_fails_and_names_both_stores(world: Any) -> None:
    with pytest.raises(DuplicationError, match=r"D1.*store '1' to store '2'"):
        duplicate(world, Duplicate("1", "2", "", "c"))


def test_d2_a_space_of_the_source_is_made_at_the_destination(world: Any) -> None:
    world.stores["1"].create_space("s")
    assert duplicate(world, SPACE).summary.startswith("D2")
    assert world.stores["2"].spaces() == ["s"]


def test_d3_an_empty_copy_of_a_space_that_is_gone_is_deleted(world: Any) -> None:
    world.stores["2"].create_space("s")
    assert duplicate(world, SPACE).summary.startswith("D3")
    assert world.stores["2"].spaces() == []


def test_d4_a_copy_of_a_space_that_is_gone_stays_while_it_holds_items(world: Any) -> None:
    world.put(COPY)
    assert duplicate(world, SPACE).summary.startswith("D4")
    assert world.has(COPY)


def test_d5_a_space_that_neither_end_has_needs_nothing(world: Any) -> None:
    assert duplicate(world, SPACE).summary.startswith("D5")


@pytest.mark.parametrize(("task", "row"), [(SPACE, "D6"), (ITEM, "D22")])
@pytest.mark.parametrize("store", ["1", "2"])
def test_d6_and_d22_a_provider_that_does_not_answer_four_times_fails_the_attempt(
    world: Any, task: Duplicate, row: str, store: str
) -> None:
    counted = Recorder(UnavailableStore(world.stores[store]))
    world.stores[store] = counted
    with pytest.raises(DuplicationError, match=f"{row}: a provider did not answer.*did not answer"):
        duplicate(world, task)
    assert sum(counted.calls.values()) == 4


def test_a_provider_that_answers_at_last_is_no_failure(world: Any) -> None:
    world.put(SOURCE)
    world.stores["2"] = UnavailableStore(world.stores["2"], times=3)
    assert duplicate(world).summary.startswith("D12")
    assert world.read(COPY) == b"body"


def test_d7_a_copy_in_order_is_left_alone_and_recorded(world: Any) -> None:
    world.put(SOURCE)
    world.put(COPY, record=False)
    world.seal("2")
    assert duplicate(world).summary.startswith("D7")
    assert world.manifest.get("2", "s", "c").sha256 == hashlib.sha256(b"body").hexdigest()
    assert duplicate(world).events == ()


def test_d7_a_copy_is_recorded_with_other_bytes_only_where_our_record_of_the_source_has_them(world: Any) -> None:
    for place in (SOURCE, COPY):
        recorded = world.put(place)
        world.put(place, b"forged", record=False)
    world.clock.advance(1)
    processor = DuplicationProcessor(world.providers, world.manifest)
    assert duplicate(world).summary.startswith("D7")
    assert processor.process_group([Duplicate("1", "2", "s", "c")]) == [None]
    assert world.manifest.get("2", "s", "c").sha256 == recorded
    world.record(SOURCE, world.stores["1"].info("s", "c").checksum())  # it was a change, and the copy's writer died
    assert duplicate(world).summary.startswith("D7")
    assert world.manifest.get("2", "s", "c").sha256 == hashlib.sha256(b"forged").hexdigest()


def test_d8_differing_properties_are_set_once_to_the_cleaned_ones_of_the_source(world: Any) -> None:
    world.put(SOURCE, ETag="x", user="me")
    world.put(COPY, user="you", more="old")
    world.stores["2"] = counted = Recorder(world.stores["2"])
    assert duplicate(world).summary.startswith("D8")
    assert dict(world.stores["2"].info("s", "c").properties) == {"user": "me"}
    assert (counted.calls["set_properties"], counted.calls["put"]) == (1, 0)


def test_d9_a_destination_that_refuses_new_properties_has_done_what_it_can(world: Any) -> None:
    class Archived(FaultyStore):
        def before(self, call: StoreCall) -> None:
            if call.method == "set_properties":
                raise StoreRefusedError("archived")

    world.put(SOURCE, user="me")
    world.put(COPY)
    world.stores["2"] = Archived(world.stores["2"])
    assert duplicate(world).summary.startswith("D9")


def test_d10_a_destination_that_fails_to_set_properties_fails_the_attempt(world: Any) -> None:
    world.put(SOURCE, user="me")
    world.put(COPY)
    world.stores["2"] = UnavailableStore(world.stores["2"], when=lambda call: call.method == "set_properties")
    with pytest.raises(StoreUnavailableError):
        duplicate(world)


@pytest.mark.parametrize(("present", "row"), [(True, "D11"), (False, "D12")])
def test_d11_and_d12_a_differing_or_absent_copy_is_written_with_its_properties(
    world: Any, present: bool, row: str
) -> None:
    world.put(SOURCE, b"new", user="me")
    if present:
        world.put(COPY, b"old", stale="yes")
    assert duplicate(world).summary.startswith(row)
    assert world.read(COPY) == b"new"
    assert dict(world.stores["2"].info("s", "c").properties) == {"user": "me"}
    copied = world.manifest.get("2", "s", "c")
    assert (copied.sha256, copied.size, copied.deleted) == (hashlib.sha256(b"new").hexdigest(), 3, False)


@pytest.mark.parametrize("recorded", [None, b"first version"])
def test_what_was_not_copied_and_is_replaced_is_kept(world: Any, recorded: bytes | None) -> None:
    world.put(SOURCE, b"second version")
    world.put(COPY, b"only here", record=False)
    if recorded is not None:
        world.record(COPY, hashlib.sha256(recorded).hexdigest())
    assert duplicate(world).summary.startswith("D11")
    assert world.read(COPY) == b"second version"
    (kept,) = world.providers.entries("2", QUARANTINE)
    assert kept.content_id.startswith("s/c/")
    assert world.read(ItemRef("2", QUARANTINE, kept.content_id)) == b"only here"


def test_a_version_that_was_copied_is_not_kept_when_the_next_replaces_it(world: Any) -> None:
    world.put(SOURCE, b"second version")
    world.put(COPY, b"first version")
    world.record(COPY, hashlib.sha256(b"first version").hexdigest())
    assert duplicate(world).summary.startswith("D11")
    assert QUARANTINE not in world.stores["2"].spaces()


@pytest.mark.parametrize(("present", "row"), [(True, "D13"), (False, "D14")])
def test_d13_and_d14_a_source_without_a_checksum_fails_and_says_where(world: Any, present: bool, row: str) -> None:
    world.put(SOURCE)
    if present:
        world.put(COPY)
    world.stores["1"] = WithoutChecksums(world.stores["1"])
    with pytest.raises(DuplicationError, match=rf"{row}: .*no checksum.*'c' in space 's' from store '1' to store '2'"):
        duplicate(world)
    assert world.has(COPY) is present


@pytest.mark.smoke
def test_d15_a_source_that_reads_wrong_three_times_never_reaches_the_destination(world: Any) -> None:
    world.put(SOURCE)
    world.put(COPY, b"older, and good")
    world.record(COPY, hashlib.sha256(b"older, and good").hexdigest())
    world.stores["1"] = counted = Recorder(flips_bit(world.stores["1"]))
    with pytest.raises(DuplicationError, match="was read 3 times, but never matched its checksum"):
        duplicate(world)
    assert counted.calls["open"] == 3
    assert world.read(COPY) == b"older, and good"
    assert QUARANTINE not in world.stores["2"].spaces()


def test_rotten_bytes_do_not_stay_at_a_destination_that_took_them_against_its_promise(world: Any) -> None:
    world.put(SOURCE)
    world.stores["1"] = flips_bit(world.stores["1"])
    world.stores["2"] = Lying(world.stores["2"])
    with pytest.raises(DuplicationError, match="was read 3 times"):
        duplicate(world)
    assert not world.has(COPY)


def test_d16_a_source_that_reads_well_the_third_time_is_copied(world: Any) -> None:
    class Flaky(FaultyStore):
        failures = 2

        def open(self, space: str, content_id: str, **more: Any) -> Any:
            self.failures -= 1
            if self.failures == 1:
                raise OSError("the line was cut")
            return (flips_bit(self.store) if self.failures == 0 else self.store).open(space, content_id)

    world.put(SOURCE)
    world.stores["1"] = Flaky(world.stores["1"])
    assert duplicate(world).summary.startswith("D12")
    assert world.read(COPY) == b"body"


def test_d17_a_destination_that_confirms_wrong_four_times_keeps_nothing_of_it(world: Any) -> None:
    world.put(SOURCE)
    world.stores["2"] = counted = Recorder(Lying(world.stores["2"]))
    with pytest.raises(DuplicationError, match="was written 4 times, but never had the checksum"):
        duplicate(world)
    assert not world.has(COPY)
    kept = world.stores["2"].entries(QUARANTINE)
    assert kept and all(entry.content_id.startswith("s/c/") for entry in kept)
    note = world.stores["2"].info(QUARANTINE, kept[0].content_id).properties
    assert (note["from-space"], note["from-content-id"]) == ("s", "c")
    assert world.manifest.get("2", "s", "c") is None
    assert counted.calls["delete"] == 4


class Silent(FaultyStore):
    """Confirms no checksum of what was put."""

    def put(self, *args: Any, **more: Any) -> ItemInfo:
        return msgspec.structs.replace(super().put(*args, **more), checksums=())


def test_a_destination_that_confirms_nothing_is_read_back(world: Any) -> None:
    world.put(SOURCE)
    world.stores["2"] = Silent(world.stores["2"])
    assert duplicate(world).summary.startswith("D12")
    world.stores["2"] = Silent(flips_bit(world.stores["2"]))
    world.stores["2"].delete("s", "c")
    with pytest.raises(DuplicationError, match="was written 4 times"):
        duplicate(world)


def test_what_cannot_be_read_back_for_now_is_not_set_aside(world: Any) -> None:
    world.put(SOURCE)
    world.stores["2"] = Silent(UnavailableStore(world.stores["2"], times=4, when=lambda call: call.method == "open"))
    with pytest.raises(StoreUnavailableError):
        duplicate(world)
    assert world.has(COPY) and not world.stores["2"].has_space(QUARANTINE)
    assert duplicate(world).summary.startswith("D7")


def test_a_reply_that_is_lost_after_the_write_is_made_good_by_the_retry(world: Any) -> None:
    world.put(SOURCE)
    world.stores["2"] = LostReplyStore(world.stores["2"], times=2)
    assert duplicate(world).summary.startswith("D12")
    assert world.read(COPY) == b"body"


def test_p8_d18_without_a_tombstone_a_copy_is_never_deleted(world: Any) -> None:
    world.put(COPY)
    with pytest.raises(DuplicationError, match=r"D18.*does not record its deletion"):
        duplicate(world)
    assert world.has(COPY)


def test_p8_d19_with_a_tombstone_the_copy_is_deleted_and_gets_one_too(world: Any) -> None:
    world.put(COPY)
    world.record(SOURCE, None, deleted=True)
    assert duplicate(world).summary.startswith("D19")
    assert not world.has(COPY)
    assert world.manifest.get("2", "s", "c").deleted
    assert duplicate(world).summary.startswith("D21")


@pytest.mark.smoke
def test_p8_d20_what_the_source_lost_is_kept_at_the_destination(world: Any) -> None:
    digest = world.put(COPY)
    world.record(SOURCE, digest)
    with pytest.raises(DuplicationError, match="D20: the item is missing from the source"):
        duplicate(world)
    assert world.has(COPY)


def test_d21_what_neither_end_has_needs_nothing(world: Any) -> None:
    world.record(SOURCE, "a" * 64)
    assert duplicate(world).summary.startswith("D21")


def test_d23_a_late_task_does_not_bring_a_deleted_space_back(world: Any) -> None:
    world.record(SOURCE, None, deleted=True)
    duplicate(world)
    duplicate(world, SPACE)
    assert world.stores["2"].spaces() == []


@pytest.mark.parametrize(
    "task", [Duplicate("9", "2", "s", "c"), Duplicate("1", "9", "s"), Duplicate("1", "9", "s", "c")]
)
def test_d24_a_store_that_is_not_configured_fails_by_name(world: Any, task: Duplicate) -> None:
    with pytest.raises(UnknownStoreError, match="unknown store '9'"):
        duplicate(world, task)


def test_an_error_of_the_destination_comes_through(world: Any) -> None:
    class Full(FaultyStore):
        def before(self, call: StoreCall) -> None:
            if call.method == "put":
                raise StoreError("the disk is full")

    world.put(SOURCE)
    world.stores["2"] = Full(world.stores["2"])
    with pytest.raises(StoreError, match="the disk is full"):
        duplicate(world)


NAMES = st.sampled_from(["a", "b/c", "ä", "x y", "z\n", "\U0001f600", "aa", "..", "n"])
BODIES = st.sampled_from([b"", b"one", b"two", bytes(100_000)])
TREES = st.dictionaries(NAMES, st.tuples(BODIES, st.sampled_from([{}, {"user": "me"}])), max_size=6)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(source=TREES, copy=TREES, deleted=st.sets(NAMES))
def test_p8_random_trees_end_alike_without_a_write_to_the_source_or_an_unrecorded_delete(
    new_world: Callable[..., Any], source: Any, copy: Any, deleted: set[str]
) -> None:
    world = new_world()
    for store, tree in (("1", source), ("2", copy)):
        world.stores[store].create_space("s")
        for name, (body, properties) in tree.items():
            world.stores[store].put("s", name, io.BytesIO(body), properties=properties)
    for name in deleted - source.keys():
        world.record(ItemRef("1", "s", name), None, deleted=True)
    world.seal("1")
    record_space(world.providers, world.manifest, "1", "s")
    plan = plan_space_duplication(world.providers, world.manifest, Pair("1", "2"), "s", None)
    assert plan.held == len(copy.keys() - source.keys() - deleted)
    assert plan.deletes == len((copy.keys() - source.keys()) & deleted)
    for name in sorted(source.keys() | copy.keys()):
        try:
            duplicate(world, Duplicate("1", "2", "s", name))
        except DuplicationError as error:
            assert "D18" in str(error)
    assert contents(world, "1") == source
    kept = {name: value for name, value in copy.items() if name not in source and name not in deleted}
    assert contents(world, "2") == {**kept, **source}
    again = plan_space_duplication(world.providers, world.manifest, Pair("1", "2"), "s", None)
    assert (again.tasks, again.same) == (0, len(source))


def contents(world: Any, store: str) -> dict[str, tuple[bytes, dict[str, str]]]:
    provider = world.stores[store]
    names = [entry.content_id for entry in provider.entries("s")]
    return {name: (world.read(ItemRef(store, "s", name)), dict(provider.info("s", name).properties)) for name in names}
