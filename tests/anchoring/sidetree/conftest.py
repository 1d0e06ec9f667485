"""The vectors of the specification, and keys that are the same in every run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

VECTORS = Path(__file__).parent / "vectors"


@pytest.fixture(scope="session")
def vector() -> Callable[[str], Any]:
    """vector("operations/create") is the parsed file; requests come as canonical bytes from vector_bytes."""
    return lambda name: json.loads((VECTORS / f"{name}.json").read_text())


@pytest.fixture(scope="session")
def vector_bytes() -> Callable[[str], bytes]:
    return lambda name: (VECTORS / f"{name}.json").read_bytes()
