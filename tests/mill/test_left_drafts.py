"""Files that killed workers were writing are removed from the copies; those of whoever still writes are not."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

from millstream.cli.main import run
from millstream.cli.node_roles import NodeRoles
from millstream.cli.role_run import RoleRun
from millstream.core.cid import cid_of
from millstream.node import Node
from millstream.settings import Settings
from millstream.stores import LocalStore
from millstream.testing.waiting import until

DEAD = "dead" * 4
"""The folder of drafts of a writer that has ended."""


def test_workers_remove_from_the_copies_what_ended_processes_were_writing(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "duplication-accounts.json").write_text('["local"]')
    pair = {"srcStoreId": "one", "destStoreId": "two"}
    (tmp_path / "policies" / "local-duplication-policy.json").write_text(json.dumps({"defaultPolicies": [pair]}))
    mount = {"one": "", "two": f"&mount=cas:cas://{tmp_path}/files"}
    lines = [f'[stores.{name}]\nurl = "file://{tmp_path}/{name}?requests=1000{mount[name]}"\n' for name in mount]
    old, new = (tmp_path / "files" / f".{cid_of(b'x')}.{digit * 12}.tmp" for digit in "ab")
    old.parent.mkdir()
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    (tmp_path / "millstream.toml").write_text("".join(lines))
    stores = {name: LocalStore(tmp_path / name) for name in ("one", "two")}
    for store in stores.values():
        store.create_space("s")
        store.put("s", "item", io.BytesIO(b"body"))
        drafts = Path(store.url.removeprefix("file://")) / ".millstream" / "drafts"
        (drafts / DEAD / "0").mkdir(parents=True)
        (drafts / DEAD / "0" / "half").write_bytes(b"bo")
        (drafts / f"{DEAD}.lock").touch()
        assert len(list(drafts.glob("*.lock"))) == 2
    assert run(["mill", "work", "--drain", "--data", str(tmp_path)]) == 0
    left = {name: [one.name for one in (tmp_path / name / ".millstream" / "drafts").iterdir()] for name in stores}
    assert DEAD in left["one"], "a source is never written to"
    assert DEAD not in left["two"] and len(left["two"]) == 2, "one that still writes keeps its drafts"
    assert list(old.parent.glob(".*")) == [new], "of a folder of CIDs those that are a day old"


def test_a_node_that_serves_removes_what_killed_processes_were_writing_to_its_anchored_files(tmp_path: Path) -> None:
    old, new = (tmp_path / "cas" / f".{cid_of(b'x')}.{digit * 12}.tmp" for digit in "ab")
    old.parent.mkdir()
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    failures = list[Exception]()
    with Node.open(Settings(data=str(tmp_path)), create=True) as node:
        role = RoleRun("upkeep", failures.append).open(NodeRoles(node).owned()["upkeep"]).start()
        try:
            until(lambda: not old.exists(), "the removal of a draft")
        finally:
            role.end()
    assert new.exists() and not failures
