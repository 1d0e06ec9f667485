"""The state of a stream whose database is down at its end: whoever continues on this host takes the newer state."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from millstream.batching import BatchConfig, Batcher, Rulebook
from millstream.batching.errors import BatchServiceError
from millstream.batching.local_state import UnsavedState, local_state
from millstream.batching.service_state import ServiceState, read_state, write_state
from millstream.core.documents import DatabaseDocument, DatabaseDocuments, DocumentBusyError, FileDocument
from millstream.log import WriterBusyError

NAME = "batching/batches.state"


class Host:
    """A host with a folder, of a node whose database is in *database*."""

    def __init__(self, folder: Path, database: Path) -> None:
        self.file = FileDocument(folder / NAME)
        self._database = database
        self._engine = sa.create_engine(f"sqlite:///{database}", connect_args={"timeout": 0})
        self._documents = DatabaseDocuments(self._engine)

    def saved(self) -> DatabaseDocument:
        return self._documents.document(NAME)

    def state(self) -> UnsavedState:
        return UnsavedState(self.saved(), self.file)

    @contextlib.contextmanager
    def database_down(self) -> Iterator[None]:
        with contextlib.closing(sqlite3.connect(self._database)) as lock:
            lock.execute("BEGIN EXCLUSIVE")
            yield

    def close(self) -> None:
        self._engine.dispose()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with contextlib.closing(Host(tmp_path / "host", tmp_path / "node.db")) as host:
        yield host


def state_at(position: int, log: str = "readings") -> ServiceState:
    batcher = Batcher.of(Rulebook(BatchConfig(50, 20)))
    batcher.advance(position)
    return ServiceState(log, "batches", position, batcher.snapshot())


def stream(host: Host, position: int) -> None:
    """A stream that takes the log up to *position*."""
    with local_state(host.saved(), host.file) as state:
        state.keep()
        write_state(FileDocument(state.path), state_at(position))


def stream_without_end(host: Host, position: int) -> None:
    """A stream that takes the log up to *position*, when the database is down."""
    with (
        contextlib.ExitStack() as outage,
        pytest.raises(sa.exc.OperationalError),
        local_state(host.saved(), host.file) as state,
    ):
        state.keep()
        write_state(FileDocument(state.path), state_at(position))
        outage.enter_context(host.database_down())


def position(host: Host) -> int:
    """The position in the database."""
    state = read_state(host.saved(), "readings", "batches")
    return 0 if state is None else state.position


def test_a_stream_continues_from_the_state_that_the_database_did_not_take(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    stream(host, 100)
    stream_without_end(host, 200)
    assert position(host) == 100
    assert str(host.file) in caplog.text
    with local_state(host.saved(), host.file) as state:
        assert read_state(FileDocument(state.path), "readings", "batches") == state_at(200)
        state.keep()
        assert position(host) == 200
    assert host.file.read() is None


def test_the_database_gets_it_from_a_stream_that_finds_nothing_to_do(host: Host) -> None:
    stream(host, 100)
    stream_without_end(host, 200)
    with local_state(host.saved(), host.file):
        pass
    assert (position(host), host.file.read()) == (200, None)


def test_a_service_continues_from_it_and_the_file_is_removed_once_the_database_is_newer(host: Host) -> None:
    stream(host, 100)
    stream_without_end(host, 200)
    state = host.state()
    assert read_state(state, "readings", "batches") == state_at(200)
    assert str(state) == str(host.file)
    write_state(state, state_at(300))
    assert position(host) == 300
    assert host.file.read() is None
    assert str(state) == str(host.saved())


def test_a_state_of_another_host_that_went_further_replaces_the_file(host: Host, tmp_path: Path) -> None:
    stream(host, 100)
    stream_without_end(host, 200)
    with contextlib.closing(Host(tmp_path / "other", tmp_path / "node.db")) as other:
        stream(other, 300)
    assert read_state(host.state(), "readings", "batches") == state_at(300)
    with local_state(host.saved(), host.file) as state:
        assert read_state(FileDocument(state.path), "readings", "batches") == state_at(300)
    assert position(host) == 300


def test_a_state_of_another_log_and_bytes_that_are_no_state_are_not_newer(host: Host) -> None:
    stream(host, 100)
    for left in (b"damaged", state_at(200, log="others")):
        host.file.write(left) if isinstance(left, bytes) else write_state(host.file, left)
        assert read_state(host.state(), "readings", "batches") == state_at(100)
        with local_state(host.saved(), host.file) as state:
            assert read_state(FileDocument(state.path), "readings", "batches") == state_at(100)


def test_a_refused_stream_leaves_the_state_of_the_file_to_the_service_at_work(host: Host) -> None:
    stream(host, 100)
    stream_without_end(host, 200)
    service = host.state()
    assert read_state(service, "readings", "batches") == state_at(200)
    with pytest.raises(WriterBusyError), local_state(host.saved(), host.file):
        raise WriterBusyError("the service writes the output")
    assert (position(host), read_state(host.file, "readings", "batches")) == (100, state_at(200))
    write_state(service, state_at(300))
    assert position(host) == 300


def test_a_stream_is_refused_whose_state_only_the_folder_has(host: Host) -> None:
    write_state(host.file, state_at(200))
    with (
        pytest.raises(
            BatchServiceError, match=r"is missing, but .*batches\.state has a state .* after message 200: rest"
        ),
        local_state(host.saved(), host.file),
    ):
        pass
    assert read_state(host.file, "readings", "batches") == state_at(200)


def test_a_state_from_before_the_first_message_is_not_kept_when_the_database_has_none(host: Host) -> None:
    write_state(host.file, ServiceState("readings", "batches", 0, Batcher.of(Rulebook(BatchConfig(50, 20))).snapshot()))
    with local_state(host.saved(), host.file) as state:
        assert not state.path.exists()


def test_a_stream_that_is_refused_leaves_the_state_to_those_who_are_at_work(host: Host) -> None:
    stream(host, 100)
    service = host.saved()
    assert service.read() is not None
    with pytest.raises(RuntimeError, match="has a writer"), local_state(host.saved(), host.file):
        raise RuntimeError("the output has a writer")
    write_state(service, state_at(200))
    assert position(host) == 200


def test_a_second_stream_on_the_host_does_not_touch_the_file_of_the_first(host: Host) -> None:
    stream(host, 100)
    with local_state(host.saved(), host.file) as state:
        write_state(host.file, state_at(200))
        with pytest.raises(DocumentBusyError, match="another process is using"):
            local_state(host.saved(), host.file).__enter__()
        assert state.path.exists()
    assert position(host) == 200
