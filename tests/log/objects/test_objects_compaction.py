"""A log in a bucket merges its commits into sealed objects in the same bucket, and reads as before."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest

from millstream.core.clock import VirtualClock
from millstream.core.message import Message
from millstream.log import Log, LogInputError, LogSpec, LogStore, Tiering, copy_log
from millstream.log.backends.memory import MemoryBackend
from millstream.log.backends.objects.backend import ObjectsBackend
from millstream.log.backends.objects.bucket import Bucket
from millstream.log.backends.objects.probe import RECORD
from millstream.log.errors import FencedError, StorageUnavailableError, WriterFailedError
from millstream.log.reading.located_blocks import read_located
from millstream.log.tiering import Compaction, compactor
from millstream.log.tiering.compactor import MERGED
from millstream.log.tiering.sealed_objects import read_objects
from millstream.log.upkeep.upkeep_thread import run_upkeep
from millstream.stores.memory import MemoryStore
from millstream.stores.tiers import TierSpace
from millstream.testing.object_bucket import MemoryBucket
from millstream.testing.waiting import until
from suite.sizes import sized
from support.interposed_bucket import InterposedBucket

SPEC = LogSpec("weather", compression="plain")
RULES = Compaction(commits=40)
TIER = TierSpace(MemoryStore("tier"))

OpenLog = Callable[..., Log]


@pytest.fixture
def bucket() -> MemoryBucket:
    """A bucket that counts as probed."""
    bucket = MemoryBucket()
    bucket.put(RECORD, b"{}")
    return bucket


@pytest.fixture
def opened(bucket: MemoryBucket) -> Iterator[OpenLog]:
    """Opens the log as a process of its own does, by way of the bucket that is given; with *rules* it compacts."""
    stores: list[LogStore] = []

    def open_one(via: Bucket = bucket, rules: Compaction | None = None) -> Log:
        clock = VirtualClock()
        stores.append(LogStore(ObjectsBackend(via, clock), clock, open_objects=lambda _: TIER, compaction=rules))
        return stores[-1].log(SPEC)

    yield open_one
    for store in stores:
        store.close()


def body(number: int) -> bytes:
    return b"message %d" % number


def fill(log: Log, commits: int) -> Log:
    """Append so many commits with one message each; where the log compacts, its writer does."""
    with log.writer() as writer:
        first = writer.last_id + 1
        for number in range(first, first + commits):
            writer.append([Message(body(number), received_at=number * 10)])
    return log


def read(log: Log, first_id: int | None = None) -> list[int]:
    """The ids of all messages, each of which has its own body."""
    messages = [message for batch in log.read(first_id) for message in batch]
    assert all(message.body == body(message.id or 0) for message in messages)
    return [message.id or 0 for message in messages]


def names(bucket: MemoryBucket, part: str) -> list[str]:
    return sorted(name for name in bucket.objects if f"/{part}/" in name)


def test_a_log_with_many_commits_is_compacted_and_reads_as_before(bucket: MemoryBucket, opened: OpenLog) -> None:
    before = fill(opened(), 100).info()
    done = opened(rules=RULES).compact()
    assert (done.objects, done.messages) == (1, 75)
    assert len(names(bucket, "sealed")) == 1
    assert len(names(bucket, "commits")) < 30
    log = opened()
    after = log.info()
    assert (after.first_id, after.last_id, after.count, after.blocks, after.bytes) == (
        (before.first_id, before.last_id, before.count, before.blocks, before.bytes)
    )
    assert read(log) == list(range(1, 101))
    assert read(log, 60) == list(range(60, 101))
    for deep in (False, True):
        assert log.verify(deep=deep).problems == ()
    assert log.verify(deep=True).messages == 100
    assert [log.first_id_since(time) for time in (5, 300, 740, 990, 1001)] == [1, 30, 74, 99, 101]
    assert [block.first_id for block in log.block_ranges()] == list(range(1, 101))
    assert list(log.receive_times(40, 90)) == [(number * 10, number * 10) for number in range(40, 91)]
    assert opened(rules=RULES).compact().objects == 0


def test_other_processes_are_told_where_the_blocks_of_a_compacted_log_lie(
    bucket: MemoryBucket, opened: OpenLog
) -> None:
    fill(opened(), 100)
    opened(rules=RULES).compact()
    log = opened()
    locations = log.block_locations(5, 90)
    assert len({location.name for location in locations}) == 1 + 15  # the sealed object, and commits
    bucket.requests.clear()
    blocks = list(read_located(SPEC.name, locations, bucket.get))
    assert [block.header.first_id for block in blocks] == list(range(5, 91))
    assert bucket.requests == {"get": 16}
    bucket.delete([locations[0].name])
    assert list(read_located(SPEC.name, locations, bucket.get)) == []


def test_indexes_of_merged_objects_are_read_side_by_side(bucket: MemoryBucket, opened: OpenLog) -> None:
    for _ in range(2):
        fill(opened(), 100)
        opened(rules=Compaction(commits=40, bytes=1 << 12)).compact()
    lasts = [row.last_id for row in read_objects(ObjectsBackend(bucket, VirtualClock()), SPEC.name)]
    assert len(lasts) >= 2
    both = threading.Barrier(2)
    read_as_before = bucket.get

    def read_together(name: str, start: int = 0, length: int | None = None) -> bytes | None:
        if "/sealed/" in name:
            both.wait(20)
        return read_as_before(name, start, length)

    log = opened()
    bucket.get = read_together  # type: ignore[method-assign]
    assert len({location.name for location in log.block_locations(1, lasts[1])}) == 2


def test_a_compacted_log_is_copied_trimmed_and_goes_on(bucket: MemoryBucket, opened: OpenLog) -> None:
    fill(opened(), 100)
    log = opened(rules=RULES)
    log.compact()
    with LogStore(MemoryBackend(VirtualClock()), VirtualClock()) as store:
        assert copy_log(log, store.log(SPEC)).messages == 100
    log.trim(30)
    assert read(opened()) == list(range(30, 101))
    log.trim(80)
    assert names(bucket, "sealed") == []
    assert read(opened()) == list(range(80, 101))
    fill(opened(), 100)
    assert log.compact().objects == 1
    assert read(opened()) == list(range(80, 201))
    log.trim(201)
    assert (read(opened()), names(bucket, "sealed"), len(names(bucket, "commits"))) == ([], [], 1)
    assert opened().verify(deep=True).ok


def test_a_compaction_takes_the_requests_that_its_price_is_made_of(bucket: MemoryBucket, opened: OpenLog) -> None:
    log = opened(rules=Compaction(commits=600))
    fill(log, 500)
    opened(rules=Compaction()).compact()
    fill(log, 500)
    log = opened(rules=Compaction())
    assert log.last_id == 1000
    log.trim(1)  # a process lists once what a killed one may have left
    bucket.requests.clear()
    assert log.compact().objects == 1
    assert bucket.requests["create"] + bucket.requests["list"] <= 7
    assert bucket.requests["get"] <= 80


def test_whoever_runs_upkeep_compacts(bucket: MemoryBucket, opened: OpenLog) -> None:
    fill(opened(), 100)
    clock = VirtualClock()
    with LogStore(ObjectsBackend(bucket, clock), clock, compaction=RULES) as store:
        (done,) = run_upkeep(store, clock)
        assert done.compacted is not None
        assert (done.compacted.messages, done.problems) == (75, ())
        assert list(run_upkeep(store, clock)) == []


def test_a_writer_compacts_what_it_finds_and_what_it_writes(bucket: MemoryBucket, opened: OpenLog) -> None:
    fill(opened(), 100)
    fill(opened(rules=RULES), 1)
    assert len(names(bucket, "sealed")) == 1
    with opened(rules=RULES).writer() as writer:
        for number in range(102, 402):
            writer.append([Message(body(number), received_at=number * 10)])
        until(lambda: len(names(bucket, "sealed")) > 1, "a compaction while the writer is open")
    assert read(opened()) == list(range(1, 402))


def test_a_log_that_is_opened_again_and_again_has_few_fences(bucket: MemoryBucket, opened: OpenLog) -> None:
    fill(opened(), 1)
    for _ in range(150):
        fill(opened(), 0)
    opened(rules=RULES).compact()
    assert len(names(bucket, "commits")) == 1
    assert read(opened()) == [1]
    assert opened().verify().ok


def test_readers_in_the_middle_of_what_is_compacted_go_on(bucket: MemoryBucket, opened: OpenLog) -> None:
    log = fill(opened(), 100)
    follower, other = opened(), opened()
    assert read(other, 95) == list(range(95, 101))
    seen: list[int] = []
    with follower.reader("me") as reader:
        for batch in reader.batches(10):
            seen += [message.id or 0 for message in batch]
            reader.ack(batch.ids)
            if len(seen) == 30:
                opened(rules=RULES).compact()
                fill(log, 10)
        assert reader.missed == 0
    assert seen == list(range(1, 111)) or seen == list(range(1, 101))
    assert read(other) == list(range(1, 111))
    assert read(follower) == list(range(1, 111))


def test_small_objects_are_merged_and_who_knows_the_old_ones_goes_on(bucket: MemoryBucket, opened: OpenLog) -> None:
    log, plain, other = opened(rules=RULES), opened(), opened()
    for turn in range(MERGED):
        fill(plain, 60)
        with_old = names(bucket, "sealed")
        log.compact()
        if turn in (5, MERGED - 2):
            assert read(other, 2) == list(range(2, 60 * turn + 61))
            assert with_old != names(bucket, "sealed")
    last = MERGED * 60
    assert len(names(bucket, "sealed")) == 1
    assert read(other) == list(range(1, last + 1))
    assert [other.first_id_since(time) for time in (5, 3000)] == [1, 300]
    assert other.verify(deep=True).problems == ()
    assert read(opened()) == list(range(1, last + 1))
    assert opened().info().count == last


def test_what_two_compactors_leave_over_is_swept(bucket: MemoryBucket, opened: OpenLog) -> None:
    log, plain = opened(rules=RULES), opened()
    for _ in range(MERGED - 1):
        fill(plain, 60)
        log.compact()
    root = "data/weather/"
    lost = f"{root}sealed/{1:020d}-{30:020d}-{'0' * 32}.tier"
    late = f"{root}sealed/{1:020d}-{10_000_000:020d}-{'0' * 32}.tier"
    bucket.objects.update({lost: b"of one that was slower", late: b"of one that may still enter it"})
    fill(plain, 60)
    log.compact()
    assert [name for name in names(bucket, "sealed") if name.endswith(f"{'0' * 32}.tier")] == [late]
    assert read(opened()) == list(range(1, MERGED * 60 + 1))


def test_compacted_objects_are_moved_to_a_tier_that_is_set_later(bucket: MemoryBucket, opened: OpenLog) -> None:
    log, plain = opened(rules=RULES), opened()
    for _ in range(4):
        fill(plain, 100)
        log.compact()
    own = len(names(bucket, "sealed"))
    assert own == 4
    log.set_tiering(Tiering("memory://tier", segment_bytes=1 << 30))
    assert log.move_blocks().objects == 0
    moved = log.move_blocks(partial=True)
    assert moved.objects == 2  # what was compacted, and the commits
    assert names(bucket, "sealed") == []
    for each in (log, opened()):
        assert read(each) == list(range(1, 401))
        assert each.verify(deep=True).problems == ()
    info = opened().info()
    assert info.tier is not None
    assert (info.tier.url, info.tier.objects, info.count) == (TIER.url, 2, 400)


def test_compacted_objects_before_and_behind_one_in_the_tier_are_moved(bucket: MemoryBucket, opened: OpenLog) -> None:
    log, plain = opened(rules=RULES), opened()
    fill(plain, 100)
    log.compact()
    size = log.block_ranges()[0].bytes
    fill(plain, 100)
    log.set_tiering(Tiering("memory://tier", segment_bytes=100 * size))
    assert log.move_blocks().objects == 1  # of the commits behind the object in the bucket, which is too small
    fill(plain, 100)
    log.compact()
    rows = read_objects(ObjectsBackend(bucket, VirtualClock()), SPEC.name)
    assert [row.in_store for row in rows] == [True, False, True]
    log.move_blocks(partial=True)
    rows = read_objects(ObjectsBackend(bucket, VirtualClock()), SPEC.name)
    assert not any(row.in_store for row in rows)
    assert read(opened()) == list(range(1, 301))
    assert opened().verify(deep=True).problems == ()


def test_the_newest_and_the_young_stay_in_the_bucket_of_the_log(bucket: MemoryBucket, opened: OpenLog) -> None:
    log, plain = opened(rules=RULES), opened()
    for _ in range(4):
        fill(plain, 100)
        log.compact()
    size = log.block_ranges()[0].bytes
    log.set_tiering(Tiering("memory://tier", segment_bytes=1, keep_bytes=250 * size))
    assert log.move_blocks().objects == 1
    assert len(names(bucket, "sealed")) == 3
    log.set_tiering(Tiering("memory://tier", segment_bytes=1, keep_bytes=0, keep_age=0))
    assert read(opened()) == list(range(1, 401))
    assert log.verify(deep=True).ok


def test_the_rules_of_compaction_are_checked() -> None:
    with pytest.raises(LogInputError, match="at least 10, not 5"):
        Compaction(commits=5)


# Races and kills

MOST_REQUESTS = 300
STRIDE = sized(quick=3, ci=1, long=1)
"""Before every how many requests a process is stopped."""
OFTEN = Compaction(commits=10)
LAST = 56


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def ready(bucket: MemoryBucket, opened: OpenLog, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """The objects of a log that is due, where one sealed object more is enough for a merge."""
    monkeypatch.setattr(compactor, "MERGED", 4)
    log, plain = opened(rules=OFTEN), opened()
    for _ in range(3):
        fill(plain, 14)
        log.compact()
    fill(plain, LAST - 42)
    assert len(names(bucket, "sealed")) == 3
    return dict(bucket.objects)


def test_p2_durability_a_compactor_may_be_killed_before_each_request(
    bucket: MemoryBucket, opened: OpenLog, ready: dict[str, bytes]
) -> None:
    def kill() -> None:
        raise Killed

    for at in range(0, MOST_REQUESTS, STRIDE):
        bucket.objects = dict(ready)
        slow = InterposedBucket(bucket)
        log = opened(slow, OFTEN)
        slow.begin(at, kill, loses=False)
        try:
            log.compact()
        except Killed:
            assert read(opened()) == list(range(1, LAST + 1)), f"killed before request {at}"
            fill(opened(), 12)
            opened(rules=OFTEN).compact()
            assert read(opened()) == list(range(1, LAST + 13))
        assert len(names(bucket, "sealed")) <= 3, "what was killed leaves nothing over"
        if slow.requests <= at:
            return
    raise AssertionError("too many requests")


@pytest.mark.parametrize("loses", [False, True], ids=["sleeps", "late"])
def test_a_compactor_that_sleeps_while_another_compacts_and_trims_loses_nothing(
    bucket: MemoryBucket, opened: OpenLog, ready: dict[str, bytes], loses: bool
) -> None:
    def others() -> None:
        log = opened(rules=OFTEN)
        log.compact()
        fill(opened(), 14)
        log.compact()
        log.trim(10)

    for at in range(0, MOST_REQUESTS, STRIDE):
        bucket.objects = dict(ready)
        slow = InterposedBucket(bucket)
        log = opened(slow, OFTEN)
        slow.begin(at, others, loses=loses)
        with contextlib.suppress(StorageUnavailableError):
            log.compact()
        is_over, slow.at = slow.requests <= at, -1
        expected = list(range(1, LAST + 1)) if is_over else list(range(10, LAST + 15))
        assert read(opened()) == expected, f"asleep before request {at}"
        assert read(log) == expected
        assert opened().verify(deep=True).problems == ()
        if is_over:
            return
    raise AssertionError("too many requests")


@pytest.mark.parametrize("is_warm", [False, True], ids=["cold", "warm"])
def test_a_reader_that_sleeps_while_others_compact_and_merge_misses_nothing(
    bucket: MemoryBucket, opened: OpenLog, ready: dict[str, bytes], is_warm: bool
) -> None:
    for at in range(MOST_REQUESTS):
        bucket.objects = dict(ready)
        slow = InterposedBucket(bucket)
        log = opened(slow)
        if is_warm:
            read(log)
        slow.begin(at, lambda: opened(rules=OFTEN).compact(), loses=False)
        assert read(log) == list(range(1, LAST + 1)), f"asleep before request {at}"
        assert log.first_id_since(205) == 21
        if slow.requests <= at:
            return
    raise AssertionError("too many requests")


@pytest.mark.parametrize("loses", [False, True], ids=["sleeps", "late"])
def test_a_writer_that_sleeps_while_its_successor_compacts_all_confirms_nothing_that_is_lost(
    bucket: MemoryBucket, opened: OpenLog, ready: dict[str, bytes], loses: bool
) -> None:
    def successor() -> None:
        backend = ObjectsBackend(bucket, VirtualClock())
        assert backend.take_lease(SPEC.name, epoch=backend.head(SPEC.name).epoch, holder=b"", until=0)
        fill(opened(), 14)
        opened(rules=OFTEN).compact()

    for at in range(MOST_REQUESTS):
        bucket.objects = dict(ready)
        slow = InterposedBucket(bucket)
        with contextlib.suppress(FencedError, WriterFailedError, StorageUnavailableError):
            writer = opened(slow).writer()
            slow.begin(at, successor, loses=loses)
            ids = writer.append([b"of the one that slept"])
            slow.at = -1
            assert ids is not None
            (batch,) = opened().read(ids.first, ids.last)
            assert [message.body for message in batch] == [b"of the one that slept"], f"asleep before request {at}"
        last_id = opened().last_id
        assert [number for batch in opened().read() for number in batch.ids] == list(range(1, last_id + 1))
        if slow.requests <= at:
            return
    raise AssertionError("too many requests")


def test_two_that_compact_at_once_enter_each_message_once(bucket: MemoryBucket, opened: OpenLog) -> None:
    fill(opened(), 200)
    logs = [opened(rules=RULES) for _ in range(4)]
    threads = [threading.Thread(target=log.compact) for log in logs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read(opened()) == list(range(1, 201))
    assert opened().verify(deep=True).problems == ()
