"""The work that the benchmarks of the log give to their contenders, and how it is timed and checked."""

from __future__ import annotations

import random
import statistics
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Protocol

import msgspec
import pyarrow as pa

from millstream.bench.frame import Sample
from millstream.core.clock import Clock
from millstream.log import LogSpec, open_store

SENDERS = 8
POOL = 65_536


class Peer(Protocol):
    """A log of bodies with the ids 1, 2, 3 …"""

    def append(self, bodies: Sequence[bytes]) -> object:
        """Store *bodies* and return once they are durable."""
        ...

    def messages(self) -> Iterator[tuple[int, bytes]]:
        """All of them in order, acknowledged part by part."""
        ...

    def close(self) -> None: ...


class StoreLog:
    """Our log *name* in the store at *url*, as a peer."""

    def __init__(self, url: str, name: str = "bench") -> None:
        self._store = open_store(url)
        self._log = self._store.log(LogSpec(name))
        self._writer = self._log.writer()

    def append(self, bodies: Sequence[bytes] | pa.RecordBatch) -> object:
        """Store *bodies* and return once they are durable."""
        return self._writer.append(bodies)

    def messages(self) -> Iterator[tuple[int, bytes]]:
        """All of them in order, acknowledged batch by batch."""
        with self._log.reader("bench") as reader:
            for batch in reader.batches():
                for message in batch:
                    yield message.id, message.body
                reader.ack(batch.ids)

    def follow(self, total: int) -> Iterator[tuple[int, bytes]]:
        """The first *total* messages as they come in, acknowledged batch by batch."""
        with self._log.reader("follower") as reader:
            for batch in reader.batches(follow=True):
                for message in batch:
                    yield message.id, message.body
                reader.ack(batch.ids)
                if batch.last_id >= total:
                    return

    def columns(self) -> Iterator[pa.RecordBatch]:
        """All of them in order as Arrow, acknowledged batch by batch."""
        with self._log.reader("bench") as reader:
            for batch in reader.batches():
                yield batch.arrow
                reader.ack(batch.ids)

    def close(self) -> None:
        """Let go of the log."""
        self._writer.close()
        self._store.close()


class BlockLog(StoreLog):
    """Our log in SQLite, as a peer."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"sqlite:///{path}")


class SegmentLog(StoreLog):
    """Our log in segment files, as a peer."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"segments:///{path}")


def bodies(payload: int) -> list[bytes]:
    """:data:`POOL` bodies of *payload* bytes: the word "test" for 4, else records like JSON, no two alike."""
    if payload == 4:
        return [b"test"] * POOL
    draw = random.Random(payload)
    return [_record(draw, number, payload) for number in range(POOL)]


def send(
    append: Callable[[Sequence[bytes]], object],
    packs: Sequence[Sequence[bytes]],
    turns: int,
    *,
    senders: int = SENDERS,
) -> None:
    """Let *senders* threads append *turns* packs each, each waiting for one before it sends the next."""

    def sender(number: int) -> None:
        for turn in range(turns):
            append(packs[(number + turn * senders) % len(packs)])

    threads = [threading.Thread(target=sender, args=(number,)) for number in range(senders)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def timed(work: Callable[[], object], count: int, path: Path, clock: Clock) -> Sample:
    """How many of *count* messages a second *work* does, the CPU it takes, and the bytes on disk at *path* then."""
    cpu, begin = cpu_seconds(), clock.monotonic()
    work()
    seconds, cpu = clock.monotonic() - begin, cpu_seconds() - cpu
    size = sum(
        file.stat().st_size for file in [path.with_name(f"{path.name}-wal"), path, *path.rglob("*")] if file.is_file()
    )
    return Sample(count / seconds, {"CPU µs/message": cpu / count * 1e6, "bytes on disk/message": size / count})


def waits(append: Callable[[Sequence[bytes]], object], turns: int, clock: Clock) -> Sample:
    """How many milliseconds a lone message waits until it is durable: the median of *turns*."""
    taken = []
    for _ in range(turns):
        begin = clock.monotonic()
        append([b"test"])
        taken.append((clock.monotonic() - begin) * 1000)
    return Sample(statistics.median(taken), {"p99 ms": statistics.quantiles(taken, n=100)[98]})


def check_ids(messages: Iterator[tuple[int, bytes]], total: int) -> None:
    """Read *messages* to the end; raises where an id is missing, repeated or out of order."""
    expected = 1
    for number, _ in messages:
        if number != expected:
            raise AssertionError(f"id {number} where {expected} was expected")
        expected += 1
    if expected != total + 1:
        raise AssertionError(f"{expected - 1} messages where {total} were written")


def check_columns(columns: Iterator[pa.RecordBatch], total: int) -> None:
    """Read *columns* to the end; raises where ids do not begin at 1, are not dense, or do not end at *total*."""
    last = 0
    for batch in columns:
        ids = batch.column("id")
        if (ids[0].as_py(), ids[-1].as_py()) != (last + 1, last + len(ids)):
            raise AssertionError(f"ids {ids[0]} to {ids[-1]} where {last + 1} was expected")
        last += len(ids)
    if last != total:
        raise AssertionError(f"{last} messages where {total} were written")


def _record(draw: random.Random, number: int, payload: int) -> bytes:
    text = b""
    while len(text) < payload:
        delay, checksum = round(draw.gauss(10, 30), 3), draw.getrandbits(62)
        text += msgspec.json.encode({"id": number, "from": draw.choice("JLEBO"), "delay": delay, "hash": checksum})
    return text[:payload]


def cpu_seconds() -> float:
    """The CPU seconds that this process has used."""
    usage = getrusage(RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
