"""Receive, append, acknowledge: in that order, and many messages at a time.

All that is there when the loop looks shares one commit, so that the log is synced once for many messages; while it is,
the broker holds back what exceeds the number of messages that may be in flight.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat

import msgspec

from millstream.core import tracing
from millstream.core.clock import Clock
from millstream.core.message import Message
from millstream.core.metric_collection.hook import Metrics
from millstream.core.retry import RetryPolicy
from millstream.ingest.connection import MqttConnection
from millstream.ingest.errors import BrokerUnavailableError, MalformedError
from millstream.ingest.options import SubscribeOptions
from millstream.ingest.payload_parsers import PayloadParser
from millstream.ingest.receipts import Receipts, marked
from millstream.ingest.received_message import ReceivedMessage
from millstream.log import Writer

RECONNECT = RetryPolicy(attempts=12, first=0.2, longest=30.0)
"""The pauses before reconnecting; the longest one repeats. They restart after a connection has lasted that long, so
that two clients of one name do not disconnect each other in a fast loop."""

_GROUP = 4096
_LOOK_SECONDS = 0.25
_KEPT_OF_LARGE = 1 << 16  # bytes of a payload that is too large that are put aside


class _SortedMessages(msgspec.Struct, frozen=True):
    """Records for the log, and what is put aside, of some messages."""

    records: list[Message]
    rejects: list[Message]


class MqttIngest:
    """Takes the messages of a broker into the log of *records*; what is not a record goes to that of *rejects*.

    A message is acknowledged once it is durable in one of the two. Under QoS 2 each is stored exactly once, wherever
    this process dies, and under QoS 1 at least once: one that was stored but not acknowledged comes again, and is
    refused as a duplicate when it is batched. Under QoS 0, messages that arrive without a listener are lost.
    *say* gets a line when the connection is lost or found. Use it in one thread.
    """

    def __init__(
        self,
        connection: MqttConnection,
        receipts: Receipts,
        options: SubscribeOptions,
        *,
        shape: PayloadParser,
        records: Writer,
        rejects: Writer,
        clock: Clock,
        metrics: Metrics,
        say: Callable[[str], None],
    ) -> None:
        self._connection, self._receipts, self._shape = connection, receipts, shape
        self._records, self._rejects = records, rejects
        self._options, self._clock, self._metrics, self._say = options, clock, metrics, say

    def run(self, stopped: Callable[[], bool]) -> None:
        """Run until *stopped* returns True; then every received message is acknowledged.

        If the broker cannot be reached, connecting is retried with growing pauses. Raises
        :class:`~millstream.ingest.errors.BrokerRefusedError`, and the errors of the log.
        """
        pauses, since = _pauses(), math.inf
        try:
            while not stopped():
                try:
                    self._connect()
                    since = self._clock.monotonic()
                    while not stopped():
                        self.turn()
                except BrokerUnavailableError as error:
                    self._metrics.gauge("ingest_connected", 0)
                    held = self._clock.monotonic() - since
                    if held > RECONNECT.longest:
                        pauses = _pauses()
                    pause = next(pauses)
                    self._say(f"{error}; trying again in {pause:.1f} seconds{self._hint(held)}")
                    since = math.inf
                    self._rest(pause, stopped)
        finally:  # after an error as well: the broker must not take a session for alive that nothing reads
            self._connection.close()

    def _hint(self, held: float) -> str:
        """The likely cause if the broker accepts a connection and closes it *held* seconds later."""
        if not 0 <= held < RECONNECT.longest:
            return ""
        return f" (if this repeats, check whether another client has the same client id, {self._receipts.client})"

    def turn(self) -> int:
        """Take what has come, store it, acknowledge it; returns how many messages that were."""
        intake = self._connection.poll(_LOOK_SECONDS, _GROUP)
        if not intake:
            return 0
        fresh = [arrival for arrival in intake.arrivals if not self._receipts.is_stored(arrival)]
        found = self._sort(fresh)
        if found.records:
            with tracing.entering("ingest", found.records) as records:
                self._records.append(records)
        if found.rejects:
            self._rejects.append(found.rejects)
        self._receipts.stored(arrival.packet for arrival in fresh if arrival.qos == 2)
        if intake.released:
            self._receipts.release(intake.released)
        self._connection.confirm(intake.arrivals, intake.released)
        self._measure(intake.arrivals, found)
        return len(intake.arrivals)

    def _connect(self) -> None:
        kept = self._connection.open()
        if not kept:
            self._receipts.begin()
        wanted, known = self._options.wanted, self._receipts.topics
        self._connection.subscribe(wanted, known)
        if wanted != known:
            self._receipts.subscribed(wanted)
        self._metrics.gauge("ingest_connected", 1)
        self._metrics.count("ingest_connections_total")
        self._say(f"connected as {self._receipts.client}, {'in the previous session' if kept else 'in a new session'}")

    def _sort(self, arrivals: Sequence[ReceivedMessage]) -> _SortedMessages:
        found = _SortedMessages([], [])
        for arrival in arrivals:
            try:
                size, limit = len(arrival.payload), self._options.max_payload
                if size > limit:
                    raise MalformedError(
                        "size", f"the payload has {size:,} bytes; the limit is {limit:,} bytes (--max-payload)"
                    )
                found.records.extend(marked(self._shape(arrival), arrival))
            except MalformedError as error:
                found.rejects.extend(marked([_reject(arrival, error)], arrival))
        return found

    def _measure(self, arrivals: Sequence[ReceivedMessage], found: _SortedMessages) -> None:
        metrics = self._metrics
        metrics.count("ingest_messages_total", len(arrivals))
        metrics.count("ingest_records_total", len(found.records))
        if again := sum(arrival.again for arrival in arrivals):
            metrics.count("ingest_redelivered_total", again)
        for reason, count in Counter(message.key for message in found.rejects).items():
            metrics.count("ingest_rejects_total", count, reason=reason)

    def _rest(self, seconds: float, stopped: Callable[[], bool]) -> None:
        until = self._clock.monotonic() + seconds
        while not stopped() and (left := until - self._clock.monotonic()) > 0:
            self._clock.sleep(min(left, _LOOK_SECONDS))


def _reject(arrival: ReceivedMessage, error: MalformedError) -> Message:
    """What is put aside: the payload under its topic as source and the reason as key, and why in a header."""
    return Message(
        arrival.payload[: _KEPT_OF_LARGE if error.reason == "size" else None],
        error.reason,
        arrival.topic,
        headers=(("why", str(error).encode("utf-8", "replace")),),
    )


def _pauses() -> Iterator[float]:
    return chain(RECONNECT.pauses(), repeat(RECONNECT.longest))
