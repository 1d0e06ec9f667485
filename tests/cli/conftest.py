"""What tests of commands share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream.testing import services
from suite.missing import started


@pytest.fixture(scope="module")
def mosquitto() -> Iterator[str]:
    """The URL of an MQTT broker."""
    with started(lambda: services.running("mosquitto")) as server:
        yield server.url
