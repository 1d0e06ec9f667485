"""The mixed load of a soak: parts that ask a served node, each at a rate, and the time of each answer."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import io
import itertools
import json
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from millstream.anchoring.sidetree import SIDETREE, long_form
from millstream.core.canonical import canonical_json
from millstream.core.clock import SystemClock
from millstream.messaging.client import Message, Producer, SimpleConsumer
from millstream.node import Node
from millstream.testing.dids import DidOwner

TOPIC, GROUP, SPACE = "readings", "soak", "photos"
_THREADS = 24


class Answer(NamedTuple):
    """One request of a part: ``second`` of the run at which it was due, ``seconds`` until its answer, and its error."""

    second: float
    seconds: float
    error: str = ""


class Part(NamedTuple):
    """``ask(n)`` makes the nth request; at most ``at_once`` are under way. One that is not ``paced`` has no rate: it
    waits for what others make."""

    ask: Callable[[int], Awaitable[object]]
    at_once: int
    paced: bool = True


class Load:
    """What *parts* ask, and what came of it."""

    def __init__(self, parts: Mapping[str, Part]) -> None:
        self.parts = parts
        self.answers: dict[str, list[Answer]] = {name: [] for name in parts}
        self._numbers = {name: itertools.count() for name in parts}
        self._clock = SystemClock()
        self._began = self._clock.monotonic()

    def second(self) -> float:
        """Seconds since the load was made."""
        return self._clock.monotonic() - self._began

    def take(self) -> Mapping[str, list[Answer]]:
        """The answers since the last call."""
        taken, self.answers = self.answers, {name: [] for name in self.parts}
        return taken

    async def run(self, seconds: float, rates: Mapping[str, float] | None = None) -> None:
        """Ask for *seconds*: each part at its rate (requests a second), or without *rates* as fast as answers come.

        A request that is late counts from when it was due, so a part that falls behind shows it.
        """
        until = self.second() + seconds
        async with asyncio.TaskGroup() as group:
            for name, part in self.parts.items():
                due = None if rates is None or not part.paced else _due(self.second(), rates[name])
                for _ in range(part.at_once):
                    group.create_task(self._ask(name, part, until, due))

    async def _ask(self, name: str, part: Part, until: float, due: Callable[[], float] | None) -> None:
        while True:
            at = self.second() if due is None else due()
            if at >= until:
                return
            if at > (now := self.second()):
                await asyncio.sleep(at - now)
            error = ""
            try:
                await part.ask(next(self._numbers[name]))
            except Exception as failed:
                error = f"{type(failed).__name__}: {failed}"
            self.answers[name].append(Answer(at, self.second() - at, error))


def _due(first: float, rate: float) -> Callable[[], float]:
    numbers = itertools.count(1)
    return lambda: first + next(numbers) / rate


class HttpClient:
    """JSON requests to ``HOST:PORT`` from threads, each with a connection that is kept."""

    def __init__(self, address: str, headers: Mapping[str, str]) -> None:
        self._address, self._headers, self._own = address, dict(headers), threading.local()
        self._connections: list[http.client.HTTPConnection] = []

    async def ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """The body of the answer; raises where it is not one of success."""
        return await asyncio.to_thread(self._ask, method, path, body)

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections:
            connection.close()

    def _ask(self, method: str, path: str, body: bytes | None) -> bytes:
        connection = getattr(self._own, "connection", None)
        is_new = connection is None
        if connection is None:
            connection = self._own.connection = http.client.HTTPConnection(self._address, timeout=60)
            self._connections.append(connection)
        try:
            connection.request(method, path, body, self._headers | ({} if body is None else _JSON))
            response = connection.getresponse()
            data = response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            self._own.connection = None
            if is_new or not isinstance(error, _ENDED):
                raise
            return self._ask(method, path, body)  # the server ended a connection that was not used for a while
        if response.status >= 400:
            raise RuntimeError(f"{method} {path}: {response.status} {data[:200]!r}")
        return bytes(data)


_ENDED = (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError)
_JSON = {"Content-Type": "application/json"}


def basic(name: str, password: str) -> Mapping[str, str]:
    """The header with which a program signs in."""
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


@contextlib.asynccontextmanager
async def mixed_load(
    broker: str, registry: str, console: str, node: Node, headers: Mapping[str, str]
) -> AsyncIterator[Load]:
    """The load of a node whose parts listen at these addresses: messages sent and received, identifiers made and
    resolved, items put into its store *primary*, pages of its console read."""
    # With fewer threads than requests, a request would wait here, and its time be taken for that of the node.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS))
    run = os.urandom(6).hex()
    http_registry, http_console = HttpClient(registry, {}), HttpClient(console, headers)
    made: list[str] = []
    async with (
        contextlib.AsyncExitStack() as stack,
        Producer(broker, [TOPIC]) as producer,
        SimpleConsumer(broker, GROUP, {TOPIC: "*"}) as consumer,
    ):
        stack.callback(http_registry.close)
        stack.callback(http_console.close)

        async def send(number: int) -> None:
            body = json.dumps({"run": run, "value": number}).encode()
            await producer.send(Message(TOPIC, body, keys=(f"s{number % 100}",)))

        async def receive(_: int) -> None:
            messages = await consumer.receive(32, invisible=60)
            await asyncio.gather(*map(consumer.ack, messages))

        async def create(number: int) -> None:
            owner = DidOwner(f"{run}-{number}")
            await http_registry.ask("POST", "/sidetree/v1/operations", canonical_json(owner.create.request))
            made.append(long_form(owner.create, SIDETREE))

        async def resolve(number: int) -> None:
            await http_registry.ask("GET", f"/sidetree/v1/identifiers/{made[number * 7919 % len(made)]}")

        async def put(number: int) -> None:
            store = node.stores.providers["primary"]
            data = io.BytesIO(f"{run} {number} ".encode() * 200)
            await asyncio.to_thread(store.put, SPACE, f"{run}/{number // 1000:04d}/{number:07d}", data)

        async def look(number: int) -> None:
            await http_console.ask("GET", _PAGES[number % len(_PAGES)])

        await create(-1)  # one that can be resolved
        yield Load(
            {
                "send": Part(send, 64),
                "receive": Part(receive, 4, paced=False),
                "create": Part(create, 8),
                "resolve": Part(resolve, 4),
                "put": Part(put, 2),
                "look": Part(look, 2),
            }
        )


_PAGES = ("/", "/api/v1/overview", "/metrics", "/logs", "/queues", "/api/v1/overview/verdict", "/integrity")
