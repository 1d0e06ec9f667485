"""Connections to one database: lent to a call, thrown away when they fail, made anew when the server is back."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from millstream.core.clock import Clock
from millstream.core.retry import RetryPolicy
from millstream.log.database.dialect import Dialect
from millstream.log.database.driver import Connection, Driver, ServerError
from millstream.log.errors import StorageError

Result = TypeVar("Result")


class Located(Protocol):
    """Where a database is: ``url`` as people may see it, and its name."""

    @property
    def url(self) -> str: ...

    @property
    def database(self) -> str: ...


LocatedT = TypeVar("LocatedT", bound=Located)

BACK_OFF = RetryPolicy(attempts=1000, first=0.05, factor=2.0, longest=2.0, jitter=0.5)
PATIENCE = 120.0
"""For how many seconds a call waits for a server that is away."""

_log = logging.getLogger(__name__)


class Lent:
    """A connection, and how many bytes a statement on it may have."""

    def __init__(self, connection: Connection, statement_bytes: int) -> None:
        self.connection = connection
        self.statement_bytes = statement_bytes


class Pool(Generic[LocatedT]):
    """As many connections to *place* as threads use at once. Thread-safe."""

    def __init__(
        self,
        place: LocatedT,
        clock: Clock,
        dialect: Dialect,
        driver: Driver[LocatedT],
        *,
        read_only: bool = False,
        patience: float = PATIENCE,
    ) -> None:
        self.place = place
        self._dialect = dialect
        self._failures = dialect.failures
        self._clock = clock
        self._read_only = read_only
        self._patience = patience
        self._connect = driver
        self._lock = threading.Lock()
        self._idle: list[Lent] = []
        self._closed = False
        self._away = False

    def make_database(self) -> None:
        """Make the database where the server has none of that name. Raises :class:`StorageError`."""
        try:
            self._give_back(self._open())
        except ServerError as error:
            if error.code != self._failures.unknown_database:
                raise self._failures.explained(self.place.url, error) from error
            self._make_database()

    def once(self, work: Callable[[Lent], Result]) -> Result:
        """What *work* returns; nothing is tried again. Raises :class:`LogError`."""
        try:
            return self._attempt(work)
        except ServerError as error:
            raise self._failures.explained(self.place.url, error) from error

    def call(self, work: Callable[[Lent], Result]) -> Result:
        """What *work* returns; see :meth:`counted`."""
        return self.counted(work)[0]

    def counted(self, work: Callable[[Lent], Result]) -> tuple[Result, int]:
        """What *work* returns, and how often it was tried: while the server is away or another transaction is in the
        way, with pauses that grow to two seconds, for two minutes. Of a lost reply nobody knows whether the work was
        done. Raises :class:`LogError`.
        """
        deadline = self._clock.monotonic() + self._patience
        for tries, pause in enumerate(BACK_OFF.pauses(), 1):
            try:
                return self._attempt(work), tries
            except ServerError as error:
                if not self._failures.is_worth_another_try(error) or self._clock.monotonic() > deadline:
                    raise self._failures.explained(self.place.url, error) from error
                if self._failures.is_lost(error):
                    self._note_absence(error)
            self._clock.sleep(pause)
        raise AssertionError("there are more pauses than patience")

    def close(self) -> None:
        """Close all connections; closing again does nothing."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for lent in idle:
            lent.connection.close()

    def _attempt(self, work: Callable[[Lent], Result]) -> Result:
        lent = self._take()
        try:
            result = work(lent)
        except ServerError as error:
            lent.connection.close()
            if self._failures.is_lost(error):
                self._drop_idle()  # a server that was restarted has closed them all
            raise
        except BaseException:
            lent.connection.close()  # it may be in the middle of an answer or of a transaction
            raise
        self._give_back(lent)
        return result

    def _take(self) -> Lent:
        with self._lock:
            if self._closed:
                raise StorageError(f"{self.place.url} is closed; open it again")
            if self._idle:
                return self._idle.pop()
        return self._open()

    def _give_back(self, lent: Lent) -> None:
        self._note_presence()
        with self._lock:
            if not self._closed:
                self._idle.append(lent)
                return
        lent.connection.close()

    def _drop_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for lent in idle:
            lent.connection.close()

    def _open(self) -> Lent:
        connection = self._connect(self.place)
        with contextlib.ExitStack() as undo:
            undo.callback(connection.close)
            statement_bytes = self._dialect.begin_session(connection, read_only=self._read_only)
            undo.pop_all()
        return Lent(connection, statement_bytes)

    def _make_database(self) -> None:
        try:
            connection = self._connect(self.place, database=False)
            with contextlib.closing(connection):
                self._dialect.make_database(connection, self.place.database)
        except ServerError as error:
            raise self._failures.explained(self.place.url, error) from error

    def _note_absence(self, error: ServerError) -> None:
        if not self._away:
            self._away = True
            _log.warning("%s: %s; trying again for up to %.0f seconds", self.place.url, error, self._patience)

    def _note_presence(self) -> None:
        if self._away:
            self._away = False
            _log.warning("%s: it is back", self.place.url)
