"""The runs: what one contender does once, timed and checked."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import statistics
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa

from millstream.bench.log.contenders import contender, open_ours, open_receiver, open_sender
from millstream.bench.log.load import POOL, bodies, packs_of, send, send_ahead
from millstream.bench.log.meter import memory_mib, read_meter
from millstream.bench.log.options import Choice
from millstream.bench.log.ours import IN_MEMORY, OurReceiver, OurSender
from millstream.bench.log.protocol import QueueLocation
from millstream.bench.log.read_check import ReadCheck, ReadCheckError, drain
from millstream.bench.log.reader_process import ReaderProcess
from millstream.bench.log.server_cleanup import clear
from millstream.bench.log.servers import Servers
from millstream.bench.runner import Measurement
from millstream.core.clock import Clock
from millstream.testing.object_bucket import MemoryBucket

READ, ARROW, BODIES = "read messages/s", "read Arrow messages/s", "read Arrow bodies/s"


class LogRuns:
    """Does the runs of *choice*, each in a queue of its own."""

    def __init__(self, choice: Choice, servers: Servers, folder: Path, clock: Clock) -> None:
        self._choice = choice
        self._servers = servers
        self._folder = folder
        self._clock = clock
        self._numbers = itertools.count(1)
        self._pools: dict[int, list[bytes]] = {}

    def alone(self, name: str, payload: int, pack: int) -> Measurement:
        """Write, then read message by message what was written, then, where it is ours, as Arrow."""
        place, packs = self._place(name), packs_of(self._pool(payload), pack)
        load = self._load(name, payload, pack)
        total = load[0] * load[1] * pack
        with contextlib.closing(open_sender(place)) as sender:
            before = read_meter(self._processes(name))
            sent = send(sender, packs, load, self._choice.kind, self._clock)
            after, memory = read_meter(self._processes(name)), memory_mib()
            figures = {
                **after.figures(before, total, has_server=bool(contender(name).server)),
                "p50 ms": sent.percentile(50),
                "p99 ms": sent.percentile(99),
                "client RSS, MiB": memory,
                "senders": float(load[0]),
            }
            with contextlib.closing(open_receiver(place)) as receiver:
                seen = ReadCheck(payload)
                begin = self._clock.monotonic()
                seen.add_all(receiver.follow(total))
                figures[READ] = total / (self._clock.monotonic() - begin)
                seen.expect(sent, packs)
        self._remove(place)
        return Measurement(total / sent.seconds, figures)

    def ahead(self, name: str, payload: int, pack: int) -> Measurement:
        """Write, where each sender has several packs under way; then read message by message what was written."""
        place, packs = self._place(name), packs_of(self._pool(payload), pack, POOL)
        load, ahead = self._load_ahead(name, payload, pack), self._choice.unconfirmed
        total = load[0] * load[1] * pack
        with contextlib.closing(OurSender(place)) as sender:
            before, asked = read_meter(self._processes(name)), sender.usage
            sent = send_ahead(sender, packs, load, ahead, self._clock)
            figures = {
                **read_meter(self._processes(name)).figures(before, total, has_server=bool(contender(name).server)),
                **({} if sender.bucket is None else sender.usage.figures(asked, total)),
                "p50 ms": sent.percentile(50),
                "p99 ms": sent.percentile(99),
            }
            with contextlib.closing(OurReceiver(place)) as receiver:
                seen = ReadCheck(payload)
                begin = self._clock.monotonic()
                seen.add_all(receiver.follow(total))
                figures[READ] = total / (self._clock.monotonic() - begin)
                seen.expect(sent, packs)
        self._remove(place)
        return Measurement(total / sent.seconds, figures)

    def both(self, name: str, payload: int, pack: int) -> Measurement:
        """Write, and read message by message at the same time in a thread of the same process."""
        place, packs = self._place(name), packs_of(self._pool(payload), pack)
        load = self._load(name, payload, pack)
        total = load[0] * load[1] * pack
        seen = ReadCheck(payload)
        with (
            contextlib.closing(open_sender(place)) as sender,
            contextlib.closing(open_receiver(place)) as receiver,
        ):

            def follow() -> float:
                seen.add_all(receiver.follow(total))
                return self._clock.monotonic()

            with ThreadPoolExecutor(1) as thread:
                before, begin = read_meter(()), self._clock.monotonic()
                end = thread.submit(follow)
                sent = send(sender, packs, load, self._choice.kind, self._clock)
                seconds = end.result() - begin
            cpu = read_meter(()).cpu - before.cpu
            seen.expect(sent, packs)
        self._remove(place)
        return Measurement(total / sent.seconds, {READ: total / seconds, "CPU µs/message": cpu / total * 1e6})

    def two_processes(self, name: str, payload: int, pack: int) -> Measurement:
        """Write, and read message by message at the same time in another process."""
        place, packs = self._place(name), packs_of(self._pool(payload), pack)
        load = self._load(name, payload, pack)
        total = load[0] * load[1] * pack
        with contextlib.closing(open_sender(place)) as sender:
            follower = ReaderProcess(place, payload, total)
            begin = self._clock.monotonic()
            follower.start()
            sent = send(sender, packs, load, self._choice.kind, self._clock)
            seen = follower.result()
            seconds = self._clock.monotonic() - begin
            seen.expect(sent, packs)
        self._remove(place)
        return Measurement(total / sent.seconds, {READ: total / seconds})

    def arrow(self, name: str, payload: int) -> Measurement:
        """One sender with Arrow batches, each durable before the next; then all of it read as Arrow."""
        place, pool = self._place(name), self._pool(payload)
        batch = pa.RecordBatch.from_arrays([pa.array(pool, pa.binary())], names=["body"])
        batches = max(round(10 * contender(name).rate(payload) * self._choice.seconds / POOL), 1)
        total = batches * POOL
        sender, receiver = open_ours(place)
        with contextlib.closing(sender), contextlib.closing(receiver):
            before, begin = read_meter(()), self._clock.monotonic()
            for _ in range(batches):
                sender.append(batch)
            seconds, cpu = self._clock.monotonic() - begin, read_meter(()).cpu - before.cpu
            figures = {"CPU µs/message": cpu / total * 1e6}
            for figure, columns in ((ARROW, None), (BODIES, ["body"])):
                begin = self._clock.monotonic()
                drain(receiver.columns(columns), total)
                figures[figure] = total / (self._clock.monotonic() - begin)
            self._verify(receiver.columns(["id", "body"]), payload, batches)
        self._remove(place)
        return Measurement(total / seconds, figures)

    def lone(self, name: str, turns: int) -> Measurement:
        """One sender of one message of 4 bytes at a time: the median wait, in milliseconds."""
        place = self._place(name)
        taken = []
        with contextlib.closing(open_sender(place)) as sender:
            for _ in range(turns):
                begin = self._clock.monotonic()
                sender.append([b"test"])
                taken.append((self._clock.monotonic() - begin) * 1000)
        self._remove(place)
        return Measurement(
            statistics.median(taken), {"p99 ms": statistics.quantiles(taken, n=100, method="inclusive")[98]}
        )

    def _verify(self, columns: Iterator[pa.RecordBatch], payload: int, batches: int) -> None:
        seen, expected = ReadCheck(payload), ReadCheck(payload)
        seen.add_columns(columns)
        body = pa.array(self._pool(payload), pa.binary())
        starts = range(1, batches * POOL, POOL)
        sent = (pa.record_batch([np.arange(start, start + POOL), body], names=["id", "body"]) for start in starts)
        expected.add_columns(sent)
        if (seen.last_id, seen.crc) != (expected.last_id, expected.crc):
            raise ReadCheckError(
                f"{seen.last_id:,} messages with the checksum {seen.crc:08x} were read as Arrow batches, but "
                f"{expected.last_id:,} with the checksum {expected.crc:08x} were written"
            )

    def _load(self, name: str, payload: int, pack: int) -> tuple[int, int]:
        rate = contender(name).rate(payload)
        return self._choice.load(rate * min(pack, 200) / 200 if pack < 200 else rate, pack)

    def _load_ahead(self, name: str, payload: int, pack: int) -> tuple[int, int]:
        """All senders, each of which fills what it may have under way twice at least."""
        rate = min(contender(name).rate(payload), 2e5 if pack < 10 else 1e6)
        senders, turns = self._choice.load(rate, pack)
        if self._choice.seconds < 1:
            return senders, turns
        return self._choice.senders, max(
            round(rate * self._choice.seconds / pack / self._choice.senders), 2 * self._choice.unconfirmed // pack
        )

    def _pool(self, payload: int) -> list[bytes]:
        if payload not in self._pools:
            self._pools[payload] = bodies(payload)
        return self._pools[payload]

    def _processes(self, name: str) -> tuple[int, ...]:
        server = contender(name).server
        return self._servers.get(server).processes if server else ()

    def _place(self, name: str) -> QueueLocation:
        found, queue = contender(name), f"bench_{next(self._numbers)}"
        if found.in_bucket:
            latency = self._choice.latency / 1000 if found.is_far else 0.0
            return QueueLocation(name, self._bucket_url(found.server, queue), queue, latency)
        if found.server:
            return QueueLocation(name, self._servers.get(found.server).url, queue)
        path = self._folder / f"{queue}{found.suffix}"
        return QueueLocation(name, _local_url(name, path), queue)

    def _bucket_url(self, server: str, queue: str) -> str:
        """The URL of a bucket, or a part of one, that nobody has used."""
        if server:
            return self._servers.bucket(server).new_url()
        url = f"s3://{queue}"
        IN_MEMORY[url] = MemoryBucket()
        return url

    def _remove(self, place: QueueLocation) -> None:
        IN_MEMORY.pop(place.url, None)
        clear(contender(place.contender).server, place.url)
        for path in self._folder.glob(f"{place.queue}*"):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def _local_url(name: str, path: Path) -> str:
    schemes = {"sqlite": f"sqlite:///{path}", "segments": f"segments:///{path}"}
    return schemes.get(name, str(path))
