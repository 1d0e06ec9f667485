"""Fixtures and sizes that all tests share."""

from __future__ import annotations

import contextlib
import signal
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

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # The shell in whose background the tests run lets programs ignore Ctrl-C, and so would all that tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)


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
    """The URL of the server *name*."""
    from millstream.testing import services
    from suite.missing import started

    with started(lambda: services.running(name), driver=driver, extra=extra) as server:
        yield server.url


@pytest.fixture(scope="session")
def swift() -> Iterator[S3Server]:
    """A real S3 server: OpenStack Swift."""
    yield from _s3_server("swift")


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Server]:
    """A mock that knows more of the interface of S3, and checks less."""
    yield from _s3_server("moto")


@pytest.fixture(scope="session")
def versitygw() -> Iterator[S3Server]:
    """A real S3 server whose create-only PUT is atomic; skipped where `make test-object-storage` has not built it."""
    from millstream.testing import s3, services

    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(services.running("versitygw"))
        except services.LocalServerMissingError as error:
            pytest.skip(str(error))
        yield s3.S3Server(server.url)


def _s3_server(name: str) -> Iterator[S3Server]:
    from millstream.testing import s3, services
    from suite.missing import started

    with started(lambda: services.running(name)) as server:
        yield s3.S3Server(server.url)
