"""The anchors of a registry as Orb's linksets, from the command line."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from millstream.anchoring.sidetree.encoding import multihash_digest
from millstream.anchoring.sidetree.linksets import read_linkset
from millstream.cli.main import run
from millstream.core.canonical import canonical_json
from millstream.testing.dids import DidOwner


def test_each_anchor_is_a_linkset_that_names_the_ones_before_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLSTREAM_DATA", str(tmp_path / "node"))
    monkeypatch.setenv("MILLSTREAM_REGISTRY__PROFILE", "orb")
    person, other = DidOwner("linkset"), DidOwner("other")
    for batch in ([person.create, other.create], [person.update()], [person.recover()], [person.update()]):
        operations = tmp_path / "operations.jsonl"
        operations.write_bytes(b"\n".join(canonical_json(operation.request) for operation in batch))
        assert run(["anchor", "submit", str(operations)]) == 0
        assert run(["anchor", "cut", "--force"]) == 0
    capfd.readouterr()
    command = ["anchor", "linksets", str(tmp_path / "out"), "--author", "did:web:example.org", "--json"]
    assert run([*command, "--link", "https://example.org/cas/"]) == 0
    written = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [line["number"] for line in written] == [1, 2, 3, 4]
    files = [Path(line["file"]) for line in written]
    for file in files:
        assert hashlib.sha256(file.read_bytes()).digest() == multihash_digest(file.name[1:]), "named by its content"
    first, second, third, fourth = (read_linkset(file.read_bytes()) for file in files)
    assert [item.did for item in first.items] == [f"did:orb:uAAA:{each.suffix}" for each in (person, other)]
    assert [item.did for item in second.items] == [f"did:orb:{files[0].name}:{person.suffix}"]
    assert third.items[0].did == second.items[0].did, "named by the anchor of the create"
    assert fourth.items[0].did == f"did:orb:{files[2].name}:{person.suffix}", "and after a recovery by that"
    chain = [linkset.items[0].previous for linkset in (first, second, third, fourth)]
    assert chain == [None, *(f"hl:{file.name}" for file in files[:3])]
    assert fourth.previous[0].links == (f"https://example.org/cas/{files[2].name}",)
    names = {file.name for file in files}
    assert run([*command, "--link", "https://example.org/cas/"]) == 0
    assert {file.name for file in (tmp_path / "out").iterdir()} == names, "the same ledger gives the same files"
