"""What this package writes, the packages of others verify, and the other way round."""

from __future__ import annotations

import contextlib
import json
import random
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from transparency.interop.program import GoProgram, RefusedError

from millstream.anchoring import LogLedger
from millstream.anchoring.ledger import encode_entry
from millstream.anchoring.merkle import inclusion_path, leaf_hash, merkle_root
from millstream.anchoring.monitor import LedgerMonitor, MonitorReport, MonitorRules, MonitorStateFile, open_published
from millstream.anchoring.transparency import FolderFiles, GrowingTree, LedgerTree, TreePlaces
from millstream.anchoring.transparency.checkpoint import Checkpoint
from millstream.anchoring.transparency.entry_proof import prove_entry
from millstream.anchoring.transparency.keys import LedgerKeys, LedgerSigner
from millstream.anchoring.transparency.policy import check_checkpoint, parse_policy, trusting
from millstream.anchoring.transparency.signed_note import (
    SigningKey,
    encode_note,
    parse_note,
    parse_verifier_key,
    sign_note,
)
from millstream.anchoring.transparency.tlog_proof import TlogProof, encode_tlog_proof
from millstream.core.clock import VirtualClock
from millstream.log import open_store
from millstream.testing.ledgers import some_anchor
from suite.sizes import sized
from support.witnesses import TestWitness

pytestmark = pytest.mark.clients

KEY = SigningKey("example.org/log", bytes(range(32)))
TEXT = Checkpoint("example.org/log", 7, bytes(32)).text
ENTRIES = sized(quick=300, ci=600, long=70_000)


@pytest.fixture
def published(tmp_path: Path) -> Iterator[Any]:
    """A ledger whose tree is signed and published: its folder of tiles, its key, and what makes proofs of it."""
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'node.db'}")
    keys = LedgerKeys(tmp_path / "keys", "anchors", VirtualClock())
    keys.create("example.org/anchors")
    (tmp_path / "tiles").mkdir()
    with open_store(f"sqlite:///{tmp_path / 'log.db'}") as store:
        ledger, signer = LogLedger(store, VirtualClock()), LedgerSigner(keys)
        places = TreePlaces(tiles=FolderFiles(tmp_path / "tiles", "anchors"))
        tree = LedgerTree(ledger, lambda: engine, "anchors", signer=lambda: signer, places=lambda: places)
        for number in range(ENTRIES):
            ledger.append(some_anchor(number), after=number)
            if number in (0, 5, 256):
                tree.checkpoint()
        tree.checkpoint()
        yield ledger, tree, signer, tmp_path / "tiles" / "anchors"
    engine.dispose()


def test_our_notes_and_cosignatures_are_verified_by_go(go: GoProgram, tmp_path: Path) -> None:
    first, second = TestWitness("witness.example/one"), TestWitness("witness.example/two")
    data = encode_note(second.cosign(first.cosign(sign_note(TEXT, [KEY]))))
    path = tmp_path / "note"
    path.write_bytes(data)
    keys = (KEY.verifier_key, first.key, second.key)
    assert go("note", path, *keys) == {"text": TEXT, "size": 7, "signatures": 3}
    policy, both = tmp_path / "policy", f"log {KEY.verifier_key}\nwitness a {first.key} https://a.example/w\n"
    both += f"witness b {second.key} https://b.example/w\ngroup both all a b\nquorum both\n"
    policy.write_text(both)
    assert go("policy", policy, path) is True
    path.write_bytes(encode_note(first.cosign(sign_note(TEXT, [KEY]))))
    assert go("policy", policy, path) is False
    draw = random.Random(1)
    for place in draw.sample(range(len(data)), 40):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with contextlib.suppress(RefusedError):
            assert go("note", path, *keys)["signatures"] < 3  # that of a key that is not known by this name


def test_a_checkpoint_and_a_cosignature_of_go_are_verified_by_us(go: GoProgram) -> None:
    answer = go("sign", KEY.encode(), TEXT + "an extension", "witness.example/one")
    witness = parse_verifier_key(answer["witness"])
    assert witness == TestWitness("witness.example/one").key
    note = answer["note"].encode()
    assert encode_note(parse_note(note)) == note
    assert check_checkpoint(note, trusting([KEY.verifier_key])).checkpoint.extensions == ("an extension",)
    plain = go("sign", KEY.encode(), TEXT, "witness.example/one")["note"].encode()
    policy = parse_policy(f"log {KEY.verifier_key}\nwitness w {witness}\nquorum w\n".encode())
    assert check_checkpoint(plain, policy).witnesses == ("w",)


def test_paths_of_trees_of_many_sizes_are_verified_by_go(go: GoProgram, tmp_path: Path) -> None:
    draw, tree = random.Random(2), GrowingTree()
    leaves = [leaf_hash(b"%d" % number) for number in range(sized(quick=600, ci=2000, long=20_000))]
    tree.extend(leaves)
    given: dict[str, list[Any]] = {"Inclusion": [], "Consistency": []}
    for size in [*range(1, 40), *draw.sample(range(40, len(leaves)), 60)]:
        index, old = draw.randrange(size), draw.randrange(1, size + 1)
        own = {"Size": size, "Index": index, "Root": _text(tree.root(size)), "Leaf": _text(leaves[index])}
        given["Inclusion"].append(own | {"Path": list(map(_text, tree.inclusion_path(index, size)))})
        roots = {"OldRoot": _text(tree.root(old)), "NewRoot": _text(tree.root(size))}
        path = list(map(_text, tree.consistency_path(old, size)))
        given["Consistency"].append({"Old": old, "New": size, **roots, "Path": path})
    file = tmp_path / "paths.json"
    file.write_text(json.dumps(given))
    assert go("paths", file) == 198
    given["Inclusion"][-1]["Index"] ^= 1
    file.write_text(json.dumps(given))
    with pytest.raises(RefusedError, match="invalid transparency proof"):
        go("paths", file)


def test_a_proof_file_is_verified_by_go(go: GoProgram, published: Any, tmp_path: Path) -> None:
    ledger, tree, signer, _ = published
    (key,) = (each.verifier_key for each in signer._signing())
    for number in (1, 2, 257, ENTRIES):
        proof = prove_entry(number, ledger, tree, signer)
        (tmp_path / "entry").write_bytes(encode_entry(proof.entry))
        data = encode_tlog_proof(TlogProof(number - 1, tuple(proof.path), proof.checkpoint))
        (tmp_path / "x.tlog-proof").write_bytes(data)
        assert go("tlog-proof", tmp_path / "x.tlog-proof", tmp_path / "entry", key) == number - 1
        (tmp_path / "entry").write_bytes(encode_entry(proof.entry) + b"\n")
        with pytest.raises(RefusedError):
            go("tlog-proof", tmp_path / "x.tlog-proof", tmp_path / "entry", key)


def test_published_tiles_are_read_and_verified_by_go(go: GoProgram, published: Any) -> None:
    ledger, _, signer, folder = published
    (key,) = (each.verifier_key for each in signer._signing())
    lines = [encode_entry(entry).decode() for entry in ledger.entries()]
    read = go("tiles", folder, key)
    assert read == lines[: len(read)]
    assert len(read) >= ENTRIES // 256 * 256  # torchwood reads full bundles, and the rest where it is asked to
    tile = next(path for path in sorted((folder / "tile" / "0").rglob("*")) if path.is_file())
    whole = tile.read_bytes()
    tile.chmod(0o644)
    tile.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    with pytest.raises(RefusedError):
        go("tiles", folder, key)


def test_a_log_of_tessera_is_followed_by_our_monitor(go: GoProgram, tmp_path: Path) -> None:
    def look(folder: Path) -> MonitorReport:
        rules = MonitorRules(policy=trusting([KEY.verifier_key]), entries="any")
        state = MonitorStateFile(tmp_path / "state")
        return LedgerMonitor(open_published(str(folder)), state, rules, VirtualClock()).look()

    for name in ("log", "fork"):
        (tmp_path / name).mkdir()
    for first, end in ((0, 1), (1, 300), (300, 1_000)):
        go("append", tmp_path / "log", KEY.encode(), first, end)
        report = look(tmp_path / "log")
        assert (report.findings, report.new, report.audited) == ((), end - first, end)
    go("append", tmp_path / "fork", KEY.encode(), 5, 1_100)
    assert [finding.kind for finding in look(tmp_path / "fork").findings] == ["fork"]
    assert look(tmp_path / "log").size == 1_000


def test_a_tree_of_one_entry_is_verified_by_go(go: GoProgram, tmp_path: Path) -> None:
    leaves = [leaf_hash(b"only")]
    checkpoint = encode_note(sign_note(Checkpoint(KEY.name, 1, merkle_root(leaves)).text, [KEY]))
    (tmp_path / "entry").write_bytes(b"only")
    (tmp_path / "p").write_bytes(encode_tlog_proof(TlogProof(0, tuple(inclusion_path(leaves, 0)), checkpoint)))
    assert go("tlog-proof", tmp_path / "p", tmp_path / "entry", KEY.verifier_key) == 0


def _text(data: bytes) -> str:
    return b64encode(data).decode()
