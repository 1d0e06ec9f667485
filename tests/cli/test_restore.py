"""``millstream restore`` as people use it after a loss: into a folder, into a store, as of a day."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from millstream.cli.main import run
from millstream.stores import FolderStore, LocalStore, all_entries
from millstream.testing.damage import flip_bit
from suite.sizes import sized
from support.commands import run_command

Answer = tuple[int, dict[str, Any]]


class Protected(NamedTuple):
    """A folder that is protected on two disks."""

    photos: Path
    disks: tuple[Path, Path]
    data: Path
    call: Callable[..., Answer]

    def protect(self, *arguments: str) -> Answer:
        return self.call(
            "protect", str(self.photos), *(f"--to={disk}" for disk in self.disks), "--deletions", "follow", *arguments
        )

    def restore(self, *arguments: str) -> Answer:
        return self.call("restore", "photos", *arguments)

    def copy(self, disk: int, name: str) -> Path:
        return self.disks[disk] / "photos" / name


@pytest.fixture
def protected(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> Protected:
    photos, data = tmp_path / "photos", tmp_path / "node"
    (photos / "2013" / "empty").mkdir(parents=True)
    for number in range(6):
        (photos / "2013" / f"{number}.jpg").write_bytes(b"photo %d" % number)
    (photos / os.fsdecode(b"caf\xe9 50%")).write_bytes(b"odd")
    (photos / "link").symlink_to("2013/0.jpg")
    (photos / "large").write_bytes(bytes(range(256)) * 8192)
    for path in photos.rglob("*"):
        os.utime(path, ns=(0, 1_600_000_000_123_456_789), follow_symlinks=False)

    def call(*arguments: str) -> Answer:
        code = run([*arguments, "--data", str(data), "--json"])
        lines = capsysbinary.readouterr().out.splitlines()
        return code, json.loads(lines[-1]) if lines else {}

    found = Protected(photos, (tmp_path / "disk1", tmp_path / "disk2"), data, call)
    assert found.protect()[0] == 0
    return found


def tree(folder: Path) -> Any:
    return FolderStore(folder, space="s").entries("s")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and not p.is_symlink()}


def test_a_space_comes_back_as_the_folder_that_it_was(protected: Protected, tmp_path: Path) -> None:
    before = tree(protected.photos), contents(protected.photos)
    shutil.rmtree(protected.photos)
    code, report = protected.restore("--to", str(tmp_path / "back"))
    assert (code, report["outcomes"], report["complete"]) == (0, {"restored": 10}, True)
    assert (tree(tmp_path / "back"), contents(tmp_path / "back")) == before
    code, report = protected.restore("--to", str(tmp_path / "back"))
    assert (code, report["outcomes"], report["bytes"]) == (0, {"present": 10}, 0)


def test_a_prefix_restores_what_begins_with_it(protected: Protected, tmp_path: Path) -> None:
    code, report = protected.restore("2013/3", "--to", str(tmp_path / "back"))
    assert (code, report["items"], contents(tmp_path / "back")) == (0, 1, {"2013/3.jpg": b"photo 3"})
    assert protected.restore("2013/3.jpg", "--to", str(tmp_path / "exact"))[1]["items"] == 1


@pytest.mark.parametrize("how", [["--to={}/back"], ["--test"]])
def test_a_prefix_that_no_item_has_is_no_success(protected: Protected, tmp_path: Path, how: list[str]) -> None:
    code, report = protected.restore("2014/", *(one.format(tmp_path) for one in how))
    assert (code, report["items"]) == (3, 0)


def test_a_space_is_restored_to_another_store_with_its_properties(protected: Protected, tmp_path: Path) -> None:
    code, report = protected.restore("--to", (tmp_path / "store").as_uri())
    assert (code, report["outcomes"]) == (0, {"restored": 10})
    copy, restored = LocalStore(protected.disks[0]), LocalStore(tmp_path / "store")
    for entry in copy.entries("photos"):
        here, there = (store.info("photos", entry.content_id) for store in (copy, restored))
        assert (here.checksum(), here.properties, here.mimetype) == (there.checksum(), there.properties, there.mimetype)
    assert protected.restore("--to", (tmp_path / "store").as_uri())[1]["outcomes"] == {"present": 10}


@pytest.mark.parametrize("name", ["2013/3.jpg", "large"])
def test_a_damaged_copy_is_named_and_the_next_one_is_used(protected: Protected, tmp_path: Path, name: str) -> None:
    shutil.rmtree(protected.photos)
    flip_bit(protected.copy(0, name), 5)
    code, report = protected.restore("--to", str(tmp_path / "back"))
    (item,) = report["named"]
    assert (code, report["outcomes"]) == (0, {"restored": 10})
    assert (item["content_id"], item["store"], item["bad"][0]["store"]) == (name, "disk2", "disk1")
    assert (tmp_path / "back" / name).read_bytes() == protected.copy(1, name).read_bytes()


@pytest.mark.parametrize("name", ["2013/3.jpg", "large"])
def test_nothing_is_written_of_an_item_without_a_good_copy(protected: Protected, tmp_path: Path, name: str) -> None:
    shutil.rmtree(protected.photos)
    for disk in (0, 1):
        flip_bit(protected.copy(disk, name), 5)
    code, report = protected.restore("--to", str(tmp_path / "back"))
    assert (code, report["outcomes"]) == (1, {"failed": 1, "restored": 9})
    assert not (tmp_path / "back" / name).exists()
    assert not list((tmp_path / "back").rglob(".millstream*"))


def test_what_differs_at_the_target_is_kept_unless_told_otherwise(protected: Protected, tmp_path: Path) -> None:
    back = tmp_path / "back"
    back.mkdir()
    (back / "large").write_bytes(b"mine")
    (back / "link").write_bytes(b"no link")
    code, report = protected.restore("--to", str(back))
    assert (code, report["outcomes"]) == (1, {"different": 2, "restored": 8})
    assert ((back / "large").read_bytes(), (back / "link").read_bytes()) == (b"mine", b"no link")
    code, report = protected.restore("--to", str(back), "--overwrite")
    assert (code, report["outcomes"]) == (0, {"present": 8, "restored": 2})
    assert contents(back) == contents(protected.photos)


def test_one_store_alone_is_restored_as_it_was_recorded(protected: Protected, tmp_path: Path) -> None:
    flip_bit(protected.copy(0, "2013/3.jpg"), 5)
    code, report = protected.restore("--from", "disk1", "--to", str(tmp_path / "back"))
    assert (code, report["outcomes"]) == (1, {"failed": 1, "restored": 9})
    assert protected.restore("--from", "disk9", "--to", str(tmp_path / "other"))[0] == 3


@pytest.mark.parametrize("overwrite", [(), ("--overwrite",)])
def test_a_file_in_the_place_of_a_folder_that_vanished_is_restored(
    protected: Protected, tmp_path: Path, overwrite: tuple[str, ...]
) -> None:
    (protected.photos / "2014").mkdir()
    for number in range(20):
        (protected.photos / "2014" / f"{number}.jpg").write_bytes(b"old %d" % number)
    protected.protect("--deletions", "hold")
    shutil.rmtree(protected.photos / "2014")
    (protected.photos / "2014").write_bytes(b"new")
    assert protected.protect("--deletions", "hold")[0] == 5
    code, report = protected.restore("--to", str(tmp_path / "back"), *overwrite)
    assert (code, (tmp_path / "back" / "2014").read_bytes()) == (1, b"new")
    assert {one["content_id"] for one in report["named"]} == {f"2014/{number}.jpg" for number in range(20)}
    assert "a file or a link stands in" in report["named"][0]["reason"]


def test_a_deleted_item_is_not_restored(protected: Protected, tmp_path: Path) -> None:
    (protected.photos / "2013" / "3.jpg").unlink()
    protected.protect()
    code, report = protected.restore("--to", str(tmp_path / "back"))
    assert (code, report["items"]) == (0, 9)
    assert not (tmp_path / "back" / "2013" / "3.jpg").exists()


def test_a_test_reads_a_sample_that_can_be_drawn_again(protected: Protected) -> None:
    code, report = protected.restore("--test", "--sample", "4", "--seed", "a")
    assert (code, report["outcomes"], report["seed"]) == (0, {"verified": 4}, "a")
    flip_bit(protected.copy(0, "large"), 5)
    names = [protected.restore("--test", "--from", "disk1", "--seed", "a")[1]["named"] for _ in range(2)]
    assert names[0] == names[1]
    assert [one["content_id"] for one in names[0]] == ["large"]


@pytest.mark.parametrize("target", ["photos", "photos/below", "disk1", "disk1/photos", "node", ".", "uri:disk2"])
def test_a_source_a_copy_and_the_node_are_refused_as_target(protected: Protected, tmp_path: Path, target: str) -> None:
    path = tmp_path / target.removeprefix("uri:")
    before = contents(tmp_path)
    assert protected.restore("--to", path.as_uri() if target.startswith("uri:") else str(path))[0] == 2
    assert {name for name in contents(tmp_path) if not name.startswith("node")} == {
        name for name in before if not name.startswith("node")
    }


def test_a_target_that_cannot_be_written_stops_the_restore(protected: Protected, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert protected.restore("--to", str(tmp_path / "file"))[0] == 2
    assert protected.restore("--to", "memory:")[0] == 2
    assert protected.call("restore", "unknown", "--to", str(tmp_path / "back"))[0] == 3


_KILLED = """
import os, signal, sys
from millstream.cli.main import run
from millstream.mill.restore import targets
def counting(write, left):
    def counted(*args, **kwargs):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return write(*args, **kwargs)
    return counted
left = [int(sys.argv[1])]
for target in (targets.FolderTarget, targets.StoreTarget):
    target.write = counting(target.write, left)
sys.exit(run(sys.argv[2:]))
"""


def killed_after(writes: int, *command: str) -> bool:
    """Run *command* in a process that is killed when it begins the write after so many; whether it was."""
    done = subprocess.run([sys.executable, "-c", _KILLED, str(writes), *command], capture_output=True, check=False)
    return done.returncode == -signal.SIGKILL


def test_a_restore_that_is_killed_again_and_again_resumes(protected: Protected, tmp_path: Path) -> None:
    back = tmp_path / "back"
    command = ["restore", "photos", "--to", str(back), "--data", str(protected.data)]
    killed = 0
    for _ in range(4):
        killed += killed_after(3, *command)
        for name, data in contents(back).items():
            if ".millstream" not in name:
                assert data == (protected.photos / name).read_bytes()
    code, _ = protected.restore("--to", str(back))
    assert (code, killed >= 3) == (0, True)
    assert tree(back) == tree(protected.photos)


ITEMS, KILLS = sized(ci=60, long=5_000), sized(ci=2, long=20)


def test_what_was_put_outlives_the_source_and_the_folder_of_the_node(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    data, files, stores = tmp_path / "node", tmp_path / "files", ("primary", "second", "third")
    random = Random(5)
    bodies = {
        f"{n % 100:02}/item {n} %41.bin": random.randbytes(random.choice((0, 9, 900, 9_000))) for n in range(ITEMS)
    }
    for name, body in bodies.items():
        (files / name).parent.mkdir(parents=True, exist_ok=True)
        (files / name).write_bytes(body)
    name_stores(data, {store: tmp_path / store for store in stores})
    policy = {"defaultPolicies": [{"srcStoreId": "primary", "destStoreId": copy} for copy in stores[1:]]}
    (tmp_path / "policy.json").write_text(json.dumps(policy))
    for line in (
        ["store", "put", "primary", "s", str(files), "--create", "--property", "owner=änn"],
        *(["store", "create", copy, "s"] for copy in stores[1:]),
        ["mill", "policy", "save", "local", str(tmp_path / "policy.json")],
        ["mill", "duplicate"],
    ):
        assert run([*line, "--data", str(data)]) == 0
    before = described(tmp_path / "primary")
    assert before.keys() == bodies.keys()
    shutil.rmtree(data)
    shutil.rmtree(tmp_path / "primary")
    name_stores(data, {store: tmp_path / store for store in stores[1:]})
    assert run(["mill", "rebuild", "content-index", "--data", str(data)]) == 0
    back = ["restore", "s", "--to", (tmp_path / "back").as_uri(), "--data", str(data)]
    killed = [killed_after(ITEMS // (KILLS + 1) // 2, *back) for _ in range(KILLS)]
    assert (run(back), all(killed)) == (0, True)
    assert described(tmp_path / "back") == before
    restored = LocalStore(tmp_path / "back")
    for name, body in bodies.items():
        with restored.open("s", name) as file:
            assert file.read() == body


def name_stores(data: Path, stores: Mapping[str, Path]) -> None:
    """Write the settings of a new node with *stores*, whose folders are made where they are missing."""
    data.mkdir()
    text = "\n".join(f'[stores.{name}]\nurl = "{path.as_uri()}"\n' for name, path in stores.items())
    (data / "millstream.toml").write_text(text)
    for path in stores.values():
        path.mkdir(exist_ok=True)


def described(store: Path) -> dict[str, Any]:
    opened = LocalStore(store)
    infos = [opened.info("s", entry.content_id) for entry in all_entries(opened, "s")]
    return {info.content_id: (info.checksum(), info.mimetype, dict(info.properties)) for info in infos}


@pytest.mark.parametrize(
    ("options", "told"),
    [(["--test", "--to", "x"], "--test and --to cannot be combined"), ([], "the target is missing: give it with --to")],
)
def test_a_restore_has_either_a_target_or_a_test(tmp_path: Path, options: list[str], told: str) -> None:
    answer = run_command("restore", "photos", *options, "--data", str(tmp_path / "data"))
    assert (answer.code, told in answer.err) == (2, True)
