"""The clients that the broker knows: what each declared, when it was last heard of, and how to speak to it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator

from millstream.core.clock import MICROSECONDS
from millstream.messaging.broker.access import EVERYTHING, Access
from millstream.messaging.protocol import v2

SILENCE = 40 * MICROSECONDS
"""A client that has been silent for so long and has no stream open is gone."""

CONSUMERS = (v2.PUSH_CONSUMER, v2.SIMPLE_CONSUMER, v2.PULL_CONSUMER)

Commands = asyncio.Queue["v2.TelemetryCommand"]


@dataclasses.dataclass(slots=True, eq=False)
class Session:
    """One client, by its id. ``seen`` is in microseconds; ``streams`` are its open telemetry streams.

    Clients of different access keys are different clients, whatever they call themselves.
    """

    client_id: str
    seen: int
    kind: int = 0
    group: str = ""
    topics: frozenset[str] = frozenset()
    access: Access = EVERYTHING
    streams: list[Commands] = dataclasses.field(default_factory=list)

    @property
    def declared(self) -> bool:
        """Whether the client has sent its settings."""
        return self.kind != 0


class Sessions:
    """All clients by id."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def see(self, client_id: str, now: int, access: Access = EVERYTHING) -> Session:
        """The session of *client_id*, which was heard of just *now* (microseconds) and has this *access*."""
        found = self._sessions.get(client_id)
        if found is None:
            found = self._sessions[client_id] = Session(client_id, now, access=access)
        found.seen = now
        return found

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def get(self, client_id: str) -> Session | None:
        """The session of *client_id*; None where nobody is known by it."""
        return self._sessions.get(client_id)

    def is_alive(self, client_id: str, now: int) -> bool:
        """Whether *client_id* has a stream open or was heard of lately."""
        found = self._sessions.get(client_id)
        return found is not None and (bool(found.streams) or now - found.seen < SILENCE)

    def forget(self, client_id: str) -> Session | None:
        """The client has said goodbye."""
        return self._sessions.pop(client_id, None)

    def sweep(self, now: int) -> None:
        """Forget clients that are gone."""
        for client_id in [each for each in self._sessions if not self.is_alive(each, now)]:
            del self._sessions[client_id]

    def producers_of(self, topic: str) -> list[Session]:
        """Producers that can be asked about messages of *topic*: those that declared it, else all that may."""
        reachable = [
            each
            for each in self._sessions.values()
            if each.kind == v2.PRODUCER and each.streams and each.access.may_publish(topic)
        ]
        return [each for each in reachable if topic in each.topics] or reachable

    def in_group(self, group: str) -> list[Session]:
        """The consumers of *group*."""
        return [each for each in self._sessions.values() if each.group == group and each.kind in CONSUMERS]
