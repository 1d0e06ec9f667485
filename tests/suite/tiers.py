"""The tiers of the suite, as markers: which test belongs to which, and that none of the default tier starts a server.

A test without a mark of these is in the default tier. Fixtures that start the real thing mark the tests that ask for
them; a parameter or a test that starts it in another way bears the mark itself, which :func:`check_program` insists on.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

DEFAULT = "default"
TIERS = {
    "clients": "official clients of other languages, fetched and built: `make test-clients`, `make test-reference`",
    "acceptance": "the demo, the README, tutorials and how-to guides, run as a user runs them",
    "browser": "pages in a real browser",
    "spark": "jobs on a real Spark session",
    "crash": "real processes killed in the middle of their work",
    "served": "real servers: databases, brokers, object stores",
}
"""What the tests of each tier need, the most demanding first: a test of two tiers counts for the first."""

FIXTURES = {
    "mariadb": "served", "postgresql": "served", "rabbitmq": "served", "swift": "served", "moto": "served",
    "versitygw": "served", "mosquitto": "served", "careful_mosquitto": "served",
    "drivers": "clients", "reference": "clients", "spark": "spark", "undisturbed": "acceptance", "browser": "browser",
}  # fmt: skip
"""Fixtures that start something, and the tier of the tests that ask for them."""

SERVERS = frozenset({
    "mysql", "mariadb", "mariadb-rows", "nerve", "postgresql", "postgresql in parts", "rabbitmq", "swift", "redis",
    "nats",
})  # fmt: skip
"""Parameters of tests and fixtures that stand for a real server: a test with one of them is ``served``."""

PROGRAMS = {
    "mariadbd": "served", "mariadb-install-db": "served", "postgres": "served", "initdb": "served",
    "mosquitto": "served", "redis-server": "served", "nats-server": "served", "millstream.testing.rabbitmq": "served",
    "millstream.testing.swift": "served", "millstream.testing.moto": "served", "versitygw": "served",
    "java": "spark", "chromium": "browser", "chromedriver": "browser",
}  # fmt: skip
"""Programs, and Python modules, that only tests of a tier may start."""

_current: pytest.Item | None = None


def tier_of(item: pytest.Item) -> str:
    """The tier that *item* counts for."""
    return next((tier for tier in TIERS if item.get_closest_marker(tier)), DEFAULT)


def pytest_configure(config: pytest.Config) -> None:
    for tier, meaning in TIERS.items():
        config.addinivalue_line("markers", f"{tier}: {meaning}")
    config.addinivalue_line("markers", f"{DEFAULT}: of no other tier; added to tests, never written; `make test`")
    config.addinivalue_line("markers", "smoke: of another tier than the default, and run by `make test` as well")
    if not getattr(pytest_configure, "is_watching", False):
        sys.addaudithook(_watch)
        pytest_configure.is_watching = True  # type: ignore[attr-defined]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for fixture in getattr(item, "fixturenames", ()):
            if fixture in FIXTURES:
                item.add_marker(FIXTURES[fixture])
        parameters = (
            item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
        )
        if any(isinstance(value, str) and value in SERVERS for value in parameters):
            item.add_marker("served")
        if tier_of(item) == DEFAULT:
            item.add_marker(DEFAULT)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    global _current  # noqa: PLW0603 - an audit hook can be told in no other way
    _current = item
    try:
        return (yield)
    finally:
        _current = None


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen" and _current is not None:
        check_program(_current, [str(arguments[0]), *map(str, arguments[1])])


def check_program(item: pytest.Item, command: list[str]) -> None:
    """Fail where *item* starts a program that its tier may not start."""
    made_by_test = tempfile.gettempdir()
    names = {Path(word).name for word in command if not word.startswith(made_by_test)} | set(command)
    for name, tier in PROGRAMS.items():
        if name in names and tier_of(item) == DEFAULT:
            pytest.fail(f"{item.nodeid} starts {name}: mark it {tier}", pytrace=False)
