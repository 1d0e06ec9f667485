"""What ``millstream status`` says of a protected folder."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3

import pytest
from protect_desk import Desk

from millstream.cli.main import run
from millstream.mill.adoption.protection import Protection
from millstream.testing.damage import flip_bit


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
    assert b"the last run ended with code 1 or was killed" in capsysbinary.readouterr().out
    stray.unlink()
    assert desk.protect()[0] == 0
    assert desk.call("status")[0] == 0


def test_a_run_that_is_killed_is_not_well_from_the_next_run_on(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def codes() -> tuple[int, int | None]:
        code, status = desk.call("status")
        return code, status["last_code"]

    def kill(*_: object) -> None:
        raise RuntimeError("killed")

    words = [
        "protect",
        str(desk.photos),
        "--to",
        str(desk.disks[0]),
        "--to",
        str(desk.disks[1]),
        "--data",
        str(desk.data),
    ]
    desk.protect()
    assert codes() == (0, 0)
    with monkeypatch.context() as patch:
        patch.setattr(Protection, "_complete", kill)
        run(words)
        assert codes() == (0, None), "it may be running"
        run(words)
        assert codes() == (1, 1)
        run(words)
        assert codes() == (1, 1), "a run that begins does not make it well"
    assert desk.protect()[0] == 0 and codes() == (0, 0)


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


def test_the_status_of_nothing_is_not_well(desk: Desk, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    desk.data.mkdir()
    (desk.data / "millstream.toml").write_text("")
    assert run(["status", "--data", str(desk.data)]) == 1
    assert b"nothing is protected yet" in capsysbinary.readouterr().err


def test_the_status_lists_when_each_item_and_each_copy_was_last_read(
    desk: Desk, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    desk.protect()
    before = read_times(desk, capsysbinary)
    assert len(before) == 6 and all(len(times) == 3 and None not in times for times in before.values())
    desk.protect("--read", "all")
    after = read_times(desk, capsysbinary)
    assert all(new > old for name in before for old, new in zip(before[name], after[name], strict=True))


def read_times(desk: Desk, capsysbinary: pytest.CaptureFixture[bytes]) -> dict[str, list[int]]:
    capsysbinary.readouterr()
    assert run(["status", "--items", "--json", "--data", str(desk.data)]) == 0
    lines = [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]
    return {one["content_id"]: [one["last_read_at"], *one["copies"].values()] for one in lines}
