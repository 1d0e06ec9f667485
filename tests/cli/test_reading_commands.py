"""Commands that read a node which was never used change nothing: its folder may be the wrong one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millstream.cli.main import run

SETTINGS = "\n".join(f'[stores.{name}]\nurl = "file://{{data}}/stores/{name}"' for name in ("primary", "second"))

READING = [
    "status",
    "status --json",
    "status --items",
    "doctor",
    "config show",
    "log list",
    "log describe readings",
    "log read readings",
    "log tail readings",
    "log verify readings",
    "topic list",
    "topic describe orders",
    "group list",
    "group describe billing",
    "batch rules readings.batches",
    "anchor status",
    "anchor status did:sidetree:EiAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    "anchor ledger",
    "anchor ledger --ledger reports",
    "anchor ledger --ledger registry",
    "anchor verify",
    "anchor replay",
    "anchor replay --ledger registry",
    "anchor key show",
    "anchor witnesses",
    "anchor timestamps",
    "prove readings 1",
    "did resolve did:sidetree:EiAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    "store list primary",
    "store get primary photos a",
    "store props primary photos a",
    "store acl primary photos",
    "store export primary photos --sha256sums -",
    "mill policy show",
    "mill policy lint",
    "mill policy plan local {policy}",
    "mill approve",
    "mill report",
    "mill report --verify",
    "mill report second photos",
    "mill statistics",
    "queue depth",
    "queue dead duplication-high",
    "node ls",
    "node info web1-3f9a2c01",
    "restore photos --test",
    "pipeline report second photos",
]


@pytest.mark.parametrize("command", READING)
def test_a_command_that_reads_makes_no_files(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, policy = tmp_path / "node", tmp_path / "policy.json"
    folder.mkdir()
    (folder / "millstream.toml").write_text(SETTINGS)
    policy.write_text('{"defaultPolicies": [{"srcStoreId": "primary", "destStoreId": "second"}]}')
    before = sorted(tmp_path.rglob("*"))
    assert run([*command.format(policy=policy).split(), "--data", str(folder)]) in (0, 1, 2, 3)
    assert sorted(tmp_path.rglob("*")) == before and "Usage:" not in capsys.readouterr().err


def test_the_status_of_an_unused_folder_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "millstream.toml").touch()
    assert run(["status", "--data", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert f"UNKNOWN  there is nothing in {tmp_path} yet" in printed.out and "no problem is known" not in printed.out
    assert "nothing is protected yet" in printed.err
    assert run(["status", "--json", "--data", str(tmp_path)]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["ok"], answer["issues"], [one["area"] for one in answer["unknown"]]) == (False, [], ["node"])
    assert run(["log", "create", "readings", "--data", str(tmp_path)]) == 0
    assert run(["status", "--json", "--data", str(tmp_path)]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["unknown"], [one["kind"] for one in answer["issues"]]) == ([], ["unprotected"]), "it is not new"
    assert not (tmp_path / "node.db").exists()
