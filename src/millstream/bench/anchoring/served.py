"""An instance of the registry in a process of its own, over HTTP: embedded, and on MariaDB with RabbitMQ."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.client
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast

import msgspec

from millstream.anchoring.registry.states import FINAL, OperationState
from millstream.bench.anchoring.timing import timed
from millstream.bench.peers import load_peers
from millstream.bench.runner import Comparison, Contender, Measurement
from millstream.core.clock import SystemClock
from millstream.testing import services

_clock = SystemClock()
Environment = Mapping[str, str]


def over_http(folder: Path, creates: Sequence[bytes], updates: Sequence[bytes]) -> Iterator[Comparison]:
    """The same work on both kinds of store; servers are started where none is named by the environment."""
    embedded = _comparison("SQLite, embedded", functools.partial(_embedded, folder), creates, updates)
    floors = _floors(folder, creates, updates)
    yield msgspec.structs.replace(embedded, contenders=[*embedded.contenders, *floors])
    with services.running("mariadb") as mariadb, services.running("rabbitmq") as rabbitmq:
        place = functools.partial(_on_servers, folder, mariadb.url, rabbitmq.url)
        yield _comparison("MariaDB and RabbitMQ", place, creates, updates)


def _floors(folder: Path, creates: Sequence[bytes], updates: Sequence[bytes]) -> Sequence[Contender]:
    """In a checkout, the least that the same promises cost."""
    peers = cast(AnchoringPeers | None, load_peers("anchoring"))
    if peers is None:
        return []

    def run(before: Sequence[bytes], requests: Sequence[bytes]) -> Measurement:
        command = peers.floor_command(folder / f"floor-{_clock.now()}.db")
        with _serving(peers.floor_environment(), command) as (port, process):
            post_each(before, port)
            return timed(len(requests), lambda: post_each(requests, port), server=process)

    return [
        Contender("minimal server: creates, one per request", lambda: run([], creates)),
        Contender("minimal server: signed updates, one per request", lambda: run(creates, updates)),
    ]


class AnchoringPeers(Protocol):
    """What the module of the peers has for this benchmark."""

    def floor_command(self, database: Path) -> Sequence[str]:
        """The command of a server that checks requests and keeps them in *database*, with little else."""
        ...

    def floor_environment(self) -> Environment:
        """What that command needs in its environment."""
        ...


_Place = functools.partial[Environment]


def _comparison(where: str, place: _Place, creates: Sequence[bytes], updates: Sequence[bytes]) -> Comparison:
    def contender(name: str, before: Sequence[bytes], requests: Sequence[bytes], *, bulk: bool) -> Contender:
        return Contender(name, functools.partial(_post, place, before, requests, bulk=bulk))

    return Comparison(
        title=f"A registry on {where}, over HTTP",
        unit="operations/s",
        conditions="The registry checks each signature, and an operation is durable before the client gets the answer. "
        "The DIDs of the updates are anchored before, and the operations of a row are put into a queue while they "
        "arrive, and anchored after the last one: that is not measured here. Single operations come over "
        f"{CONNECTIONS} connections of one client; in bulk, one connection sends all operations. Client and servers "
        "run on one machine. The processor time is that of the registry's process.",
        contenders=[
            contender("creates, one per request", [], creates, bulk=False),
            contender("signed updates, one per request", creates, updates, bulk=False),
            contender("creates, in bulk", [], creates, bulk=True),
            contender("signed updates, in bulk", creates, updates, bulk=True),
        ],
    )


def _post(place: _Place, before: Sequence[bytes], requests: Sequence[bytes], *, bulk: bool) -> Measurement:
    environment = {**place(), "MILLSTREAM_REGISTRY__MAX_OPERATIONS": str(len(requests))}  # a batch is that of a row
    with _serving(environment) as (port, process):
        if before:
            _wait_until_observed(post_bulk(before, port), port)
        post = post_bulk if bulk else post_each
        return timed(len(requests), lambda: post(requests, port), server=process)


@contextlib.contextmanager
def _serving(environment: Environment, command: Sequence[str] = ()) -> Iterator[tuple[int, int]]:
    """The port and the process of a new instance, or of another *command* that prints ``serving URL``."""
    command = command or [sys.executable, "-m", "millstream", "anchor", "serve", "--http", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}) as server:
        try:
            assert server.stdout is not None
            yield int(server.stdout.readline().rpartition(":")[2]), server.pid
        finally:
            server.terminate()


def _embedded(folder: Path) -> Environment:
    return {"MILLSTREAM_DATA": str(folder / f"node-{_clock.now()}")}


def _on_servers(folder: Path, mariadb: str, rabbitmq: str) -> Environment:
    database = f"{mariadb}bench_{_clock.now()}"
    return {
        **_embedded(folder),
        "MILLSTREAM_LOG__STORE": database,
        "MILLSTREAM_REGISTRY__DATABASE": database,
        "MILLSTREAM_QUEUE__BROKER": rabbitmq,
        "MILLSTREAM_QUEUE__DATABASE": database,
    }


CONNECTIONS = 64
BULK = 10_000


def post_each(requests: Sequence[bytes], port: int) -> None:
    """Post each of *requests* by itself, over all connections at once; every one must be taken."""
    asyncio.run(_post_each(iter(requests), port))


def post_bulk(requests: Sequence[bytes], port: int) -> str:
    """Post *requests* in bulk, as many at once as are allowed; every one must be taken. Returns the id of the last."""
    for start in range(0, len(requests), BULK):
        chunk = requests[start : start + BULK]
        connection = http.client.HTTPConnection("127.0.0.1", port)
        kind = {"Content-Type": "application/jsonl"}
        connection.request("POST", "/sidetree/v1/operations/bulk", b"\n".join(chunk), kind)
        outcomes = connection.getresponse().read().splitlines()
        assert len(outcomes) == len(chunk) and all(b'"state"' in line for line in outcomes), outcomes[:1]
        connection.close()
    return str(msgspec.json.decode(outcomes[-1])["id"])


def _wait_until_observed(operation: str, port: int) -> None:
    """Return when *operation* (an id), and with it all that were accepted before, is anchored and read back."""
    connection, state = http.client.HTTPConnection("127.0.0.1", port), ""
    while state != OperationState.OBSERVED:
        _clock.sleep(0.05)
        connection.request("GET", f"/sidetree/v1/operations/{operation}")
        state = msgspec.json.decode(connection.getresponse().read())["state"]
        assert state not in FINAL or state == OperationState.OBSERVED, state
    connection.close()


async def _post_each(requests: Iterator[bytes], port: int) -> None:
    await asyncio.gather(*(_connection(requests, port) for _ in range(CONNECTIONS)))


async def _connection(requests: Iterator[bytes], port: int) -> None:
    fixed = "POST /sidetree/v1/operations HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for body in requests:
        head = f"{fixed}Content-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode("ascii") + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert answer.startswith(b"http/1.1 200"), answer
        await reader.readexactly(int(answer.partition(b"content-length: ")[2].partition(b"\r")[0]))
    writer.close()
