"""The clients that the broker knows: what each declared, when it was last heard of, and how to speak to it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Iterator, Set

from millstream.core.clock import MICROSECONDS
from millstream.messaging.broker.names import full_name
from millstream.messaging.broker.security.access_keys import UNRESTRICTED, CallerPermissions
from millstream.messaging.protocol import v2

SESSION_TIMEOUT = 40 * MICROSECONDS
"""A client that has been silent for so long and has no stream open is gone."""

CONSUMERS = (v2.PUSH_CONSUMER, v2.SIMPLE_CONSUMER, v2.PULL_CONSUMER)

Commands = asyncio.Queue["v2.TelemetryCommand"]

MAX_COMMANDS = 16
"""How many commands wait for a telemetry stream: each may have a message of 4 MiB."""


@dataclasses.dataclass(slots=True)
class ClientConnection:
    """One network connection of a client: when it was last heard of there (microseconds), and its open streams.

    ``ended``: the last stream on it ended, and nothing has come by it since.
    """

    seen: int
    streams: int = 0
    ended: bool = False

    def is_up(self, now: int) -> bool:
        """Whether the connection is taken to be there at *now* (microseconds)."""
        return not self.ended and (self.streams > 0 or now - self.seen < SESSION_TIMEOUT)


@dataclasses.dataclass(slots=True, eq=False)
class ClientSession:
    """One client, by its id. ``seen`` is in microseconds; ``streams`` are its open telemetry streams.

    ``connections`` are those it calls by, by the name that gRPC has for the other end of each. Clients of different
    access keys are different clients, whatever they call themselves.
    """

    client_id: str
    seen: int
    kind: int = 0
    group: str = ""
    topics: frozenset[str] = frozenset()
    access: CallerPermissions = UNRESTRICTED
    routes: set[str] = dataclasses.field(default_factory=set)
    """The topics whose routes the client has asked for."""
    settings: tuple[v2.Settings, str] | None = None
    """The settings that the client declared, and its namespace."""
    began_in_order: bool | None = None
    """Whether the first settings that the client was answered with said that it handles messages in order; None: it has
    sent none. Java's and Node's push consumers keep to these, whatever later ones say."""
    streams: list[Commands] = dataclasses.field(default_factory=list)
    connections: dict[str, ClientConnection] = dataclasses.field(default_factory=dict)
    _route_asked: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)

    async def wait_for_route_queries(self, topics: Set[str]) -> None:
        """Return when the client has asked for the routes of all *topics*."""
        while not topics <= self.routes:
            self._route_asked.clear()
            await self._route_asked.wait()

    def route_queried(self, topic: str) -> None:
        """The client has asked for the route of *topic*."""
        self.routes.add(topic)
        self._route_asked.set()

    def declared_name(self, topic: str) -> tuple[str, str] | None:
        """The namespace and the name by which a producer declared *topic*, whose name may have a % and no namespace;
        None if it did not."""
        if self.settings is None:
            return None
        settings, namespace = self.settings
        for declared in settings.publishing.topics:
            if full_name(declared, namespace) == topic:
                return declared.resource_namespace or namespace, declared.name
        return None

    def touch(self, connection: str, now: int) -> None:
        """The client was heard of at *now* (microseconds), by *connection* where that is known."""
        self.seen = now
        if connection:
            found = self.connections.get(connection)
            if found is None:
                found = self.connections[connection] = ClientConnection(now)
            found.seen, found.ended = now, False

    @contextlib.contextmanager
    def stream(self, commands: Commands, connection: str, now: int) -> Iterator[None]:
        """The client has a telemetry stream open by *connection* while the block runs, which takes *commands*."""
        self.touch(connection, now)
        self.streams.append(commands)
        found = self.connections.get(connection) or ClientConnection(now)
        found.streams += 1
        try:
            yield
        finally:
            self.streams.remove(commands)
            found.streams -= 1
            found.ended = not found.streams

    @property
    def takes_commands(self) -> bool:
        """Whether a telemetry stream is open, and the client reads what it is sent by the newest one."""
        return bool(self.streams) and not self.streams[-1].full()

    def command(self, command: v2.TelemetryCommand) -> bool:
        """Send *command* by the newest stream; False, and nothing is sent, unless :attr:`takes_commands`."""
        if not self.takes_commands:
            return False
        self.streams[-1].put_nowait(command)
        return True

    @property
    def declared(self) -> bool:
        """Whether the client has sent its settings."""
        return self.kind != 0


class ClientSessions:
    """All clients by id."""

    def __init__(self) -> None:
        self._sessions: dict[str, ClientSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def touch(
        self, client_id: str, now: int, access: CallerPermissions = UNRESTRICTED, connection: str = ""
    ) -> ClientSession:
        """The session of *client_id*, which was heard of just *now* (microseconds) and has this *access*."""
        found = self._sessions.get(client_id)
        if found is None:
            found = self._sessions[client_id] = ClientSession(client_id, now, access=access)
        found.touch(connection, now)
        return found

    def __iter__(self) -> Iterator[ClientSession]:
        return iter(list(self._sessions.values()))

    def get(self, client_id: str) -> ClientSession | None:
        """The session of *client_id*; None where no client is known by it."""
        return self._sessions.get(client_id)

    def is_connected(self, client_id: str, connection: str, now: int) -> bool:
        """Whether *client_id* still has the *connection*: what an answer by it brought may be there."""
        found = self._sessions.get(client_id)
        known = None if found is None else found.connections.get(connection)
        return known is not None and known.is_up(now)

    def forget(self, client_id: str) -> ClientSession | None:
        """Remove the session of a client that has terminated; that session."""
        return self._sessions.pop(client_id, None)

    def sweep(self, now: int) -> None:
        """Forget clients that are gone, and connections."""
        for session in self:
            if not session.streams and now - session.seen >= SESSION_TIMEOUT:
                del self._sessions[session.client_id]
            for name in [name for name, found in session.connections.items() if not found.is_up(now)]:
                del session.connections[name]

    def producers_of(self, topic: str) -> list[ClientSession]:
        """Producers that can be asked about messages of *topic*: those that declared it, else all that may."""
        reachable = [
            each
            for each in self._sessions.values()
            if each.kind == v2.PRODUCER and each.streams and each.access.may_publish(topic)
        ]
        return [each for each in reachable if topic in each.topics] or reachable

    def in_group(self, group: str) -> list[ClientSession]:
        """The consumers of *group*."""
        return [each for each in self._sessions.values() if each.group == group and each.kind in CONSUMERS]
