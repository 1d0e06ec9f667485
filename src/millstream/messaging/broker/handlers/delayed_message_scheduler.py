"""Delays and transactions: releases what is held back when its time has come, and asks producers about orphans."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
from collections.abc import Iterator, Sequence
from typing import Final

from millstream.core.clock import MICROSECONDS
from millstream.log import DamagedLogError, LogError, Message
from millstream.messaging.broker.core import BrokerCore
from millstream.messaging.broker.delivery.id_ranges import to_ranges
from millstream.messaging.broker.handlers.receive import MOST_BYTES
from millstream.messaging.broker.names import read_recall, read_transaction, split_name, write_transaction
from millstream.messaging.broker.storage.delayed_messages import DelayedMessage, released_message
from millstream.messaging.broker.storage.journal_events import Released, TransactionChecked
from millstream.messaging.broker.storage.wire_codec import DeliveryInfo, to_wire
from millstream.messaging.errors import StatusError
from millstream.messaging.protocol import v2

_LONGEST_SLEEP: Final = 5.0  # seconds; then the clock is examined again, which may have been set
_AT_ONCE: Final = 512
_RETRY_SECONDS: Final = 1.0
_REFUSED_AGAIN: Final = 5 * MICROSECONDS

_DAMAGED_AGAIN: Final = 60 * MICROSECONDS  # to find them costs several reads each, and few are ever repaired
_DAMAGED: Final = (DamagedLogError, KeyError)  # KeyError: the log of held messages does not have it

_log = logging.getLogger(__name__)


class _DamagedPartError(Exception):
    """Some of the messages that were to be read together are damaged or missing; the others may not be."""


class DelayedMessageScheduler:
    """Releases the delayed messages of *core* when they are due, and ends transactions.

    :meth:`run` is its task; it ends when it is cancelled.
    """

    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        self._delayed = core.journal.state.delayed
        self._changed = asyncio.Event()

    async def hold(self, messages: Sequence[Message]) -> list[int]:
        """Hold *messages* back, durably; their ids in the log of held messages. See :meth:`BrokerJournal.hold`."""
        try:
            return await self._core.journal.hold(messages)
        finally:
            self._changed.set()

    def check_due_now(self) -> None:
        """Look at what is due at once: the clock may have moved."""
        self._changed.set()

    async def run(self) -> None:
        """Do what is due, for ever."""
        while True:
            self._changed.clear()
            try:
                await self._do_due()
            except Exception:
                _log.exception("due messages could not be delivered; trying again")
                await asyncio.sleep(_RETRY_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._until_due()):
                    await self._changed.wait()

    async def recall(self, topic: str, handle: str) -> str:
        """Take a delayed message back before its time; its message id. Raises :class:`StatusError`."""
        number, message_id = read_recall(handle)
        hold = self._delayed.get(number)
        if hold is None or hold.ending or hold.half or hold.topic != topic or hold.message_id != message_id:
            raise StatusError(
                v2.NOT_FOUND,
                f"cannot recall the message: it was already delivered or recalled, or is not of topic {topic}",
            )
        await self._drop([hold])
        return message_id

    async def end_transaction(self, topic: str, transaction_id: str, message_id: str, resolution: int) -> None:
        """Commit or roll back a transaction of *topic*; to repeat it is safe. Raises :class:`StatusError`."""
        number = read_transaction(transaction_id)
        if resolution not in (v2.COMMIT, v2.ROLLBACK):
            raise StatusError(v2.BAD_REQUEST, "a transaction must end with COMMIT or ROLLBACK")
        hold = self._delayed.get(number)
        if hold is None or not hold.half or hold.message_id != message_id or hold.topic != topic:
            if self._delayed.has_ended(number, topic, message_id, committed=resolution == v2.COMMIT):
                await self._core.journal.confirm_all()  # by a call that may have been cancelled
                return
            raise _no_transaction(topic)
        if hold.ending:
            raise StatusError(v2.INTERNAL_SERVER_ERROR, "another call is ending this transaction: try again")
        if resolution == v2.ROLLBACK:
            await self._drop([hold])
        elif not await self._release([hold]):
            raise _no_transaction(topic)

    def _until_due(self) -> float | None:
        due = self._delayed.next_due()
        if due is None:
            return None
        return min(max((due - self._core.clock.now()) / MICROSECONDS, 0), _LONGEST_SLEEP)

    async def _do_due(self) -> None:
        now = self._core.clock.now()
        due = self._delayed.take_due(now, _AT_ONCE)
        plain = sorted((hold for hold in due if not hold.half), key=lambda hold: hold.id)
        by_topic = [[hold for hold in plain if hold.topic == topic] for topic in dict.fromkeys(h.topic for h in plain)]
        left = [*by_topic, *([hold] for hold in due if hold.half)]
        try:
            while left:
                await self._do(left[0], now)
                del left[0]
        except BaseException:
            for hold in itertools.chain.from_iterable(left):
                self._delayed.reschedule(hold, hold.due)
            raise

    async def _do(self, delayed: Sequence[DelayedMessage], now: int) -> None:
        """Do what is due for *delayed*, half messages or not, of one topic; later where that fails now. Messages that
        are damaged do not hold up the others: they are found by halves.

        Raises what failed where the journal cannot be used any more: then nothing else can be done either.
        """
        try:
            await (self._ask(delayed[0], now) if delayed[0].half else self._release(delayed))
        except Exception as error:
            if not self._core.journal.is_usable:
                raise
            left = self._still_held(delayed)
            if isinstance(error, _DamagedPartError) and len(left) > 1:
                middle = len(left) // 2
                await self._do(left[:middle], now)
                await self._do(left[middle:], now)
                return
            _log.warning(
                "cannot deliver %d delayed messages of topic %s yet: %s",
                len(left),
                delayed[0].topic,
                error,
                exc_info=not isinstance(error, StatusError | LogError),
            )
            again = self._core.clock.now() + (_DAMAGED_AGAIN if isinstance(error, _DAMAGED) else _REFUSED_AGAIN)
            for hold in left:
                if hold.due <= now:
                    self._delayed.reschedule(hold, again)

    async def _release(self, delayed: Sequence[DelayedMessage]) -> bool:
        """Put what is still held back into its topic; whether there was anything. To do it twice is harmless: topics
        remember message ids.
        """
        delayed = self._still_held(delayed)
        if not delayed:
            return False
        topic = delayed[0].topic
        if topic not in self._core.journal.state.topics:
            _log.warning("%d delayed messages of the deleted topic %s are deleted", len(delayed), topic)
            await self._drop(delayed)
            return False
        with _ending(delayed):
            while delayed:
                messages = await self._read(delayed)
                if not self._still_held(delayed):
                    return False  # the topic was deleted meanwhile; there may be another one of its name
                await self._core.publish(topic, [released_message(message) for message in messages])
                await self._core.journal.write(Released(to_ranges(hold.id for hold in delayed[: len(messages)])))
                delayed = delayed[len(messages) :]
        return True

    async def _read(self, delayed: Sequence[DelayedMessage]) -> list[Message]:
        """The messages of *delayed*, the first ones where they are large.

        Raises :class:`_DamagedPartError` where some of several are damaged or missing, else what the log raises.
        """
        try:
            return await self._core.journal.held([hold.id for hold in delayed], MOST_BYTES)
        except _DAMAGED as error:
            if len(delayed) == 1:
                raise
            raise _DamagedPartError from error

    def _still_held(self, delayed: Sequence[DelayedMessage]) -> list[DelayedMessage]:
        """Those of *delayed* that were neither recalled nor deleted with their topic."""
        return [hold for hold in delayed if self._delayed.get(hold.id) is hold]

    async def _drop(self, delayed: Sequence[DelayedMessage]) -> None:
        with _ending(delayed):
            ids = to_ranges(sorted(hold.id for hold in delayed))
            await self._core.journal.write(Released(ids, dropped=True))

    async def _ask(self, hold: DelayedMessage, now: int) -> None:
        if not self._still_held([hold]):
            return
        if hold.ending:  # by a call of its producer, which may fail
            self._delayed.reschedule(hold, now + _REFUSED_AGAIN)
            return
        if hold.asked >= self._core.limits.max_checks:
            _log.warning(
                "no producer answered for transaction %s of topic %s; rolled back", hold.message_id, hold.topic
            )
            await self._drop([hold])
            return
        self._delayed.reschedule(hold, now + self._core.limits.check_every)
        message = released_message((await self._core.journal.held([hold.id]))[0])
        producers = [each for each in self._core.sessions.producers_of(hold.topic) if each.takes_commands]
        if not producers or hold.ending or not self._still_held([hold]):
            return
        producer = random.choice(producers)
        namespace, topic = producer.declared_name(hold.topic) or split_name(hold.topic)
        command = v2.TelemetryCommand()
        command.recover_orphaned_transaction_command.message.CopyFrom(to_wire(message, DeliveryInfo(namespace, topic)))
        transaction = write_transaction(hold.id, hold.message_id)
        command.recover_orphaned_transaction_command.transaction_id = transaction
        producer.command(command)
        self._core.journal.record(TransactionChecked(hold.id, hold.asked + 1))


def _no_transaction(topic: str) -> StatusError:
    return StatusError(
        v2.INVALID_TRANSACTION_ID,
        f"topic {topic} has no open transaction of this id and message: it was already committed or rolled back, or is "
        "of another topic or message",
    )


@contextlib.contextmanager
def _ending(delayed: Sequence[DelayedMessage]) -> Iterator[None]:
    """No other client ends *delayed* meanwhile."""
    for hold in delayed:
        hold.ending = True
    try:
        yield
    finally:
        for hold in delayed:
            hold.ending = False
