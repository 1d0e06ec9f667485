"""Replaying the anchors of identifiers finds whatever the database, the files or the ledger do not say alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.anchoring import ReplayReport
from millstream.anchoring.registry.registry_replay import replay_registry
from millstream.cli.main import run
from millstream.core.canonical import canonical_json
from millstream.testing.dids import DidOwner

Submit = Callable[..., list[str]]


@pytest.fixture
def anchored(fleet: Any, submit: Submit) -> Any:
    """Three anchors: creates, updates, and one that readers do not take."""
    registry, people = fleet.instance(), [DidOwner(f"replay{n}") for n in range(3)]
    for operations in ([each.create for each in people], [each.update() for each in people]):
        submit(registry, *operations)
        registry.queue.claim(10)
        registry.writer.cut(force=True)
    fleet.ledger.append(f"7.{fleet.files.put(b'nonsense')}")
    registry.observer.observe()
    return fleet


def replayed(fleet: Any) -> ReplayReport:
    return replay_registry(fleet.files, fleet.ledger, fleet.instance("asking").history, fleet.versions)


def test_what_is_whole_has_no_findings(anchored: Any) -> None:
    assert replayed(anchored) == ReplayReport(3, 3 + 4 + 1, ())


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("UPDATE registry_history SET request = X'78' WHERE number = 2 AND place = 1", [("index", 2)]),
        ("DELETE FROM registry_history WHERE number = 1 AND place = 0", [("index", 1)]),
        ("UPDATE registry_history SET place = 5 WHERE number = 2 AND place = 2", [("index", 2)]),
        ("DELETE FROM registry_anchors WHERE number = 3", [("index", 3)]),
        ("UPDATE registry_anchors SET hash = 'x' WHERE number = 1", [("index", 1)]),
        ("UPDATE registry_anchors SET fault = NULL WHERE number = 3", [("index", 3)]),
        ("INSERT INTO registry_history (suffix, number, place, request) VALUES ('s', 2, 9, X'78')", [("index", 2)]),
        ("INSERT INTO registry_history (suffix, number, place, request) VALUES ('s', 9, 0, X'78')", [("index", 9)]),
    ],
)
def test_a_database_that_says_otherwise_is_found(anchored: Any, change: str, found: list[tuple[str, int]]) -> None:
    anchored.sql(change)
    assert [(finding.what, finding.number) for finding in replayed(anchored).findings] == found


def test_files_that_are_damaged_or_gone_are_found(anchored: Any) -> None:
    first = next(iter(anchored.ledger.entries())).anchor_string.partition(".")[2]
    for damage in (b"other", None):
        anchored.files.overwrite(first, damage)
        assert [(finding.what, finding.number) for finding in replayed(anchored).findings] == [("file", 1)]


def test_it_is_a_command(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_DATA", str(tmp_path / "node"))
    person, operations = DidOwner("command"), tmp_path / "operations.jsonl"
    operations.write_bytes(canonical_json(person.create.request))
    assert run(["anchor", "submit", str(operations)]) == 0
    assert run(["anchor", "cut", "--force"]) == 0
    capfd.readouterr()
    assert run(["anchor", "replay", "--ledger", "registry"]) == 0
    assert capfd.readouterr().out == "1 anchor and 3 files replayed, 0 findings\n"
    assert run(["anchor", "status", f"did:sidetree:{person.suffix}"]) == 0
    assert "verified, anchor 1 at 0" in capfd.readouterr().out
    assert run(["anchor", "status"]) == 0
    assert "registry   1 ledger entries, 1 verified, 0 waiting for files, 0 instances" in capfd.readouterr().out
    chunk = max((tmp_path / "node" / "cas").iterdir(), key=lambda file: file.stat().st_size)
    chunk.chmod(0o600)
    chunk.write_bytes(b"damage")
    assert run(["anchor", "replay", "--ledger", "registry"]) == 1
    assert "(anchor 1)" in capfd.readouterr().out
