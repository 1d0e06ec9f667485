"""Fixtures and sizes that all tests share."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

LONG = os.environ.get("MILLSTREAM_TEST_SIZE") == "long"

settings.register_profile("ci", max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile("long" if LONG else "ci")


@pytest.fixture(scope="session")
def size() -> str:
    """``ci`` or ``long``: which size of the long tests is run."""
    return "long" if LONG else "ci"
