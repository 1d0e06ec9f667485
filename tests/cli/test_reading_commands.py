"""Commands that read a node which was never used change nothing: its folder may be the wrong one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millstream.cli.main import run

SETTINGS = "\n".join(
    f'[stores.{name}]\nurl = "file://{{data}}/stores/{name}"\naudited = true' for name in ("primary", "second")
)

READING = {
    "status": 1,
    "status --json": 1,
    "status --items": 0,
    "doctor": 0,
    "config show": 0,
    "log list": 0,
    "log describe readings": 3,
    "log read readings": 3,
    "log tail readings": 3,
    "log verify readings": 3,
    "topic list": 0,
    "topic describe orders": 3,
    "group list": 0,
    "group describe billing": 3,
    "batch rules readings.batches": 2,
    "batch advise readings": 3,
    "anchor status": 0,
    "anchor status did:sidetree:EiAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA": 0,
    "anchor ledger": 0,
    "anchor ledger --ledger reports": 0,
    "anchor ledger --ledger registry": 0,
    "anchor verify": 0,
    "anchor replay": 0,
    "anchor replay --ledger registry": 0,
    "anchor key show": 2,
    "anchor witnesses": 2,
    "anchor timestamps": 0,
    "prove readings 1": 3,
    "did resolve did:sidetree:EiAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA": 3,
    "store list primary": 0,
    "store get primary photos a": 3,
    "store props primary photos a": 3,
    "store acl primary photos": 3,
    "store export primary photos --sha256sums -": 0,
    "mill policy show": 0,
    "mill policy lint": 0,
    "mill policy plan local {policy}": 0,
    "mill approve": 0,
    "mill duplicate --dry-run": 0,
    "mill repair photos a --dry-run": 3,
    "mill retire third": 3,
    "mill audit": 0,
    "mill audit primary photos a": 0,
    "mill reconcile": 3,
    "mill reconcile primary photos": 3,
    "mill report": 3,
    "mill report --verify": 3,
    "mill report second photos": 3,
    "mill statistics": 0,
    "queue depth": 0,
    "queue dead duplication-high": 3,
    "node ls": 2,
    "node info web1-3f9a2c01": 2,
    "restore photos --test": 3,
    "pipeline report second photos": 3,
    "pipeline verify-batches readings --batches readings.batches": 3,
}
"""The exit code of each command on such a node."""


@pytest.mark.parametrize("command", READING)
def test_a_command_that_reads_makes_no_files(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, policy = tmp_path / "node", tmp_path / "policy.json"
    folder.mkdir()
    (folder / "millstream.toml").write_text(SETTINGS)
    policy.write_text('{"defaultPolicies": [{"srcStoreId": "primary", "destStoreId": "second"}]}')
    before = sorted(tmp_path.rglob("*"))
    code = run([*command.format(policy=policy).split(), "--data", str(folder)])
    assert sorted(tmp_path.rglob("*")) == before and "Usage:" not in capsys.readouterr().err
    assert code == READING[command] or command == "doctor"  # which also judges the machine


@pytest.mark.parametrize("command", ["log list", "queue depth", "topic list", "group list"])
@pytest.mark.parametrize("options", ["", "--store sqlite:///{folder}/log.db"])
def test_a_list_of_a_folder_without_a_node_or_of_a_store_that_does_not_exist_is_not_empty(
    command: str, options: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if options:
        (tmp_path / "millstream.toml").touch()
    before = list(tmp_path.iterdir())
    assert run([*command.split(), *options.format(folder=tmp_path).split(), "--data", str(tmp_path)]) == 3
    printed = capsys.readouterr()
    assert f"no log store at {tmp_path}/log.db: check the path" in printed.err and not printed.out
    assert list(tmp_path.iterdir()) == before


def test_a_queue_of_a_node_without_logs_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "millstream.toml").touch()
    for command in ("queue depth orders", "queue dead orders"):
        assert run([*command.split(), "--data", str(tmp_path)]) == 3
        assert "there is no queue 'orders'" in capsys.readouterr().err


def test_a_dry_run_before_the_first_start_makes_no_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "node"
    (policies := folder / "policies").mkdir(parents=True)
    (policies / "duplication-accounts.json").write_text('["local"]')
    policy = '{"defaultPolicies": [{"srcStoreId": "primary", "destStoreId": "second"}]}'
    (policies / "local-duplication-policy.json").write_text(policy)
    (folder / "millstream.toml").write_text(SETTINGS.replace("audited = true", ""))
    (tmp_path / "a").touch()
    put = ["store", "put", "primary", "photos", str(tmp_path / "a"), "--create", "--data", str(folder)]
    assert run(put) == 0
    capsys.readouterr()
    before = sorted(tmp_path.rglob("*"))
    assert run(["mill", "duplicate", "--dry-run", "--data", str(folder)]) == 0
    assert "photos primary → second: 1 to copy" in capsys.readouterr().out
    assert sorted(tmp_path.rglob("*")) == before


def test_the_status_of_an_unused_folder_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "millstream.toml").touch()
    assert run(["status", "--data", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert f"UNKNOWN  nothing is recorded in {tmp_path} yet" in printed.out and "no problem is known" not in printed.out
    assert "nothing is protected yet" in printed.err
    assert run(["status", "--json", "--data", str(tmp_path)]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["ok"], answer["issues"], [one["area"] for one in answer["unknown"]]) == (False, [], ["node"])
    assert run(["log", "create", "readings", "--data", str(tmp_path)]) == 0
    assert run(["status", "--json", "--data", str(tmp_path)]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["unknown"], [one["kind"] for one in answer["issues"]]) == ([], ["unprotected"]), "it is not new"
    assert not (tmp_path / "node.db").exists()


@pytest.mark.parametrize(
    ("left", "traces"),
    [
        ("batching/limits.json", "files in batching/"),
        ("reports/primary/photos/1.json", "files in reports/"),
        ("log.db-reserve-1", "files log.db-*"),
    ],
)
def test_a_node_without_its_databases_is_not_said_to_be_new(
    left: str, traces: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / left).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / left).touch()
    (tmp_path / "millstream.toml").touch()
    before = sorted(tmp_path.rglob("*"))
    assert run(["status", "--data", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert f"UNKNOWN  node.db and log.db are missing in {tmp_path}, but there are {traces}\n" in printed.out
    assert "restore both from a backup" in printed.out and "node.db is missing" in printed.err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.fixture
def used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The folder of a node with a report on a space; its logs are in its folder."""
    folder = tmp_path / "node"
    folder.mkdir()
    (folder / "millstream.toml").write_text('[stores.primary]\nurl = "file://{data}/stores/primary"')
    (tmp_path / "a").touch()
    assert run(["store", "put", "primary", "photos", str(tmp_path / "a"), "--create", "--data", str(folder)]) == 0
    assert run(["mill", "check", "--data", str(folder)]) == 1, "the item is not recorded yet"
    capsys.readouterr()
    return folder


def test_a_node_that_lost_one_of_its_databases_is_not_well(used: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, kept in (("node.db", "log.db"), ("log.db", "node.db")):
        (used / name).rename(used.parent / name)
        assert run(["status", "--data", str(used)]) == 1
        printed = capsys.readouterr().out
        assert f"UNKNOWN  {name} is missing in {used}, but there are files in " in printed and "reports/" in printed
        assert "restore it from a backup before a process of the node starts" in printed
        assert "no problem is known" not in printed and f"{kept} is missing" not in printed
        assert not (used / name).exists()
        (used.parent / name).rename(used / name)
    run(["status", "--data", str(used)])
    assert "missing" not in capsys.readouterr().out
    (used / "node.db").write_bytes(b"")  # as a restore on a full disk leaves it
    assert run(["status", "--data", str(used)]) == 1
    assert f"UNKNOWN  node.db is missing in {used}, but there are files in " in capsys.readouterr().out


def test_a_list_of_lost_logs_is_not_empty(used: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (used / "log.db").unlink()
    for command in ("log list", "queue depth", "topic list", "group list"):
        assert run([*command.split(), "--data", str(used)]) == 3
        printed = capsys.readouterr()
        assert f"log.db is missing in {used}, but there are files in reports/" in printed.err and not printed.out
    assert not (used / "log.db").exists()


def test_a_node_that_lost_its_folder_but_not_its_logs_is_not_well(
    used: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = used.parent / "new"
    new.mkdir()
    (new / "millstream.toml").write_text(f'[log]\nstore = "sqlite:///{used}/log.db"')
    assert run(["status", "--data", str(new), "--json"]) == 1
    (unknown,) = json.loads(capsys.readouterr().out)["unknown"]
    assert unknown["what"] == f"node.db is missing in {new}, but the logs have the ledger of reports"
    assert "`millstream anchor observe`, `millstream mill rebuild audit-log` and `millstream mill" in unknown["todo"]
    assert [path.name for path in new.iterdir()] == ["millstream.toml"]


def test_a_store_that_is_filled_before_the_first_start_is_not_a_lost_database(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "millstream.toml").write_text('[stores.primary]\nurl = "file://{data}/stores/primary"')
    put = ["store", "put", "primary", "photos", str(tmp_path / "millstream.toml"), "--create", "--data", str(tmp_path)]
    assert run(put) == 0
    assert run(["status", "--data", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert f"nothing is recorded in {tmp_path} yet: a new node" in printed and "missing" not in printed


def test_a_node_with_a_new_key_and_empty_folders_is_new(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "millstream.toml").touch()
    (tmp_path / "stores" / "primary").mkdir(parents=True)
    assert run(["anchor", "key", "create", "--data", str(tmp_path)]) == 0
    assert run(["status", "--data", str(tmp_path)]) == 1
    assert f"nothing is recorded in {tmp_path} yet" in capsys.readouterr().out


def test_a_named_log_store_that_is_missing_is_not_a_new_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "millstream.toml").write_text(f'[log]\nstore = "sqlite:///{tmp_path}/elsewhere.db"')
    assert run(["status", "--data", str(tmp_path)]) == 1
    assert f"no log store at {tmp_path}/elsewhere.db" in capsys.readouterr().out
