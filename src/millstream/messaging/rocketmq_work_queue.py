"""The work queue on a RocketMQ 5 server: Apache's, or a broker of ours.

The protocol has leases and attempts, but nothing that counts what waits, lists what is dead and why, or says whether a
task is done; and what it has differs between servers (a lease of ten seconds at least, a delay of a day at most). So
tasks lie in a database, as they do for RabbitMQ, and notices of them travel over two topics: one for tasks that may be
leased at once, one for those that wait.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
import sqlalchemy as sa

from millstream.core.address import Address, parse_address
from millstream.core.clock import Clock, SystemClock
from millstream.messaging.admin_client import call_broker
from millstream.messaging.broker.admin import CREATE_TOPIC
from millstream.messaging.broker.storage.topic import TopicSpec
from millstream.messaging.client import (
    Credentials,
    InvalidHandleError,
    Message,
    Options,
    PartialFailureError,
    Producer,
    Received,
    ResourceNotFoundError,
    SimpleConsumer,
    Tls,
)
from millstream.messaging.client.loop_thread import LoopThread
from millstream.messaging.errors import MessagingError
from millstream.queue import QueueInputError
from millstream.queue.database_queue import MAX_NOTICE_IDS, DatabaseWorkQueue, read_notice, write_notice

SCHEME: Final = "rocketmq://"
LONGEST_DELAY: Final = 23 * 3600.0
"""The most seconds that a notice is delayed; one that comes too early is sent on its way again."""

_INVISIBLE: Final = 60.0
_STARTUP_SECONDS: Final = 3.0
_PATIENCE_SECONDS: Final = 0.2
"""For how long a caller waits for notices of a server that itself waits for seconds where there are none."""

_RECONNECT: Final = (0.1, 10.0)  # seconds between attempts: at first, at most
_MOST_FILE_BYTES: Final = 1 << 20
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,100}")
_FORM: Final = f"{SCHEME}KEY@host:port?secret_file=/path"
_OPTIONS: Final = ("secret_file", "token_file", "tls", "tls_ca", "tls_certificate", "tls_key", "namespace")

_log = logging.getLogger(__name__)


class RocketWorkQueue(DatabaseWorkQueue):
    """The queue *name*: its tasks are rows in the database of *engine*, notices of them travel over RocketMQ at *url*.

    The topics are *name* (NORMAL) and *name*``-delay`` (DELAY), and the consumer group *name*. On a broker of ours they
    are made where they are missing, if the key may do that. See :func:`read_url`; raises like it.
    """

    def __init__(
        self, url: str, engine: sa.Engine, name: str, clock: Clock | None = None, *, server_time: bool = True
    ) -> None:
        clock = clock or SystemClock()
        super().__init__(RocketNotices(url, name), engine, name, clock, server_time=server_time)


class RocketNotice(msgspec.Struct, frozen=True):
    """A message that was received: tasks that may be leased. ``session`` counts the connections."""

    ids: Sequence[int]
    message: Received
    session: int


class RocketNotices:
    """The notices of the queue *name*; see :class:`millstream.queue.database_queue.NoticeChannel`.

    Its own clock is the system's, since the server's is: a delay passes there.
    """

    def __init__(self, url: str, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise QueueInputError(f"invalid queue name {name[:80]!r}: use 1 to 100 letters, digits, '_' and '-'")
        self._place, self._options = read_url(url)
        self._name = name
        self._delayed = f"{name}-delay"
        self._clock = SystemClock()
        self._lock = threading.RLock()
        self._loop = LoopThread()
        self._clients: tuple[Producer, SimpleConsumer] | None = None
        self._outstanding: dict[str, Received] = {}
        self._polls: dict[str, asyncio.Future[list[Received]]] = {}  # by topic, on the loop
        self._session = 0
        self._failures = 0
        self._not_before = 0.0

    def send(self, ids: Sequence[int], delays: Mapping[int, float] | None = None) -> Sequence[int]:
        sent = list[int]()

        async def publish(producer: Producer, _consumer: SimpleConsumer) -> None:
            for delay, members in _by_delay(ids, delays or {}).items():
                parts = [members[begin : begin + MAX_NOTICE_IDS] for begin in range(0, len(members), MAX_NOTICE_IDS)]
                for part, stored in zip(parts, await self._publish(producer, delay, parts), strict=True):
                    sent.extend(part if stored else ())

        if ids:
            self._with_clients(publish)
        return sent

    def receive(self, count: int) -> Sequence[RocketNotice]:
        found = list[RocketNotice]()

        async def get(_producer: Producer, consumer: SimpleConsumer) -> None:
            if not consumer.millstream_servers:
                await self._receive_slowly(consumer, found, count)
                return
            empty = 0  # topics in a row that had nothing; the consumer takes them in turn
            while empty < 2 and (missing := count - sum(len(notice.ids) for notice in found)) > 0:
                messages = await consumer.receive(_batch(found, missing), invisible=_INVISIBLE)
                empty = 0 if messages else empty + 1
                found.extend(self._take(messages))

        self._with_clients(get)
        return found

    async def _receive_slowly(self, consumer: SimpleConsumer, found: list[RocketNotice], count: int) -> None:
        """Add to *found* the notices that a server has which waits for seconds where there is none, as Apache's does.

        A call that waits is left under way: what it brings is for the next caller.
        """
        empty = set[str]()
        while (
            len(empty) < len(consumer.subscriptions) and (missing := count - sum(len(each.ids) for each in found)) > 0
        ):
            for topic in consumer.subscriptions.keys() - self._polls.keys() - empty:
                receiving = consumer.receive(_batch(found, missing), invisible=_INVISIBLE, topic=topic)
                self._polls[topic] = asyncio.ensure_future(receiving)
            done, _ = await asyncio.wait(
                self._polls.values(), timeout=_PATIENCE_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                return
            for topic in [topic for topic, poll in self._polls.items() if poll in done]:
                messages = self._take(await self._polls.pop(topic))
                found.extend(messages)
                if not messages:
                    empty.add(topic)

    def _take(self, messages: Sequence[Received]) -> list[RocketNotice]:
        """The notices that *messages* are, to be settled in this session."""
        self._outstanding.update((each.receipt_handle, each) for each in messages)
        return [RocketNotice(read_notice(each.body), each, self._session) for each in messages]

    def settle(self, notices: Sequence[RocketNotice]) -> None:
        mine = [notice.message for notice in notices if notice.session == self._session]
        for message in mine:
            self._outstanding.pop(message.receipt_handle, None)

        async def acknowledge(_producer: Producer, consumer: SimpleConsumer) -> None:
            try:
                await consumer.ack(*mine)
            except (InvalidHandleError, PartialFailureError) as error:  # too late for some: these come again
                _log.info("notices of queue %s were settled too late, and come again: %s", self._name, error)

        if mine:
            self._with_clients(acknowledge)

    def close(self) -> None:
        async def give_back(_producer: Producer, consumer: SimpleConsumer) -> None:
            await self._end_polls()
            for message in self._outstanding.values():
                await consumer.change_invisible_duration(message, 0)

        with self._lock:
            if self._clients is not None and (self._outstanding or self._polls):
                self._with_clients(give_back)
            self._forget()
            self._loop.stop()

    async def _publish(self, producer: Producer, delay: float, parts: Sequence[Sequence[int]]) -> Iterator[bool]:
        """Send a notice of each of *parts*; whether each was stored."""
        topic, due = (self._delayed, _due(delay)) if delay else (self._name, None)
        messages = [Message(topic, write_notice(part), deliver_at=due) for part in parts]
        try:
            await producer.send_many(messages)
        except PartialFailureError as error:
            return (not isinstance(result, Exception) for result in error.results)
        return itertools.repeat(True, len(parts))

    def _with_clients(self, action: Callable[[Producer, SimpleConsumer], Awaitable[None]]) -> None:
        """Do *action* with the clients, which this thread holds meanwhile; nothing while the server is unreachable.

        What fails is not raised, but logged, once an outage.
        """
        with self._lock:
            if self._clients is None and self._clock.monotonic() < self._not_before:
                return
            self._loop.start()
            try:
                self._loop.run(self._do(action))
            except MessagingError as error:
                self._failures += 1
                if self._failures == 1:
                    _log.warning("the broker of queue %s is unreachable, or refuses the calls: %s", self._name, error)
                pause = _RECONNECT[0] * 2 ** min(self._failures, 10)  # 2**1024 is no float any more
                self._not_before = self._clock.monotonic() + min(_RECONNECT[1], pause)
                self._forget()
            else:
                if self._failures:
                    _log.warning("the broker of queue %s is reachable again", self._name)
                self._failures = 0

    async def _do(self, action: Callable[[Producer, SimpleConsumer], Awaitable[None]]) -> None:
        if self._clients is None:
            try:
                self._clients = await self._connect()
            except ResourceNotFoundError:
                self._make_topics()
                self._clients = await self._connect()
            self._session += 1
            self._outstanding.clear()
        await action(*self._clients)

    async def _connect(self) -> tuple[Producer, SimpleConsumer]:
        topics = (self._name, self._delayed)
        producer = Producer(str(self._place), topics, options=self._options)
        consumer = SimpleConsumer(
            str(self._place), self._name, dict.fromkeys(topics, "*"), await_duration=0, options=self._options
        )
        await producer.start()
        try:
            await consumer.start()
        except BaseException:
            await producer.close()
            raise
        return producer, consumer

    def _make_topics(self) -> None:
        for spec in (TopicSpec(self._name, "NORMAL", 1), TopicSpec(self._delayed, "DELAY", 1)):
            call_broker(self._place, CREATE_TOPIC, spec, self._options)

    async def _end_polls(self) -> None:
        """Receive no more; what was received already is outstanding."""
        polls = list(self._polls.values())
        self._polls.clear()
        for poll in polls:
            poll.cancel()
        for received in await asyncio.gather(*polls, return_exceptions=True):
            if not isinstance(received, BaseException):
                self._take(received)

    def _forget(self) -> None:
        clients, self._clients = self._clients, None
        if self._polls:
            self._loop.run(self._end_polls())
        self._outstanding.clear()
        for client in clients or ():
            self._loop.run(client.close())


def read_url(url: str) -> tuple[Address, Options]:
    """The place and the options of a connection that *url* names.

    ``rocketmq://KEY@host:port?secret_file=/path&tls_ca=/path``; further options are ``token_file``, ``tls=1`` (the
    server's certificate is checked against the system's), ``tls_certificate``, ``tls_key`` and ``namespace``. Raises
    :class:`QueueInputError`.
    """
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if not url.startswith(SCHEME):
        raise QueueInputError(f"invalid RocketMQ URL: it must begin with {SCHEME}, as in {_FORM}")
    if parts.path not in ("", "/"):
        raise QueueInputError(f"invalid RocketMQ URL: only options may follow the port; write {_FORM}")
    if unknown := sorted(set(options) - set(_OPTIONS)):
        raise QueueInputError(
            f"invalid RocketMQ URL: unknown option {unknown[0][:40]!r}; allowed: {', '.join(_OPTIONS)}"
        )
    account, _, place = parts.netloc.rpartition("@")
    key = unquote(account)
    if ":" in account:
        raise QueueInputError(f"invalid RocketMQ URL: write the secret into a file, and its path as in {_FORM}")
    if bool(key) != bool(options.get("secret_file")):
        raise QueueInputError(
            "the access key or the secret is missing: put the access key of the RocketMQ server into "
            "the URL, and the path of its secret into ?secret_file=/path"
        )
    credentials = Credentials(key, _text(options, "secret_file"), _text(options, "token_file")) if key else None
    ca, certificate, private = (_bytes(options, name) for name in ("tls_ca", "tls_certificate", "tls_key"))
    tls = Tls(ca, certificate, private) if ca or certificate or private or options.get("tls") == "1" else None
    namespace = options.get("namespace", "")
    return parse_address(place), Options(namespace, credentials, tls, startup_timeout=_STARTUP_SECONDS, attempts=1)


def _bytes(options: Mapping[str, str], name: str) -> bytes | None:
    if not options.get(name):
        return None
    try:
        with Path(options[name]).open("rb") as file:
            return file.read(_MOST_FILE_BYTES)
    except OSError as error:
        raise QueueInputError(f"cannot read {options[name]}, {name} of the RocketMQ URL: {error.strerror}") from error


def _text(options: Mapping[str, str], name: str) -> str:
    try:
        return (_bytes(options, name) or b"").decode().strip()
    except UnicodeDecodeError as error:
        raise QueueInputError(
            f"{options[name]}, {name} of the RocketMQ URL, is not valid UTF-8: save the file as UTF-8"
        ) from error


def _by_delay(ids: Sequence[int], delays: Mapping[int, float]) -> dict[float, list[int]]:
    """*ids* by the seconds that their notice is to be delayed."""
    groups: dict[float, list[int]] = {}
    for task_id in ids:
        groups.setdefault(min(max(delays.get(task_id, 0.0), 0.0), LONGEST_DELAY), []).append(task_id)
    return groups


def _due(delay: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=delay)  # the server's time, which passes for it alone


def _batch(found: Sequence[RocketNotice], missing: int) -> int:
    """The number of messages to request: as many as *missing* tasks need, by those *found* so far; one at first."""
    if not found:
        return 1
    each = max(sum(len(notice.ids) for notice in found) // len(found), 1)
    return max(min(missing // each, 32), 1)
