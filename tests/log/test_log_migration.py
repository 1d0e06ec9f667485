"""Stores of format 1, whose system logs had names that users' logs may have: they open, and nothing of them is lost.

``kept`` has two data folders that the release of November 2026 made, one over SQLite and one over segments, each with
ten logs: a ledger of two anchors, one of reports, one of identifiers into which somebody wrote ``hello``, a queue with
a dead task, an unused one, the two of a broker with the topic ``orders`` and a delayed message, and three of users.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from millstream.anchoring import replay
from millstream.core.clock import SystemClock
from millstream.log import (
    LogNotFoundError,
    LogSpec,
    LogStore,
    Message,
    Retention,
    SystemLogError,
    WriterBusyError,
    open_store,
    system_log,
)
from millstream.log.backends.segments.backend import SegmentsBackend
from millstream.log.backends.sqlite.backend import SqliteBackend
from millstream.log.errors import StorageFullError, StorageReadOnlyError
from millstream.log.kinds import KIND
from millstream.log.upkeep.rules import LogRule
from millstream.log.upkeep.upkeep_thread import run_upkeep
from millstream.messaging.broker.limits import Limits
from millstream.messaging.broker.storage.journal import BrokerJournal
from millstream.node import Node
from millstream.queue import queues_on_logs
from millstream.settings import Settings
from suite.sizes import sized
from support.commands import run_command

KEPT = Path(__file__).parent / "kept"
CHILD = Path(__file__).parent / "children" / "migrate.py"

KINDS = {
    "orders.ledger": "application",
    "queue.orders": "application",
    "system:broker.held": "journal",
    "system:broker.journal": "journal",
    "system:ledger": "ledger",
    "system:mill.ledger": "ledger",
    "system:queue.never-used": "queue",
    "system:queue.repair": "queue",
    "system:registry.ledger": "ledger",
    "weather": "application",
}
"""What the logs of both folders are called today, and their kinds."""

Everything = Mapping[str, object]


@pytest.fixture(params=["sqlite", "segments"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A data folder of the release before, over each kind of store in turn."""
    with tarfile.open(KEPT / f"format-1-{request.param}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / request.param


def url_of(folder: Path) -> str:
    return f"sqlite:///{folder}/log.db" if folder.name == "sqlite" else f"segments:///{folder}/log"


def settings_of(folder: Path) -> Settings:
    settings = Settings(data=str(folder))
    return Settings(data=str(folder), log=type(settings.log)(store=url_of(folder)))


def everything(url: str, *, read_only: bool = True) -> Everything:
    """What can be seen of all logs: kinds, messages, pointers, sequences, notes, and that their blocks are sound."""
    with open_store(url, read_only=read_only) as store:
        return {name: _whole(store, name, kind) for name, kind in store.kinds().items()}


def _whole(store: LogStore, name: str, kind: str) -> object:
    log = store.log(LogSpec(name), create=False)
    info, found = log.info(), log.verify()
    messages = [message for batch in log.read() for message in batch]
    producers = {producer: log.sequence(producer) for producer in ("", "shop", "queue", "broker", "ledger")}
    return kind, found.problems, info.consumers, producers, log.metadata("retention"), messages


def test_a_folder_of_the_release_before_has_all_it_had_under_its_present_names(folder: Path) -> None:
    url = url_of(folder)
    before = everything(url)
    assert {name: whole[0] for name, whole in before.items()} == KINDS  # type: ignore[index]
    assert everything(url, read_only=False) == before
    assert everything(url) == before
    with open_store(url) as store:
        assert [store.log(LogSpec(name), create=False).kind for name in store.logs()] == list(KINDS.values())
        for name, kind in KINDS.items():
            if name.startswith("system:"):
                with pytest.raises(SystemLogError):
                    store.log(LogSpec(name), create=False).writer()
            with store.log(LogSpec(name, kind=kind), create=False).writer() as writer:  # type: ignore[arg-type]
                writer.append([b"one more"])
            assert store.log(LogSpec(name), create=False).verify().ok


def test_a_store_that_is_only_read_stays_as_it_is(folder: Path) -> None:
    def files() -> Mapping[str, bytes]:
        return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}

    before = files()
    assert {name: whole[0] for name, whole in everything(url_of(folder)).items()} == KINDS  # type: ignore[index]
    assert {path: data for path, data in files().items() if not path.endswith(("-wal", "-shm"))} == before
    with open_store(url_of(folder), read_only=True) as store:
        with pytest.raises(LogNotFoundError, match="'system:ledger'"):
            store.log(LogSpec("ledger"), create=False)
        assert list(queues_on_logs(store)) == ["never-used", "repair"]


def test_an_older_release_refuses_the_store_by_its_format(folder: Path) -> None:
    open_store(url_of(folder)).close()
    if folder.name == "sqlite":
        with sqlite3.connect(folder / "log.db") as database:
            assert database.execute("PRAGMA user_version").fetchone() == (2,)
    else:
        assert json.loads((folder / "log" / "store.json").read_text())["version"] == 2


def test_a_node_goes_on_where_the_release_before_ended(folder: Path) -> None:
    with Node.open(settings_of(folder)) as node:
        assert list(replay(node.anchoring.cas, node.anchoring.ledger, node.anchoring.observer.index).findings) == []
        assert [entry.number for entry in node.anchoring.ledger.entries()] == [1, 2]
        assert (
            node.anchoring.ledger.append(
                "1.bafkreigrdcxfwjfuvlh5m4rf5jsi6bth5zve7vdlwyy7ufykv4dup42wce", after=2
            ).number
            == 3
        )
        proof = json.loads(node.proofs.prove("other", 1))
        assert proof["entry"]["number"] == 1
        queue = node.queues.open("repair")
        assert [task.cause for task in queue.dead()] == ["lost"]
        assert [lease.body for lease in queue.lease(9, visibility=60)] == [b"three", b"four"]
        journal = asyncio.run(_recovered(node))
        assert list(journal.topics) == ["orders"]
        assert len(list(journal.delayed)) == 1


async def _recovered(node: Node) -> object:
    journal = BrokerJournal(node.logs.store, node.clock.now(), Limits())
    journal.close()
    return journal.state


def test_a_ledger_with_somebodys_message_is_repaired(folder: Path) -> None:
    if folder.name == "segments":
        (folder / "millstream.toml").write_text(f'[log]\nstore = "{url_of(folder)}"\n')
    words = ("anchor", "ledger", "--ledger", "registry", "--data", str(folder))
    code, _, error = run_command(*words)
    assert (code, "message 2 of log 'system:registry.ledger' is not a ledger entry" in error) == (1, True)
    assert "anchor ledger --repair" in error
    assert run_command(*words, "--repair")[:2] == (0, "1 entry in the chain; 1 message excluded: 2\n")
    code, out, _ = run_command(*words, "--json")
    assert (code, [json.loads(line)["number"] for line in out.splitlines()]) == (0, [1])
    with Node.open(settings_of(folder)) as node:
        ledger, store = node.registry.ledger, node.logs.store
        entry = ledger.append("2.bafkreigrdcxfwjfuvlh5m4rf5jsi6bth5zve7vdlwyy7ufykv4dup42wce")
        assert (entry.number, ledger.last_number, ledger.verify()) == (2, 2, entry)
        assert [found.number for found in ledger.entries(2)] == [2]
        assert store.log(LogSpec("system:registry.ledger"), create=False).last_id == 3
        assert ledger.repair() == ledger.repair()
    assert run_command("anchor", "ledger", "--repair", "--data", str(folder))[1].endswith("nothing else in the log\n")


@pytest.mark.crash
def test_p2_durability_a_migration_that_is_killed_at_any_step_is_gone_on_with(folder: Path, tmp_path: Path) -> None:
    def migrate(where: str, number: int) -> tuple[int, list[str]]:
        shutil.rmtree(tmp_path / "try", ignore_errors=True)
        shutil.copytree(folder, tmp_path / "try" / folder.name)
        command = [sys.executable, str(CHILD), url_of(tmp_path / "try" / folder.name), str(number), where]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        return done.returncode, done.stdout.splitlines()

    before = everything(url_of(folder))
    code, steps = migrate("after", 0)
    assert (code, len(steps)) == (0, 1 + 3 * 7 + 1)
    moments = [(where, number) for where in ("before", "after") for number in range(1, len(steps) + 1)]
    for where, number in random.Random(16).sample(moments, sized(quick=8, ci=20, long=len(moments))):
        code, done = migrate(where, number)
        assert (code, done) == (-signal.SIGKILL, steps[:number])
        url = url_of(tmp_path / "try" / folder.name)
        assert everything(url) == before, (where, steps[number - 1])
        assert everything(url, read_only=False) == before, (where, steps[number - 1])
        with open_store(url) as store:
            store.log(LogSpec("ledger")).writer().close()


@pytest.fixture(params=["sqlite", "segments", "mysql", "postgresql", "nerve"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty store of each kind in turn."""
    if request.param in ("sqlite", "segments"):
        yield f"{request.param}:///{tmp_path / 'log.db'}"
    else:
        fixture = {"mysql": "database", "postgresql": "postgres_database", "nerve": "queues"}[request.param]
        found = request.getfixturevalue(fixture)
        yield f"{found}?layout=nerve&shards=2" if request.param == "nerve" else found


def forget_kind(store: LogStore, name: str) -> None:
    """Leave the log *name* as a store of format 1 has it."""
    state = store._backend.get_state(name, KIND)
    store._backend.put_state(name, KIND, b"", version=state.version)


def fill(url: str, *names: str, body: bytes = b'{"anchor_string":"1.b"}') -> None:
    """Make logs as format 1 had them: without a kind."""
    with open_store(url) as store:
        for name in names:
            log = store.log(LogSpec(name))
            with log.writer() as writer:
                writer.append([body])
            forget_kind(store, name)


def test_on_every_kind_of_store_system_logs_get_their_names_once(url: str) -> None:
    fill(url, "ledger", "mill.ledger")
    fill(url, "registry.ledger", "orders", body=b"mine")
    with open_store(url) as store:
        assert list(store.logs()) == ["orders", "registry.ledger", "system:ledger", "system:mill.ledger"]
        kept = store.log(system_log("ledger", "ledger"))
        with kept.writer() as writer:
            writer.append([b"more"])
        assert (kept.last_id, kept.kind) == (2, "ledger")
    fill(url, "orders")
    with open_store(url) as store:
        assert list(store.logs()) == ["orders", "registry.ledger", "system:ledger", "system:mill.ledger"]
        assert store.kinds()["registry.ledger"] == "application"
        with store.log(LogSpec("registry.ledger")).writer() as writer:
            writer.append([b'{"anchor_string":"1.b"}'])


def test_a_log_that_is_being_written_keeps_its_name_until_that_is_over(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    with open_store(url) as old:
        with old.log(LogSpec("ledger")).writer() as writer:  # as of an older release
            writer.append([b'{"anchor_string":"1.b"}'])
            forget_kind(old, "ledger")
            with open_store(url) as store:
                assert list(store.logs()) == ["system:ledger"]
                assert store.log(LogSpec("system:ledger"), create=False).last_id == 1
                for spec in (system_log("ledger", "ledger"), LogSpec("ledger")):
                    with pytest.raises(WriterBusyError):
                        store.log(spec)
        with open_store(url) as store, store.log(system_log("ledger", "ledger")).writer() as writer:
            writer.append([b"more"])
            assert store.log(LogSpec("ledger")).last_id == 0


def test_opening_a_store_of_the_present_format_waits_for_no_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    with open_store(url) as store:
        store.log(LogSpec("weather"))
    with contextlib.closing(sqlite3.connect(tmp_path / "log.db", isolation_level=None)) as stopped:
        stopped.execute("BEGIN IMMEDIATE")
        with monkeypatch.context() as patched:
            patched.setattr(SqliteBackend, "_transaction", None)
            with open_store(url) as store:
                assert store.log(LogSpec("weather")).last_id == 0


def test_a_full_or_read_only_disk_does_not_keep_a_store_from_being_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = everything(url_of(folder))
    for refusal in (StorageFullError("full"), StorageReadOnlyError("read-only")):

        def refuse(*_: object, refusal: Exception = refusal, **__: object) -> None:
            raise refusal

        with monkeypatch.context() as patched:
            for kind in (SqliteBackend, SegmentsBackend):
                for name in ("upgrade", "take_lease", "put_state"):
                    patched.setattr(kind, name, refuse)
            assert everything(url_of(folder), read_only=False) == before


def test_a_log_whose_first_block_is_damaged_is_taken_for_what_its_name_says(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    fill(url, "ledger")
    with sqlite3.connect(tmp_path / "log.db") as database:
        database.execute("UPDATE blocks_1 SET data = zeroblob(length(data))")
    with open_store(url) as store:
        assert list(store.logs()) == ["system:ledger"]


def test_a_present_name_wins_over_a_former_one(url: str) -> None:
    """As where a process of an older release went on after another one of this release had renamed its logs."""
    fill(url, "ledger")
    with open_store(url) as store:
        assert list(store.logs()) == ["system:ledger"]
    if "layout=nerve" in url:
        return  # names stay there
    with open_store(url) as store:
        store.log(LogSpec("ledger"))
        forget_kind(store, "ledger")
    for read_only in (True, False):
        with open_store(url, read_only=read_only) as store:
            assert list(store.logs()) == ["ledger", "system:ledger"]
            assert store.log(LogSpec("system:ledger"), create=False).last_id == 1


def test_logs_of_users_that_were_emptied_or_look_like_queues_stay_theirs(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    with open_store(url) as store:
        for name in ("queue.trimmed", "queue.read", "queue.http"):
            log = store.log(LogSpec(name))
            if name == "queue.read":
                log.set_pointer("worker", 0)
            else:
                with log.writer() as writer:
                    writer.append([Message(b"v1", key="put")])
            if name == "queue.trimmed":
                log.trim(2)
            forget_kind(store, name)
        assert list(store.logs()) == ["queue.http", "queue.read", "queue.trimmed"]
    with open_store(url) as store:
        assert dict(store.kinds()) == dict.fromkeys(["queue.http", "queue.read", "queue.trimmed"], "application")


def test_a_reader_goes_on_while_another_process_renames_what_it_reads(folder: Path) -> None:
    before = everything(url_of(folder))
    with open_store(url_of(folder), read_only=True) as store:
        opened = {name: store.log(LogSpec(name), create=False) for name in store.logs()}
        open_store(url_of(folder)).close()
        assert {name: _whole(store, name, kind) for name, kind in store.kinds().items()} == before
        assert sum(len(batch) for log in opened.values() for batch in log.read()) > 50


def test_rules_that_users_kept_with_a_system_log_trim_it_no_more(folder: Path) -> None:
    with open_store(url_of(folder), read_only=True) as store:
        count = store.log(LogSpec("system:queue.repair"), create=False).last_id
    with open_store(url_of(folder)) as store:
        log = store.log(LogSpec("system:queue.repair", kind="queue"))
        log.set_retention(Retention(max_count=1))
        list(run_upkeep(store, SystemClock(), [LogRule("*", max_count=0)]))
        assert log.info().count == count


def test_messages_of_each_kind_of_system_log_are_told_from_those_of_users(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    theirs: Mapping[str, Message] = {
        "ledger": Message(b'{"anchor":1}', source="ledger"),
        "queue.bits": Message(b"task", key="puts"),
        "broker.journal": Message(b'{"did":"it"}', key="did"),
        "broker.held": Message(b"held", headers=(("held-topic", b"orders"),)),
    }
    with open_store(url) as store:
        for name, message in theirs.items():
            log = store.log(LogSpec(name))
            with log.writer() as writer:
                writer.append([message])
            forget_kind(store, name)
    with open_store(url) as store:
        assert dict(store.kinds()) == dict.fromkeys(sorted(theirs), "application")


def test_a_log_of_batches_of_the_release_before_gets_its_kind_when_a_node_opens_it(folder: Path) -> None:
    with open_store(url_of(folder)) as store, store.log(LogSpec("sums")).writer() as writer:
        writer.append([b"a batch"])
    with open_store(url_of(folder)) as store:
        forget_kind(store, "sums")
    (folder / "batching").mkdir()
    for name in ("sums", "gone"):
        (folder / "batching" / f"{name}.state").write_bytes(b"")
    with Node.open(settings_of(folder)) as node:
        assert node.logs.store.kinds() == dict(sorted({**KINDS, "sums": "batches"}.items()))


OPENING = """
import sys
from millstream.log import open_store
sys.stdin.readline()
with open_store(sys.argv[1]) as store:
    print(",".join(store.logs()))
"""


@pytest.mark.crash
def test_processes_that_open_an_old_store_at_once_find_the_same(folder: Path) -> None:
    before = everything(url_of(folder))
    command = [sys.executable, "-c", OPENING, url_of(folder)]
    openers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(5)
    ]
    for opener in openers:
        assert opener.stdin is not None
        opener.stdin.write("go\n")
        opener.stdin.flush()
    assert [opener.communicate(timeout=60) for opener in openers] == [(",".join(KINDS) + "\n", "")] * 5
    assert everything(url_of(folder), read_only=False) == before
