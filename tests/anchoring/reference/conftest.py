"""Sidetree's reference implementation, where asked for; nothing is fetched otherwise.

``MILLSTREAM_TEST_REFERENCE=FOLDER`` asks for it (`make test-reference` does): the folder keeps what is fetched.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from reference.implementation import ReferenceImplementation

FOLDER = os.environ.get("MILLSTREAM_TEST_REFERENCE", "")

collect_ignore_glob = [] if FOLDER else ["test_*.py"]


@pytest.fixture(scope="module")
def reference() -> Iterator[ReferenceImplementation]:
    with ReferenceImplementation(Path(FOLDER).resolve()) as implementation:
        yield implementation
