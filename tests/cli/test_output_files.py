"""Files that the user names for output."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from millstream.cli.main import run


@pytest.mark.parametrize(
    "arguments",
    [
        ["store", "get", "{store}", "photos", "a.jpg", "{pipe}"],
        ["store", "export", "{store}", "photos", "--sha256sums", "{pipe}"],
        ["mill", "report", "--html", "{pipe}"],
    ],
    ids=lambda arguments: arguments[1],
)
def test_a_pipe_that_is_named_for_output_gets_it(tmp_path: Path, arguments: Sequence[str]) -> None:
    (tmp_path / "a.jpg").write_bytes(b"photo")
    store, pipe, data = f"file://{tmp_path}/store", tmp_path / "pipe", str(tmp_path / "data")
    assert run(["store", "put", store, "photos", str(tmp_path / "a.jpg"), "--create"]) == 0
    assert run(["store", "create", "primary", "photos", "--data", data]) == 0
    assert run(["log", "create", "weather", "--data", data]) == 0  # that makes it a node
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        without_report = arguments[0] == "mill"
        assert run([*(part.format(store=store, pipe=pipe) for part in arguments), "--data", data]) == without_report
        assert pipe.is_fifo()
        assert os.read(reader, 1 << 16)
    finally:
        os.close(reader)
