"""Standard output whose reader ends first, or that is closed: the exit code is still that of the command."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from millstream.cli.main import run

MILLSTREAM = [sys.executable, "-m", "millstream"]


@pytest.fixture
def unread() -> Iterator[int]:
    """The end of a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """The folder of a node with a log, and with two spaces that are protected; the copy of the last is damaged."""
    data = tmp_path / "data"
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jpg").write_bytes(b"photo")
        assert run(["protect", str(tmp_path / name), "--to", str(tmp_path / "disk"), "--data", str(data)]) == 0
    (tmp_path / "disk" / "two" / "a.jpg").write_bytes(b"other")
    return data


@pytest.mark.parametrize("as_json", [[], ["--json"]], ids=["text", "json"])
def test_a_check_that_nobody_reads_checks_everything_and_tells_of_damage(
    node: Path, unread: int, as_json: Sequence[str]
) -> None:
    command = [*MILLSTREAM, "mill", "check", *as_json, "--data", str(node)]
    result = subprocess.run(command, stdout=unread, stderr=subprocess.PIPE, check=False)
    assert (result.returncode, result.stderr) == (1, b"")
    assert run(["mill", "report", "disk", "two", "--data", str(node)]) == 1


def test_lines_on_standard_error_that_nobody_reads_do_not_end_a_command(node: Path, unread: int) -> None:
    command = [*MILLSTREAM, "mill", "check", "--data", str(node)]
    assert subprocess.run(command, stdout=unread, stderr=unread, check=False).returncode == 1


def test_log_lines_go_on_after_a_moment_without_space(tmp_path: Path) -> None:
    script = """
import os, sys
from millstream.cli.output import prepare_streams
kept = os.dup(2)
os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
prepare_streams()
try:
    print("lost", file=sys.stderr)
except OSError:
    pass
os.dup2(kept, 2)
print("there is space again", file=sys.stderr)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "there is space again" in result.stderr


def test_a_list_that_nobody_reads_ends_quietly(tmp_path: Path, unread: int) -> None:
    store = f"sqlite:///{tmp_path}/log.db"
    (tmp_path / "lines").write_text("line\n" * 20_000)
    assert run(["log", "append", "weather", str(tmp_path / "lines"), "--store", store]) == 0
    command = [*MILLSTREAM, "log", "tail", "weather", "--follow", "--store", store]
    result = subprocess.run(command, stdout=unread, stderr=subprocess.PIPE, check=False, timeout=60)
    assert (result.returncode, result.stderr) == (0, b"")


def test_content_that_nobody_read_to_its_end_is_not_called_verified(tmp_path: Path, unread: int) -> None:
    (tmp_path / "a.jpg").write_bytes(bytes(1 << 20))
    assert run(["store", "put", f"file://{tmp_path}/store", "photos", str(tmp_path / "a.jpg"), "--create"]) == 0
    command = [*MILLSTREAM, "store", "get", f"file://{tmp_path}/store", "photos", "a.jpg"]
    result = subprocess.run(command, stdout=unread, stderr=subprocess.PIPE, check=False)
    assert result.returncode == 1
    assert b"not verified" in result.stderr


@pytest.mark.parametrize("closed", [["<&-"], [">&-"], ["2>&-"], ["<&-", ">&-", "2>&-"]], ids=" ".join)
def test_a_closed_stream_changes_no_exit_code_and_nothing_is_printed_into_a_file(
    tmp_path: Path, closed: Sequence[str]
) -> None:
    (tmp_path / "lines").write_text("one\ntwo\n")
    store = f"segments:///{tmp_path}/logs"
    for arguments in (["log", "append", "weather", str(tmp_path / "lines")], ["log", "verify", "weather"]):
        command = " ".join([*MILLSTREAM, *arguments, "--store", store, *closed])
        result = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
        assert (result.returncode, result.stderr) == (0, "")
    assert run(["log", "verify", "weather", "--store", store]) == 0


def test_a_closed_output_fails_no_command_that_prints_json(tmp_path: Path) -> None:
    command = [*MILLSTREAM, "config", "show", "--json", "--data", str(tmp_path), ">&-"]
    result = subprocess.run(" ".join(command), shell=True, capture_output=True, check=False)
    assert (result.returncode, result.stderr) == (0, b"")
