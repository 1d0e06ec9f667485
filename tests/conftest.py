"""Fixtures and sizes that all tests share."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator

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


@pytest.fixture(scope="session")
def mariadb() -> Iterator[str]:
    """The URL of a MariaDB server, without a database."""
    from millstream.testing import services

    with contextlib.ExitStack() as stack:
        try:
            if importlib.util.find_spec("pymysql") is None:
                raise services.ServiceMissingError("PyMySQL is not installed: pip install 'millstream[mysql]'")
            server = stack.enter_context(services.running("mariadb"))
        except services.ServiceMissingError as error:
            pytest.fail(str(error)) if os.environ.get("CI") else pytest.skip(str(error))
        yield server.url
