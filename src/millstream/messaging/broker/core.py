"""The broker without its network: topics, groups, and what is held back, over one log store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from weakref import WeakValueDictionary

from pyarrow import RecordBatch

from millstream.core import tracing
from millstream.core.clock import Clock
from millstream.log import Log, LogError, LogNotFoundError, LogSpec, LogStore, Message, Writer, WriterBusyError
from millstream.messaging.broker.clients.client_commands import ClientCommands
from millstream.messaging.broker.clients.sessions import ClientSessions
from millstream.messaging.broker.delivery.group_delivery import GroupDelivery
from millstream.messaging.broker.delivery.id_ranges import IdRanges, merge_ranges, missing_ids, to_ranges
from millstream.messaging.broker.delivery.topic_notifier import TopicNotifier
from millstream.messaging.broker.limits import GroupSpec, Limits
from millstream.messaging.broker.names import dead_letter_topic, read_handle, read_handles, write_handle
from millstream.messaging.broker.storage.deduplication_index import NameRun
from millstream.messaging.broker.storage.journal import BrokerJournal
from millstream.messaging.broker.storage.journal_events import (
    Finished,
    GroupConfigured,
    Hidden,
    OffsetReset,
    TopicMade,
)
from millstream.messaging.broker.storage.topic import Topic, TopicSpec, changes_topic, missing_topic, no_topic
from millstream.messaging.broker.storage.wire_codec import DEAD_ID, DEAD_TOPIC, ID, QUEUE, TRACE, TYPE, message_id
from millstream.messaging.errors import StatusError
from millstream.messaging.protocol import v2
from millstream.messaging.protocol.batch_calls import ByteColumn, text_column

_EXPIRED = (
    "the receipt handle has expired, or its message is done: acknowledge sooner, or set a longer invisible duration"
)

_log = logging.getLogger(__name__)


class BrokerCore:
    """Topics and groups of *store*, of whose journal and topics it is the one writer. For one event loop.

    It takes the place of the core *before*, whose clients stay.
    Raises the log's ``WriterBusyError`` where another broker, or another writer of a topic, is at work.
    """

    def __init__(
        self, store: LogStore, clock: Clock, limits: Limits | None = None, *, before: BrokerCore | None = None
    ) -> None:
        self.clock = clock
        self.limits = limits or Limits()
        self.sessions: ClientSessions = ClientSessions() if before is None else before.sessions
        self.client_commands: ClientCommands = ClientCommands() if before is None else before.client_commands
        self.notifier = TopicNotifier()
        self.waiting = 0
        """How many calls wait for messages."""
        self._store = store
        self._topics: dict[str, Topic] = {}
        self._dropping: dict[str, asyncio.Event] = {}
        self._is_closed = False
        self.journal = BrokerJournal(store, clock.now(), self.limits)
        self._receive_locks = WeakValueDictionary[tuple[str, str], asyncio.Lock]()
        self._last_seen = dict(self.journal.state.last_seen())
        if before is not None:
            self.journal.state.take_connections(before.journal.state)

    @property
    def specs(self) -> Sequence[TopicSpec]:
        """All topics, by name."""
        return [self.journal.state.topics[name] for name in sorted(self.journal.state.topics)]

    def topic(self, name: str) -> Topic:
        """The topic *name*, opened when it is first asked for.

        Raises TOPIC_NOT_FOUND, and PRECONDITION_FAILED where another process has its log open for writing;
        INTERNAL_SERVER_ERROR once the core is closed: a call may wait beyond that, and the log is the next core's then.
        """
        if self._is_closed:
            raise StatusError(v2.INTERNAL_SERVER_ERROR, "the broker is restarting: try again in a moment")
        if name in self._dropping:
            raise no_topic(name)
        found = self._topics.get(name)
        if found is None:
            spec = self.journal.state.topics.get(name)
            if spec is None:
                raise no_topic(name)
            try:
                found = Topic(spec, self._store, self.clock)
            except WriterBusyError as error:
                raise StatusError(
                    v2.PRECONDITION_FAILED,
                    f"another process writes to the log of topic {name}: stop that process first ({error})",
                ) from error
            self._forget_lost_messages(found)
            self._topics[name] = found
        return found

    def _forget_lost_messages(self, topic: Topic) -> None:
        """Where *topic* lost its last messages, let its groups get those that are given their ids."""
        name, last_id = topic.spec.name, topic.last_id
        last_seen = self._last_seen.pop(name, 0)
        events = self.journal.state.cut_to(name, last_id) if last_seen > last_id else ()
        if not events:
            return
        _log.warning(
            "topic %s ends at message %d, but consumer groups have seen messages up to %d: its log lost messages at a "
            "power loss (durability=os) or was restored from an older backup",
            name,
            last_id,
            last_seen,
        )
        try:
            self.journal.record_now(events)
        except BaseException:
            self._last_seen[name] = last_seen
            topic.close()
            raise

    def extent(self, name: str) -> tuple[int, int]:
        """The first and the last message that the topic *name* has; read from its log where it is not open."""
        found: Topic | Log | None = self._topics.get(name)
        if found is None:
            try:
                found = self._store.log(LogSpec(name), create=False)
            except LogNotFoundError:
                return 1, 0
        return found.first_id, found.last_id

    def writer_of(self, name: str) -> Writer | None:
        """The writer of the log *name* where a topic has it open. From any thread."""
        found = self._topics.get(name)
        return None if found is None else found.writer

    async def create_topic(self, spec: TopicSpec) -> None:
        """Make a topic, durably; nothing happens where it is there as asked. Waits while a topic of this name is being
        dropped, and then makes a new one. Raises :class:`TopicError` where it is another.
        """
        while (dropped := self._dropping.get(spec.name)) is not None:
            await dropped.wait()  # else the deletion that is under way would delete this topic, too
        if changes_topic(self.journal.state.topics.get(spec.name), spec):
            await self.journal.write(TopicMade(spec.name, spec.type, spec.queues))
            self._close_topic(spec.name)
        else:
            await self.journal.confirm_all()  # another call may be about to make it

    async def drop_topic(self, name: str) -> None:
        """Drop a topic, the progress of its groups, and what is held back for it; its log stays.

        Raises :class:`TopicNotFoundError`.
        """
        if self.find_spec(name) is None:
            raise missing_topic(name)
        dropped = self._dropping[name] = asyncio.Event()
        try:
            await self.journal.drop_topic(name)
        finally:
            del self._dropping[name]
            dropped.set()
            if name not in self.journal.state.topics:
                self._close_topic(name)

    def find_spec(self, name: str) -> TopicSpec | None:
        """The topic *name*; None where there is none, or where it is being dropped."""
        return None if name in self._dropping else self.journal.state.topics.get(name)

    async def publish(self, name: str, messages: Sequence[Message]) -> Sequence[int]:
        """Append *messages* to the topic *name*, durably; their ids."""
        with tracing.span("store", parent=_trace_of(messages), topic=name, messages=len(messages)):
            ids = await self.topic(name).publish(messages)
        self.notifier.notify(name)
        return ids

    async def publish_columns(self, name: str, names: Sequence[bytes] | NameRun, batch: RecordBatch) -> Sequence[int]:
        """Like :meth:`publish`, of a record batch whose ids of the protocol are *names*."""
        with tracing.span("store", parent=_trace_of_first(batch), topic=name, messages=len(names)):
            ids = await self.topic(name).publish_columns(names, batch)
        self.notifier.notify(name)
        return ids

    async def wait_for_messages(self, topic: str, version: int, seconds: float) -> None:
        """Return when *topic* may have something since its notifier had *version*, or after *seconds*.

        Raises TOO_MANY_REQUESTS where too many calls wait.
        """
        if self.waiting >= self.limits.max_waiting:
            raise StatusError(v2.TOO_MANY_REQUESTS, f"too many waiting consumers ({self.waiting:,}): try again later")
        self.waiting += 1
        try:
            await self.notifier.wait(topic, version, seconds)
        finally:
            self.waiting -= 1

    # What groups do with messages

    def receive_lock(self, group: str, topic: str) -> asyncio.Lock:
        """Held while a receive looks for messages, so that a reset does not come in between; it exists while a call
        has it or waits for it."""
        found = self._receive_locks.get((group, topic))
        if found is None:
            found = self._receive_locks[group, topic] = asyncio.Lock()
        return found

    def delivery(self, group: str, topic: str) -> GroupDelivery:
        """The progress of *group* in *topic*. Raises TOPIC_NOT_FOUND."""
        self.topic(topic)
        return self.journal.state.delivery(group, topic)

    def expire(self, delivery: GroupDelivery, now: int) -> None:
        """Let what was lent until *now* (microseconds) be given again, but for what the broker renews."""
        delivery.expire(now, lambda client, connection: self.sessions.is_connected(client, connection, now))

    def renew(self) -> None:
        """Renew what clients have that ask for no more: their handles stay valid only by that."""
        now = self.clock.now()
        for delivery in self.journal.state.deliveries.values():
            self.expire(delivery, now)

    def replace_failed_writers(self) -> None:
        """Let all open topics have writers that can be used, where that is possible."""
        for name, topic in self._topics.items():
            try:
                if topic.replace_failed_writer():
                    self.notifier.notify(name)
            except Exception:  # it holds up no other topic
                _log.exception("replacing the failed writer of topic %s failed; trying again", name)

    def check_handle(self, group: str, topic: str, handle: str) -> int:
        """The message whose receipt *handle* is current. Raises INVALID_RECEIPT_HANDLE."""
        held, refused = self.check_handles(group, topic, text_column([handle]))
        for code, text in refused.values():
            raise StatusError(code, text)
        return held[0][0]

    def check_handles(self, group: str, topic: str, handles: ByteColumn) -> tuple[IdRanges, dict[int, tuple[int, str]]]:
        """The messages whose receipt handles are current; by its row the code and text of each that is not."""
        delivery, now = self.journal.state.deliveries.get((group, topic)), self.clock.now()
        if delivery is not None:
            self.expire(delivery, now)
        held: list[tuple[int, int]] = []
        refused: dict[int, tuple[int, str]] = {}
        row = 0
        for run in _read_handles(handles):
            if isinstance(run, StatusError):
                refused[row] = run.code, str(run)
                row += 1
                continue
            first, last, token = run
            current = () if delivery is None else delivery.held(first, last, token, now)
            held += current
            for number in missing_ids(first, last, current):
                refused[row + number - first] = v2.INVALID_RECEIPT_HANDLE, _EXPIRED
            row += last - first + 1
        return held, refused

    async def finish(self, group: str, topic: str, ids: IdRanges, *, dead: str = "") -> None:
        """*group* is done with the messages *ids* of *topic*, durably."""
        number = self.journal.record(Finished(group, topic, merge_ranges(ids), dead))
        self._notify_ordered(group, topic)
        await self.journal.confirm(number)

    async def hide(self, group: str, topic: str, number: int, duration: int) -> str:
        """Hide a message for *duration* microseconds from now; its new handle."""
        until = self.clock.now() + duration
        token = self.journal.record(Hidden(group, topic, number, until))
        self.notifier.notify(topic)
        await self.journal.confirm(token)
        return write_handle(number, token)

    async def move_to_dead_letters(self, group: str, topic: str, numbers: Sequence[int], reason: str) -> None:
        """Put messages (ascending ids) into the dead-letter topic of *group*; they are done.

        To repeat it after a failure is safe. A message that is given again meanwhile, or after a reset, is not done.
        """
        delivery = self.delivery(group, topic)
        tokens = {number: delivery.token(number) for number in numbers}
        found = await self.topic(topic).message_cache.read_ids(numbers)
        name = dead_letter_topic(group)
        await self.create_topic(self.journal.state.topics.get(name) or TopicSpec(name, "NORMAL", 1))
        if found:  # else they were trimmed meanwhile
            await self.publish(name, [_dead(message, topic, tokens[message.id]) for message in found.values()])
        left = [number for number in numbers if delivery.token(number) == tokens[number]]
        if left and self.is_present(group, topic, delivery):
            await self.finish(group, topic, to_ranges(left), dead=reason)

    def is_present(self, group: str, topic: str, delivery: GroupDelivery) -> bool:
        """Whether *delivery* still is the state of *group*: not if *topic* was deleted meanwhile."""
        return self.journal.state.deliveries.get((group, topic)) is delivery

    def group(self, name: str) -> GroupSpec:
        """The rules of the group *name*: its own, else the broker's."""
        own = self.journal.state.groups.get(name) or GroupSpec(name)
        return GroupSpec(name, own.max_attempts or self.limits.max_attempts, own.backoff or self.limits.backoff)

    async def configure_group(self, spec: GroupSpec) -> None:
        """From now on *spec* is how often messages are delivered to its group, and how long consumers wait between."""
        if self.journal.state.groups.get(spec.name, GroupSpec(spec.name)) != spec:
            await self.journal.write(GroupConfigured(spec.name, spec.max_attempts, spec.backoff))
        else:
            await self.journal.confirm_all()

    async def reset_offset(self, group: str, topic: str, next_id: int) -> None:
        """Let *group* continue at message *next_id* of *topic*: all before counts as done, nothing from it on."""
        async with self.receive_lock(group, topic):
            self.delivery(group, topic)
            number = self.journal.record(OffsetReset(group, topic, next_id))
        self.notifier.notify(topic)
        await self.journal.confirm(number)

    def remove_client(self, client_id: str) -> None:
        """The messages that the broker renews for *client_id* become visible in a second."""
        self.sessions.forget(client_id)
        until = self.clock.now() + 1_000_000
        for (_, topic), delivery in self.journal.state.deliveries.items():
            delivery.expire_soon(client_id, until)
            self.notifier.notify(topic)

    def close(self) -> None:
        """Close the journal and all topics, so that the next broker can open them. Calls that wait fail."""
        self._is_closed = True
        for name in list(self._topics):
            self._close_topic(name)
        self.notifier.notify_all()
        self.journal.close()

    def _close_topic(self, name: str) -> None:
        topic = self._topics.pop(name, None)
        if topic is not None:
            try:
                topic.close()
            except LogError as error:
                _log.error("closing the topic %s failed: %s", name, error)

    def _notify_ordered(self, group: str, topic: str) -> None:
        if self.journal.state.delivery(group, topic).fifo:
            self.notifier.notify(topic)


def _read_handles(handles: ByteColumn) -> Iterator[tuple[int, int, int] | StatusError]:
    """The first message, the last one and the token of each run of *handles*; what is wrong with one that is none."""
    runs = read_handles(handles.data, handles.count) if len(handles.lengths) == 1 else None
    if runs is not None:
        yield from runs
        return
    for handle in handles.values():
        try:
            number, token = read_handle(handle.decode("utf-8", "replace"))
            yield number, number, token
        except StatusError as error:
            yield error


def _dead(message: Message, topic: str, token: int) -> Message:
    """*message*, last lent under *token*, as it goes into a dead-letter topic: a plain message that says where it came
    from. Its id there contains the token: after a reset it may be dead again, which is no repetition."""
    former_id = message_id(message)
    kept = [(name, value) for name, value in message.headers if name not in (ID, TYPE, QUEUE)]
    headers = [(ID, f"{former_id}.{token:x}".encode()), *kept]
    origin = [(DEAD_TOPIC, topic.encode()), (DEAD_ID, former_id.encode())]
    return Message(message.body, message.key, message.source, message.event_time, None, (*headers, *origin))


def _trace_of(messages: Sequence[Message]) -> str | None:
    """The trace that the first of *messages* is part of; not looked for without tracing."""
    return _trace_in(dict(messages[0].headers)) if messages and tracing.is_on() else None


def _trace_of_first(batch: RecordBatch) -> str | None:
    """The same, for messages in columns."""
    if not batch.num_rows or not tracing.is_on():
        return None
    return _trace_in({header["name"]: header["value"] for header in batch.column("headers")[0].as_py()})


def _trace_in(headers: Mapping[str, bytes]) -> str | None:
    found = headers.get(tracing.HEADER) or headers.get(TRACE)
    return found.decode("ascii", "replace") if found else None
