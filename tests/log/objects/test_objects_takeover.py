"""A writer of a log in a bucket that was replaced, and wakes up at the worst moment; and what damage looks like."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from millstream.core.clock import VirtualClock
from millstream.log import (
    DamagedLogError,
    FencedError,
    Gap,
    IdRange,
    LogSpec,
    LogStore,
    StorageError,
    WriterBusyError,
    copy_log,
)
from millstream.log.backend import Commit, VersionedValue
from millstream.log.backends.memory import MemoryBackend
from millstream.log.backends.objects.backend import ObjectsBackend
from millstream.log.backends.objects.bucket import Bucket
from millstream.log.backends.objects.names import LogNames
from millstream.log.backends.objects.probe import RECORD
from millstream.log.backends.objects.states import BLOCK
from millstream.log.errors import StorageReadOnlyError, StorageUnavailableError, WriterFailedError
from millstream.log.tiering.backend import TieredBackend
from millstream.log.upkeep.verification import verify_log
from millstream.testing.log_backends import NAME, block
from millstream.testing.object_bucket import BucketFault, FaultyBucket, MemoryBucket
from support.interposed_bucket import InterposedBucket
from support.stepped_processes import InlinePool, Process, SteppedBucket

NAMES = LogNames(NAME)


def opened(bucket: Bucket, **options: bool) -> ObjectsBackend:
    return ObjectsBackend(bucket, VirtualClock(), pool=InlinePool(1), **options)


@pytest.fixture
def bucket() -> MemoryBucket:
    """A bucket with one empty log, which has no writer."""
    bucket = MemoryBucket(VirtualClock())
    bucket.put(RECORD, b"{}")
    opened(bucket).create(NAME)
    return bucket


def commit(epoch: int, last_id: int, body: bytes = b"x") -> Commit:
    """The message with the id *last_id*."""
    blocks = [block(last_id, [body], epoch=epoch)]
    return Commit(epoch=epoch, previous_id=last_id - 1, last_id=last_id, received_at=last_id, blocks=blocks)


def take_over(bucket: Bucket) -> tuple[ObjectsBackend, int]:
    """A new process that writes, and its epoch."""
    backend = opened(bucket)
    epoch = backend.head(NAME).epoch
    assert backend.take_lease(NAME, epoch=epoch, holder=b"x", until=1)
    return backend, epoch + 1


def stored(bucket: Bucket) -> list[tuple[int, bytes]]:
    """The first id and the bytes of each block, as a new process reads them."""
    return [(each.first_id, each.data) for each in opened(bucket).read(NAME, 1, 2**62, max_bytes=1 << 30)]


class Sleeper:
    """A writer in its first epoch that falls asleep before the request *number* of its next commit."""

    def __init__(self, bucket: MemoryBucket, number: int) -> None:
        self.outcome: list[BaseException | None] = []
        stepped = SteppedBucket(bucket)
        backend = opened(stepped)
        assert backend.take_lease(NAME, epoch=backend.head(NAME).epoch, holder=b"sleeper", until=1)
        last_id = backend.head(NAME).last_id
        self.process = Process("sleeper", lambda: self._commit(backend, last_id + 1))
        stepped.process = self.process
        for _ in range(number):
            self.process.step()

    def _commit(self, backend: ObjectsBackend, last_id: int) -> None:
        try:
            backend.commit(NAME, commit(1, last_id, b"stale"))
        except (FencedError, StorageError) as error:
            self.outcome.append(error)
        else:
            self.outcome.append(None)

    def wake(self) -> BaseException | None:
        while not self.process.is_over:
            self.process.step()
        return self.outcome[0]


def trimmed_to_the_newest(backend: ObjectsBackend, last_id: int) -> None:
    while backend.reclaim(NAME, last_id + 1, max_bytes=1 << 30):
        pass


def test_p10_one_writer_a_stale_writer_that_wakes_after_a_takeover_is_fenced(bucket: MemoryBucket) -> None:
    sleeper = Sleeper(bucket, 1)  # before its create
    backend, epoch = take_over(bucket)
    backend.commit(NAME, commit(epoch, 1, b"new"))
    assert isinstance(sleeper.wake(), FencedError)
    assert stored(bucket) == [(1, block(1, [b"new"], epoch=epoch).data)]


def test_p10_one_writer_a_stale_writer_that_wakes_after_a_trim_believes_no_name_that_is_free_again(
    bucket: MemoryBucket,
) -> None:
    sleeper = Sleeper(bucket, 1)  # before its create of the name that the fence of its successor gets
    backend, epoch = take_over(bucket)
    for last_id in range(1, 5):
        backend.commit(NAME, commit(epoch, last_id, b"new"))
    trimmed_to_the_newest(backend, 4)
    before = stored(bucket)
    assert NAMES.commit(2) not in bucket.objects
    assert isinstance(sleeper.wake(), FencedError)
    assert NAMES.commit(2) in bucket.objects  # it was created all the same, and counts for nobody
    assert stored(bucket) == before == [(4, block(4, [b"new"], epoch=epoch).data)]
    backend.commit(NAME, commit(epoch, 5, b"new"))
    trimmed_to_the_newest(backend, 5)
    assert NAMES.commit(2) not in bucket.objects


def test_p2_durability_a_commit_that_was_created_before_the_takeover_is_confirmed_after_it(
    bucket: MemoryBucket,
) -> None:
    sleeper = Sleeper(bucket, 2)  # after its create
    backend, epoch = take_over(bucket)
    assert backend.head(NAME).last_id == 1
    backend.commit(NAME, commit(epoch, 2, b"new"))
    assert sleeper.wake() is None
    assert [first_id for first_id, _ in stored(bucket)] == [1, 2]


def test_p1_order_a_reader_that_was_asleep_skips_names_that_a_stale_writer_created_again(bucket: MemoryBucket) -> None:
    reader = opened(bucket)
    sleeper = Sleeper(bucket, 1)
    assert reader.head(NAME).last_id == 0  # it knows the fence of the sleeper, and looks for commit 2 next
    backend, epoch = take_over(bucket)
    for last_id in range(1, 5):
        backend.commit(NAME, commit(epoch, last_id, b"new"))
    trimmed_to_the_newest(backend, 4)
    sleeper.wake()
    found = reader.read(NAME, 1, 100, max_bytes=1 << 30)
    assert [(each.first_id, each.data) for each in found] == [(4, block(4, [b"new"], epoch=epoch).data)]
    assert reader.head(NAME).last_id == 4


def test_a_block_that_was_trimmed_while_it_was_read_is_not_delivered_from_a_name_created_again(
    bucket: MemoryBucket,
) -> None:
    backend, epoch = take_over(bucket)
    for last_id in range(1, 5):
        backend.commit(NAME, commit(epoch, last_id, b"new"))
    reader = opened(bucket)
    assert reader.head(NAME).last_id == 4
    reader._cache._max_bytes = 0  # the blocks are not kept, so that they are read again
    reader._cache._blocks.clear()
    ghost = bucket.objects[NAMES.commit(2)].replace(b"new", b"old")
    trimmed_to_the_newest(backend, 4)
    bucket.objects[NAMES.commit(2)] = ghost
    assert [each.first_id for each in reader.read(NAME, 1, 100, max_bytes=1 << 30)] == [4]


def test_the_newest_commit_is_never_trimmed(bucket: MemoryBucket) -> None:
    backend, epoch = take_over(bucket)
    for last_id in (1, 2, 3):
        backend.commit(NAME, commit(epoch, last_id))
    trimmed_to_the_newest(backend, 3)
    assert [name for name in sorted(bucket.objects) if name.startswith(NAMES.commits)] == [NAMES.commit(4)]
    again, epoch = take_over(bucket)
    again.commit(NAME, commit(epoch, 4))
    assert opened(bucket).head(NAME).last_id == 4


def trimmed_by_halves(bucket: MemoryBucket) -> ObjectsBackend:
    """A log of the ids 3 and 4: the process that trimmed it crashed before it deleted the commit of id 1."""
    backend, epoch = take_over(bucket)
    for last_id in (1, 2, 3, 4):
        backend.commit(NAME, commit(epoch, last_id))
    leftover = bucket.objects[NAMES.commit(2)]
    assert backend.reclaim(NAME, 3, max_bytes=1 << 20)
    bucket.objects[NAMES.commit(2)] = leftover
    return backend


def test_commits_that_a_crash_left_below_the_start_are_deleted_with_the_next_trim(bucket: MemoryBucket) -> None:
    backend = trimmed_by_halves(bucket)
    assert [first_id for first_id, _ in stored(bucket)] == [3, 4]
    assert backend.reclaim(NAME, 4, max_bytes=1 << 20)
    assert NAMES.commit(2) not in bucket.objects


def test_commits_that_a_crash_left_below_the_start_are_deleted_if_there_is_nothing_to_trim(
    bucket: MemoryBucket,
) -> None:
    trimmed_by_halves(bucket)
    other = opened(bucket)
    assert other.reclaim(NAME, 3, max_bytes=1 << 20) == 0
    assert NAMES.commit(2) not in bucket.objects
    before = bucket.requests["list"]
    assert other.reclaim(NAME, 3, max_bytes=1 << 20) == 0
    assert bucket.requests["list"] == before


@pytest.mark.parametrize(
    "fault",
    [BucketFault.LOST, BucketFault.REPLY_LOST, BucketFault.CONFLICT, BucketFault.UNAVAILABLE, BucketFault.DOUBLED],
)
def test_a_commit_without_an_answer_is_stored_once(bucket: MemoryBucket, fault: BucketFault) -> None:
    faults = {NAMES.commit(2): [fault], NAMES.commit(3): [fault]}

    def script(kind: str, name: str) -> BucketFault:
        return faults[name].pop() if kind == "create" and faults.get(name) else BucketFault.NONE

    backend, epoch = take_over(FaultyBucket(bucket, script, VirtualClock()))
    for last_id in (1, 2, 3):
        backend.commit(NAME, commit(epoch, last_id))
    assert [first_id for first_id, _ in stored(bucket)] == [1, 2, 3]


def test_a_commit_that_failed_and_arrives_late_is_not_taken_for_another(bucket: MemoryBucket) -> None:
    down = [True]

    def script(kind: str, name: str) -> BucketFault:
        return BucketFault.LATE if down[0] and kind == "create" and name == NAMES.commit(2) else BucketFault.NONE

    faulty = FaultyBucket(bucket, script, VirtualClock(), delay=10_000)
    backend, epoch = take_over(faulty)
    with pytest.raises(StorageUnavailableError):
        backend.commit(NAME, commit(epoch, 1, b"first"))
    down[0] = False
    faulty.settle()
    with pytest.raises(FencedError):
        backend.commit(NAME, commit(epoch, 1, b"second"))
    assert stored(bucket) == [(1, block(1, [b"first"], epoch=epoch).data)]


def test_a_takeover_that_died_before_its_fence_keeps_nobody_out(bucket: MemoryBucket) -> None:
    first, epoch = take_over(bucket)
    first.commit(NAME, commit(epoch, 1))
    stepped = SteppedBucket(bucket)
    half = opened(stepped)
    head = half.head(NAME)
    process = Process("half", lambda: print(half.take_lease(NAME, epoch=head.epoch, holder=b"half", until=1)))
    stepped.process = process
    while NAMES.epoch(2) not in bucket.objects:
        process.step()
    process.stop()
    first.commit(NAME, commit(epoch, 2))  # nobody has taken its place in the chain yet
    last, epoch = take_over(bucket)
    assert epoch == 3
    last.commit(NAME, commit(epoch, 3))
    with pytest.raises(FencedError):
        first.commit(NAME, commit(1, 3))


def test_a_takeover_that_fails_before_its_fence_keeps_nobody_out(bucket: MemoryBucket) -> None:
    def script(kind: str, name: str) -> BucketFault:
        return BucketFault.LOST if (kind, name) == ("create", NAMES.commit(1)) else BucketFault.NONE

    backend = opened(FaultyBucket(bucket, script, VirtualClock()))
    with pytest.raises(StorageUnavailableError):
        backend.take_lease(NAME, epoch=0, holder=b"x", until=2**50)
    head = opened(bucket).head(NAME)
    assert (head.epoch, head.holder, head.lease_until) == (1, b"", 0)


def test_states_stay_found_when_many_versions_are_written_and_old_ones_deleted(bucket: MemoryBucket) -> None:
    backend, other = opened(bucket), opened(bucket)
    for version in range(3 * BLOCK):
        assert backend.put_state(NAME, "reader/a", b"%d" % version, version=version)
        if version % 50 == 0:
            assert other.get_state(NAME, "reader/a") == VersionedValue(version + 1, b"%d" % version)
    kept = [name for name in bucket.objects if name.startswith(NAMES.states)]
    assert len(kept) <= 2 * BLOCK
    for each in (other, opened(bucket)):
        assert each.get_state(NAME, "reader/a") == VersionedValue(3 * BLOCK, b"%d" % (3 * BLOCK - 1))
        assert not each.put_state(NAME, "reader/a", b"", version=5)


def test_a_state_that_was_put_late_under_a_deleted_version_is_not_believed(bucket: MemoryBucket) -> None:
    stepped = SteppedBucket(bucket)
    stale = opened(stepped)
    assert stale.put_state(NAME, "k", b"0", version=0)
    outcome: list[object] = []

    def put() -> None:
        try:
            outcome.append(stale.put_state(NAME, "k", b"stale", version=1))
        except StorageUnavailableError as error:
            outcome.append(error)

    process = Process("stale", put)
    stepped.process = process
    for _ in range(3):
        process.step()  # up to its create
    fresh = opened(bucket)
    for version in range(1, BLOCK + 1):
        assert fresh.put_state(NAME, "k", b"%d" % version, version=version)
    while not process.is_over:
        process.step()
    assert isinstance(outcome[0], StorageUnavailableError)
    assert opened(bucket).get_state(NAME, "k") == VersionedValue(BLOCK + 1, b"%d" % BLOCK)


def test_p10_one_writer_a_second_writer_is_told_who_holds_the_log(bucket: MemoryBucket) -> None:
    first, second = (LogStore(opened(bucket), VirtualClock()) for _ in range(2))
    with first, second, first.log(LogSpec(NAME)).writer() as writer:
        writer.append([b"x"])
        with pytest.raises(WriterBusyError, match="is being written by process"):
            second.log(LogSpec(NAME)).writer()


def _cut(data: bytes) -> bytes:
    return data[:60]


def _flip(data: bytes) -> bytes:
    return data[:60] + bytes([data[60] ^ 1]) + data[61:]


@pytest.mark.parametrize("damage", [_cut, _flip, lambda _: b"", lambda _: b"x" * 100])
@pytest.mark.parametrize("numbers", [(3,), (3, 4)], ids=["one", "two"])
def test_a_commit_whose_head_is_damaged_is_a_gap_that_is_reported(
    bucket: MemoryBucket, damage: Callable[[bytes], bytes], numbers: Sequence[int]
) -> None:
    warm, epoch = take_over(bucket)
    for last_id in (1, 2, 3, 4, 5):
        warm.commit(NAME, commit(epoch, last_id))
    warm.release_lease(NAME, epoch=epoch)
    known = opened(bucket)
    assert known.head(NAME).last_id == 5
    for number in numbers:
        bucket.objects[NAMES.commit(number)] = damage(bucket.objects[NAMES.commit(number)])
    last = numbers[-1] - 1
    for backend in (opened(bucket), known):
        assert [problem.partition(" (")[0] for problem in backend.check(NAME)] == [
            f"object {NAMES.commit(number)!r}" for number in numbers
        ]
    fresh = opened(bucket)
    assert (fresh.head(NAME).last_id, fresh.statistics(NAME).count) == (5, 5)
    found = [(block.first_id, block.last_id) for block in fresh.ranges(NAME, 1, 5)]
    assert found == [(1, 1), (2, last), *((number, number) for number in range(last + 1, 6))]
    with LogStore(fresh, VirtualClock()) as store:
        log = store.log(LogSpec(NAME), create=False)
        batches = list(log.read(gaps="all"))
        assert [(gap.reason, gap.ids) for gap in batches if isinstance(gap, Gap)] == [("corrupt", IdRange(2, last))]
        assert [number for batch in batches for number in batch.ids] == [1, 2, 3, 4, 5]
        assert not log.verify().ok
        assert log.first_block_since(0) == 1
        with log.writer() as writer:
            writer.append([b"x"])
        assert log.last_id == 6


@pytest.mark.parametrize("numbers", [(3,), (3, 4)], ids=["one", "two"])
def test_a_damaged_head_before_others_does_not_stop_a_process_that_follows_the_log(
    bucket: MemoryBucket, numbers: Sequence[int]
) -> None:
    writer, epoch = take_over(bucket)
    writer.commit(NAME, commit(epoch, 1))
    follower = opened(bucket)
    assert follower.head(NAME).last_id == 1
    for last_id in (2, 3, 4, 5):
        writer.commit(NAME, commit(epoch, last_id))
    for number in numbers:
        bucket.objects[NAMES.commit(number)] = _cut(bucket.objects[NAMES.commit(number)])
    assert follower.head(NAME).last_id == 5
    assert follower.is_at_end(NAME, 5)


@pytest.mark.parametrize("listed", [2, 3])
def test_a_damaged_head_that_ends_a_part_of_those_read_together_is_no_end(
    bucket: MemoryBucket, monkeypatch: pytest.MonkeyPatch, listed: int
) -> None:
    monkeypatch.setattr("millstream.log.backends.objects.commit_follower._LISTED", listed)
    writer, epoch = take_over(bucket)
    for last_id in (1, 2, 3, 4, 5):
        writer.commit(NAME, commit(epoch, last_id))
    bucket.objects[NAMES.commit(3)] = _cut(bucket.objects[NAMES.commit(3)])
    bucket.objects[NAMES.commit(4)] = _cut(bucket.objects[NAMES.commit(4)])
    assert opened(bucket).head(NAME).last_id == 5


@pytest.mark.parametrize("damage", [_cut, _flip, lambda _: b"", lambda _: b"x" * 100])
def test_where_the_newest_commit_is_damaged_the_end_of_the_log_is_unknown(
    bucket: MemoryBucket, damage: Callable[[bytes], bytes]
) -> None:
    backend, epoch = take_over(bucket)
    for last_id in (1, 2):
        backend.commit(NAME, commit(epoch, last_id))
    bucket.objects[NAMES.commit(3)] = damage(bucket.objects[NAMES.commit(3)])
    with pytest.raises(
        DamagedLogError, match=r"object 'data/weather/commits/0{15}3' \(commit 3 of log 'weather'\) is damaged"
    ):
        opened(bucket).head(NAME)
    tiered = TieredBackend(opened(bucket), lambda _: pytest.fail("there is no tier"))
    (problem,) = verify_log(tiered, NAME).problems
    assert "(commit 3 of log 'weather') is damaged" in problem


def test_a_writer_stops_where_an_older_copy_of_its_bucket_was_put_in_place(bucket: MemoryBucket) -> None:
    clock = VirtualClock()
    with LogStore(opened(bucket), clock) as store, store.log(LogSpec(NAME)).writer() as writer:
        writer.append([b"x"])
        older = dict(bucket.objects)
        writer.append([b"y"])
        bucket.objects = older
        clock.advance(writer._lease.seconds / 3)
        writer._renew()
        with pytest.raises(
            WriterFailedError, match=r"commit 3 of log 'weather'\), which this process knows, is missing"
        ):
            writer.append([b"z"])
        writer.close()
        with pytest.raises(DamagedLogError, match="which this process knows, is missing"):
            store.log(LogSpec(NAME)).writer()
    assert NAMES.commit(4) not in bucket.objects


def test_a_commit_that_is_gone_before_others_is_reported(bucket: MemoryBucket) -> None:
    backend, epoch = take_over(bucket)
    for last_id in (1, 2, 3):
        backend.commit(NAME, commit(epoch, last_id))
    del bucket.objects[NAMES.commit(2)]
    (problem,) = opened(bucket).check(NAME)
    assert "(commit 2 of log 'weather') is missing from the bucket, so later commits cannot be read" in problem


def test_p2_no_writer_puts_its_fence_in_the_place_of_a_commit_that_is_gone(bucket: MemoryBucket) -> None:
    backend, epoch = take_over(bucket)
    for last_id in (1, 2, 3):
        backend.commit(NAME, commit(epoch, last_id))
    gone = bucket.objects.pop(NAMES.commit(3))
    with pytest.raises(
        DamagedLogError, match=r"cannot write to log 'weather': object .*commit 3 .* is missing from the bucket"
    ):
        take_over(bucket)
    bucket.objects[NAMES.commit(3)] = gone
    take_over(bucket)
    assert [first_id for first_id, _ in stored(bucket)] == [1, 2, 3]


def test_a_commit_that_is_missing_or_was_replaced_is_found(bucket: MemoryBucket) -> None:
    backend, epoch = take_over(bucket)
    for last_id in (1, 2, 3):
        backend.commit(NAME, commit(epoch, last_id))
    del bucket.objects[NAMES.commit(3)]
    (problem,) = backend.check(NAME)
    missing = f"object {NAMES.commit(3)!r} (commit 3 of log 'weather') is missing from the bucket"
    assert problem == f"{missing}. Restore the object from a copy of the bucket"


@pytest.mark.parametrize("name", [NAMES.epoch(1), NAMES.lease(1), NAMES.state("k", 1), f"logs/{NAME}"])
def test_a_damaged_small_object_is_a_clear_error_that_names_it(bucket: MemoryBucket, name: str) -> None:
    backend, epoch = take_over(bucket)
    assert backend.put_state(NAME, "k", b"x", version=0)
    assert backend.renew_lease(NAME, epoch=epoch, until=5)
    bucket.objects[name] = b"\xff{"
    fresh = opened(bucket)
    with pytest.raises(DamagedLogError, match="is damaged"):
        _ = (fresh.head(NAME), fresh.get_state(NAME, "k"))


def test_what_a_process_has_written_is_verified_and_copied_by_what_the_bucket_has() -> None:
    class CarelessBucket(MemoryBucket):
        """Confirms the bytes that it was sent, and stores others."""

        def create(self, name: str, data: bytes) -> bool:
            return super().create(name, data.replace(b"sound", b"wrong"))

    bucket, plain = CarelessBucket(VirtualClock()), LogSpec("other", compression="plain")
    bucket.put(RECORD, b"{}")
    memory = LogStore(MemoryBackend(VirtualClock()), VirtualClock())
    with LogStore(opened(bucket), VirtualClock()) as store, memory:
        source = memory.log(LogSpec(NAME))
        for log in (store.log(plain), source):
            with log.writer() as writer:
                writer.append([b"sound"])
        assert not store.log(plain).verify().ok
        with pytest.raises(DamagedLogError):
            copy_log(source, store.log(LogSpec(NAME, compression="plain")))


def test_a_state_whose_newest_versions_are_gone_is_a_clear_error(bucket: MemoryBucket) -> None:
    backend = opened(bucket)
    for version in range(BLOCK + 5):
        assert backend.put_state(NAME, "k", b"x", version=version)
    for version in range(BLOCK + 1, BLOCK + 6):
        del bucket.objects[NAMES.state("k", version)]
    counted = InterposedBucket(bucket)
    counted.begin(100, lambda: pytest.fail("too many requests"), loses=False)
    with pytest.raises(DamagedLogError, match=NAMES.state("k", BLOCK + 1)):
        opened(counted).get_state(NAME, "k")


def test_a_store_that_is_only_read_creates_nothing(bucket: MemoryBucket) -> None:
    before = dict(bucket.objects)
    backend = opened(bucket, read_only=True)
    assert backend.head(NAME).last_id == 0
    for change in (
        lambda: backend.create("other"),
        lambda: backend.take_lease(NAME, epoch=0, holder=b"x", until=1),
        lambda: backend.put_state(NAME, "k", b"", version=0),
        lambda: backend.reclaim(NAME, 1, max_bytes=1),
        lambda: backend.commit(NAME, commit(1, 1)),
    ):
        with pytest.raises(StorageReadOnlyError):
            change()
    assert bucket.objects == before
