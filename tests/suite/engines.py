"""Database engines that are disposed of when the test that opened them is over: see :func:`open_engine`.

Python 3.13 and later warn of an SQLite connection that nobody closes. The garbage collector finds it some time later,
so the warning fails a test that has nothing to do with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

_engines: list[sa.Engine] = []


def open_engine(url: str | sa.URL, **options: Any) -> sa.Engine:
    """An engine for the database at *url*, with the *options* of :func:`sqlalchemy.create_engine`."""
    _engines.append(sa.create_engine(url, **options))
    return _engines[-1]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Iterator[None]:
    try:
        return (yield)  # fixtures may use their engines until they are torn down
    finally:
        while _engines:
            _engines.pop().dispose()
