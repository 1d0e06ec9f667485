"""``millstream store``, as a person or a script uses it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from millstream.cli.main import run
from millstream.stores import LocalStore
from millstream.testing.damage import flip_bit


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_bytes(b"grain")
    (folder / "sub" / "b.bin").write_bytes(b"\0\xff")
    (folder / "link").symlink_to(folder / "a.txt")
    return folder


def test_files_and_folders_are_put_listed_and_got_back(
    url: str, folder: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert run(["store", "put", url, "space", str(folder), "--create", "--prefix", "2026/"]) == 0
    assert b"put 2 items, 7 B" in capfdbinary.readouterr().out
    assert run(["store", "list", url]) == 0
    assert capfdbinary.readouterr().out == b"space\n"
    assert run(["store", "list", url, "space", "--json"]) == 0
    lines = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert [(line["content_id"], line["size"]) for line in lines] == [("2026/a.txt", 5), ("2026/sub/b.bin", 2)]
    assert run(["store", "get", url, "space", "2026/sub/b.bin"]) == 0
    assert capfdbinary.readouterr().out == b"\0\xff"
    assert run(["store", "get", url, "space", "2026/a.txt", str(tmp_path / "got")]) == 0
    assert (tmp_path / "got").read_bytes() == b"grain"


def test_a_damaged_item_is_not_got(
    url: str, folder: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    run(["store", "put", url, "space", str(folder / "a.txt"), "--create"])
    flip_bit(LocalStore(tmp_path / "store").path_of("space", "a.txt"))
    assert run(["store", "get", url, "space", "a.txt", str(tmp_path / "got")]) == 1
    assert b"is corrupt: its content has SHA-256" in capfdbinary.readouterr().err
    assert not (tmp_path / "got").exists()


def test_items_are_copied_and_access_lists_kept(
    url: str, folder: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    run(["store", "put", url, "space", str(folder / "a.txt"), "--create", "--property", "creator=mill"])
    assert run(["store", "cp", url, "space", "a.txt", "space", "copy.txt"]) == 0
    capfdbinary.readouterr()
    assert run(["store", "get", url, "space", "copy.txt"]) == 0
    assert capfdbinary.readouterr().out == b"grain"
    assert run(["store", "cp", url, "space", "none.txt", "space"]) == 3
    assert run(["store", "acl", url, "space", "--set", "ann=write", "--set", "group-all=read"]) == 0
    assert run(["store", "acl", url, "space", "--unset", "ann", "--json"]) == 0
    assert capfdbinary.readouterr().out == b'ann: write\ngroup-all: read\n{"group-all":"read"}\n'
    assert run(["store", "acl", url, "space", "--set", "ann=own"]) == 2
    assert run(["store", "acl", url, "space", "--replace", "--unset", "ann"]) == 2
    assert b"--replace and --unset cannot be combined" in capfdbinary.readouterr().err
    assert run(["store", "acl", url, "space", "--replace"]) == run(["store", "acl", url, "space"]) == 0
    assert capfdbinary.readouterr().out == b""
    assert run(["store", "list", "unknown"]) == 3


def test_a_damaged_access_list_is_replaced_by_the_command_that_the_error_names(
    tmp_path: Path, url: str, folder: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    run(["store", "put", url, "space", str(folder / "a.txt"), "--create"])
    run(["store", "acl", url, "space", "--set", "ann=write"])
    flip_bit(tmp_path / "store" / ".millstream" / "spaces" / "space.json")
    capfdbinary.readouterr()
    assert run(["store", "acl", url, "space", "--set", "bob=read"]) == 1
    assert b"millstream store acl STORE SPACE --replace --set NAME=ACCESS" in capfdbinary.readouterr().err
    assert run(["store", "acl", url, "space", "--replace", "--set", "bob=read"]) == 0
    assert run(["store", "acl", url, "space"]) == 0
    assert capfdbinary.readouterr().out == b"bob: read\nbob: read\n"


def test_properties_are_set_shown_and_removed(
    url: str, folder: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    run(["store", "put", url, "space", str(folder / "a.txt"), "--create", "--property", "creator=mill"])
    run(["store", "props", url, "space", "a.txt", "--set", "b=2=3", "--unset", "creator"])
    capfdbinary.readouterr()
    assert run(["store", "props", url, "space", "a.txt", "--json"]) == 0
    facts = json.loads(capfdbinary.readouterr().out)
    assert (facts["properties"], facts["mimetype"], facts["checksums"][0]["origin"]) == (
        {"b": "2=3"},
        "text/plain",
        "provider",
    )
    assert run(["store", "props", url, "space", "a.txt"]) == 0
    assert b"property b: 2=3\n" in capfdbinary.readouterr().out


def test_items_and_empty_spaces_are_removed(url: str, folder: Path, tmp_path: Path) -> None:
    run(["store", "put", url, "space", str(folder), "--create"])
    assert run(["store", "delete", url, "space"]) == 1
    assert run(["store", "delete", url, "space", "a.txt", "sub/b.bin"]) == 0
    assert run(["store", "delete", url, "space"]) == 0
    assert LocalStore(tmp_path / "store").spaces() == []


def test_a_store_of_the_settings_is_named_by_its_id(
    folder: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "millstream.toml").write_text('[stores.vault]\nurl = "file://{data}/vault"\n')
    assert run(["store", "put", "vault", "space", str(folder / "a.txt"), "--create", "--data", str(data)]) == 0
    assert (data / "vault" / "space" / "a.txt").read_bytes() == b"grain"
    assert run(["store", "list", "cellar", "--data", str(data)]) == 3
    assert (
        b"unknown store 'cellar': name one of the configured stores (vault), or give a URL"
        in capfdbinary.readouterr().err
    )


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["list", "file:///nowhere/at/all"], 1),
        (["list", "{url}", "nowhere"], 3),
        (["get", "{url}", "space", "missing"], 3),
        (["delete", "{url}", "space", "missing"], 3),
        (["list", "ftp://host"], 2),
        (["props", "{url}", "space", "a.txt", "--set", "broken"], 2),
        (["put", "{url}", "space", "{file}", "--create-only"], 1),
    ],
)
def test_what_goes_wrong_ends_with_the_documented_exit_code(
    url: str, folder: Path, arguments: list[str], code: int
) -> None:
    run(["store", "put", url, "space", str(folder / "a.txt"), "--create"])
    filled = [word.format(url=url, file=folder / "a.txt") for word in arguments]
    assert run(["store", *filled]) == code


def test_two_files_with_one_id_are_not_put(url: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    other = folder.parent / "others" / "a.txt"
    other.parent.mkdir()
    other.write_bytes(b"chaff")
    assert run(["store", "put", url, "space", str(folder / "a.txt"), str(other), "--create"]) == 2
    assert "have the same id, a.txt" in capfd.readouterr().err
    assert run(["store", "put", url, "space", str(folder), str(other.parent)]) == 2
    assert run(["store", "list", url, "space"]) == 0
    assert capfd.readouterr().out == ""


def test_a_folder_with_a_part_that_cannot_be_read_is_not_put(
    url: str, folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = os.scandir

    def refuse(path: Any) -> Any:  # root, who runs the tests in places, can read everything
        if not isinstance(path, int) and os.fspath(path).endswith("sub"):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert run(["store", "put", url, "space", str(folder), "--create"]) == 1
    assert "Permission denied" in capfd.readouterr().err
