"""Names of items that other people chose are printed so that a terminal does not act on them."""

from __future__ import annotations

from pathlib import Path

import pytest
from protect_desk import Desk

from millstream.cli.logging_setup import print_error
from millstream.cli.main import run
from millstream.cli.mill.produce import _print_run
from millstream.core.printable import printable
from millstream.mill.producers.producer_loop import LoopFailure, LoopRun
from millstream.stores import LocalStore
from millstream.testing.damage import flip_bit

NAME = "clear \x1b[2J\n\u202egpj.exe"
PRINTED = r"clear \x1b[2J\n\u202egpj.exe"


@pytest.mark.parametrize(
    ("name", "printed"),
    [(NAME, PRINTED), ("a\tb\r\x7f\x9b", r"a\tb\r\x7f\x9b"), ("\u2028\udc80", r"\u2028\udc80")],
)
def test_characters_that_a_terminal_acts_on_are_printed_as_escapes(name: str, printed: str) -> None:
    assert printable(name) == printed


@pytest.mark.parametrize("name", ["2013/1.jpg", "50% ä 日本 ", r"a\b", "a\u00a0b"])
def test_other_names_are_printed_as_they_are(name: str) -> None:
    assert printable(name) == name


def test_commands_print_such_names_in_one_line(desk: Desk, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    (desk.photos / NAME).write_bytes(b"photo")
    desk.protect()
    for disk in desk.disks:
        flip_bit(LocalStore(disk).path_of("photos", NAME))
    desk.rot(NAME, b"phoXo")
    disks = [part for disk in desk.disks for part in ("--to", str(disk))]
    for command, code in (
        (["store", "list", "disk1", "photos"], 0),
        (["protect", str(desk.photos), *disks, "--read", "all"], 1),
        (["status"], 1),
        (["mill", "check", "--store", "disk1"], 1),
        (["pipeline", "report", "disk1", "photos"], 1),
        (["mill", "repair"], 1),
        (["mill", "accept", "photos", "photos", f"{NAME} that is not there"], 3),
    ):
        assert run([*command, "--data", str(desk.data)]) == code, command
        told = capsysbinary.readouterr()
        printed = (told.out + told.err).decode()
        assert PRINTED in printed, command
        assert not {"\x1b", "\u202e"} & set(printed), command


def test_names_of_an_access_list_and_failures_of_a_loop_are_printed_as_escapes(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    url = f"file://{tmp_path}/store"
    (tmp_path / "a").write_bytes(b"a")
    assert run(["store", "put", url, "photos", str(tmp_path / "a"), "--create"]) == 0
    assert run(["store", "acl", url, "photos", "--set", f"{NAME}=read"]) == 0
    _print_run(LoopRun(failures=[LoopFailure("photos", NAME)]), False)
    told = capsysbinary.readouterr()
    assert f"{PRINTED}: read\n" in told.out.decode()
    assert told.err.decode() == f"photos: {PRINTED}\n"


def test_the_last_word_of_a_command_prints_such_names_as_escapes(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    print_error(f"cannot read {NAME}")
    assert capsysbinary.readouterr().err.decode() == "millstream: cannot read clear \\x1b[2J\n\\u202egpj.exe\n"
