"""Consumers that keep their own place: messages of a queue from an offset on, and the offsets that they store.

The offset of a message is its id in the topic's log less one: offsets of a queue grow, with gaps where other queues of
the topic have theirs.
"""

from __future__ import annotations

import asyncio

import msgspec

from millstream.log import Message
from millstream.messaging.broker.core import BrokerCore
from millstream.messaging.broker.handlers.filters import MessageFilter
from millstream.messaging.broker.handlers.receive import MOST_BYTES
from millstream.messaging.broker.handlers.validation import ANY_QUEUE, check_offset, check_queue
from millstream.messaging.broker.names import enum_name
from millstream.messaging.broker.storage.journal_events import OffsetMoved
from millstream.messaging.broker.storage.wire_codec import QUEUE, header, header_number, is_tick
from millstream.messaging.errors import StatusError
from millstream.messaging.protocol import v2

_PAGE = 1024
_SCAN_SECONDS = 0.25  # at least, also for a call that does not wait


class PullRequest(msgspec.Struct, kw_only=True, frozen=True):
    """At most ``count`` messages of ``queue`` (:data:`ANY_QUEUE`: of all) from ``offset`` on; waits ``poll`` seconds
    for the first.
    """

    topic: str
    queue: int
    offset: int
    count: int
    poll: float = 0.0
    message_filter: MessageFilter | None = None


class PullHandler:
    """Reads topics of *core* for consumers that pull."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core

    async def pull(self, pull: PullRequest) -> tuple[list[Message], int]:
        """The messages for *pull*, of about :data:`MOST_BYTES` at most, and the next offset.

        Where few messages are asked for, it stops before the end of the topic, with what there is until then: a caller
        that has to give up would begin at the same offset again. Raises BAD_REQUEST for an unknown queue,
        ILLEGAL_OFFSET for an offset beyond the end, and TOO_MANY_REQUESTS where too many wait and no message was
        examined.
        """
        loop = asyncio.get_running_loop()
        deadline, begin = loop.time() + pull.poll, pull.offset
        topic = self._core.topic(pull.topic)
        check_queue(pull.queue, topic.spec)
        check_offset(pull.offset, pull.topic, topic.last_id)
        while True:
            version = self._core.notifier.version(pull.topic)
            found, offset = await self._scan(pull, deadline)
            left = deadline - loop.time()
            if found or left <= 0:
                return found, offset
            try:
                await self._core.wait_for_messages(pull.topic, version, left)
            except StatusError:
                if offset > begin:
                    return [], offset  # the caller need not examine again what was examined
                raise
            pull = msgspec.structs.replace(pull, offset=offset)

    async def find_offset(self, topic: str, queue: int, policy: int, time: int) -> int:
        """The offset of the first message, of the next one, or of the first one stored at *time* (microseconds).

        Raises BAD_REQUEST for an unknown queue or policy.
        """
        found = self._core.topic(topic)
        check_queue(queue, found.spec)
        if policy == v2.BEGINNING:
            return found.first_id - 1
        if policy == v2.END:
            return found.last_id
        if policy != v2.TIMESTAMP:
            raise StatusError(
                v2.BAD_REQUEST,
                f"unknown offset policy {enum_name(v2.QueryOffsetPolicy, policy)}: use BEGINNING, END or TIMESTAMP",
            )
        return await asyncio.to_thread(found.first_id_since, time) - 1

    async def store_offset(self, group: str, topic: str, queue: int, offset: int) -> None:
        """Keep the place of *group*, durably.

        Raises BAD_REQUEST for an unknown queue, and ILLEGAL_OFFSET for an offset beyond the end.
        """
        found = self._core.topic(topic)
        check_queue(queue, found.spec)
        check_offset(offset, topic, found.last_id)
        await self._core.journal.write(OffsetMoved(group, topic, queue, offset))

    def stored_offset(self, group: str, topic: str, queue: int) -> int:
        """The place that *group* has stored. Raises BAD_REQUEST for an unknown queue, and OFFSET_NOT_FOUND."""
        check_queue(queue, self._core.topic(topic).spec)
        found = self._core.journal.state.offsets.get((group, topic, queue))
        if found is None:
            raise StatusError(
                v2.OFFSET_NOT_FOUND, f"group {group} has stored no offset of queue {queue} of topic {topic}"
            )
        return found

    async def _scan(self, pull: PullRequest, deadline: float) -> tuple[list[Message], int]:
        """Messages for *pull*, and the next offset: behind the last message that was examined until *deadline*, or for
        :data:`_SCAN_SECONDS` if any was found."""
        loop = asyncio.get_running_loop()
        source, found, offset, size = self._core.topic(pull.topic), list[Message](), pull.offset, 0
        soon = loop.time() + _SCAN_SECONDS
        late = max(deadline, soon)
        while offset < source.last_id:
            messages = await source.message_cache.read(offset + 1, min(source.last_id, offset + _PAGE))
            if not messages:
                offset = max(source.first_id - 1, offset + 1)  # trimmed
            for message in messages:
                offset = message.id
                if _is_asked_for(message, pull):
                    found.append(message)
                    size += len(message.body)
                    if len(found) >= pull.count or size >= MOST_BYTES:
                        return found, offset
            if loop.time() >= (soon if found else late):
                break
        return found, offset


def _is_asked_for(message: Message, pull: PullRequest) -> bool:
    if is_tick(message):
        return False
    queue = header_number(header(message, QUEUE))
    return pull.queue in (ANY_QUEUE, queue) and (pull.message_filter is None or pull.message_filter(message))
