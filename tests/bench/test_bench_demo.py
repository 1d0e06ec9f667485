"""The benchmark of the demo: the minimal program does what the demo does; a run that fails is no measurement."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from millstream.bench import demo


@pytest.mark.spark
@pytest.mark.long
def test_the_minimal_program_runs_all_steps(tmp_path: Path) -> None:
    (comparison,) = demo.comparisons("quick", tmp_path)
    ours, floor = comparison.contenders
    assert (ours.name, floor.name) == ("millstream demo", "minimal program")
    measured = floor.run()
    assert measured.figures["CPU s"] > 0
    (folder,) = tmp_path.glob("floor-*")
    copies = {str(path.relative_to(folder / "second")) for path in (folder / "second").rglob("*") if path.is_file()}
    assert copies == {
        str(path.relative_to(folder / "third")) for path in (folder / "third").rglob("*") if path.is_file()
    }
    with sqlite3.connect(folder / "floor.db") as database:
        (good,) = database.execute("SELECT count(*) FROM manifest WHERE outcome = 'SUCCESS'").fetchone()
    assert good == 3 * len(copies)


def test_a_run_that_fails_is_no_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (comparison,) = demo.comparisons("quick", tmp_path)
    monkeypatch.setenv("MILLSTREAM_BATCHING__WINDOW", "-1s")
    with pytest.raises(AssertionError, match=r"window"):
        comparison.contenders[0].run()
