"""The cost per message as a log grows: writing, moving to objects, reading back and checking, trimming."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.bench.log.meter import memory_mib, read_meter
from millstream.bench.runner import Comparison, Contender, Measurement, Size
from millstream.core.clock import Clock, SystemClock
from millstream.core.errors import InputError
from millstream.log import Gap, LogSpec, Tiering
from millstream.stores.tiers import open_log_store

ROUNDS = 1
"""The logs grow from one size to the next, so there is one round."""

BATCH = 65_536
STORES = ("segments", "sqlite")
_UP_TO = {"quick": "2e5", "small": "1e7", "full": "1e9"}
_FIRST = {"quick": 10**5, "small": 10**6, "full": 10**6}
_SPEC = LogSpec("flat")
_OFFSETS = pa.py_buffer(np.arange(BATCH + 1, dtype=np.int32) * np.int32(4))


def comparisons(
    size: Size, folder: Path, *, up_to: str | None = None, stores: str | None = None
) -> Iterator[Comparison]:
    """A comparison at each power of ten up to *up_to* messages, of logs in *stores*."""
    names = [name.strip() for name in (stores or "segments").split(",")]
    if not set(names) <= set(STORES):
        raise InputError(f"--stores: invalid value {stores!r}: choose from {', '.join(STORES)}")
    with contextlib.ExitStack() as opened:
        growing = {name: GrowingLog(name, folder, _FIRST[size], SystemClock()) for name in names}
        for growth in growing.values():
            opened.callback(growth.close)
        for target in _targets(_FIRST[size], up_to or _UP_TO[size]):
            contenders = [
                Contender(f"millstream, {name}", functools.partial(growth.grow, target))
                for name, growth in growing.items()
            ]
            yield Comparison(f"Up to {target:,} messages", "ns/message written", _conditions(), contenders)


def _targets(first: int, up_to: str) -> list[int]:
    try:
        last = int(float(up_to))
    except (ValueError, OverflowError) as error:
        raise InputError(f"--up-to: invalid value {up_to!r}: write a number of messages, such as 1e8") from error
    if not first <= last <= 10**12:
        raise InputError(f"--up-to: {last:,} messages is out of range: use {first:,} to 1,000,000,000,000")
    powers = [10**exponent for exponent in range(round(math.log10(first)), 13) if 10**exponent < last]
    return [*powers, last]


def _conditions() -> str:
    return (
        f"Messages have 4 B and contain their number. Record batches have {BATCH:,} messages, and each is durable "
        "before the next one is sent. Written messages are moved to sealed objects (files that never change) in a "
        "folder, and verified there. Then they are read back through the log, which checks every id and body, and the "
        "oldest messages are trimmed, so that about as many remain as in the first size. Times per message are for the "
        "messages since the previous size; the other figures are those at this size."
    )


class GrowingLog:
    """One log that grows, in files below *folder*, and keeps about *kept* messages."""

    def __init__(self, name: str, folder: Path, kept: int, clock: Clock) -> None:
        self._folder = folder / name
        self._folder.mkdir()
        suffix = "/log.db" if name == "sqlite" else "/log"
        self._url = f"{name}:///{self._folder}{suffix}"
        self._kept = kept
        self._clock = clock
        self._store = open_log_store(self._url)
        self._log = self._store.log(_SPEC)
        self._log.set_tiering(Tiering(f"file:///{self._folder}/objects", segment_bytes=32 << 20))
        self._writer = self._log.writer()
        self._costs: list[tuple[float, float]] = []

    def grow(self, target: int) -> Measurement:
        """Let the log have at least *target* messages, and say what those cost that it did not have before."""
        begin = last = self._log.last_id
        written = moved = read = cpu = 0.0
        while last < target:
            step = min(last + max(self._kept, BATCH), target + BATCH - 1) // BATCH * BATCH
            started, used = self._clock.monotonic(), read_meter(()).cpu
            for first in range(last + 1, step + 1, BATCH):
                self._writer.append(_batch(first))
            now = self._clock.monotonic()
            written, cpu = written + now - started, cpu + read_meter(()).cpu - used
            self._log.move_blocks()
            started, now = now, self._clock.monotonic()
            moved += now - started
            self._check(last + 1, step)
            read += self._clock.monotonic() - now
            self._log.trim(max(step - self._kept, 1))
            last = step
        count = last - begin
        self._costs.append((math.log10(last), math.log10(written / count)))
        writer, reader = self._start_up()
        figures = {
            "CPU ns/message written": cpu / count * 1e9,
            "moved ns/message": moved / count * 1e9,
            "read ns/message": read / count * 1e9,
            "client RSS, MiB": memory_mib(),
            "writer starts in ms": writer * 1000,
            "reader starts in ms": reader * 1000,
            "MiB on disk": sum(path.stat().st_size for path in self._folder.rglob("*") if path.is_file()) / 2**20,
            "slope": _slope(self._costs),
        }
        return Measurement(written / count * 1e9, figures)

    def close(self) -> None:
        """Close the log and its store."""
        self._writer.close()
        self._store.close()

    def _check(self, first: int, last: int) -> None:
        expected = first
        for batch in self._log.read(first, last, columns=["id", "body"]):
            if isinstance(batch, Gap):
                raise batch.error
            ids, body = batch.arrow.column("id").to_numpy(), batch.arrow.column("body")
            numbers = np.frombuffer(body.buffers()[2], "<u4")[body.offset : body.offset + len(body)]
            if ids[0] != expected or (np.diff(ids) != 1).any() or (numbers != ids.astype("<u4")).any():
                raise AssertionError(f"messages {ids[0]} to {ids[-1]} of {self._url} differ from what was written")
            expected = int(ids[-1]) + 1
        if expected != last + 1:
            raise AssertionError(f"reading {self._url} ended at message {expected - 1}, expected {last}")

    def _start_up(self) -> tuple[float, float]:
        """How many seconds a writer, and a reader of the end, take to open the store and the log anew."""
        self.close()
        begin = self._clock.monotonic()
        self._store = open_log_store(self._url)
        self._log = self._store.log(_SPEC)
        self._writer = self._log.writer()
        middle = self._clock.monotonic()
        with open_log_store(self._url, read_only=True) as store:
            log = store.log(_SPEC, create=False)
            for batch in log.read(max(log.last_id - 1000, 1)):
                assert len(batch.arrow)
        return middle - begin, self._clock.monotonic() - middle


def _batch(first: int) -> pa.RecordBatch:
    numbers: npt.NDArray[np.uint32] = np.arange(first, first + BATCH).astype("<u4")
    body = pa.Array.from_buffers(pa.binary(), BATCH, [None, _OFFSETS, pa.py_buffer(numbers)])
    return pa.RecordBatch.from_arrays([body], names=["body"])


def _slope(points: list[tuple[float, float]]) -> float:
    """By which power of the log's size the cost of a message has grown so far; 0 is flat."""
    if len(points) < 2:
        return 0.0
    sizes, costs = zip(*points, strict=True)
    return float(np.polyfit(sizes, costs, 1)[0])
