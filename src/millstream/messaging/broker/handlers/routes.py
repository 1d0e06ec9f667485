"""The queues of a topic, as clients are told them."""

from __future__ import annotations

from typing import Any

from millstream.messaging.broker.storage.topic import TopicSpec
from millstream.messaging.protocol import v2

BROKER_NAME = "millstream"

_ANY_QUEUE = -1


def topic_queues(topic: v2.Resource, spec: TopicSpec, endpoints: v2.Endpoints) -> list[v2.MessageQueue]:
    """The queues of *topic*, which is *spec*, at a broker at *endpoints*."""
    return [_queue(topic, number, spec.kind, endpoints) for number in range(spec.queues)]


def route_response(topic: v2.Resource, spec: TopicSpec, endpoints: v2.Endpoints) -> v2.QueryRouteResponse:
    """The route of *topic*."""
    return v2.QueryRouteResponse(
        status=v2.Status(code=v2.OK, message="OK"), message_queues=topic_queues(topic, spec, endpoints)
    )


def assigned_queues(topic: v2.Resource, spec: TopicSpec, endpoints: v2.Endpoints) -> v2.QueryAssignmentResponse:
    """The queues from which a push consumer of *topic* receives: every queue for a FIFO topic, else any queue."""
    queues = topic_queues(topic, spec, endpoints)
    if spec.type != "FIFO":
        queues = queues[:1]
        queues[0].id = _ANY_QUEUE
    response = v2.QueryAssignmentResponse(status=v2.Status(code=v2.OK, message="OK"))
    for queue in queues:
        response.assignments.add().message_queue.CopyFrom(queue)
    return response


def _queue(topic: v2.Resource, number: int, kind: int, endpoints: v2.Endpoints) -> v2.MessageQueue:
    accepted: Any = kind
    queue = v2.MessageQueue(topic=topic, id=number, permission=v2.READ_WRITE, accept_message_types=[accepted])
    queue.broker.name, queue.broker.id = BROKER_NAME, 0
    queue.broker.endpoints.CopyFrom(endpoints)
    return queue
