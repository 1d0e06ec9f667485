"""``millstream protect`` as people use it: one command, again and again, over a folder that goes on changing."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import hashlib
import io
import json
import os
import shlex
import shutil
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from rich.progress import Progress

from millstream.cli.main import run
from millstream.core.clock import VirtualClock
from millstream.stores import LocalStore, StoreError
from millstream.testing.damage import flip_bit
from suite.sizes import sized

Answer = tuple[int, dict[str, Any]]


class Desk(NamedTuple):
    """A folder with photos, two empty disks, and the node's folder; nothing of it but the photos is there yet."""

    photos: Path
    disks: tuple[Path, Path]
    data: Path
    call: Callable[..., Answer]

    def protect(self, *arguments: str) -> Answer:
        """Run the command with ``--json``; its exit code and its report."""
        to = [part for disk in self.disks for part in ("--to", str(disk))]
        return self.call("protect", str(self.photos), *to, *arguments)

    def rot(self, name: str, data: bytes) -> None:
        path = self.photos / name
        before = path.stat()
        path.write_bytes(data)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    def written(self) -> dict[Path, int]:
        """When each file of the node and of the disks was written, but for what SQLite keeps beside a database."""
        gc.collect()  # stores of the runs before remove their lock files when they are collected
        files = [path for root in (self.data, *self.disks) for path in root.rglob("*") if path.is_file()]
        return {path: path.stat().st_mtime_ns for path in files if not path.name.endswith(("-shm", "-wal"))}

    def copies(self, name: str) -> list[bytes | None]:
        paths = [disk / "photos" / name for disk in self.disks]
        return [path.read_bytes() if path.exists() else None for path in paths]


@pytest.fixture
def desk(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> Desk:
    photos, data = tmp_path / "photos", tmp_path / "node"
    (photos / "2013").mkdir(parents=True)
    for number in range(6):
        (photos / "2013" / f"{number}.jpg").write_bytes(b"photo %d" % number)

    def call(*arguments: str) -> Answer:
        code = run([*arguments, "--data", str(data), "--json"])
        lines = capsysbinary.readouterr().out.splitlines()
        return code, json.loads(lines[-1]) if lines else {}

    return Desk(photos, (tmp_path / "disk1", tmp_path / "disk2"), data, call)


def verified(report: dict[str, Any]) -> list[int]:
    return [copy["verified"] for copy in report["copies"]]


def found(report: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["content_id"], one["kind"]) for one in report["findings"]]


def test_one_command_sets_up_copies_and_verifies_and_the_next_finds_nothing_to_do(desk: Desk) -> None:
    code, report = desk.protect()
    assert (code, report["items"], verified(report)) == (0, 6, [6, 6])
    assert desk.copies("2013/1.jpg") == [b"photo 1"] * 2
    code, report = desk.protect()
    assert (code, report["adoption"]["read"], verified(report)) == (0, 0, [6, 6])
    assert [(copy["copied"], copy["read"]) for copy in report["copies"]] == [(0, 0)] * 2
    code, status = desk.call("status")
    assert (code, status["well"], status["items"], status["adopted_only"]) == (0, True, 6, 6)


def test_links_empty_folders_and_odd_names_are_copied(desk: Desk) -> None:
    (desk.photos / "link").symlink_to("2013/1.jpg")
    (desk.photos / "empty").mkdir()
    (desk.photos / ".hidden 50%").write_bytes(b"odd")
    code, report = desk.protect()
    assert (code, report["items"], verified(report)) == (0, 9, [9, 9])


def test_a_report_says_how_much_of_a_space_rests_on_adoption(desk: Desk) -> None:
    lines = [f"{hashlib.sha256(b'photo 0').hexdigest()}  2013/0.jpg"]
    (desk.photos.parent / "SHA256SUMS").write_text("\n".join(lines))
    assert desk.protect("--checksums", str(desk.photos.parent / "SHA256SUMS"))[0] == 0
    for disk in ("disk1", "disk2"):
        code, report = desk.call("mill", "report", disk, "photos")
        assert (code, report["adopted"], report["strays"]["count"]) == (0, {"items": 5, "bytes": 35}, 0)
    assert desk.call("mill", "check")[0] == 0
    assert desk.call("mill", "report", "photos", "photos")[1]["adopted"] == {"items": 5, "bytes": 35}


def test_what_was_edited_renamed_added_and_deleted_is_told_apart(desk: Desk) -> None:
    desk.protect()
    (desk.photos / "2013" / "0.jpg").write_bytes(b"edited")
    (desk.photos / "2013" / "1.jpg").rename(desk.photos / "renamed.jpg")
    (desk.photos / "2013" / "2.jpg").unlink()
    (desk.photos / "new.jpg").write_bytes(b"new")
    code, report = desk.protect()
    summary = report["adoption"]
    assert (code, summary["added"], summary["changed"], summary["moved"], report["vanished"]) == (5, 2, 1, 1, 1)
    assert verified(report) == [6, 6]
    assert desk.copies("2013/0.jpg") == [b"edited"] * 2
    assert desk.copies("renamed.jpg") == [b"photo 1"] * 2
    assert desk.copies("2013/1.jpg") == [None] * 2
    assert desk.copies("2013/2.jpg") == [b"photo 2"] * 2
    assert desk.call("status")[0] == 1


def test_a_deletion_goes_on_once_somebody_says_so(desk: Desk) -> None:
    desk.protect()
    (desk.photos / "2013" / "2.jpg").unlink()
    code, report = desk.protect()
    assert (code, report["vanished_items"]) == (5, ["2013/2.jpg"])
    assert desk.call("mill", "forget", "photos", "photos", "--vanished") == (0, {"tombstones": 1})
    code, report = desk.protect()
    assert (code, verified(report), desk.copies("2013/2.jpg")) == (0, [5, 5], [None, None])


def test_deletions_are_followed_where_the_space_says_so_also_on_a_later_run(desk: Desk) -> None:
    desk.protect()
    (desk.photos / "2013" / "2.jpg").unlink()
    assert desk.protect("--deletions", "follow")[0] == 0
    assert desk.copies("2013/2.jpg") == [None, None]
    (desk.photos / "2013" / "3.jpg").unlink()
    assert desk.protect()[0] == 0
    (desk.photos / "2013" / "4.jpg").unlink()
    assert desk.protect("--deletions", "hold")[0] == 5


def test_an_emptied_source_does_not_empty_its_copies_even_where_deletions_are_followed(desk: Desk) -> None:
    for number in range(20):
        (desk.photos / f"{number}.txt").write_bytes(b"text %d" % number)
    desk.protect("--deletions", "follow")
    shutil.rmtree(desk.photos)
    desk.photos.mkdir()
    assert desk.protect("--dry-run")[0] == 5
    code, report = desk.protect()
    assert (code, report["items"], report["vanished"]) == (5, 0, 26)
    assert desk.call("status")[0] == 1
    desk.call("mill", "forget", "photos", "photos", "--vanished")
    code, report = desk.protect()
    assert code == 5
    assert all(copy["hold"] is not None for copy in report["copies"])
    assert desk.copies("1.txt") == [b"text 1"] * 2
    desk.call("mill", "approve", "--all")
    assert desk.protect()[0] == 0
    assert desk.copies("1.txt") == [None] * 2


def test_one_file_alone_that_is_deleted_is_kept_although_deletions_are_followed(desk: Desk) -> None:
    shutil.rmtree(desk.photos / "2013")
    (desk.photos / "only.jpg").write_bytes(b"only")
    assert desk.protect("--deletions", "follow")[0] == 0
    (desk.photos / "only.jpg").unlink()
    assert desk.protect()[0] == 5
    assert desk.copies("only.jpg") == [b"only"] * 2


@pytest.mark.parametrize("arguments", [(), ("--dry-run",)])
def test_an_empty_source_is_not_set_up_unless_that_is_meant(
    desk: Desk, capsysbinary: pytest.CaptureFixture[bytes], arguments: tuple[str, ...]
) -> None:
    shutil.rmtree(desk.photos / "2013")
    disks = [part for disk in desk.disks for part in ("--to", str(disk))]
    command = ["protect", str(desk.photos), *disks, "--data", str(desk.data), *arguments]
    assert run(command) == 2
    assert b"is empty: mount its disk" in capsysbinary.readouterr().err
    assert not desk.data.exists() and not any(disk.exists() for disk in desk.disks)
    assert run([*command, "--allow-empty"]) == 0
    printed = capsysbinary.readouterr().out
    assert b"Protected" not in printed
    assert (b"Nothing to protect" in printed) is not bool(arguments)


def test_what_is_left_out_later_is_shown_as_that_and_its_copies_are_kept_until_it_is_taken_back(
    desk: Desk, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    (desk.photos / "big.iso").write_bytes(b"big")
    (desk.photos / "gone.iso").write_bytes(b"gone")
    desk.protect()
    (desk.photos / "gone.iso").unlink()
    assert desk.protect("--dry-run", "--exclude", "*.iso")[0] == 0
    code, report = desk.protect("--exclude", "*.iso")
    assert (code, report["items"], report["vanished"], report["excluded"]) == (0, 6, 0, 2)
    assert report["exclude"] == ["*.iso"]
    assert desk.copies("big.iso") == [b"big"] * 2
    assert desk.protect()[1]["excluded"] == 2
    code, status = desk.call("status")
    assert (code, status["excluded"], status["vanished"]) == (0, 2, 0)
    code, report = desk.protect("--no-exclude")
    assert (code, report["items"], report["excluded"], report["vanished"]) == (5, 7, 0, 1)
    assert (report["adoption"]["returned"], report["adoption"]["read"]) == (1, 0)
    assert verified(report) == [7, 7]
    assert desk.call("protect", str(desk.photos), "--to", "x", "--exclude", "a", "--no-exclude")[0] == 2


def test_a_damaged_copy_of_what_is_left_out_is_repaired(desk: Desk) -> None:
    desk.protect()
    assert desk.protect("--exclude", "1.jpg")[0] == 0
    flip_bit(desk.disks[0] / "photos" / "2013" / "1.jpg")
    code, report = desk.protect("--read", "all")
    assert (code, report["copies"][0]["repaired"], report["excluded"]) == (0, 1, 1)
    assert desk.copies("2013/1.jpg") == [b"photo 1"] * 2


def test_rot_in_the_source_is_named_and_never_copied_over_the_good_copies(desk: Desk) -> None:
    desk.protect()
    desk.rot("2013/1.jpg", b"phXto 1")
    code, report = desk.protect("--read", "all")
    assert (code, found(report), verified(report)) == (1, [("2013/1.jpg", "suspected rot")], [6, 6])
    assert desk.copies("2013/1.jpg") == [b"photo 1"] * 2
    assert desk.protect()[0] == 1
    assert desk.call("mill", "accept", "photos", "photos", "2013/1.jpg")[0] == 0
    assert desk.protect()[0] == 0
    assert desk.copies("2013/1.jpg") == [b"phXto 1"] * 2


def test_a_restored_file_ends_the_suspicion(desk: Desk) -> None:
    desk.protect()
    desk.rot("2013/1.jpg", b"phXto 1")
    assert desk.protect("--read", "all")[0] == 1
    (desk.photos / "2013" / "1.jpg").write_bytes(b"photo 1")
    assert desk.protect()[0] == 0


def test_a_damaged_a_missing_and_an_overwritten_copy_are_repaired(desk: Desk) -> None:
    desk.protect()
    one, two = desk.disks
    flip_bit(one / "photos" / "2013" / "1.jpg")
    (two / "photos" / "2013" / "2.jpg").unlink()
    (two / "photos" / "2013" / "3.jpg").write_bytes(b"something longer")
    code, report = desk.protect("--read", "all")
    assert (code, verified(report)) == (0, [6, 6])
    assert desk.copies("2013/1.jpg") + desk.copies("2013/2.jpg") == [b"photo 1"] * 2 + [b"photo 2"] * 2
    assert desk.copies("2013/3.jpg") == [b"photo 3"] * 2


@pytest.mark.parametrize("arguments", [(), ("--read", "all")], ids=["again", "read all"])
@pytest.mark.parametrize("in_its_place", ["nothing", "folder", "link", "pipe", "longer"])
def test_every_copy_that_is_repaired_is_named(
    desk: Desk, capsysbinary: pytest.CaptureFixture[bytes], in_its_place: str, arguments: tuple[str, ...]
) -> None:
    desk.protect()
    path = desk.disks[1] / "photos" / "2013" / "2.jpg"
    path.unlink()
    if in_its_place == "folder":
        path.mkdir()
    elif in_its_place == "link":
        path.symlink_to(desk.photos / "2013" / "2.jpg")
    elif in_its_place == "pipe":
        os.mkfifo(path)
    elif in_its_place == "longer":
        path.write_bytes(b"something longer")
    disks = [part for disk in desk.disks for part in ("--to", str(disk))]
    assert run(["protect", str(desk.photos), *disks, "--data", str(desk.data), *arguments]) == 0
    kind = "checksum-mismatch" if in_its_place == "longer" else "missing"
    assert f"REPAIRED  disk2  2013/2.jpg: {kind}".encode() in capsysbinary.readouterr().out
    with LocalStore(desk.disks[1]).open("photos", "2013/2.jpg") as file:  # another name where a folder has taken this
        assert file.read() == b"photo 2"
    report = desk.call("mill", "report", "disk2", "photos")[1]
    assert [(one["content_id"], one["kind"]) for one in report["repaired"]] == [("2013/2.jpg", kind)]
    code, report = desk.protect("--read", "all")
    assert (code, [copy["repairs"] for copy in report["copies"]]) == (0, [[], []])


def test_copies_that_are_repaired_together_are_named_each(desk: Desk) -> None:
    desk.protect()
    for disk in desk.disks:
        flip_bit(disk / "photos" / "2013" / "1.jpg")
    code, report = desk.protect("--read", "all")
    assert (code, desk.copies("2013/1.jpg")) == (0, [b"photo 1"] * 2)
    repaired = [[(one["content_id"], one["kind"]) for one in copy["repairs"]] for copy in report["copies"]]
    assert repaired == [[("2013/1.jpg", "checksum-mismatch")]] * 2


@pytest.mark.parametrize("change", [{"mtime": "2001-01-01T00:00:00Z"}, {"mtime": None}, {"colour": "red"}])
def test_changed_properties_of_a_copy_are_named_and_set_right(desk: Desk, change: dict[str, str | None]) -> None:
    desk.protect()
    store = LocalStore(desk.disks[0])
    before = dict(store.info("photos", "2013/1.jpg").properties)
    changed = {name: value for name, value in {**before, **change}.items() if value is not None}
    store.set_properties("photos", "2013/1.jpg", changed)
    code, report = desk.protect("--read", "all")
    (repair,) = report["copies"][0]["repairs"]
    assert (code, repair["content_id"], repair["kind"]) == (0, "2013/1.jpg", "properties")
    assert next(iter(change)) in repair["detail"]
    assert store.info("photos", "2013/1.jpg").properties == before
    assert desk.protect("--read", "all")[1]["copies"][0]["repairs"] == []


def test_properties_that_cannot_be_set_right_stay_a_finding(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.protect()
    LocalStore(desk.disks[0]).set_properties("photos", "2013/1.jpg", {"colour": "red"})

    def refuse(*_: object, **__: object) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(LocalStore, "set_properties", refuse)
    code, report = desk.protect("--read", "all")
    (finding,) = report["copies"][0]["findings"]
    assert (code, finding["kind"], verified(report)) == (1, "properties", [5, 6])
    assert "the disk is full" in finding["detail"]


def test_a_renamed_file_that_was_touched_is_copied_with_its_new_time(desk: Desk) -> None:
    desk.protect()
    (desk.photos / "2013" / "1.jpg").rename(desk.photos / "renamed.jpg")
    os.utime(desk.photos / "renamed.jpg", (1_000_000_000, 1_000_000_000))
    code, report = desk.protect()
    assert (code, report["adoption"]["moved"], [copy["repairs"] for copy in report["copies"]]) == (0, 1, [[], []])
    for disk in desk.disks:
        assert LocalStore(disk).info("photos", "renamed.jpg").properties["mtime"].startswith("1000000000.")


def test_a_renamed_link_is_no_deletion_and_no_renamed_file_of_the_same_bytes(desk: Desk) -> None:
    (desk.photos / "link").symlink_to("2013/1.jpg")
    (desk.photos / "file").write_bytes(b"2013/2.jpg")
    desk.protect()
    (desk.photos / "link").rename(desk.photos / "renamed link")
    (desk.photos / "file").unlink()
    (desk.photos / "new link").symlink_to("2013/2.jpg")
    code, report = desk.protect()
    assert (code, report["adoption"]["moved"], report["vanished_items"]) == (5, 1, ["file"])
    assert desk.copies("link") == [None] * 2 and desk.copies("renamed link") == [b"2013/1.jpg"] * 2
    assert verified(report) == [8, 8]
    for disk in desk.disks:
        assert LocalStore(disk).info("photos", "renamed link").properties["kind"] == "symlink"


def test_the_old_copy_of_a_renamed_file_stays_until_the_new_one_is_verified_also_where_deletions_are_followed(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.protect("--deletions", "follow")
    (desk.photos / "2013" / "1.jpg").rename(desk.photos / "renamed.jpg")
    with monkeypatch.context() as patch:
        patch.setattr("millstream.mill.adoption.protection.Protection._verify", lambda *_: {})
        desk.protect()
    assert desk.copies("2013/1.jpg") == desk.copies("renamed.jpg") == [b"photo 1"] * 2
    code, report = desk.protect()
    assert (code, verified(report), desk.copies("2013/1.jpg")) == (0, [6, 6], [None, None])


def test_forgetting_what_vanished_keeps_the_old_copy_of_a_renamed_file_until_the_new_one_is_verified(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.protect()
    (desk.photos / "2013" / "1.jpg").rename(desk.photos / "renamed.jpg")
    (desk.photos / "2013" / "2.jpg").unlink()
    with monkeypatch.context() as patch:
        patch.setattr("millstream.mill.adoption.protection.Protection._verify", lambda *_: {})
        patch.setattr("millstream.mill.adoption.protection.copy_renamed", lambda *_: 0)
        patch.setattr("millstream.mill.adoption.protection.Protection._duplicate", lambda *_: None)
        desk.protect()
    assert desk.call("mill", "forget", "photos", "photos", "--vanished") == (0, {"tombstones": 1})
    desk.call("mill", "duplicate")
    assert desk.copies("2013/1.jpg") == [b"photo 1"] * 2 and desk.copies("2013/2.jpg") == [None] * 2
    code, report = desk.protect()
    assert (code, verified(report), desk.copies("2013/1.jpg")) == (0, [5, 5], [None, None])


def test_a_copy_that_is_lost_whole_is_named_item_by_item(
    desk: Desk, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    for number in range(30):
        (desk.photos / f"{number}.txt").write_bytes(b"text %d" % number)
    desk.protect()
    shutil.rmtree(desk.disks[1] / "photos" / "2013")
    for number in range(30):
        (desk.disks[1] / "photos" / f"{number}.txt").unlink()
    disks = [part for disk in desk.disks for part in ("--to", str(disk))]
    assert run(["protect", str(desk.photos), *disks, "--data", str(desk.data)]) == 0
    printed = capsysbinary.readouterr().out
    assert printed.count(b"REPAIRED") == 20
    assert b"16 more that were repaired: see --json" in printed
    assert len(desk.call("mill", "report", "disk2", "photos")[1]["repaired"]) == 36


def test_damage_behind_a_plan_that_waits_is_not_hidden_by_it(desk: Desk) -> None:
    for number in range(150):
        (desk.photos / f"{number}.txt").write_bytes(b"text %d" % number)
    desk.protect()
    for number in range(150):
        (desk.photos / f"{number}.txt").write_bytes(b"encrypted %d" % number)
    code, report = desk.protect()
    assert code == 5
    assert {copy["pending"] for copy in report["copies"]} == {150}
    desk.rot("2013/1.jpg", b"phXto 1")
    flip_bit(desk.disks[0] / "photos" / "2013" / "1.jpg")
    flip_bit(desk.disks[1] / "photos" / "2013" / "1.jpg")
    code, report = desk.protect("--read", "all")
    assert code == 1
    assert desk.copies("7.txt") == [b"text 7"] * 2
    assert [copy["damaged"] for copy in report["copies"]] == [1, 1]


def test_a_copy_whose_own_record_is_damaged_is_written_again(desk: Desk) -> None:
    desk.protect()
    records = sorted(desk.disks[0].glob(".millstream/sidecars/photos/*/*.json"))[:2]
    for record in records:
        flip_bit(record, 3)
    code, report = desk.protect("--read", "all")
    assert (code, verified(report), found(report)) == (0, [6, 6], [])
    assert report["copies"][0]["repaired"] == 2
    assert desk.copies("2013/1.jpg") == [b"photo 1"] * 2


def test_a_check_says_that_an_item_of_the_source_was_changed_since_it_was_adopted(desk: Desk) -> None:
    desk.protect()
    (desk.photos / "2013" / "1.jpg").write_bytes(b"a photo with other colours")
    code, report = desk.call("mill", "check", "--store", "photos")
    assert (code, report["explained"]) == (0, 1)
    assert report["kinds"] == {"B1 intact": 5, "B26 changed": 1}
    code, report = desk.protect()
    assert (code, verified(report)) == (0, [6, 6])
    assert desk.call("mill", "check", "--store", "photos")[1]["kinds"] == {"B1 intact": 6}


def test_a_copy_that_is_a_hard_link_to_another_copy_or_to_the_source_is_made_a_file_of_its_own(desk: Desk) -> None:
    desk.protect()
    linked = desk.disks[0] / "photos" / "2013" / "1.jpg", desk.disks[1] / "photos" / "2013" / "2.jpg"
    targets = desk.photos / "2013" / "1.jpg", desk.disks[0] / "photos" / "2013" / "2.jpg"
    for path, target in zip(linked, targets, strict=True):
        path.unlink()
        path.hardlink_to(target)
    code, report = desk.protect("--read", "all")
    assert (code, verified(report), found(report)) == (0, [6, 6], [])
    assert [copy["repaired"] for copy in report["copies"]] == [1, 1]
    assert [path.stat().st_nlink for path in linked] == [1, 1]
    assert desk.copies("2013/1.jpg") == [b"photo 1"] * 2


def test_a_hard_link_that_cannot_be_replaced_is_no_verified_copy(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.protect()
    path = desk.disks[0] / "photos" / "2013" / "1.jpg"
    path.unlink()
    path.hardlink_to(desk.photos / "2013" / "1.jpg")

    def refuse(*_: object, **__: object) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(LocalStore, "put", refuse)
    code, report = desk.protect("--read", "all")
    assert (code, verified(report)) == (1, [5, 6])
    (finding,) = report["copies"][0]["findings"]
    assert (finding["content_id"], finding["kind"]) == ("2013/1.jpg", "shared-file")
    assert "a hard link to the file of another store" in finding["detail"] and "(store photos)" in finding["detail"]


def test_a_stray_item_in_a_copy_is_named(desk: Desk) -> None:
    desk.protect()
    (desk.disks[0] / "photos" / "stray").write_bytes(b"whose?")
    code, report = desk.protect()
    assert code == 1
    assert [one["content_id"] for one in report["copies"][0]["findings"]] == ["stray"]
    assert (desk.disks[0] / "photos" / "stray").exists()


def test_checksums_that_people_have_are_compared(desk: Desk, tmp_path: Path) -> None:
    lines = [f"{hashlib.sha256(b'photo %d' % n).hexdigest()}  2013/{n}.jpg\n" for n in range(6)]
    listed = tmp_path / "SHA256SUMS"
    listed.write_text("".join(lines), "utf-8")
    (desk.photos / "2013" / "3.jpg").write_bytes(b"photo X")
    code, report = desk.protect("--checksums", str(listed))
    assert (code, found(report), verified(report)) == (1, [("2013/3.jpg", "checksum mismatch")], [5, 5])
    assert desk.copies("2013/3.jpg") == [None, None]
    assert report["adopted_only"] == 0
    assert desk.protect()[0] == 1
    (desk.photos / "2013" / "3.jpg").write_bytes(b"photo 3")
    assert desk.protect("--checksums", str(listed))[0] == 0


def test_special_files_forbid_success_unless_they_are_left_out(desk: Desk) -> None:
    os.mkfifo(desk.photos / "pipe")
    code, report = desk.protect()
    assert (code, found(report), verified(report)) == (1, [("pipe", "not supported")], [6, 6])
    assert desk.protect("--exclude", "pipe")[0] == 0
    assert desk.protect()[0] == 0  # it stays left out


def test_a_disk_that_is_away_is_named_and_the_other_is_served(desk: Desk) -> None:
    desk.protect()
    desk.disks[1].rename(desk.disks[1].parent / "unplugged")
    (desk.photos / "new.jpg").write_bytes(b"new")
    code, report = desk.protect()
    assert (code, verified(report)) == (1, [7, 6])
    assert "disk2" in report["copies"][1]["error"]
    assert not desk.disks[1].exists()
    (desk.disks[1].parent / "unplugged").rename(desk.disks[1])
    assert desk.protect()[0] == 0


def test_a_dry_run_that_reads_everything_says_what_the_run_then_does(desk: Desk) -> None:
    desk.protect()
    (desk.photos / "2013" / "0.jpg").write_bytes(b"edited")
    (desk.photos / "2013" / "1.jpg").rename(desk.photos / "renamed.jpg")
    (desk.photos / "2013" / "2.jpg").unlink()
    (desk.photos / "2013" / "3.jpg").touch()
    desk.rot("2013/4.jpg", b"phXto 4")
    before = desk.written()
    code, plan = desk.protect("--dry-run", "--read", "all")
    assert desk.written() == before
    assert (plan["adoption"]["unread"], code) == (0, 1)
    done, report = desk.protect("--read", "all")
    assert done == code
    same = ("added", "changed", "moved", "suspected", "findings", "read", "listed")
    assert {name: plan["adoption"][name] for name in same} == {name: report["adoption"][name] for name in same}
    assert (plan["items"], plan["bytes"], plan["vanished"]) == (report["items"], report["bytes"], report["vanished"])
    assert [(one["copies"] + one["replaced"], one["deletes"]) for one in plan["copies"]] == [
        (one["copied"], one["deleted"]) for one in report["copies"]
    ]


def test_a_dry_run_of_something_new_sets_up_nothing_and_says_what_it_did_not_read(desk: Desk) -> None:
    code, plan = desk.protect("--dry-run")
    assert (code, plan["adoption"]["unread"], [one["copies"] for one in plan["copies"]]) == (0, 6, [6, 6])
    assert not desk.data.exists() and not any(disk.exists() for disk in desk.disks)


def edit_source(desk: Desk) -> None:
    (desk.photos / "2013" / "0.jpg").write_bytes(b"edited")
    (desk.photos / "2013" / "1.jpg").rename(desk.photos / "renamed.jpg")
    (desk.photos / "new.jpg").write_bytes(b"new")


def lose_at_source(desk: Desk) -> None:
    (desk.photos / "2013" / "2.jpg").unlink()


def rot_at_source(desk: Desk) -> None:
    desk.rot("2013/3.jpg", b"PHOTO 3")


def damage_copies(desk: Desk) -> None:
    flip_bit(desk.disks[0] / "photos" / "2013" / "4.jpg", 5)
    (desk.disks[1] / "photos" / "2013" / "5.jpg").unlink()
    (desk.disks[1] / "photos" / "2013" / "3.jpg").write_bytes(b"shorter")


def damage_all_copies_and_the_source(desk: Desk) -> None:
    desk.rot("2013/5.jpg", b"PHOTO 5")
    for disk in desk.disks:
        (disk / "photos" / "2013" / "5.jpg").write_bytes(b"pHOTO 5")


def put_a_stray(desk: Desk) -> None:
    LocalStore(desk.disks[0]).put("photos", "stray", io.BytesIO(b"stray"))


def touch_a_copy(desk: Desk) -> None:
    LocalStore(desk.disks[0]).set_properties("photos", "2013/4.jpg", {"mtime": "1.000000000"})


def lose_the_record(desk: Desk) -> None:
    for path in desk.data.glob("node.db*"):
        path.unlink()


EVENTS = [
    edit_source, lose_at_source, rot_at_source, damage_copies, damage_all_copies_and_the_source, put_a_stray,
    touch_a_copy, lose_the_record,
]  # fmt: skip


@pytest.mark.parametrize("seed", range(len(EVENTS) + sized(ci=6, long=200)))
def test_a_dry_run_that_reads_everything_says_exactly_what_the_run_does(desk: Desk, seed: int) -> None:
    desk.protect()
    events = EVENTS[seed : seed + 1] or Random(seed).sample(EVENTS, 4)
    for event in events:
        event(desk)
    before = desk.written()
    code, plan = desk.protect("--dry-run", "--read", "all")
    assert desk.written() == before
    done, report = desk.protect("--read", "all")
    assert (code, plan["items"], plan["vanished"]) == (done, report["items"], report["vanished"])
    assert plan["adoption"] == report["adoption"]
    assert [one["content_id"] for one in plan["findings"]] == [one["content_id"] for one in report["findings"]]
    for planned, copy in zip(plan["copies"], report["copies"], strict=True):
        assert planned["copies"] + planned["replaced"] == copy["copied"]
        for names in ("repairs", "findings"):
            planned_names = sorted(one["content_id"] for one in planned[names])
            assert planned_names == sorted({one["content_id"] for one in copy[names]}), (names, events)
        assert (planned["taken_over"], planned["deletes"]) == (copy["taken_over"], copy["deleted"])


def test_a_stray_in_a_copy_is_named_with_what_to_do_about_it(desk: Desk) -> None:
    desk.protect()
    (desk.disks[0] / "photos" / "it's stray").write_bytes(b"stray")
    code, report = desk.protect()
    (finding,) = report["copies"][0]["findings"]
    assert (code, finding["content_id"], finding["kind"]) == (1, "it's stray", "stray")
    command = finding["detail"].partition("(`")[2].removesuffix("`)")
    assert run([*shlex.split(command)[1:], "--data", str(desk.data)]) == 0
    assert desk.protect()[0] == 0


@pytest.mark.parametrize("arguments", [(), ("--dry-run",)])
def test_a_source_that_is_missing_sets_up_nothing(desk: Desk, arguments: tuple[str, ...]) -> None:
    shutil.rmtree(desk.photos)
    assert desk.protect(*arguments)[0] == 1
    assert not desk.data.exists() and not any(disk.exists() for disk in desk.disks)


def test_places_that_lie_in_one_another_or_are_named_twice_are_refused(desk: Desk, tmp_path: Path) -> None:
    def code(*arguments: str) -> int:
        return desk.call("protect", str(desk.photos), *arguments)[0]

    assert code("--to", str(desk.photos / "copy")) == 2
    assert code("--to", str(tmp_path)) == 2  # the copy would be the source
    assert code("--to", str(desk.disks[0]), "--to", f"{desk.disks[0]}/") == 2
    assert run(["protect", str(desk.photos), "--to", str(desk.disks[0]), "--data", str(desk.photos / "node")]) == 2
    assert not desk.data.exists() and sorted(path.name for path in desk.photos.iterdir()) == ["2013"]


@pytest.mark.parametrize("scheme", ["cas", "folder"])
def test_a_store_that_cannot_hold_copies_is_refused_before_anything_is_written(desk: Desk, scheme: str) -> None:
    copy = desk.photos / "copy"
    assert desk.call("protect", str(desk.photos), "--to", f"{scheme}://{copy}")[0] == 2
    assert not copy.exists() and not desk.data.exists()


def test_a_copy_among_the_files_of_another_copy_is_refused(desk: Desk) -> None:
    one = desk.disks[0]
    assert desk.call("protect", str(desk.photos), "--to", str(one), "--to", str(one / "photos" / "second"))[0] == 2
    assert not desk.data.exists() and not one.exists()


def test_an_unset_variable_does_not_name_the_current_folder(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    assert desk.call("protect", str(desk.photos), "--to", "")[0] == 2
    assert desk.call("protect", "", "--to", str(desk.disks[0]))[0] == 2
    assert not any(here.iterdir()) and not desk.data.exists()


def test_the_source_under_a_second_mount_is_still_the_source(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    mount = desk.disks[0]
    mount.mkdir()
    same = Path.samefile

    def samefile(path: Path, other: Path) -> bool:  # as the kernel answers for a bind mount of the photos
        return same(desk.photos if path == mount else path, other)

    monkeypatch.setattr(Path, "samefile", samefile)
    assert desk.call("protect", str(desk.photos), "--to", str(mount / "copies"))[0] == 2
    assert not any(mount.iterdir()) and not desk.data.exists()


def _mounted(desk: Desk, monkeypatch: pytest.MonkeyPatch, seen: Path, at: Path) -> None:
    """Let the kernel say that the folder *seen* is also mounted *at*."""
    at.mkdir(exist_ok=True)
    table = desk.photos.parent / "mountinfo"
    lines = ["27 1 254:0 / / rw - ext4 /dev/vda rw", f"90 27 254:0 {seen} {at} rw - ext4 /dev/vda rw", ""]
    table.write_text("\n".join(lines), "utf-8")
    monkeypatch.setattr("millstream.core.mounts._MOUNTS", table)


def test_a_folder_of_the_source_under_a_second_mount_is_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    _mounted(desk, monkeypatch, desk.photos / "2013", desk.disks[0])
    assert desk.protect()[0] == 2
    assert not any(desk.disks[0].iterdir()) and not desk.data.exists() and not desk.disks[1].exists()


def test_a_destination_that_is_mounted_below_the_source_is_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    _mounted(desk, monkeypatch, desk.disks[0], desk.photos / "mounted")
    assert desk.protect()[0] == 2
    assert not desk.data.exists() and not desk.disks[0].exists()


def test_one_disk_under_two_mounts_is_one_copy(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    _mounted(desk, monkeypatch, desk.disks[0], desk.disks[1])
    assert desk.protect()[0] == 2
    assert not desk.data.exists() and not any(desk.disks[1].iterdir())


@pytest.mark.parametrize(("data", "disk"), [("node", "node/copies"), ("disk/node", "disk"), ("photos/node", "disk")])
def test_copies_and_the_folder_of_the_node_do_not_lie_in_one_another(
    desk: Desk, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], data: str, disk: str
) -> None:
    arguments = ["protect", str(desk.photos), "--to", str(tmp_path / disk), "--data", str(tmp_path / data)]
    assert run(arguments) == 2
    assert b"choose another" in capsysbinary.readouterr().err
    assert not (tmp_path / data).exists() and not (tmp_path / disk).exists()


def test_a_second_folder_of_the_same_name_needs_another_space(desk: Desk, tmp_path: Path) -> None:
    desk.protect()
    other = tmp_path / "elsewhere" / "photos"
    other.mkdir(parents=True)
    (other / "a").write_bytes(b"a")
    to = ("--to", str(desk.disks[0]))
    assert desk.call("protect", str(other), *to)[0] == 2
    code, report = desk.call("protect", str(other), *to, "--space", "more")
    assert (code, report["space"], verified(report)) == (0, "more", [1])
    assert desk.protect()[0] == 0


def test_a_second_run_at_the_same_time_is_refused_by_name(desk: Desk) -> None:
    desk.protect()
    with (desk.data / "protect.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert desk.protect()[0] == 4


def test_copies_that_nobody_remembers_are_not_replaced_where_they_differ(desk: Desk) -> None:
    desk.protect()
    shutil.rmtree(desk.data)
    desk.rot("2013/1.jpg", b"phXto 1")
    (desk.photos / "new.jpg").write_bytes(b"new")
    for _ in range(2):  # the first run's record of the source says nothing about the copies
        code, report = desk.protect("--read", "all")
        assert (code, desk.copies("2013/1.jpg"), verified(report)) == (1, [b"photo 1"] * 2, [6, 6])
        for copy in report["copies"]:
            (finding,) = copy["findings"]
            assert (finding["content_id"], finding["kind"], copy["error"]) == ("2013/1.jpg", "contradicted", "")
            assert "--replace" in finding["detail"]
    assert desk.copies("new.jpg") == [b"new"] * 2
    code, report = desk.protect("--replace")
    assert (code, verified(report), desk.copies("2013/1.jpg")) == (0, [7, 7], [b"phXto 1"] * 2)
    assert desk.protect()[0] == 0


def test_a_new_node_takes_over_the_copies_that_it_finds_without_copying_them(desk: Desk) -> None:
    desk.protect()
    shutil.rmtree(desk.data)
    before = {path: path.stat().st_ino for disk in desk.disks for path in disk.rglob("*.jpg")}
    code, report = desk.protect()
    assert (code, verified(report)) == (0, [6, 6])
    for copy in report["copies"]:
        assert (copy["taken_over"], copy["copied"], copy["read"], copy["repairs"]) == (6, 0, 6, [])
    assert {path: path.stat().st_ino for path in before} == before
    assert [copy["taken_over"] for copy in desk.protect()[1]["copies"]] == [0, 0]


def _lose_rows(desk: Desk, condition: str) -> None:
    with contextlib.closing(sqlite3.connect(desk.data / "node.db")) as connection:
        connection.execute(f"DELETE FROM mill_manifest WHERE {condition}")
        connection.commit()


@pytest.mark.parametrize(
    ("condition", "taken_over"),
    [
        ("store = 'disk1' AND content_id < '2013/3.jpg'", [3, 0]),
        ("store = 'disk1'", [6, 0]),
        ("store = 'photos'", [0, 0]),
        ("1", [6, 6]),
    ],
)
def test_copies_whose_records_were_lost_are_recorded_again_and_not_copied(
    desk: Desk, condition: str, taken_over: list[int]
) -> None:
    desk.protect()
    _lose_rows(desk, condition)
    code, report = desk.protect()
    assert (code, verified(report), [copy["taken_over"] for copy in report["copies"]]) == (0, [6, 6], taken_over)
    assert [(copy["copied"], copy["repairs"]) for copy in report["copies"]] == [(0, [])] * 2
    assert desk.call("mill", "check")[0] == 0
    assert desk.call("status")[0] == 0


@pytest.mark.parametrize("damage", ["flipped", "longer"])
def test_a_damaged_copy_whose_record_was_lost_is_named_and_repaired_and_the_others_are_served(
    desk: Desk, damage: str
) -> None:
    desk.protect()
    _lose_rows(desk, "store = 'disk1' AND content_id < '2013/3.jpg'")
    path = desk.disks[0] / "photos" / "2013" / "1.jpg"
    if damage == "longer":
        path.write_bytes(b"something longer")
    else:
        flip_bit(path)
    (desk.photos / "new.jpg").write_bytes(b"new")
    code, report = desk.protect()
    assert (code, verified(report), desk.copies("2013/1.jpg")) == (0, [7, 7], [b"photo 1"] * 2)
    copy = report["copies"][0]
    assert (copy["taken_over"], [one["content_id"] for one in copy["repairs"]]) == (2, ["2013/1.jpg"])
    assert list((desk.disks[0] / "x-quarantine").rglob("1.jpg*"))


def test_a_differing_copy_in_a_store_that_is_new_to_the_node_is_left_alone(desk: Desk) -> None:
    to = ("--to", str(desk.disks[0]))
    assert desk.call("protect", str(desk.photos), *to)[0] == 0
    other = desk.disks[1] / "photos" / "2013" / "1.jpg"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"another photo")
    for _ in range(2):
        code, report = desk.protect("--read", "all")
        assert (code, other.read_bytes(), verified(report)) == (1, b"another photo", [6, 5])
        assert [one["content_id"] for one in report["copies"][1]["findings"]] == ["2013/1.jpg"]


def test_copies_of_other_programs_are_taken_over_where_they_are_the_same(desk: Desk) -> None:
    shutil.copytree(desk.photos, desk.disks[0] / "photos")
    code, report = desk.protect()
    assert (code, verified(report)) == (0, [6, 6])


def test_a_forged_copy_is_found_although_its_own_record_agrees(desk: Desk) -> None:
    desk.protect()
    LocalStore(desk.disks[0]).put("photos", "2013/1.jpg", io.BytesIO(b"forgery"))
    code, report = desk.protect()
    assert (code, report["copies"][0]["repaired"], desk.copies("2013/1.jpg")) == (0, 1, [b"photo 1"] * 2)


def test_spaces_of_the_system_and_files_are_refused(desk: Desk) -> None:
    assert desk.protect("--space", "x-photos")[0] == 2
    assert desk.call("protect", str(desk.photos / "2013" / "1.jpg"), "--to", str(desk.disks[0]))[0] == 1
    assert not desk.data.exists()


def test_watching_runs_again_after_each_pause_until_it_is_stopped(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    clock = VirtualClock()
    asked = iter([False, False, False, False, True])
    monkeypatch.setattr("millstream.cli.protect.SystemClock", lambda: clock)
    monkeypatch.setattr("millstream.cli.protect.stop_on_signals", lambda: lambda: next(asked))
    arguments = ["protect", str(desk.photos), "--to", str(desk.disks[0]), "--data", str(desk.data), "--json"]
    assert run([*arguments, "--watch", "--every", "2s"]) == 0
    reports = [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]
    assert [report["adoption"]["added"] for report in reports] == [6, 0]
    assert run([*arguments, "--watch", "--every", "0s"]) == 2
    assert run([*arguments, "--watch", "--dry-run"]) == 2


def test_people_read_what_is_wrong_and_what_to_do(desk: Desk, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    desk.protect()
    (desk.photos / "2013" / "2.jpg").unlink()
    desk.rot("2013/1.jpg", b"phXto 1")
    disks = [part for disk in desk.disks for part in ("--to", str(disk))]
    arguments = ["protect", str(desk.photos), *disks, "--data", str(desk.data)]
    assert run([*arguments, "--read", "all"]) == 1
    printed = capsysbinary.readouterr().out.decode()
    assert "SUSPECTED ROT  photos  2013/1.jpg" in printed
    assert "millstream mill accept photos photos ID" in printed
    assert "millstream mill forget photos photos --vanished" in printed
    assert "vanished: '2013/2.jpg'" in printed
    assert "NOT PROTECTED" in printed


@pytest.mark.parametrize("command", ["protect", "protect --dry-run", "status"])
@pytest.mark.parametrize("kind", ["no database", "cut off", "of another program"])
def test_a_database_that_cannot_be_used_is_named_with_what_to_do(
    desk: Desk, capsysbinary: pytest.CaptureFixture[bytes], kind: str, command: str
) -> None:
    desk.protect()
    database = desk.data / "node.db"
    whole = database.read_bytes()
    database.unlink()
    if kind == "of another program":
        with contextlib.closing(sqlite3.connect(database)) as connection:
            connection.execute("CREATE TABLE bookmarks (url TEXT)")
    else:
        database.write_bytes(whole[: len(whole) // 2] if kind == "cut off" else b"no database")
    before = desk.copies("2013/1.jpg")
    name, *options = command.split()
    disks = [part for disk in desk.disks for part in ("--to", str(disk))] if name == "protect" else []
    source = [str(desk.photos)] if name == "protect" else []
    assert run([name, *source, *disks, *options, "--data", str(desk.data)]) == 1
    said = capsysbinary.readouterr().err.decode()
    assert "node.db is" in said and ("backup" in said or "another" in said) and "unexpected" not in said
    assert desk.copies("2013/1.jpg") == before


@pytest.mark.parametrize("kind", ["missing", "empty"])
def test_the_status_says_that_a_source_cannot_be_read(desk: Desk, kind: str) -> None:
    desk.protect()
    desk.photos.rename(desk.photos.parent / "unplugged")
    if kind == "empty":
        desk.photos.mkdir()
    code, status = desk.call("status")
    assert (code, status["well"]) == (1, False)
    assert "mount" in status["problem"]
    shutil.rmtree(desk.photos, ignore_errors=True)
    (desk.photos.parent / "unplugged").rename(desk.photos)
    assert desk.call("status")[0] == 0


def test_the_status_is_not_well_after_a_run_that_was_not(
    desk: Desk, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    desk.protect()
    stray = desk.disks[0] / "photos" / "stray"
    stray.write_bytes(b"whose?")
    assert desk.protect()[0] == 1
    code, status = desk.call("status")
    assert (code, status["last_code"]) == (1, 1)
    assert run(["status", "--data", str(desk.data)]) == 1
    assert b"the last run ended with code 1" in capsysbinary.readouterr().out
    stray.unlink()
    assert desk.protect()[0] == 0
    assert desk.call("status")[0] == 0


def test_the_status_names_what_is_wrong_and_counts_what_it_does_not_name(
    desk: Desk, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    for number in range(25):
        (desk.photos / f"gone {number:02d}.jpg").write_bytes(b"gone %d" % number)
    desk.protect()
    for number in range(25):
        (desk.photos / f"gone {number:02d}.jpg").unlink()
    desk.rot("2013/1.jpg", b"phXto 1")
    for disk in desk.disks:
        flip_bit(disk / "photos" / "2013" / "1.jpg")
    (desk.disks[1] / "photos" / "stray").write_bytes(b"whose?")
    assert desk.protect("--read", "all")[0] == 1
    _, status = desk.call("status")
    named = [(one["content_id"], one["kind"]) for one in status["named"]]
    assert named == [
        ("2013/1.jpg", "suspected rot"),
        *((f"gone {number:02d}.jpg", "vanished") for number in range(20)),
    ]
    in_copies = [[(one["content_id"], one["kind"]) for one in copy["named"]] for copy in status["copies"]]
    assert in_copies[0] == [("2013/1.jpg", "checksum-mismatch")]
    assert [content_id for content_id, _ in in_copies[1]] == ["2013/1.jpg", "stray"]
    assert run(["status", "--data", str(desk.data)]) == 1
    printed = capsysbinary.readouterr().out.decode()
    assert "SUSPECTED ROT  2013/1.jpg: " in printed and "CHECKSUM-MISMATCH  2013/1.jpg: " in printed
    assert "VANISHED  gone 19.jpg" in printed and "gone 20.jpg" not in printed and "VANISHED  … and 5 more" in printed


def test_damage_of_all_copies_of_what_is_left_out_is_not_well(desk: Desk) -> None:
    desk.protect()
    assert desk.protect("--exclude", "1.jpg")[0] == 0
    for disk in desk.disks:
        (disk / "photos" / "2013" / "1.jpg").write_bytes(f"damaged on {disk}".encode())
    code, report = desk.protect("--read", "all")
    assert (code, [copy["damaged"] for copy in report["copies"]]) == (1, [1, 1])
    assert [copy["damaged"] for copy in desk.call("status")[1]["copies"]] == [1, 1]


def test_the_first_run_on_a_terminal_counts_what_is_to_be_read(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = threading.Event()
    totals = list[object]()

    class Watched(Progress):
        def update(self, *arguments: Any, **values: Any) -> None:
            super().update(*arguments, **values)
            if "total" in values:
                totals.append(values["total"])
                counted.set()

    monkeypatch.setattr("millstream.cli.protect.drawn", lambda *columns: Watched(*columns, disable=True))
    monkeypatch.setattr("millstream.cli.protect.is_terminal", lambda: True)
    assert desk.protect()[0] == 0
    assert counted.wait(30)
    assert desk.protect()[0] == 0
    assert totals == [6 * len("photo 0")]


def test_the_status_of_nothing_is_not_well(desk: Desk, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    desk.data.mkdir()
    (desk.data / "millstream.toml").write_text("")
    assert run(["status", "--data", str(desk.data)]) == 1
    assert b"nothing is protected yet" in capsysbinary.readouterr().err
