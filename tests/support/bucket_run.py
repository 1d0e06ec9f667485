"""Writers, a trimmer and a reader of one log in a bucket, stepped request by request, while requests go wrong."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Protocol

from millstream.core.clock import VirtualClock
from millstream.log.backend import Commit
from millstream.log.backends.objects.backend import ObjectsBackend
from millstream.log.backends.objects.bucket import Bucket
from millstream.log.backends.objects.probe import RECORD
from millstream.log.errors import FencedError, StorageError
from millstream.log.watermarks import WATERMARKS, Watermarks, encode_watermarks
from millstream.testing.log_backends import NAME, block
from millstream.testing.object_bucket import FaultyBucket, RandomFaults
from support.bucket_chain import chain_blocks
from support.interposed_bucket import RecordingBucket
from support.stepped_processes import InlinePool, Process, SteppedBucket, run_stepped

PROCESSES = 4


class BucketPlace(Protocol):
    """A bucket, which a number of processes see through requests that go wrong."""

    @property
    def first(self) -> Mapping[str, bytes]:
        """The first object that was created under each name: that is the chain, whatever is deleted later."""
        ...

    @property
    def deleted(self) -> int:
        """How many objects were deleted."""
        ...

    def direct(self) -> Bucket:
        """The bucket, with all requests as they should be."""
        ...

    def process(self, index: int, seed: int, rate: float) -> Bucket:
        """The bucket as process *index* sees it: a share *rate* of its requests goes wrong, as *seed* says."""
        ...

    def settle(self) -> None:
        """All requests that are late are done now."""
        ...


class MemoryPlace:
    """A bucket in memory."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock, self._bucket = clock, RecordingBucket()
        self._faulty: list[FaultyBucket] = []

    @property
    def first(self) -> Mapping[str, bytes]:
        return self._bucket.first

    @property
    def deleted(self) -> int:
        return len(self._bucket.first) - len(self._bucket.objects)

    def direct(self) -> Bucket:
        return self._bucket

    def process(self, index: int, seed: int, rate: float) -> Bucket:
        self._faulty.append(FaultyBucket(self._bucket, RandomFaults(seed, rate), self._clock, delay=30))
        return self._faulty[-1]

    def settle(self) -> None:
        for faulty in self._faulty:
            faulty.settle()


class BucketRun:
    """One run in *place*: what was confirmed, and what was delivered, are compared with the chain."""

    def __init__(self, place: BucketPlace, clock: VirtualClock, seed: int, rate: float) -> None:
        self.place, self.clock, self.seed, self.rate = place, clock, seed, rate
        self.confirmed: list[Commit] = []
        self.delivered: dict[int, bytes] = {}
        self.serial = 0
        place.direct().put(RECORD, b"{}")
        self._open(place.direct()).create(NAME)

    def go(self, steps: int) -> None:
        """Let the processes make *steps* requests, and look at what has come of it."""
        works = (self.write, self.write, self.trim, self.read)
        assert len(works) == PROCESSES
        processes = [self._process(index, work) for index, work in enumerate(works)]
        run_stepped(processes, self.seed, steps)
        self.check()

    def _open(self, bucket: Bucket) -> ObjectsBackend:
        return ObjectsBackend(bucket, self.clock, pool=InlinePool(1))

    def _process(self, index: int, work: Callable[[Callable[[], ObjectsBackend], random.Random], None]) -> Process:
        stepped = SteppedBucket(self.place.process(index, self.seed * 10 + index, self.rate))
        draw = random.Random(self.seed * 10 + index)
        stepped.process = Process(work.__name__, lambda: work(lambda: self._open(stepped), draw))
        return stepped.process

    def write(self, open_backend: Callable[[], ObjectsBackend], draw: random.Random) -> None:
        """Take over, commit, and begin again, sometimes as a new process."""
        backend = open_backend()
        while True:
            if draw.random() < 0.3:
                backend = open_backend()
            try:
                self._write_in_one_epoch(backend, draw.randrange(1, 8))
            except (FencedError, StorageError):
                continue

    def _write_in_one_epoch(self, backend: ObjectsBackend, count: int) -> None:
        epoch = backend.head(NAME).epoch
        if not backend.take_lease(NAME, epoch=epoch, holder=b"somebody", until=10):
            return
        last_id = backend.head(NAME).last_id
        for _ in range(count):
            self.serial += 1
            bodies = [b"%d of %d" % (self.serial, epoch + 1)] * (1 + self.serial % 3)
            new = last_id + len(bodies)
            commit = Commit(
                epoch=epoch + 1,
                previous_id=last_id,
                last_id=new,
                received_at=self.serial,
                blocks=[block(last_id + 1, bodies, epoch=epoch + 1)],
                producer="p",
                sequence=self.serial,
            )
            backend.commit(NAME, commit)
            self.confirmed.append(commit)
            last_id = new

    def trim(self, open_backend: Callable[[], ObjectsBackend], draw: random.Random) -> None:
        """Trim what is older than some messages, again and again."""
        backend = open_backend()
        while True:
            try:
                head = backend.head(NAME)
                below = max(head.last_id + 1 - draw.randrange(8), head.first_id)
                state = backend.get_state(NAME, WATERMARKS)
                marks = encode_watermarks(Watermarks(below, below))
                if backend.put_state(NAME, WATERMARKS, marks, version=state.version):
                    backend.reclaim(NAME, below, max_bytes=draw.choice([1, 500, 1 << 20]))
            except StorageError:
                continue

    def read(self, open_backend: Callable[[], ObjectsBackend], draw: random.Random) -> None:
        """Read on from where it was, or from the beginning, sometimes as a new process."""
        backend, position = open_backend(), 1
        while True:
            if draw.random() < 0.3:
                backend, position = open_backend(), draw.choice([1, position])
            try:
                head = backend.head(NAME)
                assert head.first_id <= head.last_id + 1, "the marks lie beyond the end"
                for stored in backend.read(NAME, position, 2**62, max_bytes=draw.choice([1, 1 << 20])):
                    self._deliver(stored.first_id, stored.data)
                    position = stored.last_id + 1
            except StorageError:
                continue

    def _deliver(self, first_id: int, data: bytes) -> None:
        assert self.delivered.setdefault(first_id, data) == data, f"id {first_id} was delivered with two contents"

    def check(self) -> None:
        self.place.settle()
        blocks = chain_blocks(self.place.first)
        for commit in self.confirmed:
            made = commit.blocks[0]
            assert blocks.get(made.header.first_id) == made.data, f"seed {self.seed}: a confirmed commit is lost"
        for first_id, data in self.delivered.items():
            assert blocks.get(first_id) == data, f"seed {self.seed}: what is not in the log was delivered"
        fresh = self._open(self.place.direct())
        assert list(fresh.check(NAME)) == []
        last_id = fresh.head(NAME).last_id
        low = fresh.head(NAME).first_id
        expected = low
        for stored in fresh.read(NAME, low, 2**62, max_bytes=1 << 30):
            assert stored.first_id <= expected
            assert stored.data == blocks[stored.first_id]
            expected = stored.last_id + 1
        assert expected == max(last_id + 1, low)
        sequence = int(fresh.get_state(NAME, "producer/p").value or 0)
        assert sequence >= max((commit.sequence or 0 for commit in self.confirmed), default=0)
