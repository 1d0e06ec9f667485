"""The broker's journal: what it has decided, durable, and read again when it starts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Sequence

from millstream.log import (
    Gap,
    Log,
    LogError,
    LogNotFoundError,
    LogSpec,
    LogStore,
    Message,
    system_log,
)
from millstream.messaging.broker.delivery.id_ranges import to_ranges
from millstream.messaging.broker.limits import Limits
from millstream.messaging.broker.storage.broker_state import BrokerState, delivery_snapshot_messages
from millstream.messaging.broker.storage.delayed_messages import (
    DelayedMessage,
    read_delayed_message,
    read_delayed_messages,
)
from millstream.messaging.broker.storage.journal_events import (
    DelayedMessagesSnapshot,
    Event,
    GroupConfigured,
    OffsetMoved,
    TopicDropped,
    TopicMade,
    event_message,
    read_event,
)
from millstream.messaging.broker.storage.message_cache import MessageCache

JOURNAL = system_log("broker.journal", "journal")
HELD = system_log("broker.held", "journal")
GROUP_PREFIX = "group."
"""The consumer group ``g`` is the consumer ``group.g`` of its topics' logs, so that retention can look at it."""

SNAPSHOT = "snapshot"
"""The pointer of the journal to what precedes its last snapshot. Where the journal begins behind that, its beginning
counts: it is only trimmed to the beginning of a durable snapshot."""

_log = logging.getLogger(__name__)


class BrokerJournal:
    """Records events and keeps :attr:`state` in step with them. For one event loop.

    After ``snapshot_after`` events of *limits*, more where the state is larger, it sums up what it knows and trims the
    rest.
    A broker that has the journal open is the only one: a second gets the log's ``WriterBusyError``.
    """

    def __init__(self, store: LogStore, now: int, limits: Limits) -> None:
        self._store = store
        self._snapshot_after = limits.snapshot_after
        self._snapshot: asyncio.Future[None] | None = None
        self._saved_positions: dict[tuple[str, str], int] = {}
        self._log, self._held_log = store.log(JOURNAL), store.log(HELD)
        self._message_cache = MessageCache(self._held_log)
        self._recorded = 0
        self.state = BrokerState(limits.renewed_for)
        with contextlib.ExitStack() as opened:
            self._writer = opened.enter_context(self._log.writer("broker"))
            self._held_writer = opened.enter_context(self._held_log.writer("broker"))
            self._held = self._held_writer.last_id
            self._since_snapshot, last_held = _recover(self.state, self._log, self._held_log, now)
            if last_held > self._held:
                self._record_lost_held(last_held)
            opened.pop_all()

    @property
    def is_usable(self) -> bool:
        """Whether no commit has failed, no other broker has taken over, and it is not closed."""
        try:
            for writer in (self._writer, self._held_writer):
                writer.append_nowait([])
        except LogError:
            return False
        return True

    def record(self, event: Event) -> int:
        """Append *event* and apply it; its number. It is in order at once, and durable after :meth:`confirm`."""
        ids = self._writer.append_nowait([event_message(event)])
        assert ids is not None
        self.state.apply(event, ids.last)
        self._recorded = ids.last
        self._since_snapshot += 1
        return ids.last

    def record_now(self, events: Sequence[Event]) -> None:
        """Append and apply *events*, which are durable when this returns."""
        numbers = [self.record(event) for event in events]
        self._writer.durable(max(numbers, default=0))

    async def confirm(self, number: int) -> None:
        """Return once the event *number* is durable."""
        await self._writer.durable_async(number)
        if self._is_snapshot_due:
            self._since_snapshot = 0
            self._snapshot = asyncio.ensure_future(self._take_snapshot())

    async def confirm_all(self) -> None:
        """Return once all events that were recorded before are durable."""
        await self.confirm(self._recorded)

    async def write(self, event: Event) -> int:
        """Record *event*, durably; its number."""
        number = self.record(event)
        await self.confirm(number)
        return number

    async def drop_topic(self, name: str) -> None:
        """Drop the topic *name*, durably, with what is held back for it; nothing more may be held back for it
        meanwhile."""
        held = self._held
        if held:  # else the ids of messages that are lost in a crash would be given to messages of a new topic
            await self._held_writer.durable_async(held)
        await self.write(TopicDropped(name, held))

    async def hold(self, messages: Sequence[Message]) -> list[int]:
        """Hold *messages* back, durably; their ids in the log of held messages.

        A delayed message that its topic remembers by its message id is not held again: its first id is returned.
        """
        delayed = [read_delayed_message(message.headers, 0) for message in messages]
        new: dict[tuple[str, str, int], int] = {}  # the first row of each message that is not remembered
        rows: list[int] = []  # for each message, the row whose id it gets
        for row, hold in enumerate(delayed):
            hold.id = self.state.delayed.known_id(hold)
            name = hold.topic, hold.message_id, row if hold.half else -1
            rows.append(row if hold.id else new.setdefault(name, row))
        if new:
            self._append_held([messages[row] for row in new.values()], [delayed[row] for row in new.values()])
        ids = [delayed[row].id for row in rows]
        try:
            await self._held_writer.durable_async(max(ids))
        except Exception:  # a send that is cancelled stays: its message becomes durable
            self.state.delayed.remove(delayed[row].id for row in new.values())
            raise
        return ids

    def _record_lost_held(self, last_held: int) -> None:
        """The log of held messages lost its last ones: let what gets their ids be held, and not count as released."""
        _log.warning(
            "the log of held messages ends at id %d, but the journal of the broker has ids up to %d: the log lost "
            "messages at a power loss (durability=os) or was restored from an older backup; these delayed messages and "
            "open transactions are lost",
            self._held,
            last_held,
        )
        self.record_now([_held_snapshot(self.state, self._held)])

    def _append_held(self, messages: list[Message], delayed: Sequence[DelayedMessage]) -> None:
        """Append *messages*, whose holds are *delayed*."""
        ids = self._held_writer.append_nowait(messages)
        assert ids is not None
        self._held = ids.last
        for hold, number in zip(delayed, ids, strict=True):
            hold.id = number
            self.state.delayed.add(hold)
            self.state.delayed.remember(hold)

    async def held(self, numbers: Sequence[int], most_bytes: int | None = None) -> list[Message]:
        """The messages held back under *numbers* (ascending); at least the first one.

        Once their bodies have *most_bytes* bytes together, no further ones are read.
        """
        await self._held_writer.durable_async(numbers[-1])
        found = await self._message_cache.read_ids(numbers, most_bytes)
        return [found[number] for number in numbers[: max(len(found), 1)]]

    def close(self) -> None:
        """Let the next broker in."""
        if self._snapshot is not None:
            self._snapshot.cancel()
        try:
            self._held_writer.close()
        finally:
            self._writer.close()

    def is_at_rest(self) -> bool:
        """Whether no snapshot is under way."""
        return self._snapshot is None or self._snapshot.done()

    @property
    def _is_snapshot_due(self) -> bool:
        recorded = self._since_snapshot
        return recorded >= self._snapshot_after and recorded >= self.state.size and self.is_at_rest()

    async def _take_snapshot(self) -> None:
        """Sum up what is known, and trim what that makes superfluous; no call waits for it."""
        try:
            durable = min(self._held, self._held_writer.last_id)  # what is held beyond that may be lost yet
            ids = self._writer.append_nowait(list(snapshot(self.state, durable)))
            assert ids is not None
            first_held = min(self.state.delayed.held_ids, default=self._held + 1)
            await self._writer.durable_async(ids.last)
            await asyncio.to_thread(self._trim_before_snapshot, ids.first, first_held)
        except LogError:  # what was asked for is durable; the next snapshot tries again
            _log.exception("a snapshot of the broker's journal failed")

    def _trim_before_snapshot(self, first_id: int, first_held: int) -> None:
        """Begin the journal at its snapshot, and the held messages at the first that is held."""
        self._log.set_pointer(SNAPSHOT, first_id - 1)
        self._log.trim(first_id)
        self._held_log.trim(min(first_held, self._held_log.last_id + 1))

    async def save_positions(self) -> None:
        """Store with the logs of topics up to where groups are done with them, where that has moved: for retention and
        status. What fails is logged, and tried again by the next call; one call at a time."""
        deliveries = self.state.deliveries.items()
        positions = {key: each.done.pointer for key, each in deliveries if key[1] in self.state.topics}
        self._saved_positions = {key: saved for key, saved in self._saved_positions.items() if key in positions}
        moved = {key: pointer for key, pointer in positions.items() if self._saved_positions.get(key) != pointer}
        failed: list[Exception] = []
        try:
            if moved:
                await self._writer.durable_async(self._recorded)
        except LogError:  # the positions are not durable, and the broker reads its journal again
            return
        for (group, topic), pointer in moved.items():
            if not self.is_usable:  # a broker that has taken over may have stored later ones
                return
            try:
                await asyncio.to_thread(self._save_position, group, topic, pointer)
                self._saved_positions[group, topic] = pointer
            except Exception as error:  # of one topic, say
                failed.append(error)
        if failed:
            _log.warning(
                "cannot store %d positions of consumer groups with the logs of their topics yet: %s",
                len(failed),
                failed[0],
            )

    def _save_position(self, group: str, topic: str, pointer: int) -> None:
        try:
            log = self._store.log(LogSpec(topic), create=False)
        except LogNotFoundError:  # it was deleted
            return
        consumer, last_id = GROUP_PREFIX + group, min(pointer, log.last_id)
        if last_id == 0 or log.pointer(consumer) != last_id:  # a read is cheaper; 0 is also that of an unknown consumer
            log.set_pointer(consumer, last_id)


def snapshot(state: BrokerState, held_upto: int) -> Iterator[Message]:
    """The messages of events that lead to *state* by themselves; *held_upto* is the last message held."""
    for spec in state.topics.values():
        yield event_message(TopicMade(spec.name, spec.type, spec.queues))
    for rules in state.groups.values():
        yield event_message(GroupConfigured(rules.name, rules.max_attempts, rules.backoff))
    for (group, topic), delivery in state.deliveries.items():
        yield from delivery_snapshot_messages(group, topic, delivery)
    for (group, topic, queue), offset in state.offsets.items():
        yield event_message(OffsetMoved(group, topic, queue, offset))
    yield event_message(_held_snapshot(state, held_upto))


def _held_snapshot(state: BrokerState, upto: int) -> DelayedMessagesSnapshot:
    delayed = sorted(number for number in state.delayed.held_ids if number <= upto)
    asked = {hold.id: hold.asked for hold in state.delayed if hold.asked}
    return DelayedMessagesSnapshot(upto, to_ranges(delayed), asked)


def _recover(state: BrokerState, log: Log, held: Log, now: int) -> tuple[int, int]:
    """Read the journal *log* into *state*; how many events it has, and the last id in *held* that it knows."""
    read, first_id = 0, max(log.pointer(SNAPSHOT) + 1, log.first_id)
    for batch in log.read(first_id, gaps="none"):
        for message in batch:
            state.apply(read_event(message), message.id)
            read += 1
    last_held = state.last_held
    kept, upto = state.end_recovery(now)
    for hold in read_delayed_messages(held, kept, upto):
        if isinstance(hold, Gap):
            _keep_unreadable(state, hold)
            continue
        if state.was_dropped(hold):
            continue
        state.delayed.remember(hold)
        if not state.is_free(hold.id):
            hold.asked = state.asked_before(hold.id)
            state.delayed.add(hold)
        elif hold.half:
            state.delayed.remember_end(hold, committed=state.was_committed(hold.id))
    state.forget_recovery()
    return read, last_held


def _keep_unreadable(state: BrokerState, gap: Gap) -> None:
    """Hold on to what is damaged in the log of held messages and was not released: a repair may come before a restart,
    and one damaged block must not keep the broker from its other messages."""
    held = [] if gap.reason == "trimmed" else [number for number in gap.ids if not state.is_free(number)]
    state.delayed.add_unreadable(held)
    if held:
        _log.error(
            "%d delayed messages or open transactions of the broker cannot be read and are not delivered (ids %d to "
            "%d): %s",
            len(held),
            held[0],
            held[-1],
            gap.error,
        )
