"""A small disk for one process, for tests that need a full one."""

from __future__ import annotations

from pathlib import Path

from millstream.testing.disk.small import on_a_small_disk
from millstream.testing.services import LocalServerMissingError
from suite.missing import end_without


def small_disk(place: Path, options: str) -> list[str]:
    """As :func:`~millstream.testing.disk.small.on_a_small_disk`; ends the test where this machine gives nobody one."""
    try:
        return on_a_small_disk(place, options)
    except LocalServerMissingError as error:
        end_without(error)
