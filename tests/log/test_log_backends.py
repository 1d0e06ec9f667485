"""The shipped backends and the stores over them pass the shipped conformance suites."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millstream.core.clock import SystemClock
from millstream.log import LogStore
from millstream.log.backend import Backend
from millstream.log.backends.memory import MemoryBackend
from millstream.log.backends.mysql import MysqlBackend, parse_address
from millstream.log.backends.nerve import NerveBackend, parse_nerve
from millstream.log.backends.postgres import PostgresBackend
from millstream.log.backends.postgres import parse_address as parse_postgres_place
from millstream.log.backends.segments.backend import SegmentsBackend
from millstream.log.backends.sqlite.backend import SqliteBackend
from millstream.testing.log_backends import BackendConformance
from millstream.testing.logs import LogStoreConformance


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
    place = parse_address(database)

    def open_backend() -> Backend:
        opened.append(MysqlBackend(place, SystemClock()))
        return opened[-1]

    return open_backend


@pytest.mark.smoke
class TestMysqlBackend(BackendConformance):
    @pytest.fixture
    def open_backend(self, open_mysql: Callable[[], Backend]) -> Callable[[], Backend]:
        return open_mysql


@pytest.mark.smoke
class TestMysqlLogStore(LogStoreConformance):
    @pytest.fixture
    def open_logs(self, open_mysql: Callable[[], Backend]) -> Callable[[], LogStore]:
        return lambda: LogStore(open_mysql(), SystemClock())


@pytest.fixture
def open_postgres(postgres_database: str, opened: list[Backend]) -> Callable[[], Backend]:
    place = parse_postgres_place(postgres_database)

    def open_backend() -> Backend:
        opened.append(PostgresBackend(place, SystemClock()))
        return opened[-1]

    return open_backend


@pytest.mark.smoke
class TestPostgresBackend(BackendConformance):
    @pytest.fixture
    def open_backend(self, open_postgres: Callable[[], Backend]) -> Callable[[], Backend]:
        return open_postgres


@pytest.mark.smoke
class TestPostgresLogStore(LogStoreConformance):
    @pytest.fixture
    def open_logs(self, open_postgres: Callable[[], Backend]) -> Callable[[], LogStore]:
        return lambda: LogStore(open_postgres(), SystemClock())


class TestMemoryBackend(BackendConformance):
    keeps_index = False

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


@pytest.mark.smoke
class TestNerveBackend(BackendConformance):
    """The document's layout has no blocks and no times, so that what is asked of them does not hold there."""

    keeps_index = renames = False
    test_a_commit_stores_blocks_pointer_and_sequence_together = None  # type: ignore[assignment]
    test_reading_begins_with_the_block_that_holds_the_id = None  # type: ignore[assignment]
    test_reading_returns_one_block_at_least_and_no_more_bytes_than_asked_for = None  # type: ignore[assignment]
    test_statistics_add_up_the_blocks = None  # type: ignore[assignment]
    test_the_first_block_since_a_time_is_found_by_its_receive_times = None  # type: ignore[assignment]
    test_figures_are_those_of_the_blocks_from_an_id_on = None  # type: ignore[assignment]
    test_old_blocks_are_freed_a_share_at_a_time_and_never_one_that_is_kept = None  # type: ignore[assignment]

    @pytest.fixture
    def open_backend(self, queues: str, opened: list[Backend]) -> Callable[[], Backend]:
        def open_one() -> Backend:
            opened.append(NerveBackend(parse_nerve(f"{queues}?layout=nerve&shards=2"), SystemClock()))
            return opened[-1]

        return open_one


@pytest.mark.smoke
class TestNerveLogStore(LogStoreConformance):
    """It keeps the bodies of messages alone, and reads parts of a log that are not those in which it was written."""

    test_every_form_of_message_comes_back_as_it_was = None  # type: ignore[assignment]
    test_arrow_batches_have_the_message_schema_or_the_columns_asked_for = None  # type: ignore[assignment]
    test_what_is_not_set_is_set_by_the_log = None  # type: ignore[assignment]
    test_parts_of_a_log_are_read_by_id = None  # type: ignore[assignment]
    test_a_reader_goes_to_an_id_and_to_a_time = None  # type: ignore[assignment]
    test_a_sound_log_verifies = None  # type: ignore[assignment]
    test_a_trimmed_log_begins_at_its_low_water_mark = None  # type: ignore[assignment]

    @pytest.fixture
    def open_logs(self, queues: str, opened: list[Backend]) -> Callable[[], LogStore]:
        def open_one() -> LogStore:
            opened.append(NerveBackend(parse_nerve(f"{queues}?layout=nerve&shards=2"), SystemClock()))
            return LogStore(opened[-1], SystemClock(), bodies_only=True)

        return open_one
