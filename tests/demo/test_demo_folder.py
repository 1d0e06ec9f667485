"""The folder of the demo is its own: nodes, databases and logs of others stay as they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from support.commands import run_command


def files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(("-shm", "-wal")))
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.mark.parametrize(
    "made",
    [["log", "create", "orders"], ["protect", "{folder}/photos", "--to", "{folder}/disk"]],
    ids=["log", "copies"],
)
def test_a_node_that_the_demo_did_not_create_is_refused_and_stays_as_it_is(tmp_path: Path, made: Sequence[str]) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(b"photo")
    data = str(tmp_path / "data")
    assert run_command(*(part.format(folder=tmp_path) for part in made), "--data", data).code == 0
    before = files(tmp_path)
    answer = run_command("demo", "--limit", "3", "--data", data)
    assert answer.code == 2
    assert f"{data} is the folder of a node that the demo did not create" in answer.err
    assert files(tmp_path) == before


def test_a_folder_that_has_settings_only_is_refused(tmp_path: Path) -> None:
    (tmp_path / "millstream.toml").write_text("[mill]\nworkers = 2\n")
    assert run_command("demo", "--limit", "3", "--data", str(tmp_path)).code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["millstream.toml"]


def test_a_log_of_the_same_name_in_another_store_is_refused(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/log.db"
    assert run_command("log", "create", "weather", "--store", store).code == 0
    variables = {"MILLSTREAM_LOG__STORE": store}
    answer = run_command("demo", "--limit", "3", "--data", str(tmp_path / "data"), environment=variables)
    assert answer.code == 2
    assert "log.store names a log store with a log 'weather'" in answer.err
    assert not (tmp_path / "data").exists()


def test_a_demo_that_was_begun_is_not_taken_for_another_node(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "plan.json").write_text("damaged")
    assert run_command("log", "create", "weather", "--data", str(tmp_path)).code == 0
    answer = run_command("demo", "--limit", "3", "--data", str(tmp_path))
    assert "plan.json is damaged" in answer.err


def test_a_settings_file_without_the_stores_of_the_demo_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("[mill]\nworkers = 2\n")
    arguments = ["demo", "--limit", "3", "--data", str(tmp_path / "data")]
    for answer in (
        run_command(*arguments, "--config", str(file)),
        run_command(*arguments, environment={"MILLSTREAM_CONFIG": str(file)}),
    ):
        assert answer.code == 2
        assert f"{file} lacks stores of the demo" in answer.err
        assert '[stores.third]\nurl = "file://{data}/stores/third"' in answer.err
    assert not (tmp_path / "data").exists()
