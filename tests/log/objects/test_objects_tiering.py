"""A log in a bucket, whose older commits are merged into large objects by tiering; and readers that follow it."""

from __future__ import annotations

import threading

import pytest

from millstream.core.clock import SystemClock, VirtualClock
from millstream.log import LogSpec, LogStore, Tiering
from millstream.log.backends.objects.backend import ObjectsBackend
from millstream.log.backends.objects.probe import RECORD
from millstream.log.reading.reader import ACK_SECONDS, PollPauses
from millstream.stores.memory import MemoryStore
from millstream.stores.tiers import TierSpace
from millstream.testing.object_bucket import MemoryBucket

SPEC = LogSpec("weather", compression="plain")


@pytest.fixture
def bucket() -> MemoryBucket:
    """A bucket that counts as probed."""
    bucket = MemoryBucket()
    bucket.put(RECORD, b"{}")
    return bucket


def commits(bucket: MemoryBucket) -> int:
    return len([name for name in bucket.objects if "/commits/" in name])


def test_tiering_merges_small_commits_into_large_objects(bucket: MemoryBucket) -> None:
    tier = TierSpace(MemoryStore("tier"))

    def opened() -> LogStore:
        return LogStore(ObjectsBackend(bucket, SystemClock()), SystemClock(), open_objects=lambda _: tier)

    with opened() as store, store.log(SPEC).writer() as writer:
        for first in range(1, 2000, 10):
            writer.append([b"%0600d" % number for number in range(first, first + 10)])
        assert commits(bucket) == 201
        store.log(SPEC).set_tiering(Tiering("memory://tier", segment_bytes=1 << 20))
        moved = store.log(SPEC).move_blocks()
        assert moved.objects == 1
        assert commits(bucket) < 40
        writer.append([b"%0600d" % number for number in range(2001, 2011)])
    with opened() as store:
        log = store.log(SPEC)
        found = [message for batch in log.read() for message in batch]
        assert [message.id for message in found] == list(range(1, 2011))
        assert all(message.body == b"%0600d" % (message.id or 0) for message in found)
        assert (log.verify(deep=True).problems, log.verify(deep=True).messages) == ((), 2010)


def test_a_log_is_opened_with_few_requests_one_after_the_other(bucket: MemoryBucket) -> None:
    with LogStore(ObjectsBackend(bucket, SystemClock()), SystemClock()) as store, store.log(SPEC).writer() as writer:
        for number in range(300):
            writer.append([b"%d" % number])
    bucket.requests.clear()
    backend = ObjectsBackend(bucket, SystemClock())
    assert backend.head("weather").last_id == 300
    assert bucket.requests["list"] <= 2
    assert bucket.requests["get"] < 301 + 20
    bucket.requests.clear()
    assert len(backend.read("weather", 1, 300, max_bytes=1 << 30)) == 300
    assert bucket.requests == {}  # what is small came with the heads
    backend.close()


def test_the_kinds_of_many_logs_are_read_side_by_side(bucket: MemoryBucket) -> None:
    class Meeting(MemoryBucket):
        """Answers requests for logs only when eight of them are under way."""

        def __init__(self, objects: dict[str, bytes]) -> None:
            super().__init__()
            self.objects = objects
            self._eight = threading.Barrier(8, timeout=10)

        def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
            if name.startswith("logs/"):
                self._eight.wait()
            return super().get(name, start, length)

    backend = ObjectsBackend(bucket, SystemClock())
    for number in range(8):
        backend.create(f"log-{number}", kind="topic")
    backend.close()
    backend = ObjectsBackend(Meeting(bucket.objects), SystemClock())
    assert backend.kinds() == {f"log-{number}": "topic" for number in range(8)}
    backend.close()


def test_a_follower_and_its_acknowledgements_ask_a_bucket_less_often() -> None:
    near, far = PollPauses(), PollPauses(0.1)
    assert [round(near.next(), 3) for _ in range(8)] == [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.05, 0.05]
    assert [far.next() for _ in range(5)] == [0.1, 0.2, 0.4, 0.5, 0.5]
    clock, bucket = VirtualClock(), MemoryBucket()
    bucket.put(RECORD, b"{}")
    with LogStore(ObjectsBackend(bucket, clock), clock, min_linger=0.1) as store:
        log = store.log(SPEC)
        with log.writer() as writer:
            writer.append_nowait([b"x"])
        with log.reader("me") as reader:
            before = bucket.requests["create"]
            for batch in reader.batches():
                reader.ack(batch.ids)
            clock.advance(ACK_SECONDS)
            assert bucket.requests["create"] == before
