"""``millstream status`` of a plain policy, without ``millstream protect``."""

from __future__ import annotations

import io
import json
import subprocess
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millstream.cli.main import run
from millstream.mill.policies.policy import Pair, Policy, encode_policy
from millstream.mill.tasks import Duplicate, QueueName, encode_task
from millstream.node import Node
from millstream.settings import load_settings
from millstream.status.serving_node import announced
from millstream.status.verdict.models import Verdict
from millstream.stores import LocalStore
from millstream.testing.damage import flip_bit
from support.small_disk import small_disk

Status = Callable[[], tuple[int, dict[str, Any], str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a node that copies three items from the store "one" to "two", all of them checked."""
    folder = tmp_path / "node"
    (folder / "policies").mkdir(parents=True)
    tables = [f'[stores.{name}]\nurl = "file://{tmp_path}/{name}"\n' for name in ("one", "two")]
    (folder / "millstream.toml").write_text("\n".join(tables))
    (folder / "policies" / "duplication-accounts.json").write_text('["me"]')
    policy = encode_policy(Policy("me", spaces={"photos": (Pair("one", "two"),)}))
    (folder / "policies" / "me-duplication-policy.json").write_bytes(policy)
    for name in ("one", "two"):
        LocalStore(tmp_path / name).create_space("photos")
    for name in ("a", "b", "c"):
        LocalStore(tmp_path / "one").put("photos", name, io.BytesIO(name.encode()))
    assert run(["mill", "duplicate", "--data", str(folder)]) == 0
    assert run(["mill", "check", "--data", str(folder)]) == 0
    return folder


@pytest.fixture
def status(folder: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> Status:
    def call() -> tuple[int, dict[str, Any], str]:
        capsysbinary.readouterr()
        run(["status", "--data", str(folder)])
        printed = capsysbinary.readouterr().out.decode()
        code = run(["status", "--data", str(folder), "--json"])
        return code, json.loads(capsysbinary.readouterr().out), printed

    return call


def test_a_policy_whose_copies_are_all_in_order_is_well(status: Status) -> None:
    code, found, printed = status()
    assert (code, found["well"], found["damaged"], found["report"]) == (0, True, 0, "SUCCESS")
    assert "  OK" in printed


def test_a_command_that_reads_makes_no_place_for_the_anchored_files(
    folder: Path, status: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = folder.parent / "anchored"
    monkeypatch.setenv("MILLSTREAM_ANCHORING__CAS", files.as_uri())
    assert status()[0] == 0
    assert run(["anchor", "status", "--data", str(folder)]) == 0
    assert not files.exists()


def test_a_command_that_reads_makes_no_ledgers(folder: Path, status: Status) -> None:
    settings = load_settings({"data": str(folder)})[0]
    with Node.open(settings) as node:
        before = node.logs.store.logs()
        assert "system:ledger" not in before
    status()
    for command in (["anchor", "status"], ["anchor", "ledger"]):
        run([*command, "--data", str(folder)])
    with Node.open(settings) as node:
        assert node.logs.store.logs() == before


def test_a_mistyped_log_store_is_named_and_not_made(
    folder: Path, status: Status, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    mistyped = folder.parent / "lgos" / "log.db"
    monkeypatch.setenv("MILLSTREAM_LOG__STORE", f"sqlite:///{mistyped}")
    code, found, printed = status()
    assert (code, found["ok"]) == (1, False)
    assert f"the node cannot be opened: no log store at {mistyped}: check the path, or create the store with" in printed
    for command in (["anchor", "status"], ["anchor", "verify"], ["topic", "list"]):
        assert run([*command, "--data", str(folder)]) == 3
        assert f"no log store at {mistyped}" in capsysbinary.readouterr().err.decode()
    assert not mistyped.parent.exists()
    assert run(["log", "create", "events", "--data", str(folder)]) == 0
    assert status()[0] == 0


def test_a_full_disk_is_named_if_the_node_cannot_be_opened(
    folder: Path, status: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "node.db").write_bytes(b"no database")
    code, found, printed = status()
    assert (code, found["issues"]) == (1, [])
    assert "what to do: start what it names, or correct the settings" in printed
    monkeypatch.setenv("MILLSTREAM_VERDICT__LEAST_FREE", "1000000GB")
    code, found, printed = status()
    assert [issue["kind"] for issue in found["issues"]] == ["disk"]
    assert "what to do: free disk space, if the full disk is the cause; otherwise start what it names" in printed


def test_spaces_that_this_process_cannot_read_are_unknown_if_the_serving_process_knows_no_problem(
    folder: Path, status: Status
) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(msgspec.json.encode(Verdict.of(1, [], [])))

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, args=[0.01])
    thread.start()
    try:
        with announced(folder, "127.0.0.1", server.server_port):
            code, found, printed = status()
            assert (code, found["ok"], found["watching"]) == (0, True, True)
            (folder / "node.db").write_bytes(b"no database")
            code, found, printed = status()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert (code, found["ok"], found["watching"]) == (1, False, True)
    assert [one["subject"] for one in found["unknown"]] == ["protected spaces"]
    assert "UNKNOWN  the protected spaces cannot be shown: " in printed


def test_status_names_the_full_disk_of_the_node(tmp_path: Path) -> None:
    program = """if True:
        import contextlib, sys
        from pathlib import Path
        from millstream.cli.main import run
        disk, data = Path(sys.argv[1]), ["--data", sys.argv[1] + "/node"]
        assert run(["log", "create", "events", *data]) == 0
        run(["status", *data])
        print("FULL", flush=True)
        with contextlib.suppress(OSError), (disk / "fill").open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        sys.exit(run(["status", *data]))
    """
    command = small_disk(tmp_path, "size=40m")
    done = subprocess.run([*command, "-c", program, str(tmp_path)], check=False, capture_output=True, text=True)
    printed = done.stdout.partition("FULL\n")[2]
    assert done.returncode == 1, done.stderr
    assert "ISSUE  disk: the disk of the data folder has 0 B free" in printed
    assert "what to do: free disk space, if the full disk is the cause" in printed


def test_a_copy_in_a_store_that_was_removed_from_the_settings_is_not_well(folder: Path, status: Status) -> None:
    settings = folder / "millstream.toml"
    whole = settings.read_text()
    settings.write_text(whole.partition("[stores.two]")[0])
    code, found, printed = status()
    assert (code, found["well"], found["ok"]) == (1, False, False)
    assert [issue["kind"] for issue in found["issues"]] == ["store-not-configured"]
    what = "the store two is not in the settings of this process, and a policy names it; 3 copies are recorded there"
    assert f"    NOT AVAILABLE: {what}" in printed
    assert "`millstream mill retire two`" in printed
    policies = folder / "policies" / "me-duplication-policy.json"
    policies.write_bytes(encode_policy(Policy("me", ignored=("photos",))))
    assert [issue["what"] for issue in status()[1]["issues"] if issue["kind"] == "store-not-configured"] == [
        "the store two is not in the settings of this process; 3 copies are recorded there"
    ]
    settings.write_text(whole)
    assert "store-not-configured" not in {issue["kind"] for issue in status()[1]["issues"]}


def test_a_node_whose_policies_are_in_an_unknown_store_is_not_one_without_policies(
    folder: Path, status: Status, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setenv("MILLSTREAM_MILL__POLICIES", "oen:policies")
    code, found, printed = status()
    assert (code, found["ok"], found["issues"] + found["unknown"] != []) == (1, False, True)
    assert "setting mill.policies: no store 'oen' is configured" in printed
    for command in (["mill", "duplicate"], ["mill", "policy", "lint"]):
        assert run([*command, "--data", str(folder)]) == 2
        assert "write STORE:SPACE" in capsysbinary.readouterr().err.decode()
    assert run(["doctor", "--json", "--data", str(folder)]) == 1
    checks = {row["name"]: row for row in map(json.loads, capsysbinary.readouterr().out.splitlines())}
    assert not checks["policies"]["ok"]


@pytest.mark.parametrize("damage", ["gone", "rotten"])
def test_an_item_that_the_source_lost_is_not_well(status: Status, folder: Path, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "one" / "photos" / "b"
    if damage == "gone":
        path.unlink()
    else:
        flip_bit(path)
    assert run(["mill", "check", "--data", str(folder)]) == 1
    code, found, printed = status()
    assert (code, found["well"], found["damaged"], found["report"]) == (1, False, 1, "FAILURE")
    assert "missing or damaged in the source: 1 item" in printed and "NOT OK" in printed
    assert "the last report on one is FAILURE: see `millstream mill report one photos`" in printed


def test_the_last_report_on_a_copy_counts(status: Status, folder: Path, tmp_path: Path) -> None:
    LocalStore(tmp_path / "two").path_of("photos", "b").with_name("stray").write_text("whose?")
    assert run(["mill", "check", "--data", str(folder)]) == 1
    code, found, printed = status()
    assert (code, found["report"], found["copies"][0]["report"]) == (1, "SUCCESS", "FAILURE")
    assert "the last report on two is FAILURE" in printed


def test_a_task_that_failed_for_good_is_not_well(status: Status, folder: Path) -> None:
    settings, _ = load_settings({"data": str(folder)})
    with Node.open(settings) as node:
        queue = node.queues.open(QueueName.DUPLICATION_LOW)
        queue.put([encode_task(Duplicate("one", "two", "photos", "x"))])
        for lease in queue.lease(1, visibility=60):
            queue.dead_letter(lease, cause="no permission")
    code, found, printed = status()
    assert (code, found["dead_tasks"]) == (1, {"duplication-low": 1})
    assert "1 task failed permanently: see `millstream queue dead duplication-low`" in printed


def test_a_store_that_cannot_be_used_is_not_well(status: Status, tmp_path: Path) -> None:
    (tmp_path / "two").rename(tmp_path / "unplugged")
    code, found, printed = status()
    assert (code, found["well"]) == (1, False)
    assert "NOT AVAILABLE" in printed
