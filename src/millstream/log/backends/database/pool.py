"""Connections to one database: lent to a call, discarded when they fail, opened again when the server is back."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from millstream.core.clock import Clock
from millstream.core.retry import RetryPolicy
from millstream.log.backends.database.dialect import Dialect
from millstream.log.backends.database.driver import DatabaseConnection, DatabaseDriver, ServerError
from millstream.log.errors import StorageError

Result = TypeVar("Result")


class DatabaseLocation(Protocol):
    """The address of a database: its ``url`` without secrets, and its name."""

    @property
    def url(self) -> str: ...

    @property
    def database(self) -> str: ...


LocationT = TypeVar("LocationT", bound=DatabaseLocation)

RETRY_PAUSES = RetryPolicy(attempts=1000, first=0.05, factor=2.0, longest=2.0, jitter=0.5)
RETRY_SECONDS = 120.0
"""For how many seconds a call waits for an unreachable server."""
IDLE_SECONDS = 30.0
"""A connection that was idle for longer is not used again: a firewall or the server may have dropped it, and the next
statement on it would wait until it counts as lost."""
AGE_SECONDS = 600.0
"""A connection is not used for longer: after a failover that kept it open, it would read from the old server."""

_log = logging.getLogger(__name__)


class PooledConnection:
    """A connection, the bytes that a statement on it may have, and when it was made and last used (monotonic s)."""

    def __init__(self, connection: DatabaseConnection, statement_bytes: int, opened_at: float) -> None:
        self.connection = connection
        self.statement_bytes = statement_bytes
        self.opened_at = self.used_at = opened_at


class ConnectionPool(Generic[LocationT]):
    """As many connections to *address* as threads use at once. Thread-safe."""

    def __init__(
        self,
        address: LocationT,
        clock: Clock,
        dialect: Dialect,
        driver: DatabaseDriver[LocationT],
        *,
        read_only: bool = False,
        patience: float = RETRY_SECONDS,
    ) -> None:
        self.address = address
        self._dialect = dialect
        self._error_codes = dialect.error_codes
        self._clock = clock
        self._read_only = read_only
        self._patience = patience
        self._connect = driver
        self._lock = threading.Lock()
        self._idle: list[PooledConnection] = []
        self._closed = False
        self._unreachable = False

    def make_database(self) -> None:
        """Make the database where the server has none of that name. Raises :class:`StorageError`."""
        try:
            self._give_back(self._open())
        except ServerError as error:
            if error.code != self._error_codes.unknown_database:
                raise self._error_codes.explained(self.address.url, error) from error
            self._make_database()

    def once(self, work: Callable[[PooledConnection], Result]) -> Result:
        """The result of *work*; nothing is retried. Raises :class:`LogError`."""
        try:
            return self._attempt(work)
        except ServerError as error:
            raise self._error_codes.explained(self.address.url, error) from error

    def call(self, work: Callable[[PooledConnection], Result]) -> Result:
        """The result of *work*; see :meth:`counted`."""
        return self.counted(work)[0]

    def counted(self, work: Callable[[PooledConnection], Result]) -> tuple[Result, int]:
        """The result of *work*, and the number of attempts: while the server is unreachable or another transaction
        blocks it, with pauses that grow to two seconds, for two minutes. After a lost reply it is unknown whether the
        work was done. Raises :class:`LogError`.
        """
        deadline = self._clock.monotonic() + self._patience
        for tries, pause in enumerate(RETRY_PAUSES.pauses(), 1):
            try:
                return self._attempt(work), tries
            except ServerError as error:
                if not self._error_codes.is_worth_another_try(error) or self._clock.monotonic() > deadline:
                    raise self._error_codes.explained(self.address.url, error) from error
                if self._error_codes.is_lost(error):
                    self._log_outage(error)
            self._clock.sleep(pause)
        raise AssertionError("the retries take longer than the limit")

    def close(self) -> None:
        """Close all connections; closing again does nothing."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for pooled in idle:
            pooled.connection.close()

    def _attempt(self, work: Callable[[PooledConnection], Result]) -> Result:
        pooled = self._take()
        try:
            result = work(pooled)
        except ServerError as error:
            pooled.connection.close()
            if self._error_codes.is_lost(error) or self._error_codes.is_read_only(error):
                self._drop_idle()  # a server that was restarted has closed them all; after a failover, all go elsewhere
            raise
        except BaseException:
            pooled.connection.close()  # it may be in the middle of an answer or of a transaction
            raise
        self._give_back(pooled)
        return result

    def _take(self) -> PooledConnection:
        with self._lock:
            if self._closed:
                raise StorageError(f"{self.address.url} is closed: open the store again")
            pooled = self._idle.pop() if self._idle else None
        if pooled is None:
            return self._open()
        now = self._clock.monotonic()
        if now - pooled.used_at <= IDLE_SECONDS and now - pooled.opened_at <= AGE_SECONDS:
            return pooled
        pooled.connection.close()
        self._drop_idle()  # the last one used is the last of the list: the others were idle for longer
        return self._open()

    def _give_back(self, pooled: PooledConnection) -> None:
        self._log_recovery()
        pooled.used_at = self._clock.monotonic()
        with self._lock:
            if not self._closed:
                self._idle.append(pooled)
                return
        pooled.connection.close()

    def _drop_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for pooled in idle:
            pooled.connection.close()

    def _open(self) -> PooledConnection:
        connection = self._connect(self.address)
        with contextlib.ExitStack() as undo:
            undo.callback(connection.close)
            statement_bytes = self._dialect.begin_session(connection, read_only=self._read_only)
            undo.pop_all()
        return PooledConnection(connection, statement_bytes, self._clock.monotonic())

    def _make_database(self) -> None:
        try:
            connection = self._connect(self.address, database=False)
            with contextlib.closing(connection):
                self._dialect.make_database(connection, self.address.database)
        except ServerError as error:
            raise self._error_codes.explained(self.address.url, error) from error

    def _log_outage(self, error: ServerError) -> None:
        if not self._unreachable:
            self._unreachable = True
            _log.warning("%s: %s; trying again for up to %.0f seconds", self.address.url, error, self._patience)

    def _log_recovery(self) -> None:
        if self._unreachable:
            self._unreachable = False
            _log.warning("%s answers again", self.address.url)
