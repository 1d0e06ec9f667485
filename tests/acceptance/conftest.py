"""One undisturbed demo, on whose data many tests look."""

from __future__ import annotations

import pytest
from demo_runs import OPTIONS, Run, run_demo


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A demo on the first 20,000 records that nothing disturbed. Read only."""
    data = tmp_path_factory.mktemp("undisturbed") / "data"
    return Run(data, run_demo(data, *OPTIONS))
