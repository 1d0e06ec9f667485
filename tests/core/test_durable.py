"""Files are either whole or not there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from millstream.core.durable import output_file, replacing, rewrite_durably, write_durably


def test_the_new_bytes_take_the_place_of_the_old(tmp_path: Path) -> None:
    write_durably(tmp_path / "f", b"old")
    write_durably(tmp_path / "f", b"new")
    assert (tmp_path / "f").read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize("letter", ["a", "ü", "語", "𝔐"])
def test_a_file_may_have_the_longest_name_that_its_folder_takes(tmp_path: Path, letter: str) -> None:
    path = tmp_path / (letter * (255 // len(letter.encode())))
    write_durably(path, b"whole")
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"whole"]


def test_a_failed_write_leaves_the_old_bytes_and_no_draft(tmp_path: Path) -> None:
    write_durably(tmp_path / "f", b"old")
    with pytest.raises(RuntimeError), replacing(tmp_path / "f") as file:
        file.write(b"half")
        raise RuntimeError("the writer dies")
    assert (tmp_path / "f").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_a_file_that_is_rewritten_keeps_its_mode_its_owner_and_the_link_to_it(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_bytes(b"old")
    real.chmod(0o640)
    link.symlink_to(real)
    owner = (7, 7) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    os.chown(real, *owner)
    rewrite_durably(link, b"new")
    found = real.stat()
    assert (real.read_bytes(), link.is_symlink()) == (b"new", True)
    assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (0o640, *owner)


def test_a_file_that_does_not_exist_is_written_where_its_link_points(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    rewrite_durably(tmp_path / "link", b"new")
    assert (tmp_path / "real").read_bytes() == b"new"
    assert (tmp_path / "link").is_symlink()


def test_a_pipe_that_is_named_as_output_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with output_file(pipe) as file:
            file.write(b"content")
        assert os.read(reader, 100) == b"content"
        assert pipe.is_fifo()
    finally:
        os.close(reader)


def test_a_link_that_is_named_as_output_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for content in (b"old", b"new"):
        with output_file(tmp_path / "link") as file:
            file.write(content)
        assert (tmp_path / "real").read_bytes() == content
    assert (tmp_path / "link").is_symlink()
