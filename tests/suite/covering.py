"""A plugin of pytest (``-p suite.covering``) that says which test runs, for the marks of :mod:`suite.hits`.

Each process that runs tests has a table of its own and a list of its tests beside it. What a fixture runs counts for
the test that is the first to ask for it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = "MILLSTREAM_COVERING"
"""The environment variable that names the folder of the tables."""
WIDTH = "width"
"""The file that says how many probes there are."""


class Covering:
    """Gives each test of this process a row."""

    def __init__(self, folder: Path) -> None:
        import millstream_hits  # type: ignore[import-not-found]  # as :mod:`suite.hits` is named in a sandbox

        self._hits = millstream_hits
        self._rows = 0
        self._list = folder / f"{os.getpid()}.tests"
        table = folder / f"{os.getpid()}.hits"
        self._hits.create(table, int((folder / WIDTH).read_text()))
        self._hits.attach(str(table))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._rows += 1
        self._append(item.nodeid)
        self._hits.enter(self._rows)
        began = time.perf_counter()
        try:
            return (yield)
        finally:
            self._hits.enter(0)
            self._append(time.perf_counter() - began)

    def _append(self, said: str | float) -> None:
        with self._list.open("a", encoding="utf-8") as file:
            file.write(json.dumps(said) + "\n")


def collect(folder: Path) -> tuple[dict[str, set[int]], dict[str, float]]:
    """The probes that each test reached, and the seconds that it took, by test. *folder* is that of the tables."""
    from suite import hits

    reached: dict[str, set[int]] = {}
    seconds: dict[str, float] = {}
    for path in sorted(folder.glob("*.tests")):
        row, test = 0, ""
        for said in map(json.loads, path.read_text("utf-8").splitlines()):
            if isinstance(said, str):
                row, test = row + 1, said
                reached.setdefault(test, set()).update(hits.read(path.with_suffix(".hits"), row))
            else:
                seconds[test] = said
    return reached, seconds


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Covering(Path(os.environ[FOLDER])), "suite-covering")
