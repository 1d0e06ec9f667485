"""The load: pools of messages, packs of them, and many senders that each wait for one pack before the next."""

from __future__ import annotations

import asyncio
import random
import statistics
import threading
from collections import deque
from collections.abc import Sequence

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
    results: list[tuple[int, int, float]] = []
    senders, turns = load
    ahead = max(unconfirmed // len(packs[0]), 1)

    async def one(number: int) -> None:
        waiting: deque[tuple[int, int, float]] = deque()  # last id, pack, when it was sent
        for turn in range(turns):
            which = (number + turn * senders) % len(packs)
            waiting.append((sender.append_nowait(packs[which]), which, clock.monotonic()))
            if len(waiting) == ahead:
                await confirmed(waiting, waiting[0][0])
        if waiting:
            await confirmed(waiting, waiting[-1][0])

    async def confirmed(waiting: deque[tuple[int, int, float]], last_id: int) -> None:
        await sender.durable_async(last_id)
        durable, now = sender.last_id, clock.monotonic()
        while waiting and waiting[0][0] <= durable:
            last, which, begin = waiting.popleft()
            results.append((last - len(packs[which]) + 1, which, now - begin))

    async def everyone() -> None:
        await asyncio.gather(*(one(number) for number in range(senders)))

    begin = clock.monotonic()
    asyncio.run(everyone())
    return _sent(results, clock.monotonic() - begin)


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
