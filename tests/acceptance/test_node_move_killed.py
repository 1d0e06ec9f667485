"""A small walk of :mod:`node_move`: the tables of a node are moved to a server and back, and each move is killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from node_move import walk


@pytest.mark.crash
@pytest.mark.parametrize("server", ["postgresql", "mariadb"])
def test_a_node_is_moved_to_a_server_and_back_by_moves_that_are_killed(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    walked = walk(tmp_path / "node", server, 20_000, seed=1, kills=2)
    assert walked["there"]["kills"] == walked["back"]["kills"] == 2
    assert walked["there"]["rows"] > 20_000
    checks = walked["checks"]
    assert checks["manifest"][0] == 20_000
    assert "an unbroken chain" in checks["anchor verify"][1] and "2 files replayed" in checks["anchor replay"][1]
    assert "second/letters: SUCCESS: 20 listed, 20 checked" in checks["mill check"][1]
