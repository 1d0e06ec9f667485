"""The broker's journal: what it has decided, durable, and read again when it starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from millstream.log import FencedError, Log, LogSpec, LogStore, Message, WriterFailedError
from millstream.messaging.broker.delivery import ranges
from millstream.messaging.broker.events import Event, KeptHolds, OffsetMoved, TopicMade, event_message, read_event
from millstream.messaging.broker.holds import Hold, hold_of, read_holds
from millstream.messaging.broker.pages import Pages
from millstream.messaging.broker.state import State, kept_delivery

JOURNAL = "broker.journal"
HELD = "broker.held"
SNAPSHOT_AFTER = 20_000
"""Messages of the journal after which the next snapshot is due."""

_POINTER = "snapshot"


class Journal:
    """Records events and keeps :attr:`state` in step with them. For one event loop.

    A broker that has the journal open is the only one: a second gets the log's ``WriterBusyError``.
    """

    def __init__(self, store: LogStore, now: int) -> None:
        self._log = store.log(LogSpec(JOURNAL))
        self._writer = self._log.writer("broker")
        held_log = store.log(LogSpec(HELD))
        self._pages = Pages(held_log)
        try:
            self._held_writer = held_log.writer("broker")
            self._held = self._held_writer.last_id
            self.state, self._since_snapshot = _recover(self._log, held_log, now)
        except BaseException:
            self._writer.close()
            raise

    @property
    def is_usable(self) -> bool:
        """Whether no commit has failed, and no other broker has taken over."""
        try:
            for writer in (self._writer, self._held_writer):
                writer.append_nowait([])
        except (WriterFailedError, FencedError):
            return False
        return True

    def record(self, event: Event) -> int:
        """Append *event* and apply it; its number. It is in order at once, and durable after :meth:`confirm`."""
        ids = self._writer.append_nowait([event_message(event)])
        assert ids is not None
        self.state.apply(event, ids.last)
        self._since_snapshot += 1
        return ids.last

    async def confirm(self, number: int) -> None:
        """Return once the event *number* is durable."""
        await self._writer.durable_async(number)
        if self._since_snapshot >= SNAPSHOT_AFTER:
            await self._take_snapshot()

    async def write(self, event: Event) -> int:
        """Record *event*, durably; its number."""
        number = self.record(event)
        await self.confirm(number)
        return number

    async def hold(self, messages: list[Message]) -> list[Hold]:
        """Hold *messages* back, durably."""
        ids = self._held_writer.append_nowait(messages)
        assert ids is not None
        self._held = ids.last
        holds = [hold_of(message.headers, number) for number, message in zip(ids, messages, strict=True)]
        for hold in holds:
            self.state.holds.add(hold)
        try:
            await self._held_writer.durable_async(ids.last)
        except BaseException:
            self.state.holds.remove(ids)
            raise
        return holds

    async def held(self, numbers: Sequence[int]) -> list[Message]:
        """The messages held back under *numbers* (ascending)."""
        await self._held_writer.durable_async(numbers[-1])
        found = await self._pages.read_ids(numbers)
        return [found[number] for number in numbers]

    def close(self) -> None:
        """Let the next broker in."""
        try:
            self._held_writer.close()
        finally:
            self._writer.close()

    async def _take_snapshot(self) -> None:
        self._since_snapshot = 0
        messages = [event_message(event) for event in snapshot(self.state, self._held)]
        ids = self._writer.append_nowait(messages)
        assert ids is not None
        await self._writer.durable_async(ids.last)
        self._log.set_pointer(_POINTER, ids.first - 1)


def snapshot(state: State, held_upto: int) -> Iterator[Event]:
    """Events that lead to *state* by themselves; *held_upto* is the last message held."""
    for spec in state.topics.values():
        yield TopicMade(spec.name, spec.type, spec.queues)
    for (group, topic), delivery in state.deliveries.items():
        yield kept_delivery(group, topic, delivery)
    for (group, topic, queue), offset in state.offsets.items():
        yield OffsetMoved(group, topic, queue, offset)
    holds = sorted(hold.id for hold in state.holds if hold.id <= held_upto)
    yield KeptHolds(held_upto, ranges(holds), {hold.id: hold.asked for hold in state.holds if hold.asked})


def _recover(log: Log, held: Log, now: int) -> tuple[State, int]:
    state, read = State(), 0
    pointer = log.pointer(_POINTER)
    for batch in log.read(pointer + 1, gaps="none"):
        for message in batch:
            state.apply(read_event(message), message.id)
            read += 1
    kept, upto = state.end_recovery(now)
    for hold in read_holds(held, kept, upto):
        if not state.is_free(hold.id):
            hold.asked = state.asked_before(hold.id)
            state.holds.add(hold)
    return state, read
