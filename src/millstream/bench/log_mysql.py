"""The log in MariaDB against a row a message in the same server, equally durable: writing, reading, both at once."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from millstream.bench.frame import Comparison, Contender, Sample, Size
from millstream.bench.loads import (
    POOL,
    Peer,
    StoreLog,
    bodies,
    check_columns,
    check_ids,
    cpu_seconds,
    send,
    waits,
)
from millstream.core.clock import Clock, SystemClock
from millstream.log import open_store
from millstream.log.mysql.driver import choose_driver
from millstream.log.mysql.place import Place, parse_place
from millstream.log.mysql.server import compare_server
from millstream.testing import services

SENDERS, PACK = 1000, 200
"""The load of the seed document's own benchmark: a thousand senders, two hundred messages each at a time."""

TURNS = {4: 10, 100: 5, 1000: 1}
"""For each payload how many packs a sender sends in the small size; in the full size, ten times as many."""

ROWS, BLOCKS = "row a message", "millstream"
_WRITTEN = "SHOW GLOBAL STATUS WHERE Variable_name IN ('Innodb_os_log_written', 'Innodb_data_written')"


class FollowedPeer(Peer, Protocol):
    """A peer that can be read while it is written."""

    def follow(self, total: int) -> Iterator[tuple[int, bytes]]:
        """The first *total* messages as they come in."""
        ...


PeerKind = TypeVar("PeerKind", bound=FollowedPeer)


def comparisons(size: Size, folder: Path) -> Iterator[Comparison]:
    """Writing, reading and both at once at three payloads, and the wait for a lone message."""
    scale = 10 if size == "full" else 1
    with services.private("mariadb-whole", folder=folder) as server:
        bench = MysqlBench(f"{server.url}bench", SystemClock())
        for payload, turns in TURNS.items():
            yield bench.both(payload, turns * scale)
            yield bench.write(payload, turns * scale)
            yield bench.read(payload, turns * scale * 3)
        yield bench.wait(200 * scale)


class MysqlBench:
    """Makes the comparisons; each run works on tables of its own in the database at *url*."""

    def __init__(self, url: str, clock: Clock) -> None:
        open_store(url).close()
        self._url = url
        self._place: Place = parse_place(url)
        self._clock = clock
        self._numbers = itertools.count()
        self._server, _ = compare_server(self._place)

    def write(self, payload: int, turns: int, *, senders: int = SENDERS) -> Comparison:
        """Many senders, each of which waits for its pack."""
        packs, total = _packs(payload), senders * turns * PACK

        def work(peer: FollowedPeer) -> Sample:
            sample = self._timed(lambda: send(peer.append, packs, turns, senders=senders), total)
            check_ids(peer.messages(), total)
            return sample

        conditions = (
            f"{senders:,} threads, each waits until its pack is durable (fsync); {total:,} messages, read back. "
            f"Server {self._server}."
        )
        return self._comparison(f"Write, {payload:,} B, packs of {PACK}", conditions, work)

    def both(self, payload: int, turns: int, *, senders: int = SENDERS) -> Comparison:
        """The same senders, and a reader in the same process that follows them message by message."""
        packs, total = _packs(payload), senders * turns * PACK

        def work(peer: FollowedPeer) -> Sample:
            ends: list[float] = []

            def follow() -> None:
                check_ids(peer.follow(total), total)
                ends.append(self._clock.monotonic())

            reader, begin = threading.Thread(target=follow), self._clock.monotonic()
            reader.start()
            sample = self._timed(lambda: send(peer.append, packs, turns, senders=senders), total)
            reader.join()
            return Sample(sample.value, {**sample.figures, "read messages/s": total / (ends[0] - begin)})

        conditions = (
            f"{senders:,} threads, each waits until its pack is durable, and one that reads and acknowledges "
            f"every message, all in one process; {total:,} messages. Server {self._server}."
        )
        return self._comparison(f"Write and read at once, {payload:,} B, packs of {PACK}", conditions, work)

    def read(self, payload: int, turns: int) -> Comparison:
        """One reader that sees every message and acknowledges it."""
        batch = bodies(payload)
        pools = max(turns * SENDERS * PACK // POOL, 1)
        total = pools * POOL

        def one_by_one(peer: FollowedPeer) -> Sample:
            _fill(peer, batch, pools)
            return self._timed(lambda: check_ids(peer.messages(), total), total, writes=False)

        def arrow(peer: StoreLog) -> Sample:
            _fill(peer, batch, pools)
            return self._timed(lambda: check_columns(peer.columns(), total), total, writes=False)

        return Comparison(
            f"Read, {payload:,} B",
            "messages/s",
            f"{total:,} messages in order, their ids checked, acknowledged batch by batch; all columns decoded.",
            [
                Contender(f"{ROWS}, one by one", lambda: self._run(self._rows, one_by_one)),
                Contender(f"{BLOCKS}, one by one", lambda: self._run(self._blocks, one_by_one)),
                Contender(f"{BLOCKS}, Arrow", lambda: self._run(self._blocks, arrow)),
            ],
        )

    def wait(self, turns: int) -> Comparison:
        """One sender of one message at a time."""

        def work(peer: FollowedPeer) -> Sample:
            return waits(peer.append, turns, self._clock)

        conditions = (
            f"One thread sends 4 B, waits until durable (fsync), and so on; median of {turns:,}. Less is better."
        )
        return self._comparison("Wait for a lone message", conditions, work, unit="ms")

    def _comparison(
        self, title: str, conditions: str, work: Callable[[FollowedPeer], Sample], *, unit: str = "messages/s"
    ) -> Comparison:
        contenders = [
            Contender(ROWS, lambda: self._run(self._rows, work)),
            Contender(BLOCKS, lambda: self._run(self._blocks, work)),
        ]
        return Comparison(title, unit, conditions, contenders)

    def _run(self, kind: Callable[[str], PeerKind], work: Callable[[PeerKind], Sample]) -> Sample:
        """Do *work* with a new peer, in tables that go afterwards."""
        name = f"bench_{next(self._numbers)}"
        peer = kind(name)
        try:
            return work(peer)
        finally:
            peer.close()
            self._drop_tables()

    def _blocks(self, name: str) -> StoreLog:
        return StoreLog(self._url, name)

    def _rows(self, name: str) -> FollowedPeer:
        from millstream.bench.mysql_rows import MysqlRows  # which needs the driver

        return MysqlRows(self._place, name, self._clock)

    def _timed(self, work: Callable[[], object], total: int, *, writes: bool = True) -> Sample:
        """How many of *total* messages a second *work* does, this process's CPU, and what the server wrote for it."""
        written, cpu, begin = self._written(), cpu_seconds(), self._clock.monotonic()
        work()
        seconds, cpu = self._clock.monotonic() - begin, cpu_seconds() - cpu
        figures = {"client CPU µs/message": cpu / total * 1e6}
        if writes:
            figures["bytes written/message"] = (self._written() - written) / total
        return Sample(total / seconds, figures)

    def _written(self) -> int:
        """The bytes that the server has written to its redo log and its tables so far."""
        with contextlib.closing(choose_driver(self._place)(self._place)) as connection:
            return sum(int(value) for _, value in connection.rows(_WRITTEN))

    def _drop_tables(self) -> None:
        with contextlib.closing(choose_driver(self._place)(self._place)) as connection:
            for (table,) in connection.rows("SHOW TABLES"):
                if table.startswith(("queue_", "blocks_")):
                    connection.execute(f"DROP TABLE `{table}`")


def _packs(payload: int) -> Sequence[Sequence[bytes]]:
    pool = bodies(payload)
    return [pool[start : start + PACK] for start in range(0, POOL - PACK, PACK)]


def _fill(peer: Peer, batch: Sequence[bytes], pools: int) -> None:
    for _ in range(pools):
        peer.append(batch)
