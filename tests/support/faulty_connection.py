"""A database connection that fails on demand: before a statement is sent, or after its reply was lost."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Generic, Literal

import msgspec

from millstream.log.backends.database.address import AddressT
from millstream.log.backends.database.driver import Code, DatabaseConnection, DatabaseDriver, ServerError, Value


class ConnectionFault(msgspec.Struct, frozen=True):
    """The next statement that begins with *statement* fails with the server's error *code*, *when* it is due."""

    statement: str
    when: Literal["before", "after"] = "before"
    code: Code = 2013


class FaultyDriver(Generic[AddressT]):
    """Connects through *driver*; the first of ``faults`` waits for its statement, then the next one does."""

    def __init__(self, driver: DatabaseDriver[AddressT], *faults: ConnectionFault) -> None:
        self._driver = driver
        self.faults = deque(faults)
        self.connections = 0

    def __call__(self, place: AddressT, *, database: bool = True) -> DatabaseConnection:
        """Connect."""
        self.connections += 1
        return _FaultyConnection(self._driver(place, database=database), self.faults)


class _FaultyConnection:
    def __init__(self, connection: DatabaseConnection, faults: deque[ConnectionFault]) -> None:
        self._connection = connection
        self._faults = faults

    def execute(self, statement: str, *values: Value) -> int:
        fault = self._take(statement)
        found = self._connection.execute(statement, *values)
        self._fail(fault)
        return found

    def rows(self, statement: str, *values: Value) -> Sequence[tuple[Any, ...]]:
        fault = self._take(statement)
        found = self._connection.rows(statement, *values)
        self._fail(fault)
        return found

    def close(self) -> None:
        self._connection.close()

    def _take(self, statement: str) -> ConnectionFault | None:
        if not self._faults or not statement.lstrip().startswith(self._faults[0].statement):
            return None
        fault = self._faults.popleft()
        if fault.when == "before":
            self._fail(fault)
        return fault

    def _fail(self, fault: ConnectionFault | None) -> None:
        if fault is not None:
            raise ServerError(fault.code, "a fault that a test asked for")


class SimulatedCrashError(BaseException):
    """The process would be gone at this point: nothing on its way out may pass for more than that."""


class CrashingDriver(Generic[AddressT]):
    """Connects through *driver*, and dies once at the statement number *statement* of all, *when* it is due."""

    def __init__(self, driver: DatabaseDriver[AddressT], statement: int, when: Literal["before", "after"]) -> None:
        self._driver = driver
        self.left = statement
        self.when = when

    def __call__(self, place: AddressT, *, database: bool = True) -> DatabaseConnection:
        """Connect."""
        return _CrashingConnection(self._driver(place, database=database), self)

    def is_due(self) -> bool:
        """Count a statement; whether it is the last one."""
        self.left -= 1
        return self.left == 0


class _CrashingConnection:
    def __init__(self, connection: DatabaseConnection, driver: CrashingDriver[Any]) -> None:
        self._connection = connection
        self._driver = driver

    def execute(self, statement: str, *values: Value) -> int:
        with self._risk():
            return self._connection.execute(statement, *values)

    def rows(self, statement: str, *values: Value) -> Sequence[tuple[Any, ...]]:
        with self._risk():
            return self._connection.rows(statement, *values)

    def close(self) -> None:
        self._connection.close()

    @contextlib.contextmanager
    def _risk(self) -> Iterator[None]:
        due = self._driver.is_due()
        if due and self._driver.when == "before":
            raise SimulatedCrashError
        yield
        if due:
            raise SimulatedCrashError
