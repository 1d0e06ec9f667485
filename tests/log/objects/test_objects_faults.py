"""Writers, a trimmer and readers of one log in a bucket, stepped request by request, while requests go wrong."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from millstream.core.clock import VirtualClock
from millstream.log.backend import Commit
from millstream.log.backends.objects.backend import ObjectsBackend
from millstream.log.backends.objects.commit_object import CommitObject, decode_commit
from millstream.log.backends.objects.names import LogNames, commit_number
from millstream.log.backends.objects.probe import RECORD
from millstream.log.errors import FencedError, StorageError
from millstream.log.watermarks import WATERMARKS, Watermarks, encode_watermarks
from millstream.testing.log_backends import NAME, block
from millstream.testing.object_bucket import FaultyBucket, MemoryBucket, RandomFaults
from suite.sizes import sized
from support.stepped_processes import InlinePool, Process, SteppedBucket, run_stepped

SEEDS = sized(quick=range(40), ci=range(400), long=range(20_000))
STEPS = 700


class RecordingBucket(MemoryBucket):
    """Keeps the first object that was created under each name: that is the chain, whatever is deleted later."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.first: dict[str, bytes] = {}

    def create(self, name: str, data: bytes) -> bool:
        made = super().create(name, data)
        if made:
            self.first.setdefault(name, data)
        return made


class Run:
    """One run: what was confirmed, and what was delivered, are compared with the chain."""

    def __init__(self, seed: int, rate: float) -> None:
        self.seed, self.rate = seed, rate
        self.clock = VirtualClock()
        self.bucket = RecordingBucket(self.clock)
        self.confirmed: list[Commit] = []
        self.delivered: dict[int, bytes] = {}
        self.faulty: list[FaultyBucket] = []
        self.serial = 0
        self.bucket.put(RECORD, b"{}")
        self._open(self.bucket).create(NAME)

    def go(self) -> None:
        works = (self.write, self.write, self.trim, self.read)
        processes = [self._process(index, work) for index, work in enumerate(works)]
        run_stepped(processes, self.seed, STEPS)
        self.check()

    def _open(self, bucket: object) -> ObjectsBackend:
        return ObjectsBackend(bucket, self.clock, pool=InlinePool(1))  # type: ignore[arg-type]

    def _process(self, index: int, work: Callable[[Callable[[], ObjectsBackend], random.Random], None]) -> Process:
        faults = RandomFaults(self.seed * 10 + index, self.rate)
        self.faulty.append(FaultyBucket(self.bucket, faults, self.clock, delay=30))
        stepped = SteppedBucket(self.faulty[-1])
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
        for faulty in self.faulty:
            faulty.settle()
        blocks = self.chain_blocks()
        for commit in self.confirmed:
            made = commit.blocks[0]
            assert blocks.get(made.header.first_id) == made.data, f"seed {self.seed}: a confirmed commit is lost"
        for first_id, data in self.delivered.items():
            assert blocks.get(first_id) == data, f"seed {self.seed}: what is not in the log was delivered"
        fresh = self._open(self.bucket)
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

    def chain_blocks(self) -> dict[int, bytes]:
        """The blocks of the chain by their first ids; the chain itself is checked."""
        blocks: dict[int, bytes] = {}
        before: CommitObject | None = None
        prefix = LogNames(NAME).commits
        for name in sorted(name for name in self.bucket.first if name.startswith(prefix)):
            data = self.bucket.first[name]
            commit = decode_commit(NAME, commit_number(name), data)
            if before is not None:
                assert (commit.head.previous, commit.head.number) == (before.digest, before.head.number + 1)
                assert (commit.head.previous_id, commit.head.epoch >= before.head.epoch) == (before.head.last_id, True)
            for entry in commit.head.blocks:
                start = commit.data_start + entry.offset
                blocks[entry.first_id] = data[start : start + entry.size]
            before = commit
        return blocks


@pytest.mark.parametrize("rate", [0.0, 0.1], ids=["without faults", "with faults"])
def test_p1_order_and_p2_durability_hold_for_writers_trimmers_and_readers_at_once(rate: float) -> None:
    confirmed = delivered = trimmed = 0
    for seed in SEEDS:
        run = Run(seed, rate)
        run.go()
        confirmed, delivered = confirmed + len(run.confirmed), delivered + len(run.delivered)
        trimmed += len(run.bucket.first) - len(run.bucket.objects)
    print(f"{confirmed} commits confirmed, {delivered} blocks delivered, {trimmed} objects deleted")
    assert min(confirmed, delivered, trimmed) > 3 * len(SEEDS)
