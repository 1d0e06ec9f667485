"""A node whose tables lie on a database server does all that one with a file of its own does, with the same ids."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millstream.cli.main import run
from millstream.core.clock import VirtualClock
from millstream.core.message import Message
from millstream.log import LogSpec
from millstream.node import Node
from millstream.settings import load_settings
from support.server_databases import new_database

POLICY = {"defaultPolicies": [{"srcStoreId": "primary", "destStoreId": "second"}]}
STEPS = [
    "batch serve --log readings --output readings.batches --anchor --once",
    "store put primary letters LETTERS --create",
    "mill duplicate",
    "mill check",
    "anchor replay",
    "status",
]


def make_node(folder: Path, files: Path, database: str = "") -> dict[str, int]:
    """Make a node in *folder* with its tables in *database*, and let it do every step with messages and *files*;
    the exit code of each command."""
    (folder / "policies").mkdir(parents=True)
    stores = [f'[stores.{name}]\nurl = "file://{{data}}/{name}"\n' for name in ("primary", "second")]
    own = f'[node]\ndatabase = "{database}"\n' if database else ""
    (folder / "millstream.toml").write_text("\n".join([own, *stores]))
    (folder / "policies" / "duplication-accounts.json").write_text('["local"]')
    (folder / "policies" / "local-duplication-policy.json").write_text(json.dumps(POLICY))
    _send(folder)
    codes = {}
    for line in STEPS:
        words = [str(files / word.lower()) if word.isupper() else word for word in line.split()]
        codes[line] = run([*words, "--data", str(folder)])
    return codes


def write_letters(files: Path, count: int) -> None:
    """Write *count* small files for the steps into a new folder *files*."""
    (files / "letters").mkdir(parents=True)
    for number in range(count):
        (files / "letters" / f"letter {number}.txt").write_text(f"letter {number}")


def _walked(folder: Path, files: Path, database: str) -> dict[str, object]:
    """What a node in *folder* has after every step, with its tables in *database*."""
    codes = make_node(folder, files, database)
    with Node.open(load_settings({"data": str(folder)})[0]) as node:
        journal = node.anchoring.journal
        return {
            "codes": codes,
            "batches": sorted(name for log in ("readings",) for _, names in _names(node) for name in names),
            "totals": repr(journal.totals()),
            "index": repr(node.anchoring.observer.index.totals()),
            "manifest": [(row["store"], row["content_id"], row["sha256"], row["outcome"])
                         for row in node.stores.manifest.rows().to_pylist() if row["space"] == "letters"],
        }  # fmt: skip


def _send(folder: Path) -> None:
    """Append two hundred messages of three sources that arrive over a day."""
    clock = VirtualClock()
    settings = load_settings({"data": str(folder)})[0]
    with (
        Node.open(settings, clock, create=True) as node,
        node.logs.store.log(LogSpec("readings")).writer() as writer,
    ):
        for number in range(200):
            clock.advance(432.0)
            writer.append([Message(b"m%d" % number, "", f"s{number % 3}", clock.now())])


def _names(node: Node) -> list[tuple[str, list[str]]]:
    from millstream.anchoring.journal_reader import JournalReader

    return [(log, list(names)) for log, names in JournalReader(node.databases.own).names()]


@pytest.mark.served
@pytest.mark.parametrize("server", ["postgresql", "mariadb"])
def test_a_node_on_a_server_makes_the_batches_anchors_and_copies_of_one_with_a_file(
    request: pytest.FixtureRequest, tmp_path: Path, server: str
) -> None:
    files = tmp_path / "files"
    write_letters(files, 5)
    expected = _walked(tmp_path / "file", files, "")
    assert len(expected["batches"]) > 3 and set(expected["codes"].values()) == {0}  # type: ignore[arg-type, attr-defined]
    with new_database(str(request.getfixturevalue(server)), "steps") as url:
        assert _walked(tmp_path / "server", files, url) == expected
    assert not (tmp_path / "server" / "node.db").exists()
