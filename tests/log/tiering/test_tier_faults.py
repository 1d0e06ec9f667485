"""Nothing leaves the log before its object is proven good, whatever the object store does."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from millstream.core.clock import VirtualClock
from millstream.log import (
    CorruptBlockError,
    DamagedLogError,
    Gap,
    Log,
    LogStore,
    MissingBlockError,
    StorageError,
    StorageUnavailableError,
    Tiering,
)
from millstream.log.backend import VersionedValue
from millstream.log.backends.memory import MemoryBackend
from millstream.log.backends.sqlite.backend import SqliteBackend
from millstream.log.tiering.sealed_objects import PAGES, PLACE
from millstream.log.upkeep.trimming import free_blocks, raise_watermarks
from millstream.stores import Store
from millstream.stores.tiers import SPACE, open_log_store
from millstream.testing.faulty_store import (
    DamagingStore,
    LostReplyStore,
    StaleListingStore,
    StoreCall,
    UnavailableStore,
    VanishingStore,
    flips_bit,
    truncates,
)
from support.tiered_logs import SPEC, URL, Cloud, Recorder, bodies, fill, ids_of


def test_a_writer_does_not_need_the_object_store(open_log: Callable[[], Log], cloud: Cloud) -> None:
    log = fill(open_log(), 50)
    log.set_tiering(Tiering(URL, segment_bytes=100))
    log.move_blocks()
    cloud.store = UnavailableStore(cloud.real)
    log = open_log()
    with log.writer() as writer:
        writer.append(bodies(51, 60))
    assert log.info().count == 60
    assert ids_of(log, 51) == list(range(51, 61))
    with pytest.raises(StorageUnavailableError):
        list(log.read())


def test_an_object_store_that_is_away_while_trimming_is_caught_up_with(
    open_log: Callable[[], Log], cloud: Cloud
) -> None:
    log = fill(open_log())
    log.set_tiering(Tiering(URL, segment_bytes=8000))
    log.move_blocks()
    count = len(cloud.names())
    cloud.store = UnavailableStore(cloud.real)
    with pytest.raises(StorageUnavailableError):
        log.trim(75)
    assert (log.first_id, len(cloud.names())) == (75, count)
    cloud.store = cloud.real
    assert ids_of(log) == list(range(75, 201))
    log.move_blocks()
    assert len(cloud.names()) < count
    assert log.verify(deep=True).ok


def test_blocks_of_the_store_are_freed_while_the_object_store_is_away(
    open_log: Callable[[], Log], cloud: Cloud
) -> None:
    log = fill(open_log())
    log.set_tiering(Tiering(URL, segment_bytes=8000))
    log.move_blocks()
    fill(log, 100)
    hot = log._backend.hot
    cloud.store = UnavailableStore(cloud.real)
    before = hot.statistics(SPEC.name).blocks
    with pytest.raises(StorageUnavailableError):
        log.trim(251)
    trimmed = hot.statistics(SPEC.name).blocks
    assert trimmed < before
    raise_watermarks(hot, SPEC.name, first_id=291)  # and the process that moved it ended there
    with pytest.raises(StorageUnavailableError):
        log.move_blocks()
    assert hot.statistics(SPEC.name).blocks < trimmed
    cloud.store = cloud.real
    log.move_blocks()
    assert (cloud.names(), ids_of(open_log())) == ([], list(range(291, 301)))


@pytest.mark.parametrize("mount_point", ["missing", "empty"])
def test_a_tier_whose_disk_is_not_mounted_is_unavailable_and_nothing_is_made_in_its_place(
    tmp_path: Path, clock: VirtualClock, mount_point: str
) -> None:
    disk, unmounted = tmp_path / "disk", tmp_path / "unmounted"
    policy = Tiering(f"file://{disk}", segment_bytes=8000)
    with open_log_store(f"sqlite:///{tmp_path / 'log.db'}", clock) as store:
        log = fill(store.log(SPEC))
        log.set_tiering(policy)
        log.move_blocks()
        disk.rename(unmounted)
        if mount_point == "empty":
            disk.mkdir()
    with open_log_store(f"sqlite:///{tmp_path / 'log.db'}", clock) as store:
        log = fill(store.log(SPEC), 50)
        log.set_tiering(policy)
        uses: list[Callable[[], object]] = [
            lambda: list(log.read(gaps="all")),
            log.verify,
            log.move_blocks,
            lambda: log.trim(75),
            log.leftovers,
        ]
        for use in uses:
            with pytest.raises(StorageUnavailableError, match="mount its disk"):
                use()
        assert not (disk / SPACE).exists()
        assert disk.exists() == (mount_point == "empty")
        shutil.rmtree(disk, ignore_errors=True)
        unmounted.rename(disk)
        assert ids_of(log) == list(range(75, 251))
        assert log.move_blocks().objects > 0
        assert log.verify(deep=True).ok


@pytest.mark.parametrize("release", ["this", "an earlier one"])
def test_the_place_of_a_tier_is_made_once_also_if_nothing_was_moved_there(
    tmp_path: Path, clock: VirtualClock, release: str
) -> None:
    disk = tmp_path / "disk"
    with open_log_store(f"sqlite:///{tmp_path / 'log.db'}", clock) as store:
        log = fill(store.log(SPEC))
        log.set_tiering(Tiering(f"file://{disk}", segment_bytes=8000))
        shutil.rmtree(disk)  # not mounted
        if release == "this":
            with pytest.raises(StorageUnavailableError, match="mount its disk"):
                log.move_blocks()
            assert not disk.exists()
        else:  # which did not make the place when the tier was set
            backend = store._backend
            assert backend.put_state(log.name, PLACE, b"", version=backend.get_state(log.name, PLACE).version)
            assert log.move_blocks().objects > 0
            assert log.verify(deep=True).ok


def damaged(cloud: Cloud, position: float) -> str:
    """Flip a bit of the second object, at *position* of its length."""
    name = cloud.names()[1]

    def flip(data: bytearray) -> None:
        data[int(position * (len(data) - 1))] ^= 1

    cloud.change(name, flip)
    return name


@pytest.mark.parametrize("position", [0.0, 0.1, 0.5, 0.97, 1.0])
def test_a_flipped_bit_in_an_object_is_found_and_never_read_as_messages(
    open_log: Callable[[], Log], cloud: Cloud, position: float
) -> None:
    log = fill(open_log())
    log.set_tiering(Tiering(URL, segment_bytes=8000))
    log.move_blocks()
    name = damaged(cloud, position)
    log = open_log()
    found = log.verify(deep=True)
    assert len(found.problems) == 1
    assert name in found.problems[0]
    batches = list(log.read(1, gaps="all"))
    covered = [number for batch in batches for number in batch.ids]
    assert covered == list(range(1, 201))
    assert {batch.reason for batch in batches if isinstance(batch, Gap)} <= {"corrupt"}
    if any(isinstance(batch, Gap) for batch in batches):
        with pytest.raises(CorruptBlockError):
            list(log.read())


def test_an_object_that_is_gone_is_missing_and_what_follows_it_is_read(
    open_log: Callable[[], Log], cloud: Cloud
) -> None:
    log = fill(open_log())
    log.set_tiering(Tiering(URL, segment_bytes=8000))
    log.move_blocks()
    name = cloud.names()[1]
    cloud.real.delete(SPACE, name)
    log = open_log()
    (problem,) = log.verify().problems
    assert name in problem and "does not exist" in problem
    with pytest.raises(MissingBlockError):
        list(log.read())
    (gap,) = [batch for batch in log.read(gaps="all") if isinstance(batch, Gap)]
    assert (gap.reason, f"{gap.first_id:020d}-{gap.last_id:020d}" in name) == ("missing", True)


def test_another_sound_object_under_the_name_is_a_damaged_one(open_log: Callable[[], Log], cloud: Cloud) -> None:
    log = fill(open_log())
    log.set_tiering(Tiering(URL, segment_bytes=8000))
    log.move_blocks()
    *_, other, last = cloud.names()
    with cloud.real.open(SPACE, other) as source:
        data = source.read()
    cloud.change(last, lambda present: present.__setitem__(slice(None), data))
    (gap,) = [batch for batch in open_log().read(gaps="all") if isinstance(batch, Gap)]
    assert (gap.reason, gap.last_id, f"{gap.first_id:020d}-{gap.last_id:020d}" in last) == ("corrupt", 200, True)


def test_rows_that_were_read_for_long_do_not_take_the_place_of_newer_ones(clock: VirtualClock, cloud: Cloud) -> None:
    class Slow(MemoryBackend):
        meanwhile: Callable[[], None] | None = None

        def states(self, log: str, prefix: str) -> Mapping[str, VersionedValue]:
            found = super().states(log, prefix)
            if prefix == PAGES and self.meanwhile is not None:
                meanwhile, self.meanwhile = self.meanwhile, None
                meanwhile()
            return found

    backend = Slow(clock)
    with LogStore(backend, clock, open_objects=cloud.open) as store:
        log = fill(store.log(SPEC), 100)
        log.set_tiering(Tiering(URL, segment_bytes=8000))
        log.move_blocks()
        assert ids_of(log) == list(range(1, 101))

        def others() -> None:
            fill(log, 100)
            log.move_blocks()
            assert ids_of(log) == list(range(1, 201))

        backend.meanwhile = others
        tier = log._backend.tier(SPEC.name)
        assert tier is not None
        tier.look_again()
        assert ids_of(log) == list(range(1, 201))


@pytest.mark.parametrize("damage", [flips_bit, truncates])
def test_nothing_is_freed_when_an_object_does_not_come_back_as_it_was_written(
    open_log: Callable[[], Log], cloud: Cloud, damage: Callable[[Store], Store]
) -> None:
    log = fill(open_log())
    log.set_tiering(Tiering(URL, segment_bytes=8000))
    cloud.store = damage(cloud.real)
    with pytest.raises(StorageError, match="reads back different"):
        log.move_blocks()
    assert (log.info().tier, log._backend.head(SPEC.name).hot_id) == (None, 1)
    cloud.store = cloud.real
    assert log.move_blocks().objects > 0
    assert ids_of(open_log()) == list(range(1, 201))
    assert log.verify(deep=True).ok


@pytest.mark.parametrize("parquet", [False, True])
def test_an_object_that_another_run_has_entered_survives_one_that_reads_it_wrongly(
    open_log: Callable[[], Log], cloud: Cloud, parquet: bool
) -> None:
    log, other = fill(open_log()), open_log()
    log.set_tiering(Tiering(URL, segment_bytes=8000, parquet=parquet))

    def is_first_look(call: StoreCall) -> bool:
        if call.content_id.endswith(".parquet") != parquet:
            return False
        cloud.store = cloud.real
        other.move_blocks()
        cloud.store = UnavailableStore(cloud.real, when=lambda call: call.method == "put")
        return True

    cloud.store = DamagingStore(cloud.real, lambda data, _: data[:-1] + b"x", is_first_look)
    with pytest.raises(StorageUnavailableError):
        log.move_blocks()
    cloud.store = cloud.real
    assert log.verify(deep=True).problems == ()
    assert ids_of(open_log()) == list(range(1, 201))


def test_a_partial_upload_under_the_name_is_replaced(open_log: Callable[[], Log], cloud: Cloud) -> None:
    log = fill(open_log())
    log.set_tiering(Tiering(URL, segment_bytes=8000))
    cloud.store = LostReplyStore(cloud.real, 1, lambda call: call.method == "put")
    with pytest.raises(StorageUnavailableError):
        log.move_blocks()
    (name,) = cloud.names()
    cloud.change(name, lambda data: data.__delitem__(slice(len(data) // 2, None)))
    cloud.store = cloud.real
    log.move_blocks()
    assert log.verify(deep=True).ok
    assert ids_of(open_log()) == list(range(1, 201))
    assert log.remove_leftovers() == [name]


@pytest.mark.parametrize("fault", ["unavailable", "lost reply"])
def test_a_run_that_fails_at_any_call_is_finished_by_the_next_and_stores_nothing_twice(
    open_log: Callable[[], Log], cloud: Cloud, fault: str
) -> None:
    """The object store fails at its first call, then at its second, and so on, until a run gets through."""
    log = fill(open_log())
    log.set_tiering(Tiering(URL, segment_bytes=3000))
    failures, calls = 0, 0
    for turn in range(200):
        calls = 0

        def is_due(call: StoreCall, turn: int = turn) -> bool:
            nonlocal calls
            calls += 1
            return calls == turn + 1

        kind = UnavailableStore if fault == "unavailable" else LostReplyStore
        cloud.store = kind(cloud.real, 1, is_due)
        try:
            log.move_blocks()
            break
        except StorageUnavailableError:
            failures += 1
    cloud.store = cloud.real
    log = open_log()
    log.move_blocks()
    assert failures > 2
    assert ids_of(log) == list(range(1, 201))
    assert log.verify(deep=True).ok
    info = log.info()
    assert info.tier is not None
    assert info.tier.objects == len(cloud.names())


def test_a_listing_that_is_behind_and_objects_that_seem_gone_lose_nothing(
    open_log: Callable[[], Log], cloud: Cloud
) -> None:
    log = fill(open_log())
    log.set_tiering(Tiering(URL, segment_bytes=8000))
    cloud.store = StaleListingStore(cloud.real)
    log.move_blocks()
    fill(log, 100)
    log.move_blocks()
    assert ids_of(open_log()) == list(range(1, 301))
    cloud.store = VanishingStore(cloud.real)
    fill(log, 100)
    with pytest.raises(StorageError, match="does not exist"):
        log.move_blocks()
    cloud.store = cloud.real
    assert ids_of(open_log()) == list(range(1, 401))


def test_damaged_blocks_are_never_sealed(tmp_path: Path, clock: VirtualClock, cloud: Cloud) -> None:
    class Damaged(SqliteBackend):
        def read(self, log: str, first_id: int, last_id: int, *, max_bytes: int) -> Any:
            found = super().read(log, first_id, last_id, max_bytes=max_bytes)
            return [
                type(b)(b.first_id, b.last_id, b.data[:-9] + b"x" + b.data[-8:]) if b.first_id == 31 else b
                for b in found
            ]

    with LogStore(Damaged(tmp_path / "log.db", clock), clock, open_objects=cloud.open) as store:
        log = store.log(SPEC)
        with log.writer() as writer:
            for first in range(1, 61, 10):
                writer.append(bodies(first, first + 9))
        log.set_tiering(Tiering(URL, segment_bytes=8000))
        with pytest.raises(DamagedLogError):
            log.move_blocks()
        assert (cloud.names(), log.info().tier) == ([], None)


@pytest.mark.parametrize("first_id", [25, 61, 120])
def test_blocks_that_are_trimmed_while_they_are_sealed_are_no_damage(
    tmp_path: Path, clock: VirtualClock, cloud: Cloud, first_id: int
) -> None:
    class Trimmed(SqliteBackend):
        trims = 1

        def read(self, log: str, first: int, last_id: int, *, max_bytes: int) -> Any:
            if self.trims and first > 10:
                self.trims = 0
                raise_watermarks(self, log, first_id=first_id)
                free_blocks(self, log)
            return super().read(log, first, last_id, max_bytes=min(max_bytes, 2000))

    with LogStore(Trimmed(tmp_path / "log.db", clock), clock, open_objects=cloud.open) as store:
        log = fill(store.log(SPEC), 200)
        log.set_tiering(Tiering(URL, segment_bytes=8000))
        log.move_blocks()
        log.move_blocks()
        assert log.first_id == first_id
        assert ids_of(log) == list(range(first_id, 201))
        assert log.verify(deep=True).ok


def test_two_runs_at_once_enter_each_message_once(open_log: Callable[[], Log], cloud: Cloud) -> None:
    log, other = fill(open_log()), open_log()
    log.set_tiering(Tiering(URL, segment_bytes=8000))
    turns = 0

    class Meanwhile(Recorder):
        def put(self, *arguments: Any, **options: Any) -> Any:
            nonlocal turns
            turns += 1
            if turns == 2:
                other.move_blocks()
            return cloud.real.put(*arguments, **options)

    passed_on = Cloud()
    passed_on.store = cloud.real
    cloud.store = Meanwhile(passed_on)  # type: ignore[assignment]
    log.move_blocks()
    cloud.store = cloud.real
    assert ids_of(open_log()) == list(range(1, 201))
    assert log.verify(deep=True).ok
    info = log.info()
    assert info.tier is not None
    assert info.tier.objects == len(cloud.names())


# Where objects may lie
