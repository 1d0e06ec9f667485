"""``pipeline duplication`` and ``mill duplicate`` report missing policies and stores in the same words."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.cli.main import run
from millstream.mill.duplication.differences import DuplicationPlan
from millstream.mill.policies.policy import Pair
from millstream.node.spark import SparkPart
from millstream.pipeline.errors import UnlistedSpaceError
from millstream.pipeline.jobs import duplication
from millstream.stores import LocalStore

Run = Callable[..., tuple[int, list[Any], str]]

COMMANDS = (("mill", "duplicate"), ("pipeline", "duplication"))


class Planned:
    """Stands for a plan of Spark, of nothing."""

    def __init__(self, *_: Any, pair: Pair, space: str, **__: Any) -> None:
        if space == "unlisted":
            raise UnlistedSpaceError(f"cannot list one/{space}, so nothing was planned: the disk cannot be read")
        self.plan = DuplicationPlan(pair, space)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node's folder whose policy copies from "one" to "two" and "away", which is not there. Spark is not started."""
    monkeypatch.setattr(SparkPart, "session", lambda _, **__: contextlib.nullcontext())
    monkeypatch.setattr(duplication, "plan_duplication", Planned)
    folder = tmp_path / "node"
    (folder / "policies").mkdir(parents=True)
    (folder / "policies" / "duplication-accounts.json").write_text('["me"]')
    pairs = [{"srcStoreId": "one", "destStoreId": copy} for copy in ("away", "two")]
    (folder / "policies" / "me-duplication-policy.json").write_text(json.dumps({"defaultPolicies": pairs}))
    stores = [f'[stores.{name}]\nurl = "file://{tmp_path}/{name}"\n' for name in ("one", "two", "away")]
    (folder / "millstream.toml").write_text("\n".join(stores))
    source = LocalStore(tmp_path / "one", create=True)
    LocalStore(tmp_path / "two", create=True)
    source.create_space("s")
    source.put("s", "item", io.BytesIO(b"body"))
    return folder


@pytest.fixture
def millstream(data: Path, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs a command without changes; its exit code, its plans, and its complaints."""

    def call(*command: str) -> tuple[int, list[Any], str]:
        code = run([*command, "--dry-run", "--json", "--data", str(data)])
        printed = capfd.readouterr()
        return code, [json.loads(line)["pair"] for line in printed.out.splitlines()], printed.err

    return call


def test_a_store_that_cannot_be_listed_does_not_block_the_others(millstream: Run, tmp_path: Path) -> None:
    for command in COMMANDS:
        code, pairs, complaint = millstream(*command)
        assert (code, pairs) == (1, [{"source": "one", "destination": "two"}]), command
        assert complaint.startswith(f"away: the folder {tmp_path}/away does not exist: ")


def test_a_missing_list_of_accounts_is_named(data: Path, millstream: Run) -> None:
    (data / "policies" / "duplication-accounts.json").unlink()
    for command in COMMANDS:
        code, pairs, complaint = millstream(*command)
        assert (code, pairs) == (0, []), command
        assert complaint.startswith("there is no policy, because ")


def test_a_space_that_spark_cannot_list_does_not_block_the_others(millstream: Run, tmp_path: Path) -> None:
    LocalStore(tmp_path / "away", create=True).create_space("other")
    LocalStore(tmp_path / "one").create_space("unlisted")
    code, pairs, complaint = millstream("pipeline", "duplication")
    assert (code, len(pairs)) == (1, 4)
    reason = "cannot list one/unlisted, so nothing was planned: the disk cannot be read"
    assert complaint.splitlines() == [f"unlisted one → {copy}: {reason}" for copy in ("away", "two")]


def test_spark_does_not_copy_from_a_source_that_other_programs_write(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = data / "millstream.toml"
    settings.write_text(settings.read_text().replace(f"file://{tmp_path}/one", f"folder://{tmp_path}/one?space=s"))
    assert run(["pipeline", "duplication", "--execute", "--no-record", "--data", str(data)]) == 2
    assert "other programs write store 'one'" in capfd.readouterr().err
