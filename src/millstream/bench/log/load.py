"""The load: pools of messages, packs of them, and many senders that each wait for one pack before the next."""

from __future__ import annotations

import asyncio
import random
import statistics
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence

import msgspec

from millstream.bench.log.options import Senders
from millstream.bench.log.ours import OurSender
from millstream.bench.log.protocol import QueueSender
from millstream.core.clock import Clock

POOL = 65_536


class Sent(msgspec.Struct, frozen=True):
    """What was sent: for each pack its first id and its number, in any order; how long each waited, in seconds."""

    packs: list[tuple[int, int]]
    waits: list[float]
    seconds: float

    def percentile(self, percent: int) -> float:
        """So many percent of the packs waited no longer, in milliseconds."""
        if len(self.waits) < 2:
            return self.waits[0] * 1000
        return statistics.quantiles(self.waits, n=100, method="inclusive")[percent - 1] * 1000


def bodies(payload: int) -> list[bytes]:
    """:data:`POOL` bodies of *payload* bytes: the word "test" for 4, else records like JSON, no two alike."""
    if payload == 4:
        return [b"test"] * POOL
    draw = random.Random(payload)
    return [_record(draw, number, payload) for number in range(POOL)]


def packs_of(pool: Sequence[bytes], pack: int, most: int = 1000) -> list[Sequence[bytes]]:
    """*pool* in packs of *pack* messages, *most* of them at most."""
    count = min(len(pool) // pack, most)
    return [pool[number * pack : (number + 1) * pack] for number in range(count)]


def send(
    sender: QueueSender, packs: Sequence[Sequence[bytes]], load: tuple[int, int], kind: Senders, clock: Clock
) -> Sent:
    """Let as many senders send as many packs each as *load* says."""
    senders, turns = load
    begin = clock.monotonic()
    results = (_coroutines if kind == "coroutines" else _threads)(sender, packs, senders, turns, clock)
    return _sent(results, clock.monotonic() - begin)


def send_ahead(
    sender: OurSender, packs: Sequence[Sequence[bytes]], load: tuple[int, int], unconfirmed: int, clock: Clock
) -> Sent:
    """As :func:`send`, by coroutines each of which has up to *unconfirmed* messages under way."""
    senders, turns = load
    most = max(unconfirmed // len(packs[0]), 1)
    bursts: list[Burst] = []

    async def one(number: int) -> None:
        turn, waiting = 0, deque[Burst]()
        while turn < turns or waiting:
            free = min(most - sum(len(burst.lasts) for burst in waiting), turns - turn)
            if free:
                begin = clock.monotonic()
                which = [(number + place * senders) % len(packs) for place in range(turn, turn + free)]
                waiting.append(Burst([sender.append_nowait(packs[place]) for place in which], which, begin))
                turn += free
            await sender.durable_async(waiting[0].lasts[0])
            durable, now = sender.last_id, clock.monotonic()
            while waiting and waiting[0].lasts[0] <= durable:
                burst = waiting.popleft()
                count = bisect_right(burst.lasts, durable)
                bursts.append(Burst(burst.lasts[:count], burst.packs[:count], now - burst.time))
                if count < len(burst.lasts):
                    waiting.appendleft(Burst(burst.lasts[count:], burst.packs[count:], burst.time))

    async def everyone() -> None:
        await asyncio.gather(*(one(number) for number in range(senders)))

    begin = clock.monotonic()
    asyncio.run(everyone())
    seconds = clock.monotonic() - begin
    return Sent([pack for burst in bursts for pack in burst.sent(len(packs[0]))], _waits(bursts), seconds)


class Burst(msgspec.Struct, frozen=True, gc=False):
    """Packs that were sent one after the other: their last ids and numbers.

    ``time`` is when that was, and once they are confirmed, how long that took, in seconds.
    """

    lasts: list[int]
    packs: list[int]
    time: float

    def sent(self, pack: int) -> Iterator[tuple[int, int]]:
        """For each pack of *pack* messages its first id and its number."""
        return ((last - pack + 1, number) for last, number in zip(self.lasts, self.packs, strict=True))


def _waits(bursts: Sequence[Burst]) -> list[float]:
    return [wait for burst in bursts for wait in [burst.time] * len(burst.lasts)]


def _sent(results: Sequence[tuple[int, int, float]], seconds: float) -> Sent:
    return Sent([(first, number) for first, number, _ in results], [wait for *_, wait in results], seconds)


def _coroutines(
    sender: QueueSender, packs: Sequence[Sequence[bytes]], senders: int, turns: int, clock: Clock
) -> list[tuple[int, int, float]]:
    results: list[tuple[int, int, float]] = []

    async def one(number: int) -> None:
        for turn in range(turns):
            which = (number + turn * senders) % len(packs)
            begin = clock.monotonic()
            first = await sender.append_async(packs[which])
            results.append((first, which, clock.monotonic() - begin))

    async def everyone() -> None:
        await asyncio.gather(*(one(number) for number in range(senders)))

    asyncio.run(everyone())
    return results


def _threads(
    sender: QueueSender, packs: Sequence[Sequence[bytes]], senders: int, turns: int, clock: Clock
) -> list[tuple[int, int, float]]:
    results: list[tuple[int, int, float]] = []
    failures: list[BaseException] = []

    def one(number: int) -> None:
        try:
            for turn in range(turns):
                which = (number + turn * senders) % len(packs)
                begin = clock.monotonic()
                first = sender.append(packs[which])
                results.append((first, which, clock.monotonic() - begin))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(senders)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results


def _record(draw: random.Random, number: int, payload: int) -> bytes:
    text = b""
    while len(text) < payload:
        delay, checksum = round(draw.gauss(10, 30), 3), draw.getrandbits(62)
        text += msgspec.json.encode({"id": number, "from": draw.choice("JLEBO"), "delay": delay, "hash": checksum})
    return text[:payload]
