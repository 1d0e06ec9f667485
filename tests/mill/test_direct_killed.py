"""``millstream mill duplicate`` is killed at each step of a group that it copies itself; the next one completes it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.cli.main import run
from millstream.node import Node
from millstream.settings import load_settings
from millstream.stores import LocalStore, all_entries

pytestmark = pytest.mark.crash

ITEMS = 12

_KILLED_AT_EACH_STEP = """
import itertools, os, shutil, signal, sys
from pathlib import Path
from millstream.cli.main import run
from millstream.mill.workers.result_sink import ResultSink
from millstream.stores.audit import AuditOutbox
from millstream.stores.local.atomic_files import AtomicFileGroup, UnnamedFile, WrittenFile
from millstream.testing.killed_programs import stepping

def die_after(steps):
    left = iter(range(steps))
    def step():
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
    for owner, names in {
        AuditOutbox: ("begin_group", "remove"),
        AtomicFileGroup: ("write_in_place", "sync_all", "sync_folders"),
        ResultSink: ("settle", "_settle"),
    }.items():
        for name in names:
            setattr(owner, name, stepping(getattr(owner, name), step))
    moves = iter(range(6))  # half of the files
    def counted(move):
        def counted(*args):
            move(*args)
            if next(moves, None) is None:
                step()
        return counted
    for kind in (WrittenFile, UnnamedFile):
        kind.move = counted(kind.move)

base = Path(sys.argv[1])
for steps in itertools.count(0, 5):
    data = base / str(steps)
    shutil.copytree(base / "template", data)
    settings = data / "millstream.toml"
    settings.write_text(settings.read_text().replace("FOLDER", str(data)))
    child = os.fork()
    if not child:
        die_after(steps)
        os._exit(run(["mill", "duplicate", "--data", str(data)]))
    code = os.waitpid(child, 0)[1]
    if not os.WIFSIGNALED(code):
        sys.exit(code)
"""


def test_a_copy_that_is_killed_at_any_step_is_completed_and_recorded_once(tmp_path: Path) -> None:
    template = tmp_path / "template"
    (template / "policies").mkdir(parents=True)
    pair = {"srcStoreId": "one", "destStoreId": "two"}
    (template / "policies" / "duplication-accounts.json").write_text('["me"]')
    (template / "policies" / "me-duplication-policy.json").write_text(json.dumps({"defaultPolicies": [pair]}))
    stores = [
        f'[stores.{name}]\nurl = "file://FOLDER/{name}"\naudited = {audited}\n'
        for name, audited in (("one", "false"), ("two", "true"))
    ]
    (template / "millstream.toml").write_text("\n".join(("[mill]\nprocesses = 0\n", *stores)))
    (template / "two").mkdir()
    fill(template)
    subprocess.run([sys.executable, "-c", _KILLED_AT_EACH_STEP, str(tmp_path)], check=True)
    killed = sorted((path for path in tmp_path.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    assert len(killed) > 5
    for data in killed:
        assert run(["mill", "duplicate", "--data", str(data)]) == 0, data.name
        check(data)


def fill(template: Path) -> None:
    source = LocalStore(template / "one")
    source.create_space("s")
    for number in range(ITEMS):
        source.put("s", f"{number % 3}/{number}", io.BytesIO(b"item %d" % number))


def check(data: Path) -> None:
    """Each item is there, recorded, and has one event, in the audit log or on its way to it; nothing is open."""
    with Node.open(load_settings({"data": str(data)})[0]) as node:
        copy, manifest = node.stores.providers["two"], node.stores.manifest
        names = [entry.content_id for entry in all_entries(copy, "s")]
        assert len(names) == ITEMS, data.name
        for name in names:
            row, sha256 = manifest.get("two", "s", name), copy.info("s", name).checksum()
            assert row is not None and row.sha256 == sha256 is not None, (data.name, name)
        assert not node.stores.outbox.open_intents(others=True), data.name
        events = [*node.mill.audit.log.events("two", "s"), *node.stores.outbox.events()]
        events = [event for event in events if event.content_id]
        assert sorted(event.content_id for event in events) == sorted(names), data.name
