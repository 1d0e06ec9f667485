"""Connections to RabbitMQ: opened on demand, reopened after a loss, and shared by threads.

A connection has one channel and is used by one thread at a time, as pika's blocking connection asks for.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import msgspec

from millstream.core.clock import Clock
from millstream.core.secrets import read_password
from millstream.queue.protocol import QueueError, QueueInputError

if TYPE_CHECKING:
    from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection

_IDLE_SECONDS = 15.0  # a connection that is idle for longer sends its heartbeats; the broker expects one a minute
_log = logging.getLogger(__name__)


class ConnectionOptions(msgspec.Struct, frozen=True):
    """How a queue connects to its broker. Durations in seconds.

    Up to ``publishers`` connections send notices at the same time, beside the one that receives them: a message costs a
    confirm of the broker, and eight threads send three times as much over eight connections as over one. After a
    connection was lost or refused the next one is tried after ``retry_first``, then after twice as long, up to
    ``retry_longest``, without end.
    """

    publishers: int = 8
    retry_first: float = 0.2
    retry_longest: float = 10.0

    def pause(self, failures: int) -> float:
        """How long to wait after the last of so many *failures* in a row."""
        return min(self.retry_longest, self.retry_first * 2.0 ** min(failures - 1, 50))


class BrokerHealth:
    """What all connections of the queue *name* know of their broker: whether it can be reached. Thread-safe."""

    def __init__(self, name: str, options: ConnectionOptions, clock: Clock) -> None:
        self._name = name
        self._options = options
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._not_before = 0.0

    def may_connect(self) -> bool:
        """Whether the pause after the last failure is over."""
        with self._lock:
            return self._clock.monotonic() >= self._not_before

    def failed(self, error: Exception) -> None:
        """A connection was lost or refused. It is logged once an outage; connections that fail together count once."""
        with self._lock:
            now = self._clock.monotonic()
            if now < self._not_before:
                return
            self._failures += 1
            if self._failures == 1:
                _log.warning("the broker of queue %s is unreachable: %s", self._name, type(error).__name__)
            self._not_before = now + self._options.pause(self._failures)

    def connected(self) -> None:
        """The broker has answered."""
        with self._lock:
            if self._failures:
                _log.warning("the broker of queue %s answers again", self._name)
            self._failures = 0


class BrokerConnection:
    """A connection with its channel, which *prepare* is called with first. Thread-safe: one thread at a time."""

    def __init__(
        self, parameters: Any, prepare: Callable[[BlockingChannel], None], health: BrokerHealth, clock: Clock
    ) -> None:
        self._parameters = parameters
        self._prepare = prepare
        self._health = health
        self._clock = clock
        self._lock = threading.RLock()
        self._connection: BlockingConnection | None = None
        self._channel: BlockingChannel | None = None
        self._used = 0.0
        self.session = 0
        """Grows with every connection."""

    def use(self, action: Callable[[BlockingChannel], None]) -> None:
        """Do *action* on the channel, if the broker can be reached. What breaks the connection is not raised."""
        from pika.exceptions import AMQPError

        with self._lock:
            try:
                channel = self._open()
                if channel is not None:
                    action(channel)
            except (AMQPError, OSError) as error:
                self._health.failed(error)
                self.close()
            self._used = self._clock.monotonic()

    def keep_alive(self) -> None:
        """Send the heartbeats of a connection that was idle for a while."""
        with self._lock:
            if self._clock.monotonic() - self._used > _IDLE_SECONDS:
                self._keep_alive()
                self._used = self._clock.monotonic()

    def close(self) -> None:
        """Disconnect from the broker; what was received and not acknowledged goes back to it."""
        with self._lock:
            connection, self._connection, self._channel = self._connection, None, None
            if connection is not None and connection.is_open:
                with contextlib.suppress(Exception):
                    connection.close()

    def _open(self) -> BlockingChannel | None:
        self._keep_alive()
        if self._channel is not None and self._channel.is_open:
            return self._channel
        if not self._health.may_connect():
            return None
        self.close()
        self._channel = self._connect()
        self._health.connected()
        return self._channel

    def _keep_alive(self) -> None:
        """Heartbeats, and news of a connection that was lost while no process used it: that alone is not an outage."""
        from pika.exceptions import AMQPError

        if self._connection is not None:
            try:
                self._connection.process_data_events(0)
            except (AMQPError, OSError):
                self.close()

    def _connect(self) -> BlockingChannel:
        import pika

        logging.getLogger("pika").setLevel(logging.CRITICAL)  # it tells of an outage in a dozen lines, we in one
        self._connection = pika.BlockingConnection(self._parameters)
        self.session += 1
        channel = self._connection.channel()
        self._prepare(channel)
        return channel


class BrokerConnectionPool:
    """A pool of up to *size* connections; a caller waits if none is free. Thread-safe."""

    def __init__(self, size: int, make: Callable[[], BrokerConnection]) -> None:
        self._make = make
        self._free = threading.Semaphore(size)
        self._lock = threading.Lock()
        self._idle: list[BrokerConnection] = []
        self._closed = False

    @contextlib.contextmanager
    def connection(self) -> Iterator[BrokerConnection]:
        """A connection for this thread alone: the one that was used last, so that no more are opened than it takes."""
        with self._free:
            with self._lock:
                connection = self._idle.pop() if self._idle else self._make()
            try:
                yield connection
            finally:
                with self._lock:
                    self._idle.append(connection)
                    if self._closed:
                        connection.close()

    def keep_alive(self) -> None:
        """Send the heartbeats of the connections that are idle."""
        with self._lock:
            for connection in self._idle:
                connection.keep_alive()

    def close(self) -> None:
        """Close all connections; those that are in use as soon as they are not."""
        with self._lock:
            self._closed = True
            for connection in self._idle:
                connection.close()


def parse_url(url: str) -> Any:
    """The parameters of connections to the broker at *url* (``amqp://user:password@host:port/vhost``, or without the
    password and with ``?password_file=/path``).

    Raises :class:`QueueInputError` for another URL, and :class:`QueueError` where pika is missing.
    """
    if urlsplit(url).scheme not in ("amqp", "amqps"):
        raise QueueInputError("invalid RabbitMQ URL: write amqp://user:password@host:port/vhost, or amqps://… for TLS")
    url = _with_password(url)
    try:
        import pika
    except ImportError as error:
        raise QueueError("RabbitMQ needs pika: pip install 'millstream[rabbitmq]'") from error
    parameters = pika.URLParameters(url)
    parameters.blocked_connection_timeout = 30
    parameters.socket_timeout = 10
    return parameters


def _with_password(url: str) -> str:
    """*url* with the password in the file that its option ``password_file`` names. Raises :class:`QueueInputError`."""
    parts = urlsplit(url)
    options = parse_qsl(parts.query, keep_blank_values=True)
    files = [value for name, value in options if name == "password_file"]
    if not files:
        return url
    if parts.password or len(files) > 1:
        raise QueueInputError("invalid RabbitMQ URL: give either the password or one password_file")
    if not parts.username:
        raise QueueInputError("invalid RabbitMQ URL: a password_file requires a user, as in amqp://user@host/vhost")
    try:
        password = quote(read_password(files[0]), safe="")
    except (OSError, ValueError) as error:
        raise QueueInputError(
            f"cannot read the password file {files[0]} of RabbitMQ at {parts.hostname}: {error}"
        ) from error
    _, _, place = parts.netloc.rpartition("@")
    query = urlencode([option for option in options if option[0] != "password_file"])
    return urlunsplit(parts._replace(netloc=f"{parts.username}:{password}@{place}", query=query))
