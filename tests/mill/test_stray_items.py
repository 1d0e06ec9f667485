"""A report on a copy names what is only there, and what the policy asks for and is not there."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from millstream.cli.main import run
from millstream.mill.duplication.source_recorder import record_space
from millstream.mill.producers.space_filter import SpaceFilter
from millstream.mill.tasks import QueueName
from millstream.node import Node
from millstream.settings import load_settings
from millstream.stores import LocalStore

Run = Callable[..., tuple[int, list[Any], str]]


@pytest.fixture
def data(three_stores: Path) -> Path:
    """A node whose policy copies the space "s" with two items from "one" to "two" and "three"."""
    local(three_stores, "one").create_space("s")
    put(three_stores, "one", "a", "b")
    assert run(["mill", "duplicate", "--data", str(three_stores)]) == 0
    return three_stores


def local(data: Path, store: str) -> LocalStore:
    return LocalStore(data.parent / store)


def put(data: Path, store: str, *names: str) -> None:
    for name in names:
        local(data, store).put("s", name, io.BytesIO(name.encode() * 9))


@pytest.fixture
def mill(data: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs a command; its exit code, what it printed as JSON, or else as text."""

    def call(*arguments: str) -> tuple[int, list[Any], str]:
        capsysbinary.readouterr()
        code = run(["mill", *arguments, "--data", str(data)])
        out = capsysbinary.readouterr().out.decode()
        return code, [json.loads(line) for line in out.splitlines()] if "--json" in arguments else [], out

    return call


def by_store(reports: list[Any]) -> dict[str, tuple[Any, ...]]:
    return {one["store"]: (one["result"], one["strays"]["count"], one["absent"]["count"]) for one in reports}


def test_a_copy_in_line_has_neither_stray_nor_absent_items_and_its_report_no_new_member(data: Path, mill: Run) -> None:
    code, reports, _ = mill("check", "--json")
    assert (code, by_store(reports)) == (0, dict.fromkeys(("one", "two", "three"), ("SUCCESS", 0, 0)))
    assert b"strays" not in (data / "reports" / "two" / "s" / "000001.json").read_bytes()


def test_a_stray_item_is_named_with_what_to_do_until_that_is_done(data: Path, mill: Run) -> None:
    put(data, "two", "foreign")
    path = local(data, "two").path_of("s", "foreign")
    for checks in range(3):  # too fresh to be judged; judged and entered in the manifest; in order by that
        code, reports, _ = mill("check", "--json")
        assert (code, by_store(reports)["two"], by_store(reports)["three"]) == (1, ("FAILURE", 1, 0), ("SUCCESS", 0, 0))
        assert sum(report["failed"] for report in reports) == (checks == 1)
        os.utime(path, (1, 1))
    code, _, text = mill("report", "two", "s")
    assert code == 1 and "1 stray items, neither at the source (one) nor ever recorded there: foreign:" in text
    assert "`millstream mill forget one s ID`" in text
    folder = data / "reports" / "two" / "s"
    assert "stray items" in (folder / "000003.html").read_text()
    assert "stray: neither at the source" in (folder / "000001.tsv").read_text()
    assert mill("report", "--verify")[0] == 0
    assert mill("forget", "one", "s", "foreign")[0] == 0
    assert mill("duplicate")[0] == 0
    assert (mill("check")[0], [entry.content_id for entry in local(data, "two").entries("s")]) == (0, ["a", "b"])


def test_every_stray_item_is_marked_in_the_lines_of_the_report(data: Path, mill: Run) -> None:
    put(data, "two", *(f"foreign {number:03}" for number in range(102)))
    assert by_store(mill("check", "--json")[1])["two"] == ("FAILURE", 102, 0)
    lines = (data / "reports" / "two" / "s" / "000001.tsv").read_text().splitlines()
    strays = [line for line in lines if "stray: neither at the source" in line]
    assert len(strays) == 102 and all("\tforeign " in line for line in strays)


def test_what_the_source_has_and_nobody_recorded_is_no_stray(data: Path, mill: Run) -> None:
    for store in ("one", "two"):
        put(data, store, "new")
    assert by_store(mill("check", "--json")[1])["two"] == ("SUCCESS", 0, 0)


def test_where_the_source_cannot_be_asked_nothing_is_called_a_stray_and_it_is_no_success(data: Path, mill: Run) -> None:
    put(data, "two", "foreign")
    shutil.rmtree(data.parent / "one")
    (report,) = mill("check", "--store", "two", "--json")[1]
    assert (report["result"], report["strays"]["count"]) == ("INCOMPLETE", 0)
    assert "could not be looked up at the source" in report["notes"][0]


def test_what_the_source_lists_counts_where_nothing_of_it_was_ever_recorded(data: Path, mill: Run) -> None:
    local(data, "one").create_space("t")
    local(data, "one").put("t", "new", io.BytesIO(b"new"))
    assert mill("check", "--space", "t")[0] == 1
    found = {store: mill("report", store, "t", "--json")[1][0] for store in ("two", "three")}
    assert {one["result"] for one in found.values()} == {"INCOMPLETE"}
    assert all(one["absent"] == {"count": 1, "first": ["new"]} for one in found.values())


def test_an_item_that_the_policy_asks_for_and_that_is_not_there_forbids_success(data: Path, mill: Run) -> None:
    put(data, "one", "never copied")
    with Node.open(load_settings({"data": str(data)})[0]) as node:
        record_space(node.stores.providers, node.stores.manifest, "one", "s")
    code, reports, _ = mill("check", "--json")
    assert (code, by_store(reports)["one"][0], by_store(reports)["two"]) == (1, "SUCCESS", ("INCOMPLETE", 0, 1))
    text = mill("report", "two", "s")[2]
    assert "1 items of the source (one) are not in this copy: never copied: `millstream mill duplicate`" in text


@pytest.mark.parametrize("way", ["check", "queue"])
def test_a_space_that_the_policy_asks_for_and_that_is_not_there_is_no_success(data: Path, mill: Run, way: str) -> None:
    with Node.open(load_settings({"data": str(data)})[0]) as node, node.databases.own.begin() as connection:
        connection.execute(sa.text("DELETE FROM mill_manifest WHERE store = 'two'"))
    shutil.rmtree(data.parent / "two" / "s")
    if way == "queue":
        with Node.open(load_settings({"data": str(data)})[0]) as node:
            loop = node.mill.producers.bits(SpaceFilter())
            for _ in range(3):
                loop.run()
                node.mill.workers(QueueName.BIT_INTEGRITY, QueueName.BIT_REPORT).run_until_drained()
        reports = mill("report", "--json")[1]
    else:
        reports = mill("check", "--json")[1]
    assert by_store(reports) == {"one": ("SUCCESS", 0, 0), "two": ("INCOMPLETE", 0, 2), "three": ("SUCCESS", 0, 0)}
    assert mill("report", "two", "s")[2].startswith("two/s: INCOMPLETE")
    assert "coverage unknown: nothing is there" in mill("report", "two", "s")[2]
