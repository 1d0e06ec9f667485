"""Verifiers of transparency logs in Go, where asked for; nothing is fetched or built otherwise.

``MILLSTREAM_TEST_TRANSPARENCY=FOLDER`` asks for them (`make test-transparency` does): the folder keeps the programs.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from transparency.interop.program import GoProgram, NoToolchainError

FOLDER = os.environ.get("MILLSTREAM_TEST_TRANSPARENCY", "")

TORCHWOOD_TOOLCHAIN = "go1.27.3"
"""The Go that torchwood v0.10.0 needs."""

collect_ignore_glob = [] if FOLDER else ["test_*.py"]


@pytest.fixture(scope="session")
def go() -> GoProgram:
    return GoProgram("go", _folder())


@pytest.fixture(scope="session")
def torchwood() -> GoProgram:
    try:
        return GoProgram("torchwood", _folder(), toolchain=TORCHWOOD_TOOLCHAIN)
    except NoToolchainError as error:
        pytest.skip(f"torchwood v0.10.0 needs {TORCHWOOD_TOOLCHAIN}, which cannot be downloaded: {error}")


def _folder() -> Path:
    if not FOLDER:  # a file that is named on the command line is collected all the same
        pytest.skip("MILLSTREAM_TEST_TRANSPARENCY names no folder for the programs")
    return Path(FOLDER).resolve()
