"""What tests of commands share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from protect_desk import Answer, Desk

from millstream.cli.main import run
from millstream.testing import services
from suite.missing import started


@pytest.fixture(scope="module")
def mosquitto() -> Iterator[str]:
    """The URL of an MQTT broker."""
    with started(lambda: services.running("mosquitto")) as server:
        yield server.url


@pytest.fixture
def desk(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> Desk:
    photos, data = tmp_path / "photos", tmp_path / "node"
    (photos / "2013").mkdir(parents=True)
    for number in range(6):
        (photos / "2013" / f"{number}.jpg").write_bytes(b"photo %d" % number)

    def call(*arguments: str) -> Answer:
        code = run([*arguments, "--data", str(data), "--json"])
        lines = capsysbinary.readouterr().out.splitlines()
        return code, json.loads(lines[-1]) if lines else {}

    return Desk(photos, (tmp_path / "disk1", tmp_path / "disk2"), data, call)
