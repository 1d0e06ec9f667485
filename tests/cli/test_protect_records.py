"""``millstream protect`` with copies of which records were lost, or never made."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3

import pytest
from protect_desk import Desk, verified

from millstream.testing.damage import flip_bit


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
