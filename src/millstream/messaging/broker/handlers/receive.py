"""Giving messages to consumers: what is due again first, then what is new; waiting where there is nothing."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from millstream.core.clock import MICROSECONDS
from millstream.core.message import from_arrow
from millstream.log import LogError, Message
from millstream.messaging.broker.core import BrokerCore
from millstream.messaging.broker.delivery.group_delivery import GroupDelivery
from millstream.messaging.broker.delivery.id_ranges import IdRanges, to_ranges
from millstream.messaging.broker.handlers.column_chunk import ColumnChunk
from millstream.messaging.broker.handlers.filters import MessageFilter
from millstream.messaging.broker.names import write_handle
from millstream.messaging.broker.storage.journal_events import Hidden, MessagesLeased
from millstream.messaging.broker.storage.topic import Topic
from millstream.messaging.broker.storage.wire_codec import have_ticks, header_text, is_tick
from millstream.messaging.errors import StatusError

LOOK_AHEAD: Final = 10_000
"""How many messages of a topic with order are examined beyond those that wait for their turn."""

MOST_BYTES: Final = 8 << 20
"""About how many bytes of bodies are given at once, unless a single message is larger."""

_LONGEST_SLEEP: Final = 5.0  # seconds; then the clock is examined again, which may have been set
_AT_ONCE: Final = 16
_PAGE: Final = 1024
_RUN: Final = 64  # shorter runs are put together, message by message
_SKIP_AT_MOST: Final = 65_536
_SEARCH_SECONDS: Final = 0.25  # then it ends if it looked at anything: clients give up, and others wait for the lock
_DEAD_AGAIN: Final = 5 * MICROSECONDS  # when dead letters that could not be stored are tried again

_log = logging.getLogger(__name__)


class ReceiveRequest(msgspec.Struct, kw_only=True, frozen=True):
    """The request of a consumer: at most ``count`` messages, hidden for ``invisible`` microseconds.

    With ``renew`` the broker prolongs that while the ``connection`` is there by which the client gets them; with
    ``consecutive`` messages of a message group may be given together. It waits for ``poll`` seconds where there is
    nothing. With ``columns`` the answer may be a :class:`ColumnChunk`.
    """

    group: str
    topic: str
    count: int
    invisible: int
    client: str = ""
    connection: str = ""
    renew: bool = False
    consecutive: bool = False
    poll: float = 0.0
    attempt_id: str = ""
    message_filter: MessageFilter | None = None
    columns: bool = False


class DeliveredMessage(msgspec.Struct, frozen=True):
    """A message for a consumer, its receipt handle, and which delivery of it this is."""

    message: Message
    handle: str
    attempt: int


def chunk_messages(run: ColumnChunk) -> list[DeliveredMessage]:
    """The messages of *run* one by one."""
    return [DeliveredMessage(message, write_handle(message.id, run.token), 1) for message in from_arrow(run.arrow)]


class _PendingReceive:
    """A receive under way. When its client has given it up and asks again, that call takes its place.

    ``has_more`` says that its last look found nothing, but ended before the end of the topic.
    """

    is_repeated = False
    has_more = False


class ReceiveHandler:
    """Gives messages of *core* to consumers."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        self._calls: dict[tuple[str, str, str, str], _PendingReceive] = {}  # by client, group, topic, attempt id

    async def receive(self, ask: ReceiveRequest) -> list[DeliveredMessage] | ColumnChunk:
        """The messages for *ask*; none where there were none for as long as it waits.

        A client that repeats an attempt has given up the previous call: if that still waits, it gets nothing more.
        Raises TOO_MANY_REQUESTS where too many wait.
        """
        call, attempt = _PendingReceive(), (ask.client, ask.group, ask.topic, ask.attempt_id)
        if ask.attempt_id:
            before = self._calls.get(attempt)
            if before is not None:
                before.is_repeated = True
            self._calls[attempt] = call
        try:
            return await self._receive(ask, call)
        finally:
            if self._calls.get(attempt) is call:
                del self._calls[attempt]

    async def _receive(self, ask: ReceiveRequest, call: _PendingReceive) -> list[DeliveredMessage] | ColumnChunk:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ask.poll
        while True:
            version = self._core.notifier.version(ask.topic)
            given = await self._give(ask, call)
            left = deadline - loop.time()
            if given or left <= 0 or call.is_repeated:
                return given
            if call.has_more:
                await asyncio.sleep(0)  # other calls go on meanwhile
                continue
            await self._core.wait_for_messages(ask.topic, version, min(left, self._until_due(ask)))

    def _until_due(self, ask: ReceiveRequest) -> float:
        due = self._core.delivery(ask.group, ask.topic).next_due()
        left = _LONGEST_SLEEP if due is None else (due - self._core.clock.now()) / MICROSECONDS
        return min(max(left, 0.001), _LONGEST_SLEEP)

    async def _give(self, ask: ReceiveRequest, call: _PendingReceive) -> list[DeliveredMessage] | ColumnChunk:
        async with self._core.receive_lock(ask.group, ask.topic):
            if call.is_repeated:
                return []
            delivery = self._core.delivery(ask.group, ask.topic)
            now = self._core.clock.now()
            self._core.expire(delivery, now)
            if ask.attempt_id:
                delivery.reclaim_attempt(ask.attempt_id)
            search = _MessageSearch(self._core, delivery, ask)
            await search.run()
            ids, call.has_more = search.ids, search.has_more
            if not ids or not self._core.is_present(ask.group, ask.topic, delivery):
                return []
            token = self._lease(ask, ids, search.skipped, now)
            if ask.renew:
                delivery.set_connection(ids, ask.connection)
            given: list[DeliveredMessage] | ColumnChunk
            if search.chunk is not None:
                given = ColumnChunk(search.chunk.arrow, token)
            else:
                given = [
                    DeliveredMessage(message, write_handle(message.id, token), delivery.attempts(message.id))
                    for message in search.found
                ]
        await self._confirm(ask, token, ids)
        return given

    def _lease(self, ask: ReceiveRequest, ids: IdRanges, skipped: Sequence[int], now: int) -> int:
        lent = MessagesLeased(
            group=ask.group,
            topic=ask.topic,
            ids=list(ids),
            at=now,
            until=now + ask.invisible,
            client=ask.client,
            renew=ask.renew,
            attempt_id=ask.attempt_id,
            skipped=to_ranges(sorted(skipped)),
        )
        return self._core.journal.record(lent)

    async def _confirm(self, ask: ReceiveRequest, token: int, ids: IdRanges) -> None:
        try:
            await self._core.journal.confirm(token)
        except asyncio.CancelledError:  # this caller will not get them: the next one may
            now = self._core.clock.now()
            delivery = self._core.delivery(ask.group, ask.topic)
            held = [range(first, last + 1) for each in ids for first, last in delivery.held(*each, token, now)]
            for number in itertools.chain.from_iterable(held):
                self._core.journal.record(Hidden(ask.group, ask.topic, number, now))
            self._core.notifier.notify(ask.topic)
            raise


class _MessageSearch:
    """One look for messages: ``found`` are to be given, ``skipped`` are ids that the group has no use for.

    Or ``chunk`` is what is to be given, all at once.
    """

    def __init__(self, core: BrokerCore, delivery: GroupDelivery, ask: ReceiveRequest) -> None:
        self._core = core
        self._delivery = delivery
        self._ask = ask
        self._topic: Topic = core.topic(ask.topic)
        self.found: list[Message] = []
        self.chunk: ColumnChunk | None = None
        self.skipped: list[int] = []
        self._bytes = 0
        self._looked = False
        self._until = asyncio.get_running_loop().time() + _SEARCH_SECONDS
        self._postpones_dead = False

    @property
    def ids(self) -> IdRanges:
        """The ids of what is to be given."""
        if self.chunk is not None:
            first = self.chunk.first_id
            return [(first, first + len(self.chunk) - 1)]
        return to_ranges(sorted(message.id for message in self.found))

    async def run(self) -> None:
        if self._delivery.fifo:
            await self._from_lines()
        else:
            await self._from_anywhere()
        if self.skipped and not self.found and self.chunk is None:
            self._delivery.finish(to_ranges(sorted(self.skipped)))

    async def _from_anywhere(self) -> None:
        begin, back = self._delivery.next, list[int]()
        try:
            while not self._is_over and (ids := self._delivery.returning(min(self._missing, _AT_ONCE))):
                back += ids
                await self._read(await self._without_exhausted(ids))
                self._looked = True
            while not self._is_over and await self._next_page():
                self._looked = True
        except BaseException:  # what was skipped need not be looked at again
            self._delivery.return_unused(to_ranges(back))
            self._delivery.finish(to_ranges(sorted(self.skipped)))
            self._delivery.next = min([self._delivery.next, *(m.id for m in self.found if m.id >= begin)])
            raise

    async def _next_page(self) -> bool:
        """Look at the next messages that no client was given yet; False at the end."""
        first, last = self._delivery.next, self._topic.last_id
        if first > last or len(self.skipped) > _SKIP_AT_MOST:
            return False
        await self._let_others_run()
        reach = self._missing if self._ask.message_filter is None else _PAGE
        columns = await self._topic.message_cache.read_columns(first, min(last, first + reach - 1))
        ticks = columns is not None and have_ticks(columns)
        if columns is not None and not ticks and self._take_run(ColumnChunk(columns)):
            return False
        messages = [] if columns is None else list(from_arrow(columns))
        if not messages:
            self._pass_over_trimmed(first)
        if ticks or not self._take_all(messages):
            for message in messages:
                if self._is_full:
                    break
                self._delivery.next = message.id + 1
                if self._delivery.is_new(message.id):
                    self._take_or_skip(message)
        return True

    def _take_run(self, run: ColumnChunk) -> bool:
        """Take *run* as it is if it is worth it and nothing in it has to be looked at; whether that was so."""
        if not self._ask.columns or self._ask.message_filter is not None or self.found or self.skipped:
            return False
        if len(run) < min(self._missing, _RUN) or not self._delivery.are_new_from(run.first_id):
            return False
        if run.body_bytes >= MOST_BYTES:
            return False
        self.chunk = run
        self._delivery.next = run.first_id + len(run)
        return True

    def _take_all(self, messages: Sequence[Message]) -> bool:
        """Take *messages* together if none of them has to be looked at; whether that was so."""
        if self._ask.message_filter is not None or not messages or not self._delivery.are_new_from(messages[0].id):
            return False
        size = sum(len(message.body) for message in messages)
        if self._bytes + size >= MOST_BYTES:
            return False
        self.found += messages
        self._bytes += size
        self._delivery.next = messages[-1].id + 1
        return True

    @property
    def _missing(self) -> int:
        return self._ask.count - len(self.found)

    @property
    def _is_full(self) -> bool:
        return self._missing <= 0 or self._bytes >= MOST_BYTES

    @property
    def _is_late(self) -> bool:
        """Whether it has looked at something, for as long as it may."""
        return self._looked and asyncio.get_running_loop().time() >= self._until

    @property
    def _is_over(self) -> bool:
        return self._is_full or self._is_late

    @property
    def has_more(self) -> bool:
        """Whether it ended although further messages may be looked at."""
        was_cut = self._is_late or len(self.skipped) > _SKIP_AT_MOST
        return was_cut and (self._has_unseen or self._delivery.has_returning)

    @property
    def _has_unseen(self) -> bool:
        return self._delivery.next <= self._topic.last_id and self._delivery.queued < LOOK_AHEAD

    async def _read(self, ids: Sequence[int]) -> None:
        messages = await self._topic.message_cache.read_ids(ids)
        for number in ids:
            if number in messages:
                self._take(messages[number])
            else:  # trimmed while it was in flight
                self.skipped.append(number)

    def _take(self, message: Message) -> None:
        self.found.append(message)
        self._bytes += len(message.body)

    def _take_or_skip(self, message: Message) -> None:
        if self._matches(message):
            self._take(message)
        else:
            self.skipped.append(message.id)

    def _matches(self, message: Message) -> bool:
        return not is_tick(message) and (self._ask.message_filter is None or self._ask.message_filter(message))

    async def _from_lines(self) -> None:
        living = await self._next_living()
        for start in range(0, len(living), _AT_ONCE):
            if not self._is_full and not (self.found and self._is_late):
                await self._read(living[start : start + _AT_ONCE])

    async def _next_living(self) -> list[int]:
        """Ids that may be given now; none where there are none, or it took too long to find any."""
        ask = self._ask
        while True:
            ids = self._delivery.next_in_order(ask.count, consecutive=ask.consecutive)
            while len(ids) < ask.count and not self._is_late and await self._line_up_page():
                self._looked = True
                ids = self._delivery.next_in_order(ask.count, consecutive=ask.consecutive)
            living = await self._without_exhausted(sorted(ids))
            if self._postpones_dead:  # those behind a message that is not done wait, too
                free = set(self._delivery.next_in_order(ask.count, consecutive=ask.consecutive))
                living = [number for number in living if number in free]
            self._looked = self._looked or bool(ids)
            if living or not ids or self._is_late:
                return living

    async def _line_up_page(self) -> bool:
        first, last = self._delivery.next, self._topic.last_id
        if not self._has_unseen or len(self.skipped) > _SKIP_AT_MOST:
            return False
        await self._let_others_run()
        messages = await self._topic.message_cache.read(first, min(last, first + _PAGE - 1))
        if not messages:
            self._pass_over_trimmed(first)
        for message in messages:
            if not self._delivery.attempts(message.id) and not self._matches(message):
                self._delivery.finish([(message.id, message.id)])
                self._delivery.next = message.id + 1
                self.skipped.append(message.id)
            else:
                self._delivery.enqueue(message.id, message_group(message))
        return True

    async def _let_others_run(self) -> None:
        """Before a further page where the last ones had little: pages in memory are read without a pause."""
        if self._looked and (self.skipped or not self.found):
            await asyncio.sleep(0)

    def _pass_over_trimmed(self, first: int) -> None:
        """The group is done with what its topic no longer has."""
        begin = max(self._topic.first_id, first + 1)
        self._delivery.finish([(first, begin - 1)])
        self._delivery.next = begin

    async def _without_exhausted(self, ids: Sequence[int]) -> list[int]:
        """*ids* without those that were delivered as often as they may be; those are dead now."""
        most = self._core.group(self._ask.group).max_attempts
        dead = [number for number in ids if self._is_exhausted(number, most)]
        if dead:
            await self._move_or_postpone(dead, f"delivered {most} times and never acknowledged")
        return [number for number in ids if number not in dead]

    async def _move_or_postpone(self, dead: Sequence[int], reason: str) -> None:
        """Move *dead* to the dead letters; later if their topic cannot take any, so that they hold up no other message.

        Raises what failed where the journal cannot be used any more, or the topic was deleted meanwhile.
        """
        group, topic = self._ask.group, self._ask.topic
        if not self._postpones_dead:
            try:
                await self._core.move_to_dead_letters(group, topic, dead, reason)
            except (StatusError, LogError) as error:
                if not self._core.journal.is_usable or not self._core.is_present(group, topic, self._delivery):
                    raise
                _log.warning("cannot store dead letters that group %s has in topic %s yet: %s", group, topic, error)
                self._postpones_dead = True
            else:
                return
        self._delivery.postpone(to_ranges(dead), self._core.clock.now() + _DEAD_AGAIN)
        await asyncio.sleep(0)  # there may be many

    def _is_exhausted(self, number: int, most: int) -> bool:
        run = self._delivery.in_flight.find(number)
        return run is not None and run.attempts >= most and not run.is_repeated_by(self._ask.attempt_id)


def message_group(message: Message) -> str:
    """The message group of a message of a log; its key where it was not sent with one."""
    found = next((value for name, value in message.headers if name == "mq:group"), None)
    return message.key if found is None else header_text(found)
