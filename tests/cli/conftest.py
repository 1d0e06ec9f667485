"""What tests of commands share."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest

from millstream.testing import services


@pytest.fixture(scope="module")
def mosquitto() -> Iterator[str]:
    """The URL of an MQTT broker."""
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(services.running("mosquitto"))
        except services.ServiceMissingError as error:
            pytest.fail(str(error)) if os.environ.get("CI") else pytest.skip(str(error))
        yield server.url
