"""``millstream protect --dry-run``: it changes nothing, and is exact where it reads everything."""

from __future__ import annotations

import io
from random import Random

import pytest
from protect_desk import Desk

from millstream.stores import LocalStore
from millstream.testing.damage import flip_bit
from suite.sizes import sized


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
