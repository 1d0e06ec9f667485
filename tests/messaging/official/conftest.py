"""The official clients, where asked for; nothing is fetched or built otherwise.

``MILLSTREAM_TEST_CLIENTS=FOLDER`` asks for them (`make test-clients` does): the folder keeps what is fetched and built.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.register_assert_rewrite("official.flows", "official.known")

from official.clients import Drivers  # noqa: E402 (their assertions are to be told in full)

CACHE = os.environ.get("MILLSTREAM_TEST_CLIENTS", "")

collect_ignore_glob = [] if CACHE else ["test_*.py"]


@pytest.fixture(scope="session")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Drivers:
    return Drivers(Path(CACHE).resolve(), tmp_path_factory.mktemp("homes"))
