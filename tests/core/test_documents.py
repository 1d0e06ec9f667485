"""Documents in a folder and in a database: replaced as a whole, by one process at a time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import sqlalchemy as sa

from millstream.core.database_server import largest_statement, open_server
from millstream.core.documents import (
    DatabaseDocument,
    DatabaseDocuments,
    DocumentBusyError,
    Documents,
    DocumentWriteError,
    FolderDocuments,
    IncompleteDocumentError,
    _lock_of,
    copy_documents,
)
from millstream.testing.waiting import until
from support.lost_replies import lost_reply_to_commit
from support.server_databases import new_database

Open = Callable[[], Documents]
"""Opens the documents of one place, as another process does."""


@pytest.fixture(params=["folder", "database"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    if request.param == "folder":
        yield lambda: FolderDocuments(tmp_path / "node")
        return
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'node.db'}")
    yield lambda: DatabaseDocuments(engine)
    engine.dispose()


def test_what_was_written_is_read_by_others(opened: Open) -> None:
    one = opened().document("producers/bits.json")
    assert one.read() is None
    for data in (b"1", b"", b"\0" * 100_000):
        one.write(data)
        assert opened().document("producers/bits.json").read() == data


def test_documents_of_a_folder_are_listed_with_a_number_that_changes(opened: Open) -> None:
    documents = opened()
    assert documents.versions("producers") == {}
    one = documents.document("producers/bits.json")
    one.read()
    one.write(b"1")
    documents.document("batching/x.state").write(b"2")
    with _left_alone(documents, r"producers/bits\.json"):
        (first,) = documents.versions("producers").items()
    one.write(b"3")
    (second,) = opened().versions("producers").items()
    assert first[0] == second[0] == "producers/bits.json" and first[1] != second[1]


def _left_alone(documents: Documents, name: str) -> AbstractContextManager[None]:
    document = documents.document(name)
    return document.alone() if isinstance(documents, FolderDocuments) else contextlib.nullcontext()


def test_a_document_is_created_once(opened: Open) -> None:
    opened().document("batching/limits.json").create(b"1")
    opened().document("batching/limits.json").create(b"2")
    assert opened().document("batching/limits.json").read() == b"1"


def test_a_full_disk_is_named_and_a_folder_in_the_way_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = FolderDocuments(tmp_path).document("ingest/a.json")

    def full(_path: Path, _data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with (
        monkeypatch.context() as patch,
        pytest.raises(DocumentWriteError, match=r"a\.json: No space left on device") as seen,
    ):
        patch.setattr("millstream.core.documents.write_durably", full)
        document.write(b"1")
    assert seen.value.transient and document.read() is None
    (tmp_path / "ingest/a.json").mkdir()
    with pytest.raises(IsADirectoryError):
        document.write(b"1")


def test_a_folder_among_documents_is_none(tmp_path: Path) -> None:
    one, two = FolderDocuments(tmp_path / "one"), FolderDocuments(tmp_path / "two")
    one.document("batching/x.state").write(b"1")
    (tmp_path / "one/batching/x.checkpoint").mkdir()
    assert list(one.versions("batching")) == ["batching/x.state"]
    assert copy_documents(one, two, "batching") == 1


def test_documents_are_copied_between_places_once_or_again(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'node.db'}")
    folder, database = FolderDocuments(tmp_path / "node"), DatabaseDocuments(engine)
    for number in range(3):
        folder.document(f"batching/{number}.state").write(b"%d" % number)
    assert copy_documents(folder, database, "batching") == copy_documents(folder, database, "batching") == 3
    assert database.document("batching/2.state").read() == b"2"
    back = FolderDocuments(tmp_path / "back")
    assert copy_documents(database, back, "batching") == 3
    assert (tmp_path / "back/batching/1.state").read_bytes() == b"1"
    engine.dispose()


def test_a_row_that_another_process_has_changed_is_not_replaced(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'node.db'}")
    one, other = (DatabaseDocuments(engine).document("batching/x.state") for _ in range(2))
    assert one.read() is other.read() is None
    one.write(b"ours")
    with pytest.raises(
        DocumentBusyError, match=r"has changed batching/x\.state \(a row of the table node_documents in"
    ):
        other.write(b"theirs")
    assert other.read() == b"ours"
    other.write(b"theirs")
    with pytest.raises(DocumentBusyError):
        one.write(b"late")
    engine.dispose()


@pytest.fixture
def part_bytes(monkeypatch: pytest.MonkeyPatch) -> int:
    """The bytes of a part on a server whose ``max_allowed_packet`` is 4 MiB."""
    monkeypatch.setattr("millstream.core.documents.largest_statement", lambda _: 4 << 20)
    return (4 << 20) // 2 - 32_768


def test_a_large_document_is_sent_in_parts_and_is_replaced_as_a_whole(tmp_path: Path, part_bytes: int) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'node.db'}")
    one, other = (DatabaseDocuments(engine).document("batching/x.state") for _ in range(2))
    sizes: list[int] = []

    def measure(
        _connection: object, _cursor: object, _statement: str, parameters: Sequence[object], *_: object
    ) -> None:
        sizes.append(sum(len(value) for value in parameters if isinstance(value, bytes | memoryview)))

    sa.event.listen(engine, "before_cursor_execute", measure)
    for size in (4 * part_bytes + 1, 2 * part_bytes, 5, part_bytes + 1, part_bytes, 0):
        data = os.urandom(size)
        one.write(data)
        assert other.read() == one.read() == data
    assert 0 < max(sizes) <= part_bytes
    engine.dispose()


def test_a_document_that_an_earlier_release_wrote_after_a_large_one_has_its_content_alone(
    tmp_path: Path, part_bytes: int
) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'node.db'}")
    one = DatabaseDocuments(engine).document("batching/x.state")
    one.write(bytes(3 * part_bytes))
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE node_documents SET version = version + 1, data = ?", (b"small",))
    assert one.read() == b"small"
    one.write(b"1")
    assert one.read() == b"1"
    engine.dispose()


@pytest.mark.parametrize("gone", ["number = 3", "true"])
def test_a_large_document_without_all_of_its_parts_is_an_error(gone: str, tmp_path: Path, part_bytes: int) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'node.db'}")
    one = DatabaseDocuments(engine).document("batching/x.state")
    one.write(bytes(3 * part_bytes))
    with engine.begin() as connection:
        connection.exec_driver_sql(f"DELETE FROM node_document_parts WHERE {gone}")
    with pytest.raises(
        IncompleteDocumentError, match=r"has [02] of its 3 parts\. Restore the tables node_documents and"
    ):
        one.read()
    engine.dispose()


def test_a_document_whose_first_part_is_not_among_the_parts_is_read(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'node.db'}")
    one = DatabaseDocuments(engine).document("batching/x.state")
    one.write(b"first, ")
    with engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO node_document_parts VALUES (?, 1, 1, ?)", (one._name, b"second"))
    assert one.read() == b"first, second"
    engine.dispose()


@pytest.mark.served
@pytest.mark.parametrize("server", ["postgresql", "mariadb"])
def test_a_document_beyond_a_packet_is_kept_on_a_server(server: str, request: pytest.FixtureRequest) -> None:
    with new_database(str(request.getfixturevalue(server)), "documents") as url:
        engine = open_server(url)
        one, other = (DatabaseDocuments(engine).document("batching/x.state") for _ in range(2))
        packet = largest_statement(engine) or 16 << 20
        for data in (b"1", b"\\'" * (packet // 2 + 7)):
            one.write(data)
            assert other.read() == data
        engine.dispose()


def test_a_write_whose_commit_was_not_answered_does_not_end_writing(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'node.db'}")
    one, other = (DatabaseDocuments(engine).document("batching/x.state") for _ in range(2))
    for before, after in ((b"1", b"2"), (b"3", b"3")):
        with lost_reply_to_commit(engine), pytest.raises(sa.exc.OperationalError, match="was lost"):
            one.write(before)
        one.write(after)
        assert other.read() == after
    with lost_reply_to_commit(engine), pytest.raises(sa.exc.OperationalError):
        one.write(b"4")
    assert other.read() == b"4"
    other.write(b"theirs")
    with pytest.raises(DocumentBusyError):
        one.write(b"5")
    assert other.read() == b"theirs"
    engine.dispose()


@pytest.mark.served
@pytest.mark.parametrize("server", ["postgresql", "mariadb"])
def test_one_process_at_a_time_uses_a_document_on_a_server(server: str, request: pytest.FixtureRequest) -> None:
    with new_database(str(request.getfixturevalue(server)), "documents") as url:
        engines = [open_server(url) for _ in range(2)]
        one, other = (DatabaseDocuments(engine).document("producers/bits.json") for engine in engines)
        with one.alone(), pytest.raises(DocumentBusyError, match=r"another process is using producers/bits\.json"):
            other.alone().__enter__()
        with other.alone():
            other.write(b"1")
        for engine in engines:
            engine.dispose()


@pytest.mark.served
def test_a_document_is_kept_for_longer_than_the_server_keeps_idle_connections(request: pytest.FixtureRequest) -> None:
    with new_database(str(request.getfixturevalue("mariadb")), "documents") as url:
        one, other = open_server(url), open_server(url)
        sa.event.listen(one, "connect", lambda connection, _: connection.cursor().execute("SET wait_timeout = 1"))
        document = DatabaseDocuments(one).document("producers/bits.json")
        with document.alone(), other.connect() as connection:
            lock = _lock_of(connection, "producers/bits.json").take
            assert connection.scalar(sa.text(str(lock).replace(", 0)", ", 3)"))) == 0, "it waits for three seconds"
        for engine in (one, other):
            engine.dispose()


@pytest.fixture(params=["postgresql", "mariadb"])
def two(request: pytest.FixtureRequest) -> Iterator[tuple[DatabaseDocument, DatabaseDocument]]:
    """A document on a server, as two processes have it."""
    with new_database(str(request.getfixturevalue(request.param)), "documents") as url:
        engines = [open_server(url) for _ in range(2)]
        one, other = (DatabaseDocuments(engine).document("producers/bits.json") for engine in engines)
        yield one, other
        for engine in engines:
            engine.dispose()


@pytest.mark.served
def test_a_lock_whose_connection_broke_is_taken_again_by_the_next_write(
    two: tuple[DatabaseDocument, DatabaseDocument],
) -> None:
    one, other = two
    with one.alone():
        _break_lock(one)
        one.write(b"1")
        with pytest.raises(DocumentBusyError):
            other.alone().__enter__()
        _break_lock(one)
    with one.alone():
        _break_lock(one)
        with other.alone(), pytest.raises(DocumentBusyError, match=r"another process is using producers/bits\.json"):
            one.write(b"2")
        with pytest.raises(DocumentBusyError):
            one.write(b"3")
    assert other.read() == b"1"


@pytest.mark.served
def test_a_lock_whose_connection_broke_is_taken_again_without_a_write(
    two: tuple[DatabaseDocument, DatabaseDocument], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.core.documents._LOOK_SECONDS", 0.02)
    one, other = two
    with one.alone():
        assert one._lock is not None
        lock, before = one._lock, one._lock._connection
        _break_lock(one)
        until(lambda: lock._connection is not before, "the lock taken again")
        with pytest.raises(DocumentBusyError):
            other.alone().__enter__()


@pytest.mark.served
def test_a_lock_is_taken_again_from_the_own_session_that_the_server_has_not_ended_yet(
    two: tuple[DatabaseDocument, DatabaseDocument],
) -> None:
    one, other = two
    with one.alone():
        lock = one._lock
        assert lock is not None
        for _ in range(2):
            with lock._using:  # after an outage of the network, the client has given up the connection
                former, lock._connection = lock._connection, one._engine.connect()
                lock._connection.close()
            one.write(b"1")
            with pytest.raises(sa.exc.DBAPIError):
                former.exec_driver_sql("SELECT 1")
            former.close()
        with pytest.raises(DocumentBusyError):
            other.alone().__enter__()
    with other.alone():
        assert other.read() == b"1"


def _break_lock(document: DatabaseDocument) -> None:
    """Let the server close the connection of the lock that *document* has, as a restart does."""
    assert document._lock is not None
    with (
        document._lock._using,
        document._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
    ):
        is_postgresql = connection.dialect.name == "postgresql"
        query = "SELECT pg_backend_pid()" if is_postgresql else "SELECT CONNECTION_ID()"
        number = document._lock._connection.exec_driver_sql(query).scalar_one()
        if is_postgresql:
            end, left = f"SELECT pg_terminate_backend({number})", f"SELECT 1 FROM pg_stat_activity WHERE pid = {number}"
        else:
            end, left = f"KILL {number}", f"SELECT 1 FROM information_schema.processlist WHERE id = {number}"
        connection.exec_driver_sql(end)
        until(lambda: connection.exec_driver_sql(left).scalar() is None, "the connection closed")


_FORKED = """
import os, sys, time
from pathlib import Path
from millstream.core.clock import SystemClock
from millstream.core.documents import FolderDocuments
from millstream.log.backends.segments.files import FileLock
folder = Path(sys.argv[1])
kinds = {"document": FolderDocuments(folder).document("one").alone, "file": FileLock(folder, SystemClock()).held}
for lock in kinds.values():
    with lock():
        if not os.fork():
            time.sleep(60)
            os._exit(0)
print("released", flush=True)
sys.stdin.read()
"""


def test_a_lock_is_released_although_a_child_that_was_forked_meanwhile_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _FORKED, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as parent:
        try:
            assert parent.stdout is not None
            assert parent.stdout.readline() == b"released\n"
            for path in (tmp_path / "one.lock", tmp_path):
                handle = os.open(path, os.O_RDONLY)
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.close(handle)
        finally:
            os.killpg(parent.pid, signal.SIGKILL)
