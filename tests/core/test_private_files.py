"""Other accounts of the machine cannot read a node's folder, logs and databases; a group can if the settings say so."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from millstream.cli.main import run
from millstream.core.private_files import make_private_file, restrict
from millstream.log import LogSpec
from millstream.node import Node
from millstream.settings import Settings, load_settings
from millstream.stores.tiers import open_log_store


@pytest.fixture(autouse=True)
def _usual_mask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def settings_of(folder: Path) -> Settings:
    return load_settings({"data": str(folder)}, environment={})[0]


def fill(folder: Path) -> None:
    """Use a node: a log, its database, a copy in a store of its own."""
    with Node.open(settings_of(folder), create=True) as node:
        with node.databases.own.begin() as connection:
            connection.execute(sa.text("CREATE TABLE mill_made (a INTEGER)"))
        with node.logs.store.log(LogSpec("weather")).writer():
            modes = {path.name: mode(path) for path in folder.glob("*.db*") if "reserve" not in path.name}
    assert {name for name, found in modes.items() if found & 0o077} <= {"node.db-holders"}, modes
    assert {"log.db", "log.db-wal", "node.db", "node.db-wal"} <= modes.keys()


def test_a_new_node_is_for_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "above" / "node"
    fill(folder)
    assert mode(folder) == 0o700 and mode(folder / "log.db") == mode(folder / "node.db") == 0o600
    assert mode(tmp_path / "above") == 0o755, "only the node's folder is ours"


def test_a_log_that_is_made_by_a_command_is_private(tmp_path: Path) -> None:
    assert run(["log", "create", "weather", "--data", str(tmp_path / "node")]) == 0
    assert (mode(tmp_path / "node"), mode(tmp_path / "node/log.db")) == (0o700, 0o600)
    assert run(["log", "create", "weather", "--store", f"segments:///{tmp_path}/segments"]) == 0
    assert mode(tmp_path / "segments") == 0o700


def test_a_node_of_before_is_tightened_where_it_is_ours(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    fill(folder)
    (folder / "millstream.toml").write_text("", "utf-8")
    (folder / "notes.txt").write_text("not of the node", "utf-8")
    copy = folder / "stores" / "primary" / "a.txt"
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text("a copy", "utf-8")
    (folder / "log.db-link").symlink_to(tmp_path / "elsewhere.db")
    (tmp_path / "elsewhere.db").touch(0o644)
    for path in (folder, folder / "stores", folder / "cas"):
        path.mkdir(exist_ok=True)
        path.chmod(0o755)
    for name in ("log.db", "node.db"):
        (folder / name).chmod(0o644)
    Node.open(settings_of(folder)).close()
    assert [mode(path) for path in (folder, folder / "stores", folder / "cas")] == [0o700] * 3
    assert [mode(folder / name) for name in ("log.db", "node.db", "millstream.toml")] == [0o600] * 3
    assert mode(folder / "notes.txt") == mode(tmp_path / "elsewhere.db") == 0o644
    assert mode(copy) == 0o644, "copies keep the mask of whoever made them"


def test_a_group_shares_a_node_if_the_settings_say_so(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    fill(folder)
    (folder / "millstream.toml").write_text('data_access = "group"\n', "utf-8")
    Node.open(settings_of(folder)).close()
    assert (mode(folder), mode(folder / "log.db"), mode(folder / "millstream.toml")) == (0o770, 0o660, 0o660)
    os.umask(0o002)
    make_private_file(folder / "new.db")
    assert mode(folder / "new.db") == 0o660


def test_what_another_account_owns_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    restrict(tmp_path, ["*"], group=False)
    assert mode(tmp_path) == 0o755


def test_a_folder_for_everybody_and_one_of_another_program_stay_as_they_are(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    restrict(tmp_path, ["*"], group=False)
    assert mode(tmp_path) == 0o1777
    other = tmp_path / "other"
    other.mkdir(0o755)
    (other / "readme").touch()
    Node.open(settings_of(other), create=True).close()
    assert mode(other) == 0o755


def test_a_log_store_of_before_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    open_log_store(f"sqlite:///{path}").close()
    path.chmod(0o640)
    open_log_store(f"sqlite:///{path}").close()
    assert mode(path) == 0o640
