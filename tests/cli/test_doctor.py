"""The doctor names everything that is missing, whether the settings need it, and the command that brings it."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import shutil
import socket
import sqlite3
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.cli.doctor_machine import _synchronised, check_machine
from millstream.cli.doctor_packages import PROGRAMS, extras
from millstream.cli.main import run
from millstream.core.clock import VirtualClock
from millstream.core.extras import EXTRAS
from millstream.node import Node
from millstream.settings import Settings, load_settings
from millstream.testing.ledgers import some_anchor

ROOT = Path(__file__).parents[2]
Doctor = Callable[[str], tuple[int, dict[str, dict]]]


@pytest.fixture
def doctor(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> Doctor:
    """Asks the doctor about a node with these settings: the exit code, and the checks by name."""

    def ask(settings: str = "") -> tuple[int, dict[str, dict]]:
        (tmp_path / "millstream.toml").write_text(settings, "utf-8")
        code = run(["doctor", "--json", "--data", str(tmp_path)])
        return code, {row["name"]: row for row in map(json.loads, capfdbinary.readouterr().out.splitlines())}

    return ask


@pytest.fixture
def nobody() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_what_is_there_is_well_and_what_is_not_names_a_remedy(doctor: Doctor) -> None:
    code, checks = doctor("")
    assert code == 0 and checks["Python"]["ok"] and checks["pipeline"]["ok"]
    assert all(check["ok"] or check["fix"] for check in checks.values())
    assert {*EXTRAS, "Java", *(program.name for program in PROGRAMS)} <= checks.keys()


def test_every_extra_of_the_package_is_looked_at() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert EXTRAS.keys() == declared.keys() - {"dev"}
    assert all(extras().values()), "each asks for packages of its own"


def test_the_programs_are_those_that_make_test_installs() -> None:
    script = (ROOT / "scripts" / "system-packages").read_text("utf-8")
    assert all(program.package in script for program in PROGRAMS)


def test_a_package_is_optional_until_the_settings_need_it(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = importlib.metadata.version

    def without(name: str) -> str:
        if name in ("boto3", "pika"):
            raise importlib.metadata.PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr(importlib.metadata, "version", without)
    code, checks = doctor("")
    assert code == 0 and checks["s3"]["optional"] and checks["s3"]["found"] == "without boto3"
    code, checks = doctor("[stores.vault]\nurl = 's3://bucket'\n")
    assert code == 1 and not checks["s3"]["optional"] and checks["s3"]["fix"] == "pip install 'millstream[s3]'"
    assert checks["rabbitmq"]["optional"]


def test_a_server_without_uvloop_is_in_order(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = importlib.metadata.version

    def without(name: str) -> str:
        if name == "uvloop":
            raise importlib.metadata.PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr(importlib.metadata, "version", without)
    code, checks = doctor("[serve]\nregistry_http = '127.0.0.1:0'\n")
    assert code == 0 and not checks["serve"]["optional"] and "uvloop 0" not in checks["serve"]["found"]


def test_programs_that_are_missing_are_named_with_their_packages_and_nothing_fails(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_arguments, **_options: None)
    code, checks = doctor("")
    assert code == 0
    assert checks["MariaDB"]["fix"] == "apt-get install mariadb-server"
    assert not any(checks[program.name]["ok"] for program in PROGRAMS)


def test_folders_that_cannot_be_used_are_named(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, checks = doctor(f"[mill]\npolicies = '{tmp_path}/file/policies'\n")
    assert code == 1 and "file cannot be written to: Not a directory" in checks["policies"]["found"]


def test_people_read_what_is_missing_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    assert run(["doctor", "--data", str(tmp_path)]) == 1
    text = capsys.readouterr().out
    assert "missing   data folder" in text and "for the node: free 2.0 GB on its disk" in text
    assert text.endswith("1 missing\n")


def test_a_store_whose_disk_is_not_mounted_is_named(doctor: Doctor, tmp_path: Path) -> None:
    code, checks = doctor(f"[stores.second]\nurl = 'file://{tmp_path}/not-mounted'\n")
    assert code == 1 and "mount its disk" in checks["stores.second"]["fix"]
    (tmp_path / "not-mounted").mkdir()
    assert doctor(f"[stores.second]\nurl = 'file://{tmp_path}/not-mounted'\n")[0] == 0


def test_two_stores_at_one_place_are_named(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    urls = {
        "one": "s3://vault/p",
        "two": "s3://vault/p/?profile=backup",
        "three": "s3://vault/q",
        "source": "s3://vault/p?space=x",
        "disk": f"file://{tmp_path}/disk",
        "link": f"file://{tmp_path}/link",
    }
    code, checks = doctor("".join(f"[stores.{name}]\nurl = '{url}'\n" for name, url in urls.items()))
    found = {name: check["found"] for name, check in checks.items() if "at the place of" in check["found"]}
    assert (code, found) == (
        1,
        {"stores.two": "it is at the place of stores.one", "stores.link": "it is at the place of stores.disk"},
    )
    assert "millstream mill retire two" in checks["stores.two"]["fix"]


def test_a_store_that_cannot_be_looked_at_hides_no_other_check(doctor: Doctor, tmp_path: Path) -> None:
    long = tmp_path / ("x" * 300) / "store"  # an error of the file system, as without the right to enter a folder
    code, checks = doctor(f"[stores.second]\nurl = 'file://{long}'\n[mill]\npolicies = '{long}'\n")
    assert (code, checks["stores.second"]["found"]) == (1, f"{long} cannot be looked at: File name too long")
    assert checks["policies"]["found"] == f"{long} cannot be written to: File name too long"
    assert {"Python", "open files", *EXTRAS} <= checks.keys()


def test_an_error_of_a_part_is_one_of_the_checks(doctor: Doctor, tmp_path: Path) -> None:
    with Node.open(Settings(data=str(tmp_path)), create=True) as node:
        node.registry.ledger.append(some_anchor(1))
    with contextlib.closing(sqlite3.connect(tmp_path / "node.db")) as database:
        database.execute("ALTER TABLE anchor_trees RENAME COLUMN size TO odd")
        database.commit()
    code, checks = doctor("")
    assert (code, checks["ledgers"]["ok"]) == (1, False)
    assert {"Python", *EXTRAS} <= checks.keys()


def test_a_clock_whose_state_may_not_be_read_is_not_called_synchronised() -> None:
    assert _synchronised(lambda: -1).found == "not readable on this system"
    assert _synchronised(lambda: 0).found == "synchronised"


def test_a_ledger_without_entries_lacks_no_signature(doctor: Doctor, tmp_path: Path) -> None:
    with Node.open(Settings(data=str(tmp_path)), create=True) as node:
        node.registry.ledger.append(some_anchor(1))
        assert node.anchoring.ledger.last_number == 0
    code, checks = doctor("")
    assert (code, checks["ledger anchors"]["ok"]) == (0, True)
    assert checks["ledger anchors"]["found"] == "0 entries, of which 0 are signed"


def test_a_ledger_that_is_not_signed_and_a_missing_copy_are_named(doctor: Doctor, tmp_path: Path) -> None:
    assert not any(name.startswith("ledger ") or name == "checkpoint copy" for name in doctor("")[1])
    with Node.open(Settings(data=str(tmp_path)), create=True) as node:
        node.registry.ledger.append(some_anchor(1))
    code, checks = doctor("")
    assert (code, checks["ledger registry"]["ok"], "ledger anchors" in checks) == (0, True, False)
    assert checks["checkpoint copy"]["found"] == "none: a restored backup can fork the ledgers unnoticed"
    assert not checks["checkpoint copy"]["ok"] and checks["checkpoint copy"]["optional"]
    code, checks = doctor(f"[anchoring]\ncheckpoint_copy = '{tmp_path}/copies'\n")
    assert code == 1 and "is in the data folder" in checks["checkpoint copy"]["found"]
    away = tmp_path.with_name("away")
    place = f"[anchoring]\ncheckpoint_copy = '{away}'\n"
    code, checks = doctor(place)
    assert code == 1 and f"there is no folder {away}" in checks["checkpoint copy"]["found"]
    settings, _ = load_settings(flags={"data": str(tmp_path)}, environment={})
    with Node.open(settings) as node:
        node.registry.ledger.append(some_anchor(2))
    code, checks = doctor(place)
    assert code == 1 and checks["ledger registry"]["found"] == "2 entries, of which 1 are signed"
    assert "millstream anchor checkpoint --ledger registry" in checks["ledger registry"]["fix"]
    away.mkdir()
    with Node.open(settings) as node:
        node.ledgers.tree("registry").checkpoint()
    assert doctor(place)[0] == 0


def test_servers_that_do_not_answer_are_named_without_their_passwords(doctor: Doctor, nobody: int) -> None:
    code, checks = doctor(
        f"[queue]\nbroker = 'amqp://ada:grain@127.0.0.1:{nobody}/x'\n"
        f"[registry]\ndatabase = 'mysql://ada:grain@127.0.0.1:{nobody}/x'\n"
        f"[serve.ingest.pumps]\nurl = 'mqtt://ada:grain@127.0.0.1:{nobody}'\ntopics = ['a/#/b']\n"
        f"[stores.vault]\nurl = 's3://bucket?endpoint=http://127.0.0.1:{nobody}'\n"
    )
    assert code == 1
    for setting in ("queue.broker", "registry.database", "serve.ingest.pumps", "stores.vault"):
        assert f"127.0.0.1:{nobody} does not answer" in checks[setting]["found"]
        assert checks[setting]["fix"] == f"start the server, or correct the setting {setting}"
    assert "invalid topic filter" in checks["ingest pumps"]["found"]
    assert "grain" not in json.dumps(checks)


def test_a_server_that_answers_is_well(doctor: Doctor) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        _, checks = doctor(f"[queue]\nbroker = 'rocketmq://127.0.0.1:{port}'\n")
    assert checks["queue.broker"]["found"] == f"127.0.0.1:{port} answers"


def test_keys_of_the_broker_that_cannot_be_used_are_named(doctor: Doctor, tmp_path: Path) -> None:
    code, checks = doctor(f"[broker]\ntls_certificate = '{tmp_path}/none.pem'\ntls_key = '{tmp_path}/none.key'\n")
    assert code == 1 and "none.pem" in checks["broker"]["found"]


def test_a_clock_behind_what_was_written_is_named(tmp_path: Path) -> None:
    settings, _ = load_settings({"data": str(tmp_path)}, environment={})
    clock = VirtualClock()
    (tmp_path / "node.db").touch()
    for seconds, well in ((0, True), (3600, False)):
        written = clock.now() / 1_000_000 + seconds
        os.utime(tmp_path / "node.db", (written, written))
        (check,) = [check for check in check_machine(settings, clock) if check.name == "clock"]
        assert check.ok is well


def test_fork_support_of_grpc_is_advised_against(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPC_ENABLE_FORK_SUPPORT", "1")
    code, checks = doctor("")
    assert code == 0 and checks["gRPC and forks"]["fix"] == "unset GRPC_ENABLE_FORK_SUPPORT"


@pytest.mark.parametrize("place", ["host:port", "nobody.invalid"])
def test_a_password_in_a_url_that_leads_nowhere_is_not_shown(doctor: Doctor, place: str) -> None:
    code, checks = doctor(f"[queue]\nbroker = 'amqp://ada:grain@{place}/x'\n")
    assert code == 1 and not checks["queue.broker"]["ok"] and "grain" not in json.dumps(checks)
