"""``millstream protect`` as people use it: one command, again and again, over a folder that goes on changing."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from protect_desk import Desk, found, verified
from rich.progress import Progress

from millstream.cli.main import run
from millstream.core.clock import VirtualClock
from millstream.core.documents import FileDocument
from millstream.stores import LocalStore


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


def test_a_protected_source_without_a_report_names_the_command_that_makes_one(
    desk: Desk, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    desk.protect()
    assert run(["mill", "report", "photos", "photos", "--data", str(desk.data)]) == 3
    line = b"no report yet; run `millstream mill check --store photos --space photos` (`millstream status`"
    assert line in capsysbinary.readouterr().err


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
    assert (code, summary["added"], summary["changed"], summary["moved"], report["vanished"]) == (5, 1, 1, 1, 1)
    assert (summary["changed_items"], summary["renames"]) == (["2013/0.jpg"], [["2013/1.jpg", "renamed.jpg"]])
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
    assert b"is empty, and nothing was set up: mount its disk" in capsysbinary.readouterr().err
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


def test_a_check_says_that_an_item_of_the_source_was_changed_since_it_was_adopted(desk: Desk) -> None:
    desk.protect()
    (desk.photos / "2013" / "1.jpg").write_bytes(b"a photo with other colours")
    code, report = desk.call("mill", "check", "--store", "photos")
    assert (code, report["explained"]) == (0, 1)
    assert report["kinds"] == {"B1 intact": 5, "B26 changed": 1}
    code, report = desk.protect()
    assert (code, verified(report)) == (0, [6, 6])
    assert desk.call("mill", "check", "--store", "photos")[1]["kinds"] == {"B1 intact": 6}


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


@pytest.mark.parametrize("command", [("accept", "2013/1.jpg"), ("forget", "2013/1.jpg"), ("forget", "--vanished")])
def test_what_a_running_protect_would_undo_is_not_recorded(desk: Desk, command: tuple[str, str]) -> None:
    desk.protect()
    (desk.photos / "2013" / "1.jpg").unlink()
    desk.protect()
    with FileDocument(desk.data / "protect").alone():
        assert desk.call("mill", command[0], "photos", "photos", command[1])[0] == 4
    assert desk.protect()[1]["vanished_items"] == ["2013/1.jpg"]


def test_a_deletion_is_recorded_by_what_the_source_has_now(
    desk: Desk, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    desk.protect()
    for number in (1, 2):
        (desk.photos / "2013" / f"{number}.jpg").unlink()
    assert desk.protect()[1]["vanished_items"] == ["2013/1.jpg", "2013/2.jpg"]
    (desk.photos / "2013" / "1.jpg").write_bytes(b"photo 1")
    (desk.photos / "2013" / "3.jpg").unlink()
    forget = ["mill", "forget", "photos", "photos"]
    assert run([*forget, "2013/1.jpg", "2013/2.jpg", "--data", str(desk.data)]) == 2
    error = capsysbinary.readouterr().err
    assert b"'2013/1.jpg' is still in space 'photos'" in error and b"store delete" not in error
    assert desk.call(*forget, "2013/2.jpg", "2013/3.jpg") == (0, {"tombstones": 2})
    assert (desk.protect()[0], desk.copies("2013/1.jpg"), desk.copies("2013/3.jpg")) == (
        0,
        [b"photo 1"] * 2,
        [None] * 2,
    )


def test_watching_goes_on_after_a_run_that_another_process_kept_off(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """As `millstream pipeline inventory --adopt` does on the same node."""
    other = contextlib.ExitStack()
    pauses = []

    class Clock(VirtualClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            pauses.append(seconds)
            if len(pauses) == 1:
                other.enter_context(FileDocument(desk.data / "protect").alone())
            else:
                other.close()

    clock = Clock()
    monkeypatch.setattr("millstream.cli.protect.SystemClock", lambda: clock)
    monkeypatch.setattr("millstream.cli.protect.stop_on_signals", lambda: lambda: len(pauses) == 3)
    arguments = ["protect", str(desk.photos), "--to", str(desk.disks[0]), "--data", str(desk.data), "--json"]
    assert run([*arguments, "--watch", "--every", "1s"]) == 0
    out, err = capsysbinary.readouterr()
    assert [json.loads(line)["adoption"]["added"] for line in out.splitlines()] == [6, 0]
    assert err.endswith(b"/node: wait until it ends; the next run is in 1 s\n")
