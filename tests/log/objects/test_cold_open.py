"""A process that opens a log in a bucket makes few requests, many side by side, and keeps little in memory."""

from __future__ import annotations

import threading
import tracemalloc

import pytest

from millstream.core.clock import VirtualClock
from millstream.log import LogSpec, LogStore
from millstream.log.backend import BlockStatistics, Commit
from millstream.log.backends.objects.backend import ObjectsBackend
from millstream.log.backends.objects.commit_columns import CommitColumns, CommitRecord
from millstream.log.backends.objects.probe import RECORD
from millstream.log.tiering import Compaction
from millstream.testing.log_backends import NAME, block
from millstream.testing.object_bucket import MemoryBucket


class CountingBucket(MemoryBucket):
    """Answers requests for commits only when as many are under way as *meeting* asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.put(RECORD, b"{}")
        self.meeting: threading.Barrier | None = None

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        data = super().get(name, start, length)
        if self.meeting is not None and "/commits/" in name and data is not None:
            self.meeting.wait(timeout=10)
        return data


@pytest.fixture
def bucket() -> CountingBucket:
    return CountingBucket()


def write(bucket: MemoryBucket, first: int, last: int) -> None:
    """Commits with one message each."""
    backend = ObjectsBackend(bucket, VirtualClock())
    if first == 1:
        backend.create(NAME)
    epoch = backend.head(NAME).epoch
    assert backend.take_lease(NAME, epoch=epoch, holder=b"", until=1)
    for last_id in range(first, last + 1):
        blocks = [block(last_id, [b"x"], epoch=epoch + 1)]
        backend.commit(
            NAME, Commit(epoch=epoch + 1, previous_id=last_id - 1, last_id=last_id, received_at=last_id, blocks=blocks)
        )
    backend.close()


def test_a_cold_open_takes_a_get_a_commit_and_few_others(bucket: CountingBucket) -> None:
    write(bucket, 1, 600)
    bucket.requests.clear()
    backend = ObjectsBackend(bucket, VirtualClock())
    assert backend.head(NAME).last_id == 600
    assert bucket.requests["list"] == 1
    assert bucket.requests["get"] <= 601 + 15
    backend.close()


def test_a_cold_open_of_a_compacted_log_does_not_grow_with_it(bucket: CountingBucket) -> None:
    clock, requests = VirtualClock(), []
    for first in range(1, 1500, 500):
        write(bucket, first, first + 499)
        with LogStore(ObjectsBackend(bucket, clock), clock, compaction=Compaction(commits=100)) as store:
            store.log(LogSpec(NAME), create=False).compact()
        bucket.requests.clear()
        with LogStore(ObjectsBackend(bucket, clock), clock) as store:
            assert store.log(LogSpec(NAME), create=False).last_id == first + 499
        requests.append(sum(bucket.requests.values()))
    assert max(requests) < 120
    assert requests[2] < requests[1] + 20


def test_a_cold_open_reads_many_commits_side_by_side(bucket: CountingBucket) -> None:
    write(bucket, 1, 255)
    bucket.meeting = threading.Barrier(16)  # breaks, unless sixteen are under way at once
    backend = ObjectsBackend(bucket, VirtualClock())
    assert backend.head(NAME).last_id == 255
    backend.close()


def test_a_follower_that_is_far_behind_reads_more_and_more_side_by_side(bucket: CountingBucket) -> None:
    write(bucket, 1, 1)
    follower = ObjectsBackend(bucket, VirtualClock())
    assert follower.head(NAME).last_id == 1
    write(bucket, 2, 300)
    bucket.requests.clear()
    assert follower.head(NAME).last_id == 300
    assert "list" not in bucket.requests
    assert bucket.requests["get"] < 300 + 64 + 30
    follower.close()


def test_a_commit_takes_little_memory() -> None:
    sums = BlockStatistics(1, 1, 1, 1, 100, 1 << 50, 1 << 50, 1 << 50, 1 << 50)
    tracemalloc.start()
    try:
        columns = CommitColumns(1, 0)
        for number in range(1, 20_001):
            digest = number.to_bytes(32, "big")
            columns.add(CommitRecord(number, 1, number - 1, number, 1 << 50, digest, "producer", number, sums))
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used / 20_000 < 250
    columns.drop(19_000)
    record = columns.record(5)
    assert (record.number, record.previous_id, record.last_id) == (19_006, 19_005, 19_006)
    assert (record.digest, record.sequence) == ((19_006).to_bytes(32, "big"), 19_006)
    assert (columns.find(19_006), len(columns)) == (5, 1000)


def test_what_was_compacted_is_no_gap_for_one_that_still_has_its_neighbours(
    bucket: CountingBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(bucket, 1, 200)
    clock = VirtualClock()
    with LogStore(ObjectsBackend(bucket, clock), clock) as store:
        log = store.log(LogSpec(NAME), create=False)
        assert log.last_id == 200
        monkeypatch.setattr("millstream.log.backends.objects.commit_reader._HEADS", 150)
        log._backend.hot._log(NAME).reader._heads.popitem(last=False)  # type: ignore[attr-defined]
        for number in range(80, 120):
            log._backend.hot._log(NAME).reader._heads.pop(number)  # type: ignore[attr-defined]
        with LogStore(ObjectsBackend(bucket, clock), clock, compaction=Compaction(commits=100)) as others:
            assert others.log(LogSpec(NAME), create=False).compact().objects == 1
        backend = log._backend.hot
        found = backend.read(NAME, 1, 200, max_bytes=1 << 30)
        assert [each.first_id for each in found] == list(range(found[0].first_id, 201))
        assert [message.id for batch in log.read() for message in batch] == list(range(1, 201))
