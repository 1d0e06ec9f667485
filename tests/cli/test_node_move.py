"""The tables of a node are moved between its folder and a server: whole, once, and only while nobody uses them."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa
from serving_nodes import open_node

from mill.test_tables_on_servers import SCRIPTS
from millstream.batching.service_state import ServiceState, read_state, write_state
from millstream.cli.main import run
from millstream.cli.node_tables import node_tables
from millstream.core.clock import VirtualClock
from millstream.core.database_server import open_server
from millstream.core.documents import DatabaseDocuments, FolderDocuments
from millstream.core.secrets import safe_url
from millstream.core.sql import make_tables
from millstream.core.writers_lock import is_made, lock_writers
from millstream.mill.duplication.change_guard import ChangeGuard
from millstream.mill.manifest import Manifest
from millstream.mill.manifest_table import AddedItems
from millstream.mill.reports.folder import ReportFolder
from millstream.node import Node, moving
from millstream.node.databases import has_database
from millstream.node.moving import (
    MovedAwayError,
    MoveError,
    UnfinishedMoveError,
    move_documents,
    move_tables,
    require_finished,
)
from millstream.rest.operator_audit_log import OperatorAuditLog
from millstream.settings import Settings
from millstream.settings.loading import load_settings
from millstream.stores.audit.outbox import AuditOutbox
from support.server_databases import new_database


def fill(engine: sa.Engine) -> None:
    """Put something into every table that the scripts know, and take away the newest event of the outbox."""
    for script in SCRIPTS:
        list(script(engine))
    outbox = AuditOutbox(engine, VirtualClock(), holder="me")
    outbox.cancel(outbox.newest())
    OperatorAuditLog(engine, VirtualClock()).add("ada", "reject", "a plan", reason="a text with \0")


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[sa.Engine]:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'node.db'}")
    fill(engine)
    yield engine
    engine.dispose()


def test_all_tables_of_a_node_are_known_and_each_has_a_key() -> None:
    tables = node_tables()
    assert len({table.name for table in tables}) == len(tables) > 35
    assert all(len(table.primary_key) for table in tables)


def test_a_file_is_moved_to_another_file_and_numbers_are_not_given_again(filled: sa.Engine, tmp_path: Path) -> None:
    target = sa.create_engine(f"sqlite:///{tmp_path / 'target.db'}")
    newest = AuditOutbox(filled, VirtualClock(), holder="me").newest()
    moved = move_tables(filled, target, node_tables(), "node")
    assert sum(table.rows for table in moved) > 100
    require_finished(target)
    with pytest.raises(MovedAwayError, match=r"were moved to another database: set node\.database to its URL"):
        require_finished(filled)
    assert AuditOutbox(target, VirtualClock(), holder="me").newest() == newest
    third = sa.create_engine(f"sqlite:///{tmp_path / 'third.db'}")
    for goal in (target, third):
        with pytest.raises(MovedAwayError, match="were moved to another database"):
            move_tables(filled, goal, node_tables(), "node")
    move_tables(target, third, node_tables(), "node")
    _forget_move(target)
    with pytest.raises(MoveError, match="of the node in node"):
        move_tables(target, third, node_tables(), "other")
    target.dispose()
    third.dispose()


def _forget_move(source: sa.Engine) -> None:
    """Let *source* be used again, as who deletes the row that an error names."""
    with source.begin() as connection:
        connection.execute(sa.delete(moving._moves).where(moving._moves.c.id == moving._AWAY))


def test_a_move_that_was_killed_before_its_last_commit_leaves_neither_database_usable_and_is_completed(
    filled: sa.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, put_row = sa.create_engine(f"sqlite:///{tmp_path / 'target.db'}"), moving.put_row
    third = sa.create_engine(f"sqlite:///{tmp_path / 'third.db'}")

    def refuse(connection: sa.Connection, table: sa.Table, row: dict[str, object]) -> None:
        if row["id"] == moving._INTO and row["is_finished"]:
            raise Interrupted
        put_row(connection, table, row)

    with monkeypatch.context() as patched:
        patched.setattr(moving, "put_row", refuse)
        with pytest.raises(Interrupted):
            move_tables(filled, target, node_tables(), "node", target_name="target")
    for engine, error in ((filled, MovedAwayError), (target, UnfinishedMoveError)):
        with pytest.raises(error):
            require_finished(engine)
    for goal, name in ((third, "target"), (third, "third"), (target, "third")):
        with pytest.raises(MovedAwayError, match="were moved to target"):
            move_tables(filled, goal, node_tables(), "node", target_name=name)
    ended = list[bool]()
    moved = move_tables(filled, target, node_tables(), "node", target_name="target", at_end=lambda: ended.append(True))
    assert (sum(table.rows for table in moved) > 100, ended) == (True, [True])
    require_finished(target)
    with pytest.raises(MovedAwayError):
        require_finished(filled)
    _forget_move(filled)
    with pytest.raises(MoveError, match="already"):
        move_tables(filled, target, node_tables(), "node", target_name="target")
    target.dispose()
    third.dispose()


def test_a_target_is_not_finished_where_the_source_cannot_be_marked(
    filled: sa.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, put_row = sa.create_engine(f"sqlite:///{tmp_path / 'target.db'}"), moving.put_row

    def refuse(connection: sa.Connection, table: sa.Table, row: dict[str, object]) -> None:
        if row["id"] == moving._AWAY:
            raise Interrupted
        put_row(connection, table, row)

    monkeypatch.setattr(moving, "put_row", refuse)
    with pytest.raises(Interrupted):
        move_tables(filled, target, node_tables(), "node")
    with pytest.raises(UnfinishedMoveError):
        require_finished(target)
    target.dispose()


def test_a_move_into_the_same_database_under_another_url_is_refused(filled: sa.Engine, tmp_path: Path) -> None:
    target = sa.create_engine(f"sqlite:///{tmp_path / 'target.db'}")
    move_tables(filled, target, node_tables(), "node")
    other = sa.create_engine(f"sqlite:///{tmp_path / '..' / tmp_path.name / 'target.db'}")
    with pytest.raises(MoveError, match=r"is the database that the node is in, under another URL"):
        move_tables(target, other, node_tables(), "node")
    require_finished(target)
    other.dispose()
    target.dispose()


def test_a_database_with_something_else_in_it_is_refused(filled: sa.Engine, tmp_path: Path) -> None:
    target = sa.create_engine(f"sqlite:///{tmp_path / 'target.db'}")
    Manifest(target)
    with pytest.raises(MoveError, match="not empty"):
        move_tables(filled, target, node_tables(), "node")
    target.dispose()


def test_a_move_that_was_killed_after_it_made_its_own_table_is_repeated(filled: sa.Engine, tmp_path: Path) -> None:
    target = sa.create_engine(f"sqlite:///{tmp_path / 'target.db'}")
    make_tables(target, moving._metadata)
    assert move_tables(filled, target, node_tables(), "node")
    require_finished(target)
    target.dispose()


def test_a_copy_that_differs_is_an_error(filled: sa.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, keep = sa.create_engine(f"sqlite:///{tmp_path / 'target.db'}"), moving._keep_numbers

    def damage(reading: sa.Connection, engine: sa.Engine, table: sa.Table) -> None:
        keep(reading, engine, table)
        if table.name == "mill_manifest":
            with engine.begin() as connection:
                connection.execute(sa.update(table).values(size=99).where(table.c.content_id == "é"))

    monkeypatch.setattr(moving, "_keep_numbers", damage)
    with pytest.raises(MoveError, match="the copy of the table mill_manifest differs"):
        move_tables(filled, target, node_tables(), "node")
    with pytest.raises(UnfinishedMoveError):
        require_finished(target)
    target.dispose()


def test_a_newer_state_that_a_stream_could_not_save_stays(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'node.db'}")
    source, target = DatabaseDocuments(engine), FolderDocuments(tmp_path)
    for name, saved, unsaved in (("new", 5, 9), ("old", 5, 4)):
        for documents, position in ((source, saved), (target, unsaved)):
            state = ServiceState("readings", name, position, b"")
            write_state(documents.document(f"batching/{name}.state"), state)
    source.document("batching/limits.json").write(b"{}")
    assert move_documents(source, target) == 3
    found = [read_state(target.document(f"batching/{name}.state"), "readings", name) for name in ("new", "old")]
    assert [state.position for state in found if state is not None] == [9, 5]
    engine.dispose()


class Interrupted(Exception):
    pass


def interrupt_after(pages: int) -> Callable[[str, int], None]:
    left = iter(range(pages))

    def told(_table: str, _rows: int) -> None:
        if next(left, None) is None:
            raise Interrupted

    return told


@pytest.mark.served
@pytest.mark.parametrize("server", ["postgresql", "mariadb"])
def test_there_and_back_interrupted_again_and_again_nothing_is_lost(
    request: pytest.FixtureRequest, filled: sa.Engine, tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "_ROWS", 7)
    back = sa.create_engine(f"sqlite:///{tmp_path / 'back.db'}")
    with new_database(str(request.getfixturevalue(server)), "moved") as url:
        engine = open_server(url)
        there = _moved(filled, engine)
        lock_writers(engine)
        assert AuditOutbox(engine, VirtualClock(), holder="me").newest() > 10
        guard = ChangeGuard(engine, VirtualClock(), lambda _store, _space: 0)
        assert guard.pending() == []
        home = _moved(engine, back)
        engine.dispose()
    assert {table.name: table for table in there} == {
        table.name: table for table in home if table.name in {one.name for one in there}
    }
    back.dispose()


def _moved(source: sa.Engine, target: sa.Engine) -> list[moving.MovedTable]:
    for pages in range(0, 30, 3):
        try:
            return move_tables(source, target, node_tables(), "node", told=interrupt_after(pages))
        except Interrupted:
            with pytest.raises(UnfinishedMoveError):
                require_finished(target)
    return move_tables(source, target, node_tables(), "node")


KILLED = """
import os, signal, sys
import sqlalchemy as sa
from millstream.cli.node_tables import node_tables
from millstream.core.database_server import open_server
from millstream.node import moving
from millstream.node.moving import move_tables
moving._ROWS = 100
pages = int(sys.argv[3])
def told(table, rows):
    global pages
    pages -= 1
    if pages < 0:
        os.kill(os.getpid(), signal.SIGKILL)
target = open_server(sys.argv[2]) if "sqlite" not in sys.argv[2] else sa.create_engine(sys.argv[2])
move_tables(sa.create_engine(sys.argv[1]), target, node_tables(), "node", told=told)
"""


def test_a_move_that_was_killed_at_several_points_ends_whole(tmp_path: Path) -> None:
    source, target = (f"sqlite:///{tmp_path / name}" for name in ("node.db", "target.db"))
    engine, names = sa.create_engine(source), [f"item {number:05}" for number in range(2_000)]
    Manifest(engine).writer.record_added(
        AddedItems("1", "s", 1, names, ["a" * 64] * 2_000, [1] * 2_000, ["text/plain"] * 2_000)
    )
    command = [sys.executable, "-c", KILLED, source, target]
    codes = [subprocess.run([*command, str(pages)], check=False).returncode for pages in (0, 5, 9)]
    assert codes == [-9, -9, -9]
    copied = list[int]()
    goal = sa.create_engine(target)
    (table,) = move_tables(engine, goal, node_tables(), "node", told=lambda _, rows: copied.append(rows))
    assert (table.name, table.rows) == ("mill_manifest", 2_000)
    assert 0 < sum(copied) < 1_000
    assert list(Manifest(goal).scan("1", "s")) == list(Manifest(engine).scan("1", "s"))
    engine.dispose()
    goal.dispose()


def test_the_command_moves_nothing_where_there_is_nothing_or_where_it_is_there_already(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["node", "move", "postgresql://db.example/x", "--data", str(tmp_path)]) == 3
    assert run(["node", "move", "file", "--data", str(tmp_path)]) == 1
    assert "already" in capsys.readouterr().err


OPEN = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("SELECT * FROM mill_manifest").fetchall()
print(flush=True)
sys.stdin.read()
"""


def test_nothing_is_moved_while_a_process_without_a_console_uses_the_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.cli.node._OPEN_SECONDS", 0.0)
    with Node.open(Settings(data=str(tmp_path)), create=True) as node:
        Manifest(node.databases.own)
    command = [sys.executable, "-c", OPEN, str(tmp_path / "node.db")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline()
        assert run(["node", "move", "postgresql://db.invalid/x", "--data", str(tmp_path)]) == 4
        assert f"process {other.pid} (" in (said := capsys.readouterr().err) and "node.db open" in said
        other.communicate()


@pytest.mark.served
@pytest.mark.parametrize("server", ["postgresql", "mariadb"])
def test_the_command_moves_a_node_to_a_server_and_back(
    request: pytest.FixtureRequest, tmp_path: Path, server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, settings = tmp_path / "node", tmp_path / "node" / "millstream.toml"
    (folder / "policies").mkdir(parents=True)
    stores = "\n".join(f'[stores.{name}]\nurl = "file://{{data}}/{name}"' for name in ("primary", "second"))
    settings.write_text(stores)
    (folder / "batching" / "x.checkpoint").mkdir(parents=True)
    (folder / "policies" / "duplication-accounts.json").write_text('["local"]')
    policy = {"defaultPolicies": [{"srcStoreId": "primary", "destStoreId": "second"}]}
    (folder / "policies" / "local-duplication-policy.json").write_text(json.dumps(policy))
    (tmp_path / "letter").write_text("a letter")
    assert run(["store", "put", "primary", "letters", str(tmp_path / "letter"), "--create", "--data", str(folder)]) == 0

    def check() -> tuple[int, str]:
        capsys.readouterr()
        return run(["mill", "check", "--data", str(folder)]), capsys.readouterr().out

    def report_lines() -> tuple[int, str]:
        """How many reports are in the chain, and the table of the last one."""
        table = tmp_path / "lines.tsv"
        assert run(["mill", "report", "second", "letters", "--tsv", str(table), "--data", str(folder)]) == 0
        assert run(["mill", "report", "--verify", "--data", str(folder)]) == 0
        with open_node(folder) as node:
            return len(list(node.mill.reports.archive.stored("second", "letters"))), table.read_text()

    assert run(["mill", "duplicate", "--data", str(folder)]) == 0
    expected = check()
    assert "1 checked" in expected[1]
    with new_database(str(request.getfixturevalue(server)), "node") as url:
        assert run(["node", "move", url, "--data", str(folder)]) == 0
        said = capsys.readouterr().out
        assert run(["mill", "check", "--data", str(folder)]) == 1
        assert f"were moved to {safe_url(url)}: " in capsys.readouterr().err
        settings.write_text(f'[node]\ndatabase = "{url}"\n{stores}')
        shutil.move(folder / "node.db", tmp_path / "kept.db")
        assert "rows moved and verified" in said
        loaded = load_settings({"data": str(folder)}, environment={})[0]
        assert has_database(loaded)
        shutil.move(folder / "second", tmp_path / "second")
        with Node.open(loaded, reads=True) as node:
            assert not is_made(node.databases.own) and not (folder / "second").exists(), "the first process makes them"
        shutil.move(tmp_path / "second", folder / "second")
        assert report_lines()[0] == 1
        shutil.move(folder / "reports", tmp_path / "reports")
        assert check() == expected
        before = report_lines()
        assert before[0] == 2
        assert not (folder / "node.db").exists() and not (folder / "reports").exists()
        with open_node(folder) as node:
            last = node.mill.reports.archive.latest("second", "letters")
            assert last is not None
            ReportFolder(folder / "reports").save(last)  # as an early release of a member did
        capsys.readouterr()
        assert run(["node", "move", "file", "--data", str(folder)]) == 1
        assert "different reports of the same number" in capsys.readouterr().err
        assert not (folder / "node.db").exists(), "nothing is copied"
        shutil.rmtree(folder / "reports")
        assert run(["node", "move", "file", "--data", str(folder)]) == 0
        settings.write_text(stores)
        assert report_lines() == before
        assert check() == expected
        assert report_lines()[0] == 3


_AT = "--host={host} --port={port} --user={user} {name}"
DUMPS = {
    "postgresql": (
        "pg_dump --format=custom --file={file} {url}",
        "pg_restore --clean --if-exists --dbname={url} {file}",
    ),
    "mariadb": (
        f"mariadb-dump --single-transaction --hex-blob {_AT} --result-file={{file}}",
        f"mariadb {_AT} -e 'source {{file}}'",
    ),
}
"""How a database is dumped and restored."""


@pytest.mark.served
@pytest.mark.parametrize("server", DUMPS)
def test_a_dump_that_is_restored_has_all_tables_as_they_were(
    request: pytest.FixtureRequest, tmp_path: Path, server: str
) -> None:
    address = str(request.getfixturevalue(server))
    with new_database(address, "dumped") as url, new_database(address, "restored") as restored:
        source = open_server(url)
        lock_writers(source)
        fill(source)
        open_server(restored).dispose()
        for command, place in zip(DUMPS[server], (url, restored), strict=True):
            parts = urlsplit(place)
            values = {"host": parts.hostname, "port": parts.port, "user": parts.username, "name": parts.path[1:]}
            words = shlex.split(command.format(url=place, file=tmp_path / "dump", **values))
            subprocess.run(words, check=True, capture_output=True)
        target = open_server(restored)
        with source.connect() as before, target.connect() as after:
            for table in node_tables():
                if before.dialect.has_table(before, table.name):
                    moving._compare(before, after, table, lambda _table, _rows: None)
        lock_writers(target)
        assert AuditOutbox(target, VirtualClock(), holder="me").newest() > 10
        source.dispose()
        target.dispose()
