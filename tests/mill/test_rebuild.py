"""Tables that were lost or damaged are made again from the others."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from millstream.cli.main import run
from millstream.mill.item_ref import ItemRef
from millstream.node import Node
from millstream.settings import Settings, load_settings

Run = Callable[..., list[Any]]
BODIES = {"a": b"first", "b": b"second", "c": b"third"}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Of a node with an audited store and one that is not, three items in each, all checked."""
    folder = tmp_path / "node"
    folder.mkdir()
    urls = {name: f'[stores.{name}]\nurl = "file://{{data}}/{name}"\n' for name in ("one", "two")}
    (folder / "millstream.toml").write_text(urls["one"] + "audited = true\n" + urls["two"])
    settings, _ = load_settings({"data": str(folder)}, environment={})
    with Node.open(settings) as node:
        for store in node.stores.providers.values():
            store.create_space("s")
            for name, body in BODIES.items():
                store.put("s", name, io.BytesIO(body), mimetype="text/plain")
        node.stores.providers["one"].delete("s", "c")
    return settings


@pytest.fixture
def mill(settings: Settings, capsysbinary: pytest.CaptureFixture[bytes]) -> Run:
    def call(*arguments: str) -> list[Any]:
        run(["mill", *arguments, "--data", settings.data, "--json"])
        return [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]

    call("rebuild", "content-index")
    return call


def index(settings: Settings) -> list[tuple[Any, ...]]:
    with Node.open(settings) as node:
        rows = [row for place in (("one", "s"), ("two", "s")) for row in node.stores.manifest.scan(*place)]
        return [(row.store, row.content_id, row.sha256, row.size, row.mimetype, row.deleted) for row in rows]


def damage(settings: Settings, statement: str) -> None:
    with Node.open(settings) as node, node.databases.own.begin() as connection:
        assert connection.execute(sa.text(statement)).rowcount > 0


def test_the_content_index_comes_from_the_audit_log_and_the_providers(settings: Settings, mill: Run) -> None:
    before = index(settings)
    assert len(before) == 6 and ("one", "c") in {row[:2] for row in before if row[-1]}
    damage(settings, "UPDATE mill_manifest SET sha256 = 'f' WHERE content_id = 'a' AND store = 'one'")
    damage(settings, "DELETE FROM mill_manifest WHERE content_id != 'a'")
    mill("rebuild", "content-index")
    assert index(settings) == before


def test_the_audit_log_gets_what_it_has_lost_and_takes_nothing_for_deleted(settings: Settings, mill: Run) -> None:
    with Node.open(settings) as node:
        before = node.mill.audit.log.last("one", "s", ["a", "b"])
    damage(settings, "DELETE FROM mill_audit_log WHERE content_id = 'a'")
    (settings.folder / "one" / "s" / "b").unlink()
    (rebuilt,) = mill("rebuild", "audit-log")
    assert (rebuilt["store"], rebuilt["written"]) == ("one", 1)
    with Node.open(settings) as node:
        after = node.mill.audit.log.last("one", "s", ["a", "b"])
        row = node.stores.manifest.get("one", "s", "b")
    assert after["a"].sha256 == before["a"].sha256 and after["a"].user == "mill"
    assert after["b"] == before["b"] and row is not None and not row.deleted


def test_the_bit_log_comes_from_the_notes_of_the_last_checks(settings: Settings, mill: Run) -> None:
    mill("check")
    with Node.open(settings) as node:
        results = [node.mill.checks.checker.check(ItemRef("two", "s", name)).result for name in BODIES]
        node.mill.checks.writer.write(results)
        before = list(node.mill.checks.bit_log.results("two", "s"))
    damage(settings, "DELETE FROM mill_bit_log")
    mill("rebuild", "bit-log")
    with Node.open(settings) as node:
        assert list(node.mill.checks.bit_log.results("two", "s")) == before
        assert list(node.mill.checks.bit_log.results("one", "s")) == []


def test_a_table_of_which_not_every_item_could_be_written_does_not_end_with_0(
    settings: Settings, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    for store in ("one", "two"):
        for number in range(20):
            (settings.folder / store / "s" / f"plain {number}").write_bytes(b"from another program")
    unread, unknown = "no checksum was recorded of them, or they are gone", "the audit log does not know them"
    for table, store, why in (
        ("content-index", "two", unread),
        ("audit-log", "one", unread),
        ("content-index", "one", unknown),
    ):
        code = run(["mill", "rebuild", table, store, "s", "--data", settings.data])
        told = capsysbinary.readouterr().out.decode()
        assert (code, f"20 left out: {why}" in told) == (1, True), told


def test_nothing_made_again_does_not_end_with_0(settings: Settings, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    def rebuilt(*what: str) -> tuple[int, str]:
        code = run(["mill", "rebuild", *what, "--data", settings.data])
        told = capsysbinary.readouterr()
        return code, (told.out + told.err).decode()

    assert rebuilt("audit-log", "two", "s") == (1, "two/s: the store is not audited, so no audit log is kept of it\n")
    assert rebuilt("content-index", "one", "s") == (0, "one/s: 3 of 3 written\n")
    assert rebuilt("audit-log", "one", "s") == (0, "one/s: 0 of 3 written, 3 were right already\n")
    assert rebuilt("bit-log", "one", "s") == (0, "one/s: there is nothing to write\n")
    damage(settings, "DELETE FROM mill_audit_log")
    code, told = rebuilt("content-index", "one", "s")
    assert (code, "0 of 2 written" in told) == (1, True), told
