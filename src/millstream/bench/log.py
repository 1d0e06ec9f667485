"""The log on SQLite against a row a message in SQLite, equally durable: writing, reading, waiting for one message."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from millstream.bench.frame import Comparison, Contender, Sample, Size
from millstream.bench.loads import (
    POOL,
    SENDERS,
    BlockLog,
    Peer,
    bodies,
    check_columns,
    check_ids,
    send,
    timed,
    waits,
)
from millstream.bench.rows import MOST_ROWS, RowLog
from millstream.core.clock import Clock, SystemClock

POOLS = {4: 8, 100: 4, 1000: 1}
"""For each payload how many times :data:`POOL` messages the small size moves; the full size moves ten times as many."""

ROWS, BLOCKS = "row a message", "millstream"


def comparisons(size: Size, folder: Path) -> Iterator[Comparison]:
    """Writing and reading at three payloads, single messages, and the wait for a lone one."""
    bench = LogBench(folder, SystemClock())
    scale = 10 if size == "full" else 1
    for payload, pools in POOLS.items():
        pool = bodies(payload)
        yield bench.write_packs(payload, pool, 200, 200_000 * scale if payload < 1000 else 40_000 * scale)
        yield bench.write_batches(payload, pool, pools * scale)
        yield bench.read(payload, pool, pools * scale)
    yield bench.write_packs(4, bodies(4), 1, 2_000 * scale)
    yield bench.wait(200 * scale)


class LogBench:
    """Makes the comparisons; each run works on a file of its own in *folder*."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._numbers = itertools.count()

    def write_packs(self, payload: int, pool: Sequence[bytes], pack: int, total: int) -> Comparison:
        """Many senders, each of which waits for its pack."""
        packs = [pool[start : start + pack] for start in range(0, min(POOL, 1000 * pack) - pack, pack)]
        turns = total // pack // SENDERS
        total = turns * SENDERS * pack

        def run(kind: Callable[[Path], Peer]) -> Sample:
            with self._peer(kind) as (peer, path):
                sample = timed(lambda: send(peer.append, packs, turns), total, path, self._clock)
                check_ids(peer.messages(), total)
                return sample

        return Comparison(
            f"Write, {payload:,} B, packs of {pack}",
            "messages/s",
            f"{SENDERS} threads, each waits until its pack is durable (fsync); {total:,} messages, all read back.",
            [Contender(ROWS, lambda: run(RowLog)), Contender(BLOCKS, lambda: run(BlockLog))],
        )

    def write_batches(self, payload: int, pool: Sequence[bytes], pools: int) -> Comparison:
        """One sender with as much as each contender likes at once."""
        lists = [pool[start : start + MOST_ROWS] for start in range(0, POOL, MOST_ROWS)]
        batch = pa.RecordBatch.from_arrays([pa.array(pool, pa.binary())], names=["body"])

        def run(kind: Callable[[Path], Peer], batches: Sequence[Sequence[bytes]]) -> Sample:
            with self._peer(kind) as (peer, path):
                sample = timed(lambda: [peer.append(b) for b in batches], pools * POOL, path, self._clock)
                check_ids(peer.messages(), pools * POOL)
                return sample

        return Comparison(
            f"Write, {payload:,} B, one sender, large batches",
            "messages/s",
            f"Each batch is durable (fsync) before the next; {pools * POOL:,} messages, all read back.",
            [
                Contender(f"{ROWS}, lists of {MOST_ROWS:,}", lambda: run(RowLog, lists * pools)),
                Contender(f"{BLOCKS}, lists of {MOST_ROWS:,}", lambda: run(BlockLog, lists * pools)),
                Contender(f"{BLOCKS}, Arrow of {POOL:,}", lambda: run(BlockLog, [batch] * pools)),
            ],
        )

    def read(self, payload: int, pool: Sequence[bytes], pools: int) -> Comparison:
        """One reader that sees every message and acknowledges it."""
        total = pools * POOL

        def run(kind: Callable[[Path], Peer], read: Callable[..., object]) -> Sample:
            with self._peer(kind) as (peer, path):
                for _ in range(pools):
                    peer.append(pool)
                return timed(lambda: read(peer), total, path, self._clock)

        def one_by_one(peer: Peer) -> None:
            check_ids(peer.messages(), total)

        def arrow(peer: BlockLog) -> None:
            check_columns(peer.columns(), total)

        return Comparison(
            f"Read, {payload:,} B",
            "messages/s",
            f"{total:,} messages in order, their ids checked, acknowledged batch by batch; all columns decoded.",
            [
                Contender(f"{ROWS}, one by one", lambda: run(RowLog, one_by_one)),
                Contender(f"{BLOCKS}, one by one", lambda: run(BlockLog, one_by_one)),
                Contender(f"{BLOCKS}, Arrow", lambda: run(BlockLog, arrow)),
            ],
        )

    def wait(self, turns: int) -> Comparison:
        """One sender of one message at a time."""

        def run(kind: Callable[[Path], Peer]) -> Sample:
            with self._peer(kind) as (peer, _):
                return waits(peer.append, turns, self._clock)

        return Comparison(
            "Wait for a lone message",
            "ms",
            f"One thread sends 4 B, waits until durable (fsync), and so on; median of {turns:,}. Less is better.",
            [Contender(ROWS, lambda: run(RowLog)), Contender(BLOCKS, lambda: run(BlockLog))],
        )

    @contextlib.contextmanager
    def _peer(self, kind: Callable[[Path], Peer]) -> Iterator[tuple[Peer, Path]]:
        path = self._folder / f"{next(self._numbers)}.db"
        peer = kind(path)
        try:
            yield peer, path
        finally:
            peer.close()
            for file in self._folder.glob(f"{path.name}*"):
                file.unlink()
