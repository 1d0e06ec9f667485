"""The queues of a topic, and which of them a message goes to: the steps 4, 5 and 12 of the workflow document."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property

import msgspec

from millstream.messaging.client.endpoints import Endpoints, from_wire
from millstream.messaging.client.errors import BadRequestError, ResourceNotFoundError
from millstream.messaging.protocol import v2
from millstream.messaging.protocol.siphash import group_queue

_READABLE = (v2.READ, v2.READ_WRITE)
_WRITABLE = (v2.WRITE, v2.READ_WRITE)
_MADE_BY: Mapping[int, str] = {
    v2.NORMAL: "send messages without a message group or a time of delivery",
    v2.FIFO: "give each message a message group",
    v2.DELAY: "give each message a time of delivery",
    v2.TRANSACTION: "send each message with Producer.begin",
}
"""The property that determines the type of a message."""


class Queue(msgspec.Struct, frozen=True):
    """One queue of a topic: on which broker, where that is, what may be done with it, and what it takes."""

    id: int
    broker: str
    broker_id: int
    endpoints: Endpoints
    permission: int
    kinds: tuple[int, ...]

    @property
    def is_readable(self) -> bool:
        """Whether consumers may use it."""
        return self.permission in _READABLE and self.broker_id == 0

    @property
    def is_writable(self) -> bool:
        """Whether producers may use it."""
        return self.permission in _WRITABLE and self.broker_id == 0


class Route(msgspec.Struct, frozen=True, dict=True):
    """All queues of ``topic``."""

    topic: str
    queues: tuple[Queue, ...]

    @property
    def endpoints(self) -> frozenset[Endpoints]:
        """The servers that have some of them."""
        return frozenset(queue.endpoints for queue in self.queues)

    @property
    def readable(self) -> Sequence[Queue]:
        """The queues for consumers."""
        return [queue for queue in self.queues if queue.is_readable]

    @cached_property
    def writable(self) -> Sequence[Queue]:
        """The queues for producers. Raises :class:`ResourceNotFoundError` where there is none."""
        found = [queue for queue in self.queues if queue.is_writable]
        if not found:
            raise ResourceNotFoundError(
                f"topic {self.topic} has no writable queue: give the topic write permission on the server, or send to "
                "another topic"
            )
        return found

    @cached_property
    def brokers(self) -> int:
        """How many brokers have a queue for producers."""
        return len({queue.broker for queue in self.writable})


def read_queue(wire: v2.MessageQueue) -> Queue:
    """A queue of the protocol."""
    broker = wire.broker
    kinds = tuple(wire.accept_message_types)
    return Queue(wire.id, broker.name, broker.id, from_wire(broker.endpoints), wire.permission, kinds)


def write_queue(queue: Queue, topic: str, namespace: str) -> v2.MessageQueue:
    """*queue* in the protocol."""
    wire = v2.MessageQueue(id=queue.id)
    wire.topic.name, wire.topic.resource_namespace = topic, namespace
    wire.broker.name, wire.broker.id = queue.broker, queue.broker_id
    wire.broker.endpoints.CopyFrom(queue.endpoints.to_wire())
    return wire


def candidates(route: Route, turn: int, isolated: Collection[Endpoints], count: int) -> Sequence[Queue]:
    """At most *count* queues to try one after the other, from number *turn* on around the ring.

    One a broker, of brokers that are not *isolated*; where all of them are, one a broker all the same.
    """
    ring = route.writable
    by_broker: dict[str, Queue] = {}
    for step in range(len(ring)):
        queue = ring[(turn + step) % len(ring)]
        if queue.broker not in by_broker and (not isolated or queue.endpoints not in isolated):
            by_broker[queue.broker] = queue
            if len(by_broker) == min(route.brokers, count):
                break
    if not by_broker:
        return candidates(route, turn, (), count)
    return list(by_broker.values())[: max(count, 1)]


def group_candidate(route: Route, message_group: str) -> Queue:
    """The one queue of a message group, by SipHash; isolation does not matter to it."""
    ring = route.writable
    return ring[group_queue(message_group, len(ring))]


def check_kind(queue: Queue, kind: int, topic: str) -> None:
    """Raise :class:`BadRequestError` unless *queue* takes messages of the type *kind*."""
    if kind not in queue.kinds:
        names = ", ".join(v2.MessageType.Name(each) for each in queue.kinds) or "nothing"
        wanted = v2.MessageType.Name(kind)
        advice = "".join(f": {_MADE_BY[each]}" for each in queue.kinds[:1] if each in _MADE_BY)
        text = f"topic {topic} takes {names}, not {wanted}{advice}"
        raise BadRequestError(text, code=v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE)
