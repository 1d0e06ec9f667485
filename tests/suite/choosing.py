"""A plugin of pytest (``-p suite.choosing``) that runs the tests that a file names, in its order, and says how it ends.

A test gets as much time as it is known to take, many times over: what hangs because of a mutant ends soon.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

FOLDER = "MILLSTREAM_CHOOSING"
"""The environment variable that names the folder of the files below."""
CHOSEN, OUTCOME = "chosen.json", "outcome.json"
LEAST_LIMIT, TIMES, UNKNOWN = 30.0, 10, 60.0


class Chosen(msgspec.Struct):
    """The tests to run, in order, and the seconds that each is known to take."""

    tests: list[str]
    seconds: dict[str, float] = {}

    def limit(self, test: str) -> float:
        """The seconds after which *test* is taken to hang."""
        return LEAST_LIMIT + TIMES * self.seconds.get(test, UNKNOWN)


class Outcome(msgspec.Struct):
    """The result of the tests so far: *failed* names the first test, or file, that failed."""

    running: str | None = None
    since: float = 0.0
    failed: str | None = None
    how: str = ""
    passed: int = 0
    finished: bool = False


class Choosing:
    """Keeps the chosen tests, and the outcome on the disk up to date."""

    def __init__(self, folder: Path) -> None:
        self._chosen = msgspec.json.decode((folder / CHOSEN).read_bytes(), type=Chosen)
        self._kept = folder / OUTCOME
        self._outcome = Outcome()
        self._keep()

    def _keep(self) -> None:
        draft = self._kept.with_suffix(".draft")
        draft.write_bytes(msgspec.json.encode(self._outcome))
        draft.replace(self._kept)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
        result = yield
        ranks = {test: rank for rank, test in enumerate(self._chosen.tests)}
        left = [item for item in items if item.nodeid not in ranks]
        items[:] = sorted((item for item in items if item.nodeid in ranks), key=lambda item: ranks[item.nodeid])
        for item in items:
            item.add_marker(pytest.mark.timeout(self._chosen.limit(item.nodeid)), append=False)
        config.hook.pytest_deselected(items=left)
        return result

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._outcome.running, self._outcome.since = nodeid, time.perf_counter()
        self._keep()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._outcome.passed += report.when == "call" and report.passed
        if report.failed:
            self._fail(report.nodeid, report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._fail(report.nodeid, report)

    def _fail(self, nodeid: str, report: Any) -> None:
        if self._outcome.failed is None:
            crash = getattr(report.longrepr, "reprcrash", None)
            said = str(crash.message if crash else report.longrepr).strip().splitlines()
            self._outcome.failed, self._outcome.how = nodeid, (said or [""])[0][:200]
            self._keep()

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        self._outcome.running, self._outcome.finished = None, True
        self._keep()


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Choosing(Path(os.environ[FOLDER])), "suite-choosing")
