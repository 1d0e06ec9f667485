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
from millstream.messaging.broker.storage.journal_events import OffsetMoved
from millstream.messaging.broker.storage.wire_codec import QUEUE, header, is_tick
from millstream.messaging.errors import StatusError
from millstream.messaging.protocol import v2

_PAGE = 1024


class PullRequest(msgspec.Struct, kw_only=True, frozen=True):
    """At most ``count`` messages of ``queue`` (-1: any) from ``offset`` on; waits ``poll`` seconds for the first."""

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
        """The messages for *pull*, and the next offset. Raises ILLEGAL_OFFSET for one beyond the end."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + pull.poll
        end = self._core.topic(pull.topic).last_id
        if not 0 <= pull.offset <= end:
            raise StatusError(v2.ILLEGAL_OFFSET, f"topic {pull.topic} has no offset {pull.offset}: use 0 to {end}")
        while True:
            version = self._core.notifier.version(pull.topic)
            found, offset = await self._scan(pull)
            left = deadline - loop.time()
            if found or left <= 0:
                return found, offset
            pull = msgspec.structs.replace(pull, offset=offset)
            await self._core.notifier.wait(pull.topic, version, left)

    async def find_offset(self, topic: str, policy: int, time: int) -> int:
        """The offset of the first message, of the next one, or of the first one stored at *time* (microseconds)."""
        found = self._core.topic(topic)
        if policy == v2.BEGINNING:
            return found.first_id - 1
        if policy == v2.END:
            return found.last_id
        return await asyncio.to_thread(found.first_id_since, time) - 1

    async def store_offset(self, group: str, topic: str, queue: int, offset: int) -> None:
        """Keep the place of *group*, durably. Raises ILLEGAL_OFFSET."""
        end = self._core.topic(topic).last_id
        if not 0 <= offset <= end:
            raise StatusError(v2.ILLEGAL_OFFSET, f"topic {topic} has no offset {offset}: use 0 to {end}")
        await self._core.journal.write(OffsetMoved(group, topic, queue, offset))

    def stored_offset(self, group: str, topic: str, queue: int) -> int:
        """The place that *group* has stored. Raises OFFSET_NOT_FOUND."""
        self._core.topic(topic)
        found = self._core.journal.state.offsets.get((group, topic, queue))
        if found is None:
            raise StatusError(
                v2.OFFSET_NOT_FOUND, f"group {group} has stored no offset of queue {queue} of topic {topic}"
            )
        return found

    async def _scan(self, pull: PullRequest) -> tuple[list[Message], int]:
        source, found, offset = self._core.topic(pull.topic), list[Message](), pull.offset
        while len(found) < pull.count and offset < source.last_id:
            messages = await source.message_cache.read(offset + 1, min(source.last_id, offset + _PAGE))
            if not messages:
                offset = max(source.first_id - 1, offset + 1)  # trimmed
            for message in messages:
                offset = message.id
                if _is_asked_for(message, pull):
                    found.append(message)
                    if len(found) == pull.count:
                        break
        return found, offset


def _is_asked_for(message: Message, pull: PullRequest) -> bool:
    if is_tick(message):
        return False
    queue = int(header(message, QUEUE) or 0)
    return pull.queue in (-1, queue) and (pull.message_filter is None or pull.message_filter(message))
