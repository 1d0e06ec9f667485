"""An item that is gone with its manifest row: the audit log still knows it, and a check goes by that."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from millstream.cli.main import run
from millstream.mill.integrity.space_reports import BitReportProcessor
from millstream.mill.integrity.sweep import listed_or_known
from millstream.mill.producers.space_filter import SpaceFilter
from millstream.mill.tasks import BitReport, QueueName
from millstream.node import Node
from millstream.settings import load_settings
from millstream.stores import LocalStore

NAMES = ("a", "b", "c")
GONE = "b"


@pytest.fixture
def data(three_stores: Path) -> Path:
    """A node with audited stores, from which item "b" and its row have vanished in the copy "two"."""
    settings = three_stores / "millstream.toml"
    settings.write_text(settings.read_text().replace('"\n', '"\naudited = true\n'))
    with node_of(three_stores) as node:
        source = node.stores.providers["one"]
        source.create_space("s")
        for name in NAMES:
            source.put("s", name, io.BytesIO(name.encode() * 9))
    assert run(["mill", "audit", "--data", str(three_stores)]) == 0
    assert run(["mill", "duplicate", "--data", str(three_stores)]) == 0
    lose(three_stores, "two")
    return three_stores


def node_of(data: Path) -> Node:
    return Node.open(load_settings({"data": str(data)}, config=None)[0])


def path_of(data: Path, store: str) -> Path:
    return LocalStore(data.parent / store).path_of("s", GONE)


def lose(data: Path, store: str, *, file: bool = True) -> None:
    """Remove the row of the item, and with *file* the file, too."""
    assert run(["mill", "audit", "--data", str(data)]) == 0
    engine = sa.create_engine(f"sqlite:///{data / 'node.db'}")
    with engine.begin() as connection:
        statement = "DELETE FROM mill_manifest WHERE store = :store AND content_id = :name"
        assert connection.execute(sa.text(statement), {"store": store, "name": GONE}).rowcount == 1
    engine.dispose()
    if file:
        path_of(data, store).unlink()


def checked(data: Path, capfd: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capfd.readouterr()
    run(["mill", "check", "--json", "--data", str(data)])
    return {report["store"]: report for report in map(json.loads, capfd.readouterr().out.splitlines())}


def test_a_check_names_it_and_a_repair_brings_it_back(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    report = checked(data, capfd)["two"]
    assert (report["result"], report["listed"], report["failed"]) == ("FAILURE", 3, 1)
    assert [(one["content_id"], one["row"]) for one in report["findings"]] == [(GONE, "B18")]
    assert run(["mill", "repair", "--data", str(data)]) == 0
    assert path_of(data, "two").read_bytes() == GONE.encode() * 9
    assert {one["result"] for one in checked(data, capfd).values()} == {"SUCCESS"}


def test_rot_whose_row_was_deleted_is_repaired_from_the_queue(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lose(data, "three", file=False)
    LocalStore(data.parent / "three").put("s", GONE, io.BytesIO(b"forged with a fitting sidecar"))
    report = checked(data, capfd)["three"]
    assert [(one["content_id"], one["row"]) for one in report["findings"]] == [(GONE, "B25")]
    assert run(["mill", "repair", "--data", str(data)]) == 0
    assert path_of(data, "three").read_bytes() == GONE.encode() * 9
    assert {one["result"] for one in checked(data, capfd).values()} == {"SUCCESS"}


def test_the_bit_producer_checks_it_and_the_report_on_its_checks_names_it(data: Path) -> None:
    with node_of(data) as node:
        started = node.clock.now()
        node.mill.producers.bits(SpaceFilter()).run()
        depth = node.queues.open(QueueName.BIT_INTEGRITY).depth()
        assert depth.open == 3 * len(NAMES)
        stores, checks = node.stores, node.mill.checks
        processor = BitReportProcessor(
            stores.providers, stores.manifest, checks.bit_log, checks.checker, node.mill.reports.reporter
        )
        done = processor.process(BitReport("two", "s", started, len(NAMES)), 1)
        assert [one.row for one in done.checks if one.content_id == GONE] == ["B18"]
        assert done.summary.startswith("two/s: FAILURE")


def test_what_was_deleted_is_not_missed(data: Path) -> None:
    with node_of(data) as node:
        lookup, providers, manifest = node.mill.audit.lookup, node.stores.providers, node.stores.manifest
        assert [one.content_id for one in lookup.unrecorded("two", "s")] == [GONE]
        assert list(lookup.unrecorded("two", "s", after=GONE)) == []
        assert [one.content_id for one in listed_or_known(providers, manifest, "two", "s", lookup, after="a")] == [
            "b",
            "c",
        ]
        providers["two"].put("s", GONE, io.BytesIO(b"again"))
        providers["two"].delete("s", GONE)
    lose(data, "two", file=False)  # as when tombstones are purged
    with node_of(data) as node:
        assert list(node.mill.audit.lookup.unrecorded("two", "s")) == []
