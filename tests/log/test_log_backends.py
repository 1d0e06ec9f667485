"""The shipped backends and the stores over them pass the shipped conformance suites."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millstream.core.clock import SystemClock
from millstream.log import LogStore
from millstream.log.backend import Backend
from millstream.log.memory import MemoryBackend
from millstream.log.mysql import MysqlBackend, parse_place
from millstream.log.segments.backend import SegmentsBackend
from millstream.log.sqlite import SqliteBackend
from millstream.testing.logs import BackendConformance, LogStoreConformance


@pytest.fixture
def opened() -> Iterator[list[Backend]]:
    """Backends that are closed after the test."""
    backends: list[Backend] = []
    yield backends
    for backend in backends:
        backend.close()


@pytest.fixture
def open_sqlite(tmp_path: Path, opened: list[Backend]) -> Callable[[], Backend]:
    def open_backend() -> Backend:
        opened.append(SqliteBackend(tmp_path / "log.db", SystemClock()))
        return opened[-1]

    return open_backend


@pytest.fixture
def open_segments(tmp_path: Path, opened: list[Backend]) -> Callable[[], Backend]:
    def open_backend() -> Backend:
        opened.append(SegmentsBackend(tmp_path / "logs", SystemClock(), segment_bytes=2000))
        return opened[-1]

    return open_backend


class TestSqliteBackend(BackendConformance):
    @pytest.fixture
    def open_backend(self, open_sqlite: Callable[[], Backend]) -> Callable[[], Backend]:
        return open_sqlite


class TestSegmentsBackend(BackendConformance):
    """Segments of 2,000 bytes, so that they are sealed often."""

    @pytest.fixture
    def open_backend(self, open_segments: Callable[[], Backend]) -> Callable[[], Backend]:
        return open_segments


@pytest.fixture
def open_mysql(database: str, opened: list[Backend]) -> Callable[[], Backend]:
    place = parse_place(database)

    def open_backend() -> Backend:
        opened.append(MysqlBackend(place, SystemClock()))
        return opened[-1]

    return open_backend


class TestMysqlBackend(BackendConformance):
    @pytest.fixture
    def open_backend(self, open_mysql: Callable[[], Backend]) -> Callable[[], Backend]:
        return open_mysql


class TestMysqlLogStore(LogStoreConformance):
    @pytest.fixture
    def open_logs(self, open_mysql: Callable[[], Backend]) -> Callable[[], LogStore]:
        return lambda: LogStore(open_mysql(), SystemClock())


class TestMemoryBackend(BackendConformance):
    @pytest.fixture
    def open_backend(self) -> Callable[[], Backend]:
        backend = MemoryBackend(SystemClock())
        return lambda: backend


class TestSqliteLogStore(LogStoreConformance):
    @pytest.fixture
    def open_logs(self, open_sqlite: Callable[[], Backend]) -> Callable[[], LogStore]:
        return lambda: LogStore(open_sqlite(), SystemClock())


class TestSegmentsLogStore(LogStoreConformance):
    @pytest.fixture
    def open_logs(self, open_segments: Callable[[], Backend]) -> Callable[[], LogStore]:
        return lambda: LogStore(open_segments(), SystemClock())


class TestMemoryLogStore(LogStoreConformance):
    @pytest.fixture
    def open_logs(self) -> Callable[[], LogStore]:
        backend = MemoryBackend(SystemClock())
        return lambda: LogStore(backend, SystemClock())
