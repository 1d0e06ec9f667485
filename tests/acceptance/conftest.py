"""One undisturbed demo, on whose data many tests look."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from demo_runs import OPTIONS, Run, run_demo

from suite.shared import made_once


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A demo on the first 20,000 records that nothing disturbed. Read only."""

    def make(folder: Path) -> None:
        figures = run_demo(folder / "data", *OPTIONS)
        (folder / "figures.json").write_text(json.dumps(figures), "utf-8")

    folder = made_once(tmp_path_factory, "undisturbed", make)
    return Run(folder / "data", json.loads((folder / "figures.json").read_text("utf-8")))
