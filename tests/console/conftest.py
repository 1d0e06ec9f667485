"""One furnished node for all tests of the console, copied for those that change it."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from chromium import CHROMIUM, FLAGS, Watched
from world import Served, furnish, guard, serving

from suite.missing import end_without

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return furnish(tmp_path_factory.mktemp("console") / "node")


def copy_of(furnished: Path, place: Path) -> Path:
    """A copy of the node *furnished*, in the folder *place*."""
    return Path(shutil.copytree(furnished, place / "node"))


@pytest.fixture(scope="module")
def served(furnished: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server over a copy of the furnished node, one for a module."""
    folder = copy_of(furnished, tmp_path_factory.mktemp("served"))
    with serving(folder) as running:
        yield running


@pytest.fixture(scope="module")
def asked(furnished: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Another such server, for questions that change what there is."""
    folder = copy_of(furnished, tmp_path_factory.mktemp("asked"))
    with serving(folder) as running:
        yield running


@pytest.fixture(scope="module")
def guarded(furnished: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose settings have a viewer, an operator and an admin."""
    folder = copy_of(furnished, tmp_path_factory.mktemp("guarded"))
    with serving(guard(folder)) as running:
        yield running


@pytest.fixture
def copied(furnished: Path, tmp_path: Path) -> Callable[[], Path]:
    """Makes a copy of the furnished node."""

    return functools.partial(copy_of, furnished, tmp_path)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not CHROMIUM:
        end_without("Chromium is not installed: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def watched(browser: Browser) -> Iterator[Watched]:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    watching = Watched(context)
    yield watching
    context.close()
    assert watching.hosts <= {"127.0.0.1"}, "a request left the host"


@pytest.fixture
def changing(copied: Callable[[], Path]) -> Iterator[Served]:
    """A server of a node that the test changes."""
    with serving(copied()) as served:
        yield served
