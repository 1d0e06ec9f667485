"""Messages as the columns that our broker takes and gives; see :mod:`millstream.messaging.protocol.batch_calls`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from millstream.messaging.client.endpoints import Endpoints
from millstream.messaging.client.errors import ClientError, ServerFailedError, code_error
from millstream.messaging.client.message import Message, MessageStamp, Receipt, Received, to_datetime, unpack
from millstream.messaging.client.route import Queue
from millstream.messaging.protocol.batch_calls import (
    MAX_BATCH,
    AckBatchResponse,
    ReceiveBatchResponse,
    SendBatchRequest,
    SendBatchResponse,
    byte_column,
    checksum,
    text_column,
)


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
        ids=text_column(ids),
        bodies=byte_column([message.body for message in messages]),
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
    offsets = consecutive_offsets(answer.offsets, len(ids))
    if len(offsets) != len(ids):
        text = f"the server returned {len(offsets):,} results for {len(ids):,} messages"
        return [ServerFailedError(text, request_id=request_id)] * len(ids)
    queues, servers = itertools.repeat(queue.id), itertools.repeat(queue.endpoints)
    found: list[Receipt | ClientError] = list(map(Receipt, ids, offsets, queues, servers))
    for row, refusal in refusals(answer, len(ids), request_id):
        found[row] = refusal
    return found


def refusals(
    answer: SendBatchResponse | AckBatchResponse, count: int, request_id: str
) -> Iterator[tuple[int, ClientError]]:
    """The row and the error of each message that is refused, of the *count* in the call.

    Raises :class:`ServerFailedError` for a row that the call did not have.
    """
    for row, (code, text) in answer.refused.items():
        if not 0 <= row < count:
            raise ServerFailedError(
                f"the server returned a result for row {row:,} of {count:,} messages", request_id=request_id
            )
        error = code_error(code, text, request_id)
        if error is not None:
            yield row, error


def from_batch(batch: ReceiveBatchResponse, topic: str, endpoints: Endpoints) -> list[Received]:
    """The messages of *batch*, which are of *topic* and came from *endpoints*. Raises :class:`ServerFailedError`."""
    count = batch.bodies.count
    if not all(
        column.is_valid and column.count == count <= MAX_BATCH for column in (batch.ids, batch.handles, batch.bodies)
    ):
        raise ServerFailedError(
            f"the server stated {count:,} messages but returned {batch.ids.count:,} ids, {batch.handles.count:,} "
            f"handles and {len(batch.bodies.data):,} bytes of bodies"
        )
    bodies = batch.bodies.values()
    corrupted = [checksum(batch.bodies) != batch.crc] * count
    for row in batch.zipped:
        if not 0 <= row < count:
            raise ServerFailedError(f"the server stated that row {row:,} of {count:,} messages is compressed")
        unpacked = None if corrupted[row] else unpack(bodies[row])
        corrupted[row] = unpacked is None
        bodies[row] = bodies[row] if unpacked is None else unpacked
    columns: Sequence[Iterable[Any]] = (  # in the order of the members of a received message
        itertools.repeat(topic),
        bodies,
        batch.ids.texts(),
        batch.handles.texts(),
        _spread(batch.attempts, 1),
        _spread(batch.tags, ""),
        _spread(batch.keys, ()),
        batch.properties or [{} for _ in range(count)],
        _spread(batch.groups, ""),
        _spread(_moments(batch.born), None),
        _spread(batch.hosts, ""),
        _spread(_moments(batch.stored), None),
        _spread([to_datetime(due) if due > 0 else None for due in batch.due], None),
        _spread(batch.queues, 0),
        consecutive_offsets(batch.offsets, count),
        itertools.repeat(endpoints),
        corrupted,
    )
    found = list(map(Received, *columns))
    if len(found) != count:
        raise ServerFailedError(f"the server stated {count:,} messages but returned {len(found):,}")
    return found


def _spread(column: Sequence[Any], default: Any) -> Iterable[Any]:
    """The entries of *column*; one that is for all, or the *default* in its absence, again and again."""
    return column if len(column) > 1 else itertools.repeat(column[0] if column else default)


def consecutive_offsets(offsets: Sequence[int], count: int) -> Sequence[int]:
    """The offsets of *count* messages, of which *offsets* may have only the first."""
    return range(offsets[0], offsets[0] + count) if len(offsets) == 1 else offsets


def _moments(times: Sequence[int]) -> Sequence[datetime]:
    """*times* (microseconds) as moments; messages that were stored together have one time."""
    known = {time: to_datetime(time) for time in set(times)}
    return [known[time] for time in times]
