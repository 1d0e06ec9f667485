"""Files that killed workers were writing are removed from the copies; those of whoever still writes are not."""

from __future__ import annotations

import io
import json
from pathlib import Path

from millstream.cli.main import run
from millstream.stores import LocalStore


def test_workers_remove_from_the_copies_what_ended_processes_were_writing(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "duplication-accounts.json").write_text('["local"]')
    pair = {"srcStoreId": "one", "destStoreId": "two"}
    (tmp_path / "policies" / "local-duplication-policy.json").write_text(json.dumps({"defaultPolicies": [pair]}))
    lines = [f'[stores.{name}]\nurl = "file://{tmp_path}/{name}?requests=1000"\n' for name in ("one", "two")]
    (tmp_path / "millstream.toml").write_text("".join(lines))
    stores = {name: LocalStore(tmp_path / name) for name in ("one", "two")}
    for store in stores.values():
        store.create_space("s")
        store.put("s", "item", io.BytesIO(b"body"))
        drafts = Path(store.url.removeprefix("file://")) / ".millstream" / "drafts"
        (drafts / "dead" / "0").mkdir(parents=True)
        (drafts / "dead" / "0" / "half").write_bytes(b"bo")
        (drafts / "dead.lock").touch()
        assert len(list(drafts.glob("*.lock"))) == 2
    assert run(["mill", "work", "--drain", "--data", str(tmp_path)]) == 0
    left = {name: [one.name for one in (tmp_path / name / ".millstream" / "drafts").iterdir()] for name in stores}
    assert "dead" in left["one"], "a source is never written to"
    assert "dead" not in left["two"] and len(left["two"]) == 2, "one that still writes keeps its drafts"
