"""What a run of the messaging benchmark is to do, and what it cost."""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import TypeVar

import msgspec

from millstream.bench.runner import Measurement
from millstream.core.clock import SystemClock

BODY = b"x" * 100
AT_ONCE = 64
BATCH = 1000

_names = itertools.count()

Result = TypeVar("Result")


class MessagingTask(msgspec.Struct, frozen=True):
    """*count* messages through the server at ``place``, whose processes are ``servers``.

    ``make`` makes a topic; ``folder`` is for what clients leave behind.
    """

    place: str
    folder: Path
    servers: tuple[int, ...]
    make: Callable[[str], None]
    count: int = 0

    def of(self, count: int) -> MessagingTask:
        """The same with *count* messages."""
        return msgspec.structs.replace(self, count=count)

    def topic(self) -> str:
        """A new topic."""
        name = f"bench-{next(_names)}"
        self.make(name)
        return name


class Meter:
    """The time and the CPU of this process and the *servers* since it was made."""

    def __init__(self, servers: Sequence[int]) -> None:
        self._servers = servers
        self._clock = SystemClock()
        self._begin = self._clock.monotonic()
        self._cpu = _own_cpu()
        self._server_cpu = sum(map(_cpu, servers))

    def now(self) -> float:
        """The seconds since it was made."""
        return self._clock.monotonic() - self._begin

    def sample(self, count: int, delays: Sequence[float] = ()) -> Measurement:
        """Messages a second, CPU a message, and how long calls took (*delays*, in seconds)."""
        seconds = self.now()
        figures = {
            "client CPU µs/message": (_own_cpu() - self._cpu) / count * 1e6,
            "server CPU µs/message": (sum(map(_cpu, self._servers)) - self._server_cpu) / count * 1e6,
        }
        return Measurement(count / seconds, {**figures, **delay_figures(delays)})


class ConsumerMeter:
    """The receives and the acknowledgements of one consumer, which alternate, and what each kind took."""

    def __init__(self, servers: Sequence[int]) -> None:
        self._meter = Meter(servers)
        self._receives: list[float] = []
        self._acks: list[float] = []
        self._single_acks: list[float] = []

    async def receive(self, call: Awaitable[Result]) -> Result:
        """What *call*, which receives, comes to."""
        return await self._timed(call, self._receives)

    async def ack(self, call: Awaitable[object]) -> None:
        """Wait for *call*, which acknowledges what was received before it."""
        await self._timed(call, self._acks)

    async def ack_singly(self, acks: Iterator[Awaitable[object]], at_once: int = AT_ONCE) -> None:
        """Wait for *acks*, each of one message, *at_once* under way; each is timed by itself."""

        async def work() -> None:
            for ack in acks:
                await self._timed(ack, self._single_acks)

        await self.ack(asyncio.gather(*(work() for _ in range(at_once))))

    def sample(self, count: int) -> Measurement:
        """*count* messages were received and acknowledged: of either, how many a second while it was done."""
        figures = {"acknowledged/s": count / sum(self._acks), **self._meter.sample(count).figures}
        acks = {f"ack {name}": value for name, value in delay_figures(self._single_acks or self._acks).items()}
        return Measurement(count / sum(self._receives), {**figures, **delay_figures(self._receives), **acks})

    async def _timed(self, call: Awaitable[Result], delays: list[float]) -> Result:
        begin = self._meter.now()
        result = await call
        delays.append(self._meter.now() - begin)
        return result


def delay_figures(delays: Sequence[float]) -> dict[str, float]:
    """Median and 99th percentile of *delays* (seconds), in milliseconds."""
    if len(delays) < 2:
        return {}
    cuts = statistics.quantiles(delays, n=100)
    return {"p50 ms": cuts[49] * 1000, "p99 ms": cuts[98] * 1000}


def _own_cpu() -> float:
    usage = getrusage(RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _cpu(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
