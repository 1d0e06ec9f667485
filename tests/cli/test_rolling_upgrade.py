"""A newer program beside older members of a node waits for their end, and an older one leaves newer tables alone.

The version of the tables is a row, and the one that a member knows is in its row: so a program of another version is
one that finds, or has written, another number there.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa
from serving_nodes import Serving, open_node, soon

from millstream.cli.main import run
from millstream.core.writers_lock import SCHEMA_VERSION
from millstream.mill.reports.archive import decode_report, reports_of
from millstream.mill.reports.folder import ReportFolder
from millstream.mill.reports.member_reports import take_over
from millstream.mill.reports.table import ReportTable
from millstream.node import Node
from millstream.node.members.members_status import MemberDetails
from millstream.node.members.membership import Membership
from support.server_databases import new_database

SETTINGS = """
[node]
database = "{database}"
lease = "3s"
[queue]
broker = "amqp://127.0.0.1:1"
"""

SETTING_OF_STORES = '[stores.primary]\nurl = "file://{data}/primary"\n'


@pytest.mark.served
def test_a_newer_program_waits_for_older_members_and_an_older_one_ends_at_newer_tables(
    tmp_path: Path, postgresql: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with new_database(postgresql, "node") as database:
        folders = [tmp_path / "served", tmp_path / "tests"]
        for folder in folders:
            folder.mkdir()
            (folder / "millstream.toml").write_text(SETTINGS.format(database=database), "utf-8")
        here = ["--data", str(folders[1])]
        with open_node(folders[1]) as node:
            node.databases.prepare()
            older = _member(node, "older", SCHEMA_VERSION - 1)
            _set_version(node, SCHEMA_VERSION - 1)
            with older:
                waiting = Serving(folders[0])
                soon(lambda: "waiting: this program would change" in " ".join(waiting.said), "a process that waits")
                assert older.id in " ".join(waiting.said)
                assert run(["node", "ls", "--json", *here]) == 0
                states = [json.loads(line)["state"] for line in capsys.readouterr().out.splitlines()]
                assert sorted(states) == ["alive", "waiting"]
                assert run(["mill", "report", *here]) == 4, "a command of the newer version"
                assert f"cannot use: stop {older.id}" in capsys.readouterr().err
                assert run(["node", "move", "file", *here]) == 4
                assert "stop them first" in capsys.readouterr().err
                assert _version(node) == SCHEMA_VERSION - 1
            with waiting:
                assert _version(node) == SCHEMA_VERSION, "changed once the older member had left"
                (member,) = node.databases.members.table.alive()
                assert (member.details.waits, member.details.schema) == (False, SCHEMA_VERSION)
                _member(node, "newer", SCHEMA_VERSION + 1)  # it is killed: the older process finds it lost
                _set_version(node, SCHEMA_VERSION + 1)
                assert waiting.process.wait(60) == 1, "it ends instead of writing to newer tables"
                assert "install the version of millstream" in " ".join(waiting.said)
        assert run(["node", "ls", *here]) == 1
        error = capsys.readouterr().err
        assert f"have version {SCHEMA_VERSION + 1}, and this program knows version {SCHEMA_VERSION}" in error


@pytest.mark.served
def test_a_process_that_waits_for_older_members_can_be_stopped(tmp_path: Path, postgresql: str) -> None:
    with new_database(postgresql, "node") as database:
        (tmp_path / "millstream.toml").write_text(SETTINGS.format(database=database), "utf-8")
        with open_node(tmp_path) as node:
            node.databases.prepare()
            with _member(node, "older", SCHEMA_VERSION - 1):
                _set_version(node, SCHEMA_VERSION - 1)
                waiting = Serving(tmp_path)
                soon(lambda: "waiting: " in " ".join(waiting.said), "a process that waits")
                waiting.process.terminate()
                assert waiting.process.wait(60) == 4, waiting.said
                waiting.process.stdout.close()
                soon(lambda: len(node.databases.members.table.alive()) == 1, "the older member alone")


@pytest.mark.served
def test_reports_that_an_early_release_wrote_to_the_folder_of_a_member_are_not_missing(
    tmp_path: Path, postgresql: str, capsys: pytest.CaptureFixture[str]
) -> None:
    here = _checked_node(tmp_path, SETTING_OF_STORES)
    with new_database(postgresql, "node") as database:
        (tmp_path / "millstream.toml").write_text(f'{SETTING_OF_STORES}[node]\ndatabase = "{database}"\n')
        with open_node(tmp_path) as node:
            node.databases.prepare()
        capsys.readouterr()
        assert run(["mill", "report", "--verify", *here]) == 1, "a command that reads writes nothing"
        assert "are not in the database yet: start `millstream serve`" in capsys.readouterr().err
        with open_node(tmp_path) as node:
            node.mill.prepare()
            (_, last) = reports_of(node.mill.reports.archive, "primary", "letters")
        with open_node(tmp_path) as node:
            archive = node.mill.reports.archive
            assert isinstance(archive, ReportTable) and "ledger" not in vars(node.mill.reports), "nothing is new"
            other = ReportFolder(tmp_path / "other")
            node.mill.reports.anchor(other.save(msgspec.structs.replace(last, version=1)))
            assert take_over(tmp_path / "other", archive, lambda _: True) == 1
        capsys.readouterr()
        assert run(["mill", "report", "--verify", *here]) == 0
        printed = capsys.readouterr()
        assert last.sha256 in printed.out and "1 report of other chains" in printed.out and not printed.err


@pytest.mark.served
def test_reports_whose_rows_were_removed_from_a_database_on_a_server_are_missing(
    tmp_path: Path, postgresql: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with new_database(postgresql, "node") as database:
        here = _checked_node(tmp_path, f'{SETTING_OF_STORES}[node]\ndatabase = "{database}"\n')
        assert run(["mill", "report", "--verify", *here]) == 0
        with open_node(tmp_path) as node:
            (_, last) = node.mill.reports.archive.stored("primary", "letters")
            ReportFolder(tmp_path / "reports").save(decode_report(last))  # of an early release, and not anchored
            with node.databases.own.begin() as connection:
                connection.execute(sa.text("DELETE FROM mill_reports WHERE number = 2"))
        capsys.readouterr()
        assert run(["mill", "report", "--verify", *here]) == 1
        printed = capsys.readouterr()
        assert "1 report in the ledger is missing" in printed.out
        assert "are not in the database yet" not in printed.err, "that report is not in the folder"
        with open_node(tmp_path) as node:
            node.mill.reports.archive.add_unchained(last.data)
        assert run(["mill", "report", "--verify", *here]) == 1, "it is put beside the chains"
        assert "1 report in the ledger is missing" in capsys.readouterr().out


def _checked_node(folder: Path, settings: str) -> list[str]:
    """A node with *settings* in *folder* and two reports on a space; the options that name it."""
    here = ["--data", str(folder)]
    (folder / "millstream.toml").write_text(settings)
    (folder / "letter").write_text("a letter")
    assert run(["store", "put", "primary", "letters", str(folder / "letter"), "--create", *here]) == 0
    for _ in range(2):
        run(["mill", "check", *here])
    return here


def _member(node: Node, host: str, schema: int) -> Membership:
    """A process of another version, which is a member from now on; in its block it sends heartbeats."""
    member = Membership(node.databases.members.table, MemberDetails(host=host, pid=1, version="0", schema=schema))
    member.join()
    return member


def _set_version(node: Node, version: int) -> None:
    with node.databases.own.begin() as connection:
        connection.execute(sa.text(f"UPDATE node_writers SET version = {version}"))


def _version(node: Node) -> int:
    with node.databases.own.connect() as connection:
        return int(connection.scalar(sa.text("SELECT version FROM node_writers")) or 0)
