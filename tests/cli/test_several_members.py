"""A node that two processes serve, each with a folder of its own: one is stopped and resumed, the other is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from serving_nodes import MEMBER_SETTINGS, Serving, open_node, owner_of, soon
from weather_batches import anchored, append, expected, given

from millstream.node import Node
from millstream.node.members.members_status import Member, MemberState
from millstream.status.verdict.judge_members import settings_issues
from support.server_databases import new_database

SETTINGS = f"""{MEMBER_SETTINGS}
[serve]
producers = true
anchor_every = "1s"
[serve.batching]
weather = "weather.batches"
"""


@pytest.mark.served
def test_mill_work_is_a_member_until_it_ends_and_is_named_if_it_lacks_a_store(tmp_path: Path, postgresql: str) -> None:
    with new_database(postgresql, "node") as database, new_database(postgresql, "logs") as logs:
        settings = MEMBER_SETTINGS.format(database=database, logs=logs, shared=tmp_path / "cas")
        folders = [tmp_path / name for name in ("works", "serves")]
        for folder, stores in zip(folders, (["one"], ["one", "two"]), strict=True):
            folder.mkdir()
            lines = "".join(f'[stores.{name}]\nurl = "file:///{name}"\n' for name in stores)
            (folder / "millstream.toml").write_text(settings + lines, "utf-8")
        with open_node(folders[1]) as node:
            members = node.databases.members
            command = [sys.executable, "-m", "millstream", "mill", "work", "repair", "--data", str(folders[0])]
            with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process, members.joined_worker(["repair"]):
                here = soon(lambda: _working(node, process.pid), "a member")
                assert (here.details.command, list(here.details.queues), here.owns) == ("mill work", ["repair"], {})
                status = members.status()
                assert status is not None and here.id in next(settings_issues(status)).what
                process.send_signal(signal.SIGTERM)
                assert process.wait(60) == 0
                assert not _working(node, process.pid)


def _working(node: Node, pid: int) -> Member | None:
    return next((one for one in node.databases.members.table.alive() if one.details.pid == pid), None)


@pytest.mark.served
def test_who_was_stopped_or_killed_is_replaced_and_every_message_is_in_one_batch(
    tmp_path: Path, postgresql: str
) -> None:
    with new_database(postgresql, "node") as database, new_database(postgresql, "logs") as logs:
        settings = SETTINGS.format(database=database, logs=logs, shared=tmp_path / "cas")
        folders = [tmp_path / name for name in ("one", "two", "tests")]
        for folder in folders:
            folder.mkdir()
            (folder / "millstream.toml").write_text(settings, "utf-8")
        with Serving(folders[0]) as one, Serving(folders[1]) as two, open_node(folders[2]) as node:
            processes = {each.process.pid: each for each in (one, two)}
            soon(lambda: len(_owners(node)) == 2, "two members with roles")
            append(node, 100)
            soon(lambda: anchored(node) == 100, "the messages anchored")
            stopped = owner_of(node, "batching weather")
            first = processes[stopped.details.pid]
            first.process.send_signal(signal.SIGSTOP)
            killed = processes[owner_of(node, "batching weather", but=stopped.id).details.pid]
            append(node, 100)
            soon(lambda: anchored(node) == 200, "the messages anchored by the other one")
            first.process.send_signal(signal.SIGCONT)
            soon(lambda: len(_owners(node)) == 2, "both members, one under a new id")
            assert stopped.id not in _owners(node)
            killed.process.kill()
            append(node, 100)
            soon(lambda: anchored(node) == 300, "the messages anchored by the one that is left")
            (left,) = (each for each in (one, two) if each is not killed)
            status = node.databases.members.status()
            assert status is not None and status.unowned == []
            states = [(member.details.pid, member.state(status.at)) for member in status.members]
            assert states.count((killed.process.pid, MemberState.LOST)) >= 1
            assert [pid for pid, state in states if state == MemberState.ALIVE] == [left.process.pid]
            left.drain()
            assert given(node) == expected(node)
            totals = node.anchoring.observer.index.totals()
            assert (totals.batches, totals.messages + totals.rejects) == (len(expected(node)[0]), 300)


def _owners(node: Node) -> dict[str, Member]:
    return {member.id: member for member in node.databases.members.table.alive() if member.owns}
