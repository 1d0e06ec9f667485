"""Writing and reading logs, and in a source checkout also rows in databases, Redis, JetStream and a Python queue."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from millstream.bench.log.contenders import contender
from millstream.bench.log.options import Choice, parse_choice
from millstream.bench.log.runs import LogRuns
from millstream.bench.log.servers import Servers
from millstream.bench.runner import Comparison, Contender, Measurement, Size
from millstream.core.amounts import counted
from millstream.core.clock import SystemClock

_DURABLE = (
    "A message is durable when it is synced to the disk. MariaDB, PostgreSQL and segment files sync at each commit. "
    "SQLite runs in WAL mode with `synchronous` FULL"
)
_DURABLE_PEERS = (
    ", Redis with `appendfsync` always, and JetStream 2.10 or later with `sync_interval` always. JetStream before 2.10 "
    "does not support this, and syncs every two minutes."
)
_SAME_WORD = 'Every body is the word "test", so that blocks compress to far less than 4 B per message. '
_BUCKETS = (
    "The Versity gateway writes files without syncing them; moto and a bucket in memory keep objects in memory. "
    "Where a row says so, each request to the bucket takes some milliseconds longer. The columns per million messages "
    "count the requests of the writer, and the megabytes of objects that it sends and receives."
)
_READS = "reads all messages in order and acknowledges them, in batches where the system supports this"
_CHECKED = "The reader reads ids and bodies, and checks every id and a checksum over all bodies."
_RATE = "`messages/s` is the rate of the writers."
_CPU = "`CPU µs/message` includes the reader, and is measured until the reader has all messages."


_QUICK = {"seconds": 0.01, "senders": 20, "payloads": [4]}
_SECONDS = {"small": 1.5, "full": 6.0}


def comparisons(
    size: Size,
    folder: Path,
    *,
    payloads: str | None = None,
    packs: str | None = None,
    backends: str | None = None,
    peers: str | None = None,
    modes: str | None = None,
    senders: str | None = None,
    unconfirmed: str | None = None,
    latency: str | None = None,
    kind: str | None = None,
    seconds: str | None = None,
) -> Iterator[Comparison]:
    """All comparisons that the parts choose (see :class:`~millstream.bench.log.options.Choice`)."""
    names = ("payloads", "packs", "backends", "peers", "modes", "senders", "unconfirmed", "latency", "kind", "seconds")
    values = (payloads, packs, backends, peers, modes, senders, unconfirmed, latency, kind, seconds)
    parts = {name: value for name, value in zip(names, values, strict=True) if value is not None}
    choice = parse_choice(parts, **(_QUICK if size == "quick" else {"seconds": _SECONDS[size]}))
    with Servers(folder) as servers:
        yield from LogComparisons(choice, LogRuns(choice, servers, folder, SystemClock())).comparisons()


class LogComparisons:
    """What of *work* is compared, and what a reader of the results has to know."""

    def __init__(self, choice: Choice, work: LogRuns) -> None:
        self._choice = choice
        self._work = work

    def comparisons(self) -> Iterator[Comparison]:
        """Payload by payload, then small packs, then the wait for a lone message."""
        modes, pack = self._choice.modes, max(self._choice.packs)
        for payload in self._choice.payloads:
            if "alone" in modes:
                yield self._alone(payload, pack)
            if "both" in modes:
                yield self._both(payload, pack)
            if "processes" in modes:
                yield self._two_processes(payload, pack)
            if "arrow" in modes and self._choice.backends:
                yield self._arrow(payload)
            if "ahead" in modes and self._choice.backends:
                yield from (self._ahead(payload, pack) for pack in self._packs_ahead(payload))
        for smaller in sorted(set(self._choice.packs) - {pack}, reverse=True) if "alone" in modes else ():
            yield self._alone(min(self._choice.payloads), smaller)
        if "lone" in modes:
            yield self._comparison("Latency of a single message", "ms", self._lone_conditions(), self._lone)

    def _alone(self, payload: int, pack: int) -> Comparison:
        conditions = f"{self._senders(pack)} Then one reader {_READS}. {_CHECKED}"
        run = functools.partial(self._work.alone, payload=payload, pack=pack)
        return self._comparison(f"Write, then read: {payload:,} B, {_per_append(pack)}", "messages/s", conditions, run)

    def _both(self, payload: int, pack: int) -> Comparison:
        conditions = (
            f"{self._senders(pack)} At the same time, a thread of the same process {_READS}. {_CHECKED} {_RATE} {_CPU}"
        )
        run = functools.partial(self._work.both, payload=payload, pack=pack)
        return self._comparison(
            f"Write and read at the same time: {payload:,} B, {_per_append(pack)}", "messages/s", conditions, run
        )

    def _two_processes(self, payload: int, pack: int) -> Comparison:
        conditions = f"{self._senders(pack)} At the same time, another process {_READS}. {_CHECKED} {_RATE}"
        run = functools.partial(self._work.two_processes, payload=payload, pack=pack)
        title = f"Write and read at the same time in two processes: {payload:,} B, {_per_append(pack)}"
        names = [name for name in self._choice.contenders if not contender(name).in_memory]
        return self._comparison(title, "messages/s", conditions, run, names)

    def _packs_ahead(self, payload: int) -> Sequence[int]:
        """The largest packs; the smallest, too, for messages of 100 B, or of the least size where these are not."""
        packs = [min(pack, self._choice.unconfirmed) for pack in (max(self._choice.packs), min(self._choice.packs))]
        payloads = self._choice.payloads
        is_small = payload == (100 if 100 in payloads else min(payloads))
        return sorted(set(packs), reverse=True) if is_small else packs[:1]

    def _ahead(self, payload: int, pack: int) -> Comparison:
        senders, unconfirmed = self._choice.senders, self._choice.unconfirmed
        conditions = (
            f"{senders:,} coroutines send {_per_append(pack)}. Each waits only while {unconfirmed:,} of its messages "
            f"are unconfirmed. {_SAME_WORD if payload == 4 else ''}p50 and p99 are the times from sending a message to "
            f"its confirmation. {_DURABLE}. {_BUCKETS} {_CHECKED}"
        )
        run = functools.partial(self._work.ahead, payload=payload, pack=pack)
        title = f"Write with {unconfirmed:,} unconfirmed messages per sender: {payload:,} B, {_per_append(pack)}"
        return self._comparison(title, "messages/s", conditions, run, self._choice.backends)

    def _arrow(self, payload: int) -> Comparison:
        conditions = (
            "One sender appends record batches of 65,536 messages; each is durable before the next one is sent. Then "
            "the messages are read as Arrow record batches: once with all columns, and once only the bodies. The "
            "checksum of each block is verified. Another pass, which is not measured, checks ids and bodies."
        )
        run = functools.partial(self._work.arrow, payload=payload)
        return self._comparison(
            f"Arrow record batches: {payload:,} B", "messages/s", conditions, run, self._choice.backends
        )

    def _lone(self, name: str) -> Measurement:
        return self._work.lone(name, max(round(100 * self._choice.seconds), 10))

    @staticmethod
    def _lone_conditions() -> str:
        return (
            "One thread sends messages of 4 B one by one, and waits until each is durable. The second column is the "
            f"median latency; less is better. {_DURABLE}{_DURABLE_PEERS}"
        )

    def _senders(self, pack: int) -> str:
        return (
            f"Up to {self._choice.senders:,} {self._choice.kind} (fewer for a slow system) send {_per_append(pack)}. "
            f"Each of them waits until its append is durable before it sends the next one. {_DURABLE}{_DURABLE_PEERS}"
        )

    def _comparison(
        self,
        title: str,
        unit: str,
        conditions: str,
        run: Callable[[str], Measurement],
        names: Sequence[str] | None = None,
    ) -> Comparison:
        names = self._choice.contenders if names is None else names
        contenders = [Contender(self._title(name), functools.partial(run, name)) for name in names]
        return Comparison(title, unit, conditions, contenders)

    def _title(self, name: str) -> str:
        found = contender(name)
        return f"{found.title} + {self._choice.latency:g} ms per request" if found.is_far else found.title


def _per_append(pack: int) -> str:
    return f"{counted(pack, 'message')} per append"
