"""Brokers for tests, each in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("grpc")

from millstream.testing.brokers import BrokerProcess


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that all tests of a module share."""
    process = BrokerProcess(f"sqlite:///{tmp_path_factory.mktemp('broker') / 'log.db'}")
    process.start()
    yield process
    process.kill()


@pytest.fixture
def mortal_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker of one test, to be killed."""
    process = BrokerProcess(f"sqlite:///{tmp_path / 'log.db'}")
    process.start()
    yield process
    process.kill()
