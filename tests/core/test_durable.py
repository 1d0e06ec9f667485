"""Files are either whole or not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.core.durable import replacing, write_durably


def test_the_new_bytes_take_the_place_of_the_old(tmp_path: Path) -> None:
    write_durably(tmp_path / "f", b"old")
    write_durably(tmp_path / "f", b"new")
    assert (tmp_path / "f").read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_a_failed_write_leaves_the_old_bytes_and_no_draft(tmp_path: Path) -> None:
    write_durably(tmp_path / "f", b"old")
    with pytest.raises(RuntimeError), replacing(tmp_path / "f") as file:
        file.write(b"half")
        raise RuntimeError("the writer dies")
    assert (tmp_path / "f").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
