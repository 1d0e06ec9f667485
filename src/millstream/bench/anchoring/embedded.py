"""A registry on SQLite, in this process."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import sqlalchemy as sa

from millstream.anchoring import LocalCas, MemoryLedger
from millstream.anchoring.registry import DidRegistry, RegistryDatabase, RegistryParameters
from millstream.bench.anchoring.timing import timed
from millstream.bench.runner import Comparison, Contender, Measurement
from millstream.core.clock import SystemClock

THREADS = 32

_clock = SystemClock()


def in_process(folder: Path, creates: Sequence[bytes], updates: Sequence[bytes]) -> Comparison:
    """Requests accepted, and then cut, anchored and observed."""
    return Comparison(
        title="A registry on SQLite, in process",
        unit="operations/s",
        conditions="Operations are durable (fsync) before they are confirmed. Single operations come from "
        f"{THREADS} threads; in bulk, one call has all {len(creates):,} operations. The last two rows measure one pass "
        "that writes the batches, anchors them in a ledger in memory, and reads (observes) them back.",
        contenders=[
            Contender("creates, one per call", functools.partial(_accept, folder, [], creates, bulk=False)),
            Contender("creates, in bulk", functools.partial(_accept, folder, [], creates, bulk=True)),
            Contender("signed updates, one per call", functools.partial(_accept, folder, creates, updates, bulk=False)),
            Contender("signed updates, in bulk", functools.partial(_accept, folder, creates, updates, bulk=True)),
            Contender("batch, anchor and observe creates", functools.partial(_anchor, folder, creates, [])),
            Contender("batch, anchor and observe updates", functools.partial(_anchor, folder, creates, updates)),
        ],
    )


def _accept(folder: Path, before: Sequence[bytes], requests: Sequence[bytes], *, bulk: bool) -> Measurement:
    with _new_registry(folder) as registry:
        submit = registry.acceptance
        submit.submit_many(before)
        if bulk:
            sample = timed(len(requests), lambda: submit.submit_many(requests))
        else:
            with ThreadPoolExecutor(THREADS) as pool:
                sample = timed(len(requests), lambda: list(pool.map(submit.submit, requests)))
        assert registry.store.open_count() == len(before) + len(requests), "everything was taken"
        return sample


def _anchor(folder: Path, creates: Sequence[bytes], updates: Sequence[bytes]) -> Measurement:
    with _new_registry(folder) as registry:
        sample = Measurement(0.0)
        for requests in filter(None, (creates, updates)):
            registry.acceptance.submit_many(requests)
            registry.queue.claim(len(requests))
            sample = timed(len(requests), lambda: registry.writer.cut(force=True))
        assert registry.store.counts()["observed"] == len(creates) + len(updates), "everything is anchored"
        return sample


@contextlib.contextmanager
def _new_registry(folder: Path) -> Iterator[DidRegistry]:
    place = folder / f"registry-{_clock.now()}"
    place.mkdir()
    engine = sa.create_engine(f"sqlite:///{place / 'registry.db'}", connect_args={"timeout": 30})
    sa.event.listen(engine, "connect", _durable)
    database = RegistryDatabase(engine, _clock)
    settings = RegistryParameters(max_open=10_000_000)
    try:
        yield DidRegistry(database, LocalCas(place / "cas"), MemoryLedger(_clock), instance="bench", settings=settings)
    finally:
        engine.dispose()


def _durable(connection: sa.engine.interfaces.DBAPIConnection, _record: object) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()
