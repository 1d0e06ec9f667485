"""``millstream protect`` and copies that are damaged, lost, or no copies: each is named, and repaired if it can be."""

from __future__ import annotations

import io
import os
import shlex
import shutil
from typing import Any

import pytest
from protect_desk import Desk, found, verified

from millstream.cli.main import run
from millstream.stores import LocalStore, StoreError
from millstream.stores.local.bulk import LocalBulk
from millstream.testing.damage import flip_bit


def test_a_damaged_copy_of_what_is_left_out_is_repaired(desk: Desk) -> None:
    desk.protect()
    assert desk.protect("--exclude", "1.jpg")[0] == 0
    flip_bit(desk.disks[0] / "photos" / "2013" / "1.jpg")
    code, report = desk.protect("--read", "all")
    assert (code, report["copies"][0]["repaired"], report["excluded"]) == (0, 1, 1)
    assert desk.copies("2013/1.jpg") == [b"photo 1"] * 2


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


def test_what_could_not_be_copied_is_not_counted_as_copied(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    put = LocalStore.put

    def refuse(*_: object) -> None:
        raise StoreError("one by one")

    def full(self: LocalStore, space: str, content_id: str, *args: Any, **more: Any) -> Any:
        if content_id == "2013/1.jpg" and self.url.endswith(desk.disks[0].name):
            raise StoreError("the disk is full")
        return put(self, space, content_id, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "put", full)
        patch.setattr(LocalBulk, "put", refuse)
        code, report = desk.protect()
    assert (code, verified(report)) == (1, [5, 6])
    assert [copy["copied"] for copy in report["copies"]] == [5, 6]
    assert desk.protect()[1]["copies"][0]["copied"] == 1


def test_a_stray_item_in_a_copy_is_named(desk: Desk) -> None:
    desk.protect()
    (desk.disks[0] / "photos" / "stray").write_bytes(b"whose?")
    code, report = desk.protect()
    assert code == 1
    assert [one["content_id"] for one in report["copies"][0]["findings"]] == ["stray"]
    assert (desk.disks[0] / "photos" / "stray").exists()


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


def test_a_stray_in_a_copy_is_named_with_what_to_do_about_it(desk: Desk) -> None:
    desk.protect()
    (desk.disks[0] / "photos" / "it's stray").write_bytes(b"stray")
    code, report = desk.protect()
    (finding,) = report["copies"][0]["findings"]
    assert (code, finding["content_id"], finding["kind"]) == (1, "it's stray", "stray")
    command = finding["detail"].partition("(`")[2].removesuffix("`)")
    assert run([*shlex.split(command)[1:], "--data", str(desk.data)]) == 0
    assert desk.protect()[0] == 0


def test_a_forged_copy_is_found_although_its_own_record_agrees(desk: Desk) -> None:
    desk.protect()
    LocalStore(desk.disks[0]).put("photos", "2013/1.jpg", io.BytesIO(b"forgery"))
    code, report = desk.protect()
    assert (code, report["copies"][0]["repaired"], desk.copies("2013/1.jpg")) == (0, 1, [b"photo 1"] * 2)
