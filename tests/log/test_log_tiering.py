"""Older blocks lie in sealed objects: verified before they leave, read across the border, trimmed with the log."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings
from pyarrow import parquet

from millstream.cli import main
from millstream.core.clock import MICROSECONDS, VirtualClock
from millstream.log import (
    CorruptBlockError,
    DamagedLogError,
    Gap,
    IdRange,
    Log,
    LogInputError,
    LogSpec,
    LogStore,
    Message,
    MissingBlockError,
    Retainer,
    Retention,
    StorageError,
    StorageUnavailableError,
    Tiering,
    copy_log,
    open_store,
)
from millstream.log.memory import MemoryBackend
from millstream.log.mysql import MysqlBackend, parse_place
from millstream.log.postgres import PostgresBackend
from millstream.log.postgres import parse_place as postgres_place
from millstream.log.segments.backend import SegmentsBackend
from millstream.log.sqlite import SqliteBackend
from millstream.log.tiering import TierObjects
from millstream.log.trimming import free_blocks, raise_marks
from millstream.log.upkeep import keep_up
from millstream.stores import MemoryStore, Store
from millstream.stores.tiers import SPACE, TierSpace
from millstream.stores.tiers import open_store as open_tiered
from millstream.testing.faulty_store import (
    Call,
    LostReplyStore,
    StaleListingStore,
    UnavailableStore,
    VanishingStore,
    flips_bit,
    truncates,
)

SPEC = LogSpec("weather", compression="plain")
DAY = 86_400 * MICROSECONDS
URL = "memory://tier"


class Cloud:
    """An object store that several log stores share, and that can be made to fail."""

    def __init__(self) -> None:
        self.real = MemoryStore("tier")
        self.store: Store = self.real
        self.calls: list[Call] = []

    def open(self, url: str) -> TierObjects:
        return TierSpace(_Recorder(self)) if url == URL else TierSpace(MemoryStore("elsewhere"))

    def names(self) -> list[str]:
        return [entry.content_id for entry in self.real.entries(SPACE)] if self.real.has_space(SPACE) else []

    def change(self, name: str, change: Callable[[bytearray], None]) -> None:
        with self.real.open(SPACE, name) as source:
            data = bytearray(source.read())
        change(data)
        self.real.delete(SPACE, name)
        self.real.put(SPACE, name, io.BytesIO(bytes(data)))


class _Recorder:
    """Passes every call on to the cloud's present store."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cloud.store, name)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def cloud() -> Cloud:
    return Cloud()


KINDS = ["memory", "sqlite", "segments", *(["mysql", "postgresql"] if settings().max_examples > 1000 else [])]
"""The databases are asked in the long size; their machine and their kills are not left out in either."""


@pytest.fixture(params=KINDS)
def open_log(
    request: pytest.FixtureRequest, tmp_path: Path, clock: VirtualClock, cloud: Cloud
) -> Iterator[Callable[[], Log]]:
    """A function that opens the same log anew each time it is called."""
    memory = MemoryBackend(clock)
    stores: list[LogStore] = []

    def open_one() -> Log:
        kinds: dict[str, Callable[[], Any]] = {
            "memory": lambda: memory,
            "sqlite": lambda: SqliteBackend(tmp_path / "log.db", clock),
            "segments": lambda: SegmentsBackend(tmp_path / "logs", clock, segment_bytes=3000),
            "mysql": lambda: MysqlBackend(parse_place(request.getfixturevalue("database")), clock),
            "postgresql": lambda: PostgresBackend(postgres_place(request.getfixturevalue("postgres_database")), clock),
        }
        stores.append(LogStore(kinds[request.param](), clock, open_objects=cloud.open))
        return stores[-1].log(SPEC)

    yield open_one
    for store in stores:
        store.close()


def bodies(first: int, last: int) -> list[bytes]:
    return [b"%d %0150d" % (n, n) for n in range(first, last + 1)]


def fill(log: Log, count: int = 200, *, clock: VirtualClock | None = None) -> Log:
    """Blocks of ten messages, about 1.7 kB each."""
    with log.writer() as writer:
        for first in range(log.last_id + 1, log.last_id + count, 10):
            writer.append(bodies(first, first + 9))
            if clock is not None:
                clock.advance(86_400)
    return log


def ids_of(log: Log, first: int | None = None, last: int | None = None) -> list[int]:
    found = [message for batch in log.read(first, last) for message in batch]
    assert [message.body for message in found] == [b"%d %0150d" % (m.id, m.id) for m in found if m.id is not None]
    return [message.id for message in found if message.id is not None]


def test_blocks_move_and_the_log_reads_as_before(open_log: Callable[[], Log], cloud: Cloud) -> None:
    log = fill(open_log())
    before = log.info()
    log.set_tiering(Tiering(URL, segment_bytes=8000))
    moved = log.move_blocks()
    assert moved.objects == len(cloud.names()) >= 3
    assert moved.freed_bytes > 0
    for each in (log, open_log()):
        assert ids_of(each) == list(range(1, 201))
        for first, last in ((1, 1), (5, 77), (100, 200), (49, 52), (151, 200)):
            assert ids_of(each, first, last) == list(range(first, last + 1))
        info = each.info()
        assert (info.first_id, info.count, info.blocks, info.bytes) == (1, 200, before.blocks, before.bytes)
        assert info.tier is not None
        assert (info.tier.objects, info.tier.first_id, info.tier.url) == (moved.objects, 1, URL)
        assert sum(b.last_id - b.first_id + 1 for b in each.block_ranges()) == 200
        assert each.verify().ok
        deep = each.verify(deep=True)
        assert (deep.ok, deep.messages, deep.objects) == (True, 200, moved.objects)
    assert log.move_blocks().objects == 0


def test_what_is_moved_leaves_the_store_of_the_log(open_log: Callable[[], Log]) -> None:
    log = fill(open_log())
    backend = log._backend.hot
    log.set_tiering(Tiering(URL, segment_bytes=8000))
    log.move_blocks()
    info = log.info()
    assert info.tier is not None
    head = backend.head(SPEC.name)
    assert head.hot_id == info.tier.last_id + 1
    assert all(block.last_id > head.hot_id - 60 for block in backend.ranges(SPEC.name, 1, 200))


def test_the_newest_stay_by_bytes_and_by_age(open_log: Callable[[], Log], clock: VirtualClock) -> None:
    log = fill(open_log(), clock=clock)
    size = log.block_ranges()[0].bytes
    log.set_tiering(Tiering(URL, segment_bytes=2 * size, keep_age=round(5.5 * DAY)))
    assert log.move_blocks().objects == 7
    info = log.info()
    assert info.tier is not None
    assert info.tier.last_id == 140
    log.set_tiering(Tiering(URL, segment_bytes=2 * size, keep_bytes=3 * size))
    assert log.move_blocks().objects == 1
    assert log.move_blocks(partial=True).objects == 1
    info = log.info()
    assert info.tier is not None
    assert info.tier.last_id == 170
    assert ids_of(log) == list(range(1, 201))


def test_a_writer_goes_on_while_and_after_all_its_blocks_are_moved(open_log: Callable[[], Log]) -> None:
    log = fill(open_log(), 50)
    log.set_tiering(Tiering(URL, segment_bytes=100))
    with log.writer() as writer:
        assert log.move_blocks().objects == 5
        assert writer.append(bodies(51, 60)) == IdRange(51, 60)
    assert log.move_blocks().objects == 1
    log = open_log()
    with log.writer() as writer:
        writer.append(bodies(61, 70))
    assert ids_of(log) == list(range(1, 71))


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


def test_a_log_that_is_moved_as_it_is_written_takes_no_more_room(
    open_log: Callable[[], Log], tmp_path: Path, cloud: Cloud
) -> None:
    log = open_log()
    log.set_tiering(Tiering(URL, segment_bytes=4000))
    sizes = []
    for _ in range(12):
        fill(log, 100)
        log.move_blocks()
        sizes.append(sum(path.stat().st_size for path in tmp_path.rglob("*") if path.suffix in {".db", ".seg"}))
    assert max(sizes[6:]) <= 1.05 * max(sizes[:6])
    assert log.info().count == 1200


def test_readers_cross_the_border_and_blocks_may_move_while_they_read(open_log: Callable[[], Log]) -> None:
    log = fill(open_log())
    log.set_tiering(Tiering(URL, segment_bytes=4000, keep_bytes=16_000))
    other = open_log()
    seen: list[int] = []
    with log.reader("worker") as reader:
        for batch in reader.batches(7):
            seen += [message.id or 0 for message in batch]
            reader.ack(batch.ids)
            if batch.first_id % 5 == 1:
                other.move_blocks()
                if len(seen) < 900:
                    fill(other, 20)
        for batch in reader.batches():
            seen += [message.id or 0 for message in batch]
            reader.ack(batch.ids)
        assert reader.missed == 0
    assert seen == list(range(1, log.last_id + 1))
    assert log.info().tier is not None


def test_times_are_found_across_tiers(open_log: Callable[[], Log], clock: VirtualClock) -> None:
    log = open_log()
    with log.writer() as writer:
        for n in range(20):
            writer.append(
                [Message(body, received_at=1000 * n + i) for i, body in enumerate(bodies(10 * n + 1, 10 * n + 10))]
            )
    times = (-1, 0, 3, 1000, 7005, 14_000, 19_009, 19_010)
    expected = [log.first_id_since(time) for time in times]
    log.set_tiering(Tiering(URL, segment_bytes=8000, keep_bytes=8000))
    assert log.move_blocks().objects > 1
    for each in (log, open_log()):
        assert [each.first_id_since(time) for time in times] == expected


def test_trimming_deletes_objects_after_the_mark_has_moved(open_log: Callable[[], Log], cloud: Cloud) -> None:
    log = fill(open_log())
    log.set_tiering(Tiering(URL, segment_bytes=8000))
    count = log.move_blocks().objects
    log.trim(75)
    assert 0 < len(cloud.names()) < count
    for each in (log, open_log()):
        gap, *_ = each.read(1)
        assert isinstance(gap, Gap)
        assert gap.ids == IdRange(1, 74)
        assert ids_of(each) == list(range(75, 201))
        assert (each.info().count, each.verify(deep=True).ok) == (126, True)
    log.trim(201)
    assert cloud.names() == []
    assert (ids_of(log), log.info().count, log.info().tier) == ([], 0, None)
    fill(log, 100)
    assert log.move_blocks().objects > 0
    assert ids_of(open_log()) == list(range(201, 301))


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


def test_retention_counts_bytes_and_ages_across_tiers(open_log: Callable[[], Log], clock: VirtualClock) -> None:
    log = fill(open_log(), clock=clock)
    log.set_tiering(Tiering(URL, segment_bytes=8000, keep_bytes=8000))
    log.move_blocks()
    size = log.block_ranges()[-1].bytes
    assert Retainer(log, clock, Retention(max_age=round(14.5 * DAY))).run_once().first_id == 61
    assert Retainer(log, clock, Retention(max_bytes=10 * size)).run_once().first_id == 101
    assert ids_of(log) == list(range(101, 201))
    assert Retainer(log, clock, Retention(max_count=5)).run_once().first_id == 196
    assert ids_of(log) == list(range(196, 201))


def test_the_same_messages_lie_beside_an_object_as_parquet(open_log: Callable[[], Log], cloud: Cloud) -> None:
    log = fill(open_log())
    log.set_tiering(Tiering(URL, segment_bytes=8000, parquet=True))
    count = log.move_blocks(partial=True).objects
    names = [name for name in cloud.names() if name.endswith(".parquet")]
    assert (len(names), len(cloud.names())) == (count, 2 * count)
    tables = []
    for name in names:
        with cloud.real.open(SPACE, name) as source:
            tables.append(parquet.read_table(io.BytesIO(source.read())))
    expected = pa.Table.from_batches([batch.arrow for batch in log.read()])
    assert pa.concat_tables(tables).equals(expected)
    assert log.verify(deep=True).ok
    cloud.change(names[0], lambda data: data.__setitem__(50, data[50] ^ 1))
    (problem,) = log.verify(deep=True).problems
    assert "Parquet" in problem
    assert ids_of(open_log()) == list(range(1, 201))
    log.trim(201)
    assert cloud.names() == []


def test_a_tiered_log_is_copied_whole(open_log: Callable[[], Log], clock: VirtualClock) -> None:
    log = fill(open_log())
    log.set_tiering(Tiering(URL, segment_bytes=8000))
    log.move_blocks()
    log.trim(33)
    with LogStore(MemoryBackend(clock), clock) as store:
        copy = store.log(SPEC, first_id=log.first_id)
        assert copy_log(log, copy).messages == 168
        assert ids_of(copy) == list(range(33, 201))


# What goes wrong


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
    assert name in problem and "not there" in problem
    with pytest.raises(MissingBlockError):
        list(log.read())
    (gap,) = [batch for batch in log.read(gaps="all") if isinstance(batch, Gap)]
    assert (gap.reason, f"{gap.first_id:020d}-{gap.last_id:020d}" in name) == ("missing", True)


@pytest.mark.parametrize("damage", [flips_bit, truncates])
def test_nothing_is_freed_when_an_object_does_not_come_back_as_it_was_written(
    open_log: Callable[[], Log], cloud: Cloud, damage: Callable[[Store], Store]
) -> None:
    log = fill(open_log())
    log.set_tiering(Tiering(URL, segment_bytes=8000))
    cloud.store = damage(cloud.real)
    with pytest.raises(StorageError, match="does not come back"):
        log.move_blocks()
    assert (log.info().tier, log._backend.head(SPEC.name).hot_id) == (None, 1)
    cloud.store = cloud.real
    assert log.move_blocks().objects > 0
    assert ids_of(open_log()) == list(range(1, 201))
    assert log.verify(deep=True).ok


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


@pytest.mark.parametrize("fault", ["unavailable", "lost reply"])
def test_a_run_that_fails_at_any_call_is_finished_by_the_next_and_stores_nothing_twice(
    open_log: Callable[[], Log], cloud: Cloud, fault: str
) -> None:
    """The object store fails at its first call, then at its second, and so on, until a run gets through."""
    log = fill(open_log())
    log.set_tiering(Tiering(URL, segment_bytes=8000))
    failures, calls = 0, 0
    for turn in range(200):
        calls = 0

        def is_due(call: Call, turn: int = turn) -> bool:
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
    with pytest.raises(StorageError, match="not there"):
        log.move_blocks()
    cloud.store = cloud.real
    assert ids_of(open_log()) == list(range(1, 401))


def test_what_a_killed_run_left_behind_is_listed_and_stays(open_log: Callable[[], Log], cloud: Cloud) -> None:
    log = fill(open_log())
    log.set_tiering(Tiering(URL, segment_bytes=8000))
    cloud.store = LostReplyStore(cloud.real, 1, lambda call: call.method == "put")
    with pytest.raises(StorageUnavailableError):
        log.move_blocks()
    cloud.store = cloud.real
    (left,) = cloud.names()
    log.set_tiering(Tiering(URL, segment_bytes=12_000))
    log.move_blocks()
    assert log._tierer().leftovers() == [left]
    assert left in cloud.names()


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
                raise_marks(self, log, first_id=first_id)
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

    class Meanwhile(_Recorder):
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


def test_a_log_keeps_one_place_for_its_objects(open_log: Callable[[], Log]) -> None:
    log = fill(open_log())
    with pytest.raises(LogInputError, match="no tier"):
        log.move_blocks()
    log.set_tiering(Tiering("memory://elsewhere", segment_bytes=8000))
    log.set_tiering(Tiering(URL, segment_bytes=8000))
    log.move_blocks()
    with pytest.raises(LogInputError, match="lie at memory://tier"):
        log.set_tiering(Tiering("memory://elsewhere"))
    with pytest.raises(LogInputError, match="segment_bytes"):
        Tiering(URL, segment_bytes=0)


def test_a_store_that_cannot_open_objects_says_so_when_they_are_needed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    with open_tiered(url) as store:
        log = fill(store.log(SPEC))
        log.set_tiering(Tiering(f"file://{tmp_path / 'cold'}", segment_bytes=8000, keep_bytes=8000))
        assert log.move_blocks().objects > 1
    with open_store(url) as store:
        log = store.log(SPEC)
        assert log.info().count == 200
        assert ids_of(log, 180) == list(range(180, 201))
        with pytest.raises(LogInputError, match="open the store with"):
            list(log.read(1))
    with open_tiered(url, read_only=True) as store:
        assert ids_of(store.log(SPEC)) == list(range(1, 201))


def test_a_log_with_very_many_objects_writes_one_page_for_each(open_log: Callable[[], Log], cloud: Cloud) -> None:
    from millstream.log.tiering import manifest

    log = fill(open_log(), 60)
    log.set_tiering(Tiering(URL, segment_bytes=100))
    original, manifest.PAGE_ROWS = manifest.PAGE_ROWS, 2
    try:
        assert log.move_blocks().objects == 6
        assert len(log._backend.states(SPEC.name, manifest.PAGES)) == 3
        log.trim(35)
        fill(log, 20)
        log.move_blocks()
    finally:
        manifest.PAGE_ROWS = original
    assert ids_of(open_log()) == list(range(35, 81))
    assert log.verify(deep=True).ok


def test_the_upkeep_moves_and_trims_every_log_and_one_that_fails_keeps_no_other_back(
    tmp_path: Path, clock: VirtualClock
) -> None:
    with open_tiered(f"sqlite:///{tmp_path / 'log.db'}", clock) as store:
        for name in ("a", "b", "c"):
            log = fill(store.log(LogSpec(name, compression="plain")))
            log.set_retention(Retention(max_count=150))
            if name != "c":
                log.set_tiering(Tiering(f"file://{tmp_path / name}", segment_bytes=8000))
        (tmp_path / "a" / "tier").write_bytes(b"in the way")
        found = {done.log: done for done in keep_up(store, clock)}
        assert found["a"].error is not None
        assert store.log(LogSpec("a")).first_id == 1
        moved, trimmed = found["b"].moved, found["b"].trimmed
        assert moved is not None
        assert trimmed is not None
        assert (moved.objects > 2, trimmed.first_id, found["b"].error) == (True, 51, None)
        assert (found["c"].moved, store.log(LogSpec("c")).first_id) == (None, 51)
        (tmp_path / "a" / "tier").unlink()
        assert all(done.error is None for done in keep_up(store, clock))
        assert store.log(LogSpec("a")).first_id == 51


def test_the_command_moves_messages_and_says_where_they_are(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{tmp_path / 'log.db'}"
    with open_store(url) as store:
        fill(store.log(SPEC))

    def run(*arguments: str, code: int = 0) -> str:
        assert main.run(["log", *arguments, "--store", url]) == code
        return "".join(capfd.readouterr())

    assert "--to URL" in run("tier", "weather", code=2)
    out = run("tier", "weather", "--to", "file:cold", "--segment-bytes", "8kB", "--keep-bytes", "4kB")
    assert re.search(r"1\d0 messages moved in \d objects", out)
    assert f"file://{tmp_path}/cold" in out
    assert "0 messages moved" in run("tier", "weather")
    assert "moved in 1 objects" in run("tier", "weather", "--partial", "--keep-bytes", "0")
    assert json.loads(run("info", "weather", "--json"))["tier"]["last_id"] == 200
    assert "objects at file://" in run("info", "weather")
    assert run("read", "weather", "--from", "7", "--max", "1") == f"{bodies(7, 7)[0].decode()}\n"
    assert "0 messages in 0 blocks checked" in run("verify", "weather")
    assert "200 messages in 20 blocks checked" in run("verify", "weather", "--deep")
    assert "begins at id 150" in run("trim", "weather", "--below", "150")
    assert "weather: 0 messages trimmed, 0 messages moved" in run("upkeep")
    victim = next((tmp_path / "cold").rglob("*.tier"))
    victim.unlink()
    assert "not there" in run("verify", "weather", code=1)
