"""The commands of ``millstream pipeline`` on a node's folder."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millstream.cli.main import run
from millstream.core.message import Message
from millstream.mill.manifest import ManifestEvent
from millstream.mill.reports.archive import reports_of, verify_chain
from millstream.node import Node
from millstream.node.spark import SparkPart
from millstream.pipeline.errors import PipelineInputError
from millstream.pipeline.session import SparkOptions
from millstream.pipeline.settings import RESULTS_SETTING
from millstream.settings import Settings, load_settings
from millstream.stores import LocalStore
from millstream.testing.damage import flip_bit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

Untidy = Callable[..., list[Message]]
WriteLog = Callable[..., list[Message]]


@pytest.fixture
def data(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node's folder with one recorded item and one anchored file; its commands run in the tests' Spark session."""

    @contextlib.contextmanager
    def shared(part: SparkPart, **_options: bool) -> Iterator[SparkSession]:
        spark.conf.set(RESULTS_SETTING, part.options.results)
        yield spark
        spark.conf.unset(RESULTS_SETTING)

    monkeypatch.setattr(SparkPart, "session", shared)
    with Node.open(Settings(data=str(tmp_path)), create=True) as node:
        node.anchoring.cas.put(b"a file")
        store = node.stores.providers["primary"]
        store.create_space("docs")
        info = store.put("docs", "readme", io.BytesIO(b"read me"))
        node.stores.manifest.writer.record([ManifestEvent("primary", "docs", "readme", 1, info.checksum(), info.size)])
    return tmp_path


def lines(capfd: pytest.CaptureFixture[str]) -> list[Any]:
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


@pytest.mark.parametrize("results", ["", "folder", "url"])
def test_batch_says_where_the_batches_are(
    data: Path, untidy: Untidy, write_log: WriteLog, capfd: pytest.CaptureFixture[str], results: str
) -> None:
    place = {"": "", "folder": str(data / "mounted"), "url": (data / "store").as_uri()}[results]
    command = ["pipeline", "batch", "weather", "--data", str(data), *(["--results", place] if place else [])]
    messages = write_log(f"sqlite:///{data / 'log.db'}", "weather", untidy(1, 100))
    assert run([*command, "--json"]) == 0
    (told,) = lines(capfd)
    assert (told["job"], told["rows_in"], told["reused"]) == ("batch", len(messages), False)
    assert told["data"].startswith(place or str(data / "jobs"))
    assert bool(list(data.rglob("jobs/*/*/*/*.parquet"))) is (results == "")
    assert list(data.rglob("*.parquet"))
    assert run(command) == 0
    assert "done before" in capfd.readouterr().out


@pytest.mark.parametrize(
    "command",
    [
        "batch nothing",
        "batch nothing --stream --output out --available-now",
        "anchor nothing",
        "anchor nothing --stream --output out --available-now",
        "operations nothing --available-now",
        "verify-batches nothing --batches out",
    ],
)
def test_a_log_that_is_not_there_ends_with_not_found(
    data: Path, capfd: pytest.CaptureFixture[str], command: str
) -> None:
    assert run(["log", "create", "other", "--data", str(data)]) == 0
    assert run(["pipeline", *command.split(), "--data", str(data)]) == 3
    named = "out" if command.startswith("verify") else "nothing"
    assert f"there is no log {named!r}" in one_line(capfd)


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        ("ingest nowhere.jsonl --log in", 2, "no such file or folder: nowhere.jsonl"),
        ("ingest . --log in", 2, "no .jsonl"),
        ("integrity --older-than soon", 2, "soon"),
        ("integrity --budget 0", 2, "budget"),
        ("audit --peer .", 3, "there is no node"),
    ],
)
def test_input_that_cannot_be_used_is_told_in_one_line(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    command: str, code: int, text: str,
) -> None:  # fmt: skip
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    assert run(["pipeline", *command.split(), "--data", str(data)]) == code
    assert text in one_line(capfd)


@pytest.mark.parametrize("command", ["inventory", "statistics", "integrity", "duplication --dry-run"])
def test_a_store_that_cannot_be_reached_is_told_and_ends_in_no_success(
    data: Path, capfd: pytest.CaptureFixture[str], command: str
) -> None:
    config = data / "millstream.toml"
    config.write_text(
        f'[stores.primary]\nurl = "file://{data}/stores/primary"\n[stores.away]\nurl = "file:///nowhere/a"\n'
    )
    pair = [{"srcStoreId": "primary", "destStoreId": "away"}]
    (data / "policies").mkdir()
    (data / "policies" / "local-duplication-policy.json").write_text(
        json.dumps({"spaceDuplicationStorePolicies": {"docs": pair}})
    )
    (data / "policies" / "duplication-accounts.json").write_text(json.dumps(["local"]))
    assert run(["pipeline", *command.split(), "--data", str(data), "--config", str(config)]) != 0
    told = capfd.readouterr()
    assert "/nowhere/a" in told.out + told.err
    assert "Traceback" not in told.err


def one_line(capfd: pytest.CaptureFixture[str]) -> str:
    """What was complained of: one line, or a hint of how the command is used and one line."""
    told = capfd.readouterr().err
    assert "Traceback" not in told
    complaint = told.strip().splitlines()[-1]
    assert len(complaint) > 10
    return complaint


def test_integrity_finds_damage_keeps_reports_and_says_so_in_the_exit_code(
    data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["pipeline", "integrity", "--data", str(data), "--json", "--space", "docs"]
    assert run([*command, "--name", "one"]) == 0
    (whole,) = lines(capfd)
    assert (whole["result"], whole["coverage"], whole["bytes"]) == ("SUCCESS", 1.0, 7)
    flip_bit(LocalStore(data / "stores" / "primary").path_of("docs", "readme"))
    assert run([*command, "--name", "two"]) == 1
    (broken,) = lines(capfd)
    assert [finding["kind"] for finding in broken["findings"]] == ["checksum-mismatch"]
    assert run([*command, "--name", "two"]) == 1
    lines(capfd)
    assert run(["pipeline", "report", "primary", "docs", "--data", str(data), "--json"]) == 1
    (kept,) = lines(capfd)
    assert kept["findings"] == broken["findings"]
    with Node.open(Settings(data=str(data)), create=True) as node:
        assert len(list(reports_of(node.mill.reports.archive, "primary", "docs"))) == 2
        assert verify_chain(node.mill.reports.archive, "primary", "docs")
        (row,) = node.stores.manifest.replicas("docs", "readme")
        assert row.outcome == "FAILURE"


def test_integrity_reads_what_is_due_and_no_more_than_its_budget(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = ["pipeline", "integrity", "--data", str(data), "--json", "--space", "docs"]
    assert run([*command, "--older-than", "30d", "--budget", "1MB"]) == 0
    (first,) = lines(capfd)
    assert (first["result"], first["checked"], first["kinds"].get("not due")) == ("SUCCESS", 1, None)
    assert run([*command, "--older-than", "30d", "--budget", "1MB"]) == 0
    assert lines(capfd) == []
    assert run([*command, "--budget", "0"]) == 2


def test_findings_are_lines_for_people(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    LocalStore(data / "stores" / "primary").path_of("docs", "readme").unlink()
    assert run(["pipeline", "integrity", "--data", str(data), "--space", "docs"]) == 1
    told = capfd.readouterr().out
    assert "FAILURE    primary/docs: 1 checked and 0 explained of 1 (coverage 100.0%), 1 failed" in told
    assert "B18 readme" in told


def test_without_a_name_a_sweep_that_was_cut_short_goes_on_and_a_finished_one_does_not(
    data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["pipeline", "integrity", "--data", str(data), "--json", "--space", "docs"]
    assert run(command) == 0
    flip_bit(LocalStore(data / "stores" / "primary").path_of("docs", "readme"))
    assert run(command) == 1
    assert len(list(data.glob("jobs/integrity-*"))) == 2
    for record in data.glob("jobs/integrity-*/job.json"):
        record.unlink()
    assert run(command) in (0, 1)
    assert len(list(data.glob("jobs/integrity-*"))) == 2
    assert len(list(data.glob("jobs/integrity-*/job.json"))) == 1


def test_inventory_lists_every_space(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["pipeline", "inventory", "--data", str(data), "--json"]) == 0
    (told,) = lines(capfd)
    assert (told["job"], told["rows_out"], told["bytes"]) == ("inventory", 2, 13)


@pytest.mark.parametrize(
    ("spaces", "text"),
    [
        (
            [],
            "no configured store is one that other programs write: add a store with the URL folder:///PATH?space=NAME",
        ),
        (["x"], "space 'x' is in none of the configured stores that other programs write: check the name, or add a"),
        (["x", "y"], "space 'x' or 'y' is in none of the configured stores that other programs write: check the names"),
    ],
)
def test_adoption_without_a_store_of_other_programs_is_refused(
    data: Path, capfd: pytest.CaptureFixture[str], spaces: list[str], text: str
) -> None:
    options = [word for space in spaces for word in ("--space", space)]
    assert run(["pipeline", "inventory", "--data", str(data), "--adopt", *options]) != 0
    assert text in capfd.readouterr().err.replace("\n", " ")


def test_inventory_says_what_changed_since_the_one_before(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = ["pipeline", "inventory", "--data", str(data), "--json", "--changes"]
    assert run([*command, "--name", "1"]) == 0
    assert "no earlier listing" in capfd.readouterr().err
    LocalStore(data / "stores" / "primary").put("docs", "new", io.BytesIO(b"new"))
    assert run([*command, "--name", "2"]) == 0
    listed, changed = lines(capfd)
    assert (listed["job"], listed["rows_out"], changed["job"], changed["rows_out"]) == ("inventory", 3, "changes", 1)
    assert (changed["counts"]["added"], changed["bytes"]) == (1, 3)


def test_a_command_runs_where_it_is_told_with_the_settings_of_spark(
    data: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (data / "millstream.toml").write_text('[pipeline.confs]\n"spark.executor.memory" = "4g"\n')
    asked: list[SparkOptions] = []

    @contextlib.contextmanager
    def refused(part: SparkPart, **_options: bool) -> Iterator[SparkSession]:
        asked.append(part.options)
        raise PipelineInputError("not today")
        yield

    monkeypatch.setattr(SparkPart, "session", refused)
    assert run(["pipeline", "inventory", "--data", str(data), "--master", "spark://host:7077"]) == 2
    assert run(["pipeline", "inventory", "--data", str(data)]) == 2
    assert run(["pipeline", "inventory", "--data", str(data), "--results", "s3://bucket/results"]) == 2
    assert [options.master for options in asked] == ["spark://host:7077", "local[*]", "local[*]"]
    assert [options.results for options in asked] == ["", "", "s3://bucket/results"]
    assert asked[0].confs == {"spark.executor.memory": "4g"}


def test_there_is_no_report_before_the_first_sweep(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["pipeline", "report", "primary", "docs", "--data", str(data)]) == 3
    assert "millstream pipeline integrity" in capfd.readouterr().err


def test_statistics_say_what_is_there_keep_it_and_tell_what_is_new(
    data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["pipeline", "statistics", "--data", str(data), "--json", "--space", "docs"]
    assert run([*command, "--name", "1"]) == 0
    (first,) = lines(capfd)
    assert (first["items"], first["bytes"], first["added"]) == (1, 7, None)
    LocalStore(data / "stores" / "primary").put("docs", "new", io.BytesIO(b"new"))
    assert run([*command, "--name", "2"]) == 0
    (second,) = lines(capfd)
    assert (second["items"], second["added"], second["removed"], second["grown"]) == (2, 1, 0, 3)
    with Node.open(Settings(data=str(data))) as node:
        assert [(size.items, size.bytes) for size in node.stores.statistics.latest("primary")] == [(2, 10)]


def test_sources_are_adopted_on_spark_and_protect_then_reads_nothing_of_them(
    data: Path, tmp_path_factory: pytest.TempPathFactory, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    source, copy = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("copy")
    assert run(["pipeline", "inventory", "--adopt", "--data", str(data)]) == 3
    assert b"folder:///PATH?space=NAME" in capsysbinary.readouterr().err
    for number in range(3):
        (source / f"{number}.jpg").write_bytes(b"photo %d" % number)
    settings = f'[stores.primary]\nurl = "file://{data}/stores/primary"\n[stores.photos]\nurl = "folder://{source}?space=photos"\n'
    (data / "millstream.toml").write_text(settings, "utf-8")
    assert run(["pipeline", "inventory", "--adopt", "--space", "photos", "--data", str(data), "--json"]) == 0
    adopted = json.loads(capsysbinary.readouterr().out.splitlines()[-1])
    assert (adopted["store"], adopted["adoption"]["added"], adopted["adoption"]["read"]) == ("photos", 3, 3)
    arguments = ["protect", str(source), "--space", "photos", "--to", str(copy), "--data", str(data), "--json"]
    assert run(arguments) == 0
    report = json.loads(capsysbinary.readouterr().out.splitlines()[-1])
    assert (report["items"], report["adoption"]["read"], report["copies"][0]["verified"]) == (3, 0, 3)
    listed = data / "SHA256SUMS"
    sums = [hashlib.sha256(b"photo %d" % number).hexdigest() for number in (0, 2, 2)]
    listed.write_text("".join(f"{value}  {number}.jpg\n" for number, value in enumerate(sums)))
    again = ["pipeline", "inventory", "--adopt", "--space", "photos", "--data", str(data), "--json"]
    assert run([*again, "--checksums", str(listed)]) == 1
    adopted = json.loads(capsysbinary.readouterr().out.splitlines()[-1])["adoption"]
    assert (adopted["read"], adopted["findings"]) == (3, 1)
    assert run([*again, "--read", "all", "--name", "again"]) == 1
    adopted = json.loads(capsysbinary.readouterr().out.splitlines()[-1])["adoption"]
    assert (adopted["read"], adopted["findings"]) == (2, 1)  # what the list contradicts was read in that version
    assert run(["pipeline", "inventory", "--read", "all", "--data", str(data)]) == 2
    os.mkfifo(source / "pipe")
    assert run(["pipeline", "inventory", "--adopt", "--space", "photos", "--data", str(data)]) == 1


@pytest.mark.parametrize("third", ["no space", "empty space", "tombstone"])
def test_integrity_on_spark_names_stray_and_absent_items(
    data: Path, capfd: pytest.CaptureFixture[str], third: str
) -> None:
    stores = [f'[stores.{name}]\nurl = "file://{data}/stores/{name}"\n' for name in ("primary", "second", "third")]
    (data / "millstream.toml").write_text("".join(stores))
    pairs = [{"srcStoreId": "primary", "destStoreId": copy} for copy in ("second", "third")]
    (data / "policies").mkdir()
    (data / "policies" / "local-duplication-policy.json").write_text(json.dumps({"defaultPolicies": pairs}))
    (data / "policies" / "duplication-accounts.json").write_text('["local"]')
    second = LocalStore(data / "stores" / "second")
    second.create_space("docs")
    second.put("docs", "foreign", io.BytesIO(b"of another program"))
    empty = LocalStore(data / "stores" / "third")
    if third != "no space":
        empty.create_space("docs")
    if third == "tombstone":
        with Node.open(load_settings({"data": str(data)}, config=None)[0]) as node:
            node.stores.manifest.writer.record([ManifestEvent("third", "docs", "readme", 1, deleted=True)])
    command = ["pipeline", "integrity", "--data", str(data), "--space", "docs"]
    assert run([*command, "--json"]) == 1
    found = {report["store"]: report for report in lines(capfd)}
    assert (found["primary"]["result"], found["second"]["result"]) == ("SUCCESS", "FAILURE")
    assert found["second"]["strays"] == {"count": 1, "first": ["foreign"]}
    assert found["second"]["absent"] == found["third"]["absent"] == {"count": 1, "first": ["readme"]}
    assert (found["third"]["result"], found["third"]["listed"]) == ("INCOMPLETE", 0)
    assert run(command) == 1
    assert "1 stray items, neither at the source (primary)" in capfd.readouterr().out


def test_integrity_on_spark_names_an_item_that_is_gone_with_its_row(
    data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (data / "millstream.toml").write_text(f'[stores.primary]\nurl = "file://{data}/stores/primary"\naudited = true\n')
    with Node.open(load_settings({"data": str(data)}, config=None)[0]) as node:
        node.stores.providers["primary"].put("docs", "gone", io.BytesIO(b"gone"))
        node.mill.audit.log.append(node.stores.outbox.events())  # and the manifest has no row of it
        node.stores.outbox.remove(event.number for event in node.stores.outbox.events())
    LocalStore(data / "stores" / "primary").delete("docs", "gone")
    assert run(["pipeline", "integrity", "--data", str(data), "--json"]) == 1
    (report,) = lines(capfd)
    assert (report["result"], report["listed"]) == ("FAILURE", 2)
    assert [one["row"] for one in report["findings"] if one["content_id"] == "gone"] == ["B18"]


def test_integrity_on_spark_knows_what_changed_and_vanished_since_a_source_was_adopted(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    photos, node = tmp_path / "photos", str(tmp_path / "adopting")
    photos.mkdir()
    for name in ("edited", "kept", "vanished"):
        (photos / name).write_bytes(name.encode())
    assert run(["protect", str(photos), "--to", str(tmp_path / "copy"), "--data", node]) == 0
    (photos / "edited").write_bytes(b"other bytes")
    (photos / "vanished").unlink()
    (photos / "new").write_bytes(b"not adopted yet")
    os.utime(photos / "new", (1, 1))  # too old to be excused as a change of today
    capfd.readouterr()
    assert run(["pipeline", "integrity", "--data", node, "--json"]) == 1
    found = {report["store"]: report for report in lines(capfd)}["photos"]
    assert [(one["content_id"], one["row"]) for one in found["findings"]] == [("vanished", "B30")]
    assert {kind: count for kind, count in found["kinds"].items() if kind[:3] in ("B20", "B26")} == {
        "B20 gone": 1, "B26 changed": 1,
    }  # fmt: skip
    with Node.open(load_settings({"data": node}, config=None)[0]) as opened:
        assert opened.stores.manifest.get("photos", "photos", "new") is None
