"""Messages that are held back: until their time has come, or until their transaction ends.

They wait in a separate log, so that a topic has only messages that its consumers may receive.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

import msgspec

from millstream.log import Gap, Log, Message
from millstream.messaging.broker.delivery.id_ranges import to_ranges
from millstream.messaging.broker.storage.deduplication_index import DEDUPLICATION_WINDOW, DeduplicationIndex
from millstream.messaging.broker.storage.wire_codec import DELIVER_AT, ID, PREFIX

HELD_TOPIC = PREFIX + "held-topic"
DUE = PREFIX + "due"

_MAX_ENDED = 10_000
"""Number of ended transactions that are remembered, so that a client may repeat the call that ended one."""

_SPARE_TIMERS = 1_000
"""Number of outdated timers that are kept in addition to one for each held message."""


class DelayedMessage(msgspec.Struct):
    """One message that is held back, by its id in the log of held messages.

    ``due`` is when something has to happen (microseconds): the delivery of a delayed message, or the next question
    to a producer how the transaction ends, of which there have been ``asked``. ``ending`` while it is being released.
    """

    id: int
    topic: str
    message_id: str
    due: int
    half: bool
    asked: int = 0
    ending: bool = False


class DelayedMessageIndex:
    """All messages that are held back, by id and by time; and which delayed messages each topic has got."""

    def __init__(self) -> None:
        self._delayed: dict[int, DelayedMessage] = {}
        self._unreadable: set[int] = set()
        self._timers: list[tuple[int, int]] = []
        self._known: dict[str, DeduplicationIndex] = {}
        self._ended: dict[int, tuple[str, str, bool]] = {}

    def __len__(self) -> int:
        return len(self._delayed)

    def __iter__(self) -> Iterator[DelayedMessage]:
        return iter(self._delayed.values())

    @property
    def held_ids(self) -> Iterable[int]:
        """The ids of all that is held back, also of what cannot be read."""
        return self._delayed.keys() | self._unreadable

    def add_unreadable(self, numbers: Iterable[int]) -> None:
        """Nothing but the ids is known of what was held back under *numbers*: the log is damaged there."""
        self._unreadable.update(numbers)

    def get(self, number: int) -> DelayedMessage | None:
        """The hold *number*; None where it has ended or never was."""
        return self._delayed.get(number)

    def known_id(self, hold: DelayedMessage) -> int:
        """The id of the first delayed message with the topic and the message id of *hold*, also if its hold has ended.

        0 where none is remembered, and for a half message: after the end of its transaction, a repeated send begins
        another one.
        """
        known = None if hold.half else self._known.get(hold.topic)
        return known.get(hold.message_id.encode()) or 0 if known else 0

    def has_ended(self, number: int, topic: str, message_id: str, *, committed: bool) -> bool:
        """Whether the transaction of the half message *number* ended in this way, as far as is remembered."""
        return self._ended.get(number) == (topic, message_id, committed)

    def remember_end(self, hold: DelayedMessage, *, committed: bool) -> None:
        """Let :meth:`has_ended` find the transaction of the half message *hold*."""
        self._ended[hold.id] = hold.topic, hold.message_id, committed
        if len(self._ended) > _MAX_ENDED:
            del self._ended[next(iter(self._ended))]

    def remember(self, hold: DelayedMessage) -> None:
        """Let :meth:`known_id` find *hold*."""
        if not hold.half:
            known = self._known.setdefault(hold.topic, DeduplicationIndex(DEDUPLICATION_WINDOW))
            known.add([hold.message_id.encode()], [hold.id])

    def forget_topic(self, topic: str) -> None:
        """*topic* is deleted: nothing is held back for it, and none of its message ids is known."""
        self._known.pop(topic, None)
        self.remove([hold.id for hold in self if hold.topic == topic])

    def add(self, hold: DelayedMessage) -> None:
        """Hold a message back."""
        self._delayed[hold.id] = hold
        heapq.heappush(self._timers, (hold.due, hold.id))
        self._drop_outdated()

    def release(self, numbers: Iterable[int], *, dropped: bool) -> None:
        """These are in their topics, or *dropped*."""
        for number in numbers:
            hold = self._delayed.pop(number, None)
            if hold is not None and hold.half:
                self.remember_end(hold, committed=not dropped)

    def remove(self, numbers: Iterable[int]) -> None:
        """These are held back no longer."""
        for number in numbers:
            self._delayed.pop(number, None)

    def reschedule(self, hold: DelayedMessage, due: int) -> None:
        """Something has to happen with *hold* next at *due* (microseconds)."""
        hold.due = due
        heapq.heappush(self._timers, (due, hold.id))
        self._drop_outdated()

    def _drop_outdated(self) -> None:
        if len(self._timers) > 2 * len(self._delayed) + _SPARE_TIMERS:
            self._timers = [(hold.due, hold.id) for hold in self._delayed.values()]
            heapq.heapify(self._timers)

    def next_due(self) -> int | None:
        """The time of the next due action (microseconds)."""
        while self._timers:
            due, number = self._timers[0]
            hold = self._delayed.get(number)
            if hold is not None and hold.due == due:
                return due
            heapq.heappop(self._timers)
        return None

    def take_due(self, now: int, limit: int) -> list[DelayedMessage]:
        """At most *limit* due held messages; each is returned once, until its time is set again."""
        found: list[DelayedMessage] = []
        while len(found) < limit and (due := self.next_due()) is not None and due <= now:
            found.append(self._delayed[heapq.heappop(self._timers)[1]])
        return found


def delayed_message(message: Message, topic: str, deliver_at: int) -> Message:
    """*message* as it is held back until *deliver_at* (microseconds)."""
    extra = ((DELIVER_AT, b"%d" % deliver_at), (HELD_TOPIC, topic.encode()))
    return msgspec.structs.replace(message, headers=message.headers + extra)


def half_message(message: Message, topic: str, first_check: int) -> Message:
    """*message* as it is held back until its transaction ends; a producer is asked at *first_check* (microseconds)."""
    extra = ((DUE, b"%d" % first_check), (HELD_TOPIC, topic.encode()))
    return msgspec.structs.replace(message, headers=message.headers + extra)


def released_message(held: Message) -> Message:
    """The message that was held back, as it goes into its topic."""
    headers = tuple((name, value) for name, value in held.headers if name not in (HELD_TOPIC, DUE))
    return Message(held.body, held.key, held.source, held.event_time, None, headers)


def read_delayed_message(headers: Iterable[tuple[str, bytes]], number: int) -> DelayedMessage:
    """The held message of the *headers* of message *number* of the log of held messages."""
    known = {name: value.decode() for name, value in headers if name.startswith(PREFIX)}
    half = DUE in known
    due = int(known[DUE] if half else known[DELIVER_AT])
    return DelayedMessage(number, known[HELD_TOPIC], known.get(ID, ""), due, half)


def read_delayed_messages(log: Log, kept: Iterable[int], upto: int) -> Iterator[DelayedMessage | Gap]:
    """The holds *kept*, which a snapshot names, and all that came into *log* after message *upto*; a gap for those
    that are missing or damaged."""
    last = log.last_id
    for begin, end in to_ranges(kept):
        yield from _read(log, begin, min(end, last))  # what was held by the snapshot may not have been durable yet
    yield from _read(log, upto + 1, last)


def _read(log: Log, first_id: int, last_id: int) -> Iterator[DelayedMessage | Gap]:
    if first_id > last_id:
        return
    for batch in log.read(first_id, last_id, columns=["headers"], gaps="all"):
        if isinstance(batch, Gap):
            yield batch
            continue
        for number, pairs in enumerate(batch.arrow.column("headers").to_pylist(), batch.first_id):
            yield read_delayed_message([(pair["name"], pair["value"]) for pair in pairs], number)
