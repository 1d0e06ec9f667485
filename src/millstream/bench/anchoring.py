"""Identifiers: operations parsed, written into batch files, read back and resolved; and a registry taking them in."""

from __future__ import annotations

import contextlib
import functools
import http.client
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import sqlalchemy as sa

from millstream.anchoring import LocalCas, MemoryLedger
from millstream.anchoring.registry import Registry, RegistryDatabase, RegistrySettings
from millstream.anchoring.sidetree import (
    SIDETREE,
    Anchored,
    Operation,
    PrivateKey,
    parse_request,
    read_batch,
    resolve,
    write_batch,
)
from millstream.anchoring.sidetree.keys import verifier
from millstream.anchoring.sidetree.operations import revive
from millstream.bench.frame import Comparison, Contender, Sample, Size
from millstream.core.canonical import canonical_json
from millstream.core.clock import SystemClock
from millstream.testing.dids import Person

OPERATIONS: dict[Size, int] = {"quick": 100, "small": 2_000, "full": 10_000}
CONNECTIONS = 32

_clock = SystemClock()


def comparisons(size: Size, folder: Path) -> Iterator[Comparison]:
    """The protocol by itself, then a registry on SQLite, in process and over HTTP."""
    count = OPERATIONS[size]
    people = [Person(f"bench-{n}") for n in range(count)]
    creates = [person.create for person in people]
    updates = [person.update() for person in people]
    yield _protocol("creates", creates, [[] for _ in creates])
    yield _protocol("signed updates", updates, [[create] for create in creates])
    yield Comparison(
        title="ES256K signatures",
        unit="signatures/s",
        conditions="one thread; the same key, as libsecp256k1 through coincurve has it",
        contenders=[Contender("verify", functools.partial(_verify, count))],
    )
    requests = [[canonical_json(operation.request) for operation in group] for group in (creates, updates)]
    yield _registry(folder, *requests)
    yield _over_http(folder, requests[0])


def _protocol(what: str, operations: Sequence[Operation], before: Sequence[Sequence[Operation]]) -> Comparison:
    requests = [canonical_json(operation.request) for operation in operations]
    return Comparison(
        title=f"{len(operations):,} {what}, by the protocol alone",
        unit="operations/s",
        conditions="one thread; parsing checks all rules and the signature; reading checks all rules of a reader",
        contenders=[
            Contender("parse", functools.partial(_parse, requests)),
            Contender("write the five files", functools.partial(_write, operations)),
            Contender("write them from requests, as the batch writer does", functools.partial(_rewrite, requests)),
            Contender("read them back", functools.partial(_read, operations)),
            Contender("resolve the identifiers", functools.partial(_resolve, operations, before)),
        ],
    )


def _parse(requests: Sequence[bytes]) -> Sample:
    return _timed(len(requests), lambda: [parse_request(request, SIDETREE) for request in requests])


def _write(operations: Sequence[Operation]) -> Sample:
    return _timed(len(operations), lambda: write_batch(operations, SIDETREE))


def _rewrite(requests: Sequence[bytes]) -> Sample:
    """Requests were checked when they were accepted, so the batch writer only takes them apart."""
    suffixes = [parse_request(request, SIDETREE).suffix for request in requests]

    def write() -> None:
        pairs = zip(requests, suffixes, strict=True)
        write_batch([revive(msgspec.json.decode(data), suffix, SIDETREE) for data, suffix in pairs], SIDETREE)

    return _timed(len(requests), write)


def _read(operations: Sequence[Operation]) -> Sample:
    written = write_batch(operations, SIDETREE)
    files = {file.uri: file.data for file in written.files}

    def read() -> None:
        batch = read_batch(written.anchor, lambda uri, _limit: files[uri], SIDETREE)
        assert batch.fault is None and len(batch.operations) == len(operations), "all operations are read back"

    return _timed(len(operations), read)


def _resolve(operations: Sequence[Operation], before: Sequence[Sequence[Operation]]) -> Sample:
    roads = [
        [Anchored(number, 0, each) for number, each in enumerate([*earlier, operation])]
        for earlier, operation in zip(before, operations, strict=True)
    ]

    def run() -> None:
        assert all(state is not None and state.number == len(road) - 1 for road in roads for state in [resolve(road)])

    return _timed(len(operations), run)


def _verify(count: int) -> Sample:
    key, message = PrivateKey.from_secret("secp256k1", b"\1" * 32), b"m" * 300
    holds, signature = verifier(key.public), key.sign(message)
    return _timed(count, lambda: [holds(signature, message) for _ in range(count)])


def _registry(folder: Path, creates: Sequence[bytes], updates: Sequence[bytes]) -> Comparison:
    return Comparison(
        title="A registry on SQLite, in process",
        unit="operations/s",
        conditions=f"durable (fsync) before it is confirmed; {CONNECTIONS} threads, or one call with all",
        contenders=[
            Contender("creates, one a call", functools.partial(_accept, folder, creates, bulk=False)),
            Contender("creates, in bulk", functools.partial(_accept, folder, creates, bulk=True)),
            Contender("cut, anchor and observe creates", functools.partial(_anchor, folder, creates, [])),
            Contender("cut, anchor and observe updates", functools.partial(_anchor, folder, creates, updates)),
        ],
    )


def _accept(folder: Path, requests: Sequence[bytes], *, bulk: bool) -> Sample:
    with _new_registry(folder) as registry:
        submit = registry.acceptance
        if bulk:
            sample = _timed(len(requests), lambda: submit.submit_many(requests))
        else:
            with ThreadPoolExecutor(CONNECTIONS) as pool:
                sample = _timed(len(requests), lambda: list(pool.map(submit.submit, requests)))
        assert registry.store.open_count() == len(requests), "everything was taken"
        return sample


def _anchor(folder: Path, creates: Sequence[bytes], updates: Sequence[bytes]) -> Sample:
    with _new_registry(folder) as registry:
        sample = Sample(0.0)
        for requests in filter(None, (creates, updates)):
            registry.acceptance.submit_many(requests)
            registry.queue.claim(len(requests))
            sample = _timed(len(requests), lambda: registry.writer.cut(force=True))
        assert registry.store.counts()["observed"] == len(creates) + len(updates), "everything is anchored"
        return sample


@contextlib.contextmanager
def _new_registry(folder: Path) -> Iterator[Registry]:
    place = folder / f"registry-{_clock.now()}"
    place.mkdir()
    engine = sa.create_engine(f"sqlite:///{place / 'registry.db'}", connect_args={"timeout": 30})
    sa.event.listen(engine, "connect", _durable)
    database = RegistryDatabase(engine, _clock)
    settings = RegistrySettings(max_open=10_000_000)
    yield Registry(database, LocalCas(place / "cas"), MemoryLedger(_clock), instance="bench", settings=settings)
    engine.dispose()


def _durable(connection: sa.engine.interfaces.DBAPIConnection, _record: object) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


def _over_http(folder: Path, creates: Sequence[bytes]) -> Comparison:
    bulk = b"\n".join(creates)
    return Comparison(
        title="A registry on SQLite, over HTTP",
        unit="operations/s",
        conditions=f"creates, durable before they are answered; {CONNECTIONS} connections from one client process, "
        "server and client on the same two cores",
        contenders=[
            Contender("one a request", functools.partial(_served, folder, functools.partial(_post_each, creates))),
            Contender("in bulk", functools.partial(_served, folder, functools.partial(_post_bulk, bulk, len(creates)))),
        ],
    )


def _served(folder: Path, work: Callable[[int], Sample]) -> Sample:
    data = folder / f"node-{_clock.now()}"
    command = [sys.executable, "-m", "millstream", "anchor", "serve", "--data", str(data), "--http", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            return work(int(server.stdout.readline().rpartition(":")[2]))
        finally:
            server.terminate()


def _post_each(creates: Sequence[bytes], port: int) -> Sample:
    def client(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        for request in creates[number::CONNECTIONS]:
            connection.request("POST", "/sidetree/v1/operations", request)
            response = connection.getresponse()
            response.read()
            assert response.status == 200, response.status
        connection.close()

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        return _timed(len(creates), lambda: list(pool.map(client, range(CONNECTIONS))))


def _post_bulk(lines: bytes, count: int, port: int) -> Sample:
    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("POST", "/sidetree/v1/operations/bulk", lines)
        outcomes = connection.getresponse().read().splitlines()
        assert len(outcomes) == count and all(b'"state"' in line for line in outcomes), "every line was taken"
        connection.close()

    return _timed(count, client)


def _timed(count: int, work: Callable[[], object]) -> Sample:
    begin = _clock.monotonic()
    work()
    return Sample(count / (_clock.monotonic() - begin))
