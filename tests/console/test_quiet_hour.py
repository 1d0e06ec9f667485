"""A node with all its parts at work shows no issue and nothing unknown: for an hour at the size ``long``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from faulty_node import make_node
from quiet_hour import PARTS, Sighting, watch_node
from running_node import PLAIN

from suite.sizes import sized

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.mark.long
@pytest.mark.timeout(4500)
def test_a_node_at_work_without_a_fault_shows_none(browser: Browser, tmp_path: Path) -> None:
    looks: list[Sighting] = []
    folder, seconds = make_node(tmp_path / "node", PLAIN), sized(ci=20.0, long=3600.0)
    done = watch_node(folder, "one", "photos", seconds, browser, looks.append)
    print(f"done: {done}; looks: {len(looks)}, highest load {max(look['load'] for look in looks):.1f}")
    assert done["messages"] > seconds and done["items"] and done["anchors"] > 1 and len(looks) > seconds / 30
    assert [look for look in looks if any(look[part] for part in PARTS)] == []
