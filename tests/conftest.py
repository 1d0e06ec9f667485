"""Fixtures and sizes that all tests share."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from suite.sizes import SIZE, load_profile

if TYPE_CHECKING:
    from millstream.testing.s3 import S3Server


pytest_plugins = [
    "suite.tiers", "suite.sleeping", "suite.costs", "suite.spread", "suite.runs", "suite.engines",
]  # fmt: skip

load_profile()


@pytest.fixture(scope="session")
def size() -> str:
    """``quick``, ``ci`` or ``long``: see :mod:`suite.sizes`."""
    return SIZE


@pytest.fixture(scope="session")
def mariadb() -> Iterator[str]:
    """The URL of a MariaDB server, without a database."""
    with served("mariadb", driver="pymysql", extra="mysql") as url:
        yield url


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """The URL of a PostgreSQL server, without a database."""
    with served("postgresql", driver="psycopg", extra="postgresql") as url:
        yield url


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[str]:
    """The URL of a RabbitMQ server."""
    with served("rabbitmq", driver="pika", extra="rabbitmq") as url:
        yield url


@contextlib.contextmanager
def served(name: str, *, driver: str, extra: str) -> Iterator[str]:
    """The URL of the server *name*. Where it or its *driver* is missing the test is skipped, on CI it fails."""
    from millstream.testing import services

    with contextlib.ExitStack() as stack:
        try:
            if importlib.util.find_spec(driver) is None:
                raise services.ServiceMissingError(f"{driver} is not installed: pip install 'millstream[{extra}]'")
            server = stack.enter_context(services.running(name))
        except services.ServiceMissingError as error:
            pytest.fail(str(error)) if os.environ.get("CI") else pytest.skip(str(error))
        yield server.url


@pytest.fixture(scope="session")
def swift() -> Iterator[S3Server]:
    """A real S3 server: OpenStack Swift."""
    yield from _s3_server("swift")


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Server]:
    """A mock that knows more of the interface of S3, and checks less."""
    yield from _s3_server("moto")


def _s3_server(name: str) -> Iterator[S3Server]:
    from millstream.testing import s3, services

    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(services.running(name))
        except services.ServiceMissingError as error:
            pytest.fail(str(error)) if os.environ.get("CI") else pytest.skip(str(error))
        yield s3.S3Server(server.url)
