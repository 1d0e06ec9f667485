"""Messages as the columns that our broker takes and gives; see :mod:`millstream.messaging.protocol.batch_calls`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from millstream.messaging.client.endpoints import Endpoints
from millstream.messaging.client.errors import ClientError, ServerFailedError, code_error
from millstream.messaging.client.message import Message, MessageStamp, Receipt, Received, unpack
from millstream.messaging.client.route import Queue
from millstream.messaging.protocol.batch_calls import (
    ReceiveBatchResponse,
    SendBatchRequest,
    SendBatchResponse,
    checksum,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_batch(messages: Sequence[Message], ids: Sequence[str], stamp: MessageStamp) -> SendBatchRequest:
    """*messages* with their *ids*, all of one topic and message group, as they are sent."""
    first = messages[0]
    tags, keys = [message.tag for message in messages], [message.keys for message in messages]
    properties = [message.properties for message in messages]
    return SendBatchRequest(
        namespace=stamp.namespace,
        topic=first.topic,
        kind=stamp.kind,
        group=first.message_group,
        host=stamp.host,
        born=stamp.born,
        ids=list(ids),
        bodies=[message.body for message in messages],
        tags=tags if any(tags) else [],
        keys=keys if any(keys) else [],
        properties=[dict(pairs) for pairs in properties] if any(properties) else [],
    )


def read_stored(
    answer: SendBatchResponse, ids: Sequence[str], queue: Queue, request_id: str
) -> Sequence[Receipt | ClientError]:
    """A receipt or an error for each of the messages *ids*."""
    error = code_error(answer.code, answer.text, request_id)
    if error is not None and not answer.refused:
        return [error] * len(ids)
    if len(answer.offsets) != len(ids):
        text = f"the server returned {len(answer.offsets):,} results for {len(ids):,} messages"
        return [ServerFailedError(text, request_id=request_id)] * len(ids)
    queue_id, endpoints = queue.id, queue.endpoints
    found: list[Receipt | ClientError] = [
        Receipt(each, offset, queue_id, endpoints) for each, offset in zip(ids, answer.offsets, strict=True)
    ]
    for row, (code, text) in answer.refused.items():
        found[row] = code_error(code, text, request_id) or found[row]
    return found


def from_batch(batch: ReceiveBatchResponse, topic: str, endpoints: Endpoints) -> list[Received]:
    """The messages of *batch*, which are of *topic* and came from *endpoints*."""
    bodies, count = list(batch.bodies), len(batch.bodies)
    corrupted = [checksum(bodies) != batch.crc] * count
    for row in batch.zipped:
        unpacked = None if corrupted[row] else unpack(bodies[row])
        corrupted[row] = unpacked is None
        bodies[row] = bodies[row] if unpacked is None else unpacked
    moments: dict[int, datetime] = {}  # messages that were stored together have one time
    for time in {*batch.born, *batch.stored, *batch.due}:
        moments[time] = _EPOCH + timedelta(microseconds=time)
    none, empty = [""] * count, [()] * count
    columns = (  # in the order of the members of a received message
        [topic] * count,
        bodies,
        batch.ids,
        batch.handles,
        batch.attempts,
        batch.tags or none,
        batch.keys or empty,
        batch.properties or [{} for _ in bodies],
        batch.groups or none,
        [moments[time] for time in batch.born],
        batch.hosts,
        [moments[time] for time in batch.stored],
        [moments[time] if time else None for time in batch.due or [0] * count],
        batch.queues,
        batch.offsets,
        [endpoints] * count,
        corrupted,
    )
    return [Received(*row) for row in zip(*columns, strict=True)]
