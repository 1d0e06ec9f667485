"""What a test needs and the machine lacks: it is skipped with what to install; with ``CI=true`` it fails."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import NoReturn, TypeVar

import pytest

from millstream.testing.services import LocalServerMissingError

T = TypeVar("T")


def end_without(reason: object) -> NoReturn:
    """End the test, since what it needs is missing: *reason* says what, and how to get it."""
    if os.environ.get("CI"):
        pytest.fail(str(reason))
    pytest.skip(str(reason))


@contextlib.contextmanager
def started(start: Callable[[], AbstractContextManager[T]], *, driver: str = "", extra: str = "") -> Iterator[T]:
    """What *start* starts, for a test that needs it, and the package *driver*, which *extra* of Millstream installs."""
    with contextlib.ExitStack() as stack:
        try:
            if driver and importlib.util.find_spec(driver) is None:
                raise LocalServerMissingError(f"{driver} is not installed: pip install 'millstream[{extra}]'")
            server = stack.enter_context(start())
        except LocalServerMissingError as error:
            end_without(error)
        yield server
