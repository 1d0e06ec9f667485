"""Verifiers of transparency logs in Go, where asked for; nothing is fetched or built otherwise.

``MILLSTREAM_TEST_TRANSPARENCY=FOLDER`` asks for them (`make test-transparency` does): the folder keeps the program.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from transparency.interop.program import GoVerifiers

FOLDER = os.environ.get("MILLSTREAM_TEST_TRANSPARENCY", "")

collect_ignore_glob = [] if FOLDER else ["test_*.py"]


@pytest.fixture(scope="session")
def go() -> GoVerifiers:
    if not FOLDER:  # a file that is named on the command line is collected all the same
        pytest.skip("MILLSTREAM_TEST_TRANSPARENCY names no folder for the program")
    return GoVerifiers(Path(FOLDER).resolve())
