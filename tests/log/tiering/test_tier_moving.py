"""Older blocks lie in sealed objects: moved, read across the border, trimmed with the log."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from millstream.core.clock import MICROSECONDS, VirtualClock
from millstream.log import (
    Gap,
    IdRange,
    Log,
    LogInputError,
    LogStore,
    Message,
    Retention,
    RetentionEnforcer,
    Tiering,
    copy_log,
    open_store,
)
from millstream.log.backends.memory import MemoryBackend
from millstream.log.backends.sqlite.statements import PAGE_SIZE
from millstream.log.tiering.reading import TierReader
from millstream.stores.tiers import SPACE
from millstream.stores.tiers import open_log_store as open_tiered
from support.tiered_logs import SPEC, URL, Cloud, bodies, fill, ids_of

DAY = 86_400 * MICROSECONDS


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
    assert max(sizes[6:]) <= max(sizes[:6]) + 2 * PAGE_SIZE, f"what was moved stays: {sizes}"
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


@pytest.mark.parametrize("look", ["statistics", "ranges", "index", "first_block_since"])
def test_blocks_that_move_during_a_look_are_in_it(
    open_log: Callable[[], Log], monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    log = fill(open_log())
    log.set_tiering(Tiering(URL, segment_bytes=8000))
    ask = {
        "statistics": lambda: log.info().count,
        "ranges": lambda: [block.first_id for block in log.block_ranges()],
        "index": lambda: [entry.first_id for entry in log.block_index(1, 200)],
        "first_block_since": lambda: log.first_block_since(0),
    }[look]
    expected, hot = ask(), log._backend.hot
    if isinstance(hot, MemoryBackend) and look == "index":
        assert expected == [], "it has no index of blocks"
        return
    looked = getattr(hot, look)

    def moved_before(*arguments: Any) -> Any:
        monkeypatch.undo()
        assert log.move_blocks().objects > 1
        return looked(*arguments)

    monkeypatch.setattr(hot, look, moved_before)
    assert ask() == expected


@pytest.mark.parametrize("look", ["ranges", "index"])
def test_blocks_that_move_after_a_range_do_not_repeat_a_look_at_it(
    open_log: Callable[[], Log], monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    log = fill(open_log())
    log.set_tiering(Tiering(URL, segment_bytes=8000))
    assert log.move_blocks().objects > 1
    looked, looks = getattr(TierReader, look), []

    def moved_meanwhile(*arguments: Any) -> Any:
        looks.append(look)
        if len(looks) == 1:
            fill(log)
            assert log.move_blocks().objects > 1
        return looked(*arguments)

    monkeypatch.setattr(TierReader, look, moved_meanwhile)
    getattr(log._backend, look)(log.name, 1, 20)
    assert looks == [look]


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


def test_retention_counts_bytes_and_ages_across_tiers(open_log: Callable[[], Log], clock: VirtualClock) -> None:
    log = fill(open_log(), clock=clock)
    log.set_tiering(Tiering(URL, segment_bytes=8000, keep_bytes=8000))
    log.move_blocks()
    size = log.block_ranges()[-1].bytes
    assert RetentionEnforcer(log, clock, Retention(max_age=round(14.5 * DAY))).run_once().first_id == 61
    assert RetentionEnforcer(log, clock, Retention(max_bytes=10 * size)).run_once().first_id == 101
    assert ids_of(log) == list(range(101, 201))
    assert RetentionEnforcer(log, clock, Retention(max_count=5)).run_once().first_id == 196
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


def test_a_log_keeps_one_place_for_its_objects(open_log: Callable[[], Log]) -> None:
    log = fill(open_log())
    with pytest.raises(LogInputError, match="no tier"):
        log.move_blocks()
    log.set_tiering(Tiering("memory://elsewhere", segment_bytes=8000))
    log.set_tiering(Tiering(URL, segment_bytes=8000))
    log.move_blocks()
    with pytest.raises(LogInputError, match="tier at memory://tier"):
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
    from millstream.log.tiering import sealed_objects

    log = fill(open_log(), 60)
    log.set_tiering(Tiering(URL, segment_bytes=100))
    original, sealed_objects.PAGE_ROWS = sealed_objects.PAGE_ROWS, 2
    try:
        assert log.move_blocks().objects == 6
        assert len(log._backend.states(SPEC.name, sealed_objects.PAGES)) == 3
        log.trim(35)
        fill(log, 20)
        log.move_blocks()
    finally:
        sealed_objects.PAGE_ROWS = original
    assert ids_of(open_log()) == list(range(35, 81))
    assert log.verify(deep=True).ok
