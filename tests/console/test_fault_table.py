"""The fault table: each fault is caused on a node that is served, and shows within a minute on the open overview, in
`millstream status` and in ``/metrics``; it is gone from all three after it was repaired.

At the size ``long`` all of them are, with the settings as they are by default, and the table in the documentation is
written anew: see ``docs/explanation/verdict.md``.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from chromium import Watched, expect
from fault_page import BROWSER_TABLE, DOCUMENTED, write_row
from running_node import NODES, PRIVATE, Row, RunningNode, rows

from millstream.core.clock import SystemClock
from millstream.testing.waiting import until
from suite.sizes import SIZE

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

ROWS = rows(DOCUMENTED)
FEW = ("dead letters", "a certificate expired")
CHOSEN = [row for row in ROWS if SIZE == "long" or row.fault in FEW]
MOST_SECONDS, PATIENCE = 60.0, 90_000

Views = Mapping[str, Callable[[], str]]
"""How each part of the interface is asked for the fault: the words that it shows, empty where it does not."""


class OpenNodes:
    """Serves each kind of node when it is first asked for, and anew after a fault that did not go."""

    def __init__(self, new_folder: Callable[[str], Path]) -> None:
        self._new_folder = new_folder
        self._open: dict[str, tuple[contextlib.ExitStack, Callable[[], RunningNode]]] = {}

    @contextlib.contextmanager
    def of_kind(self, name: str) -> Iterator[RunningNode]:
        if name == "mounts" and not _may_mount():
            pytest.skip("this system allows no mount namespaces to this user")
        if name not in self._open:
            stack = contextlib.ExitStack()
            self._open[name] = stack, stack.enter_context(NODES[name](self._new_folder(name)))
        desk = self._open[name][1]()
        try:
            with desk.node:
                yield desk
        except BaseException:
            self.close(name)
            raise

    def close(self, *names: str) -> None:
        """End the nodes *names*; all without."""
        for name in names or list(self._open):
            self._open.pop(name)[0].close()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenNodes]:
    opened = OpenNodes(tmp_path_factory.mktemp)
    yield opened
    opened.close()


def test_the_documented_table_is_that_of_these_faults() -> None:
    assert sorted(BROWSER_TABLE) == sorted(row.fault for row in ROWS)
    for row in ROWS:
        caused, kind, words, *seconds = BROWSER_TABLE[row.fault]
        assert (caused, kind) == (row.caused, f"`{row.kind}`") and re.search(row.words, words), row.fault
        assert len(seconds) == 4 and all(float(one) <= MOST_SECONDS for one in seconds), row.fault


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("row", CHOSEN, ids=[f"{row.node}: {row.fault}" for row in CHOSEN])
def test_a_fault_shows_everywhere_within_a_minute_and_goes(browser: Browser, nodes: OpenNodes, row: Row) -> None:
    context = browser.new_context()
    clock = SystemClock()
    seconds: dict[str, float] = {}
    with nodes.of_kind(row.node) as desk:
        page = Watched(context).page(desk.served.url)
        places, views = issues_on(page, row), views_of(row, desk)
        expect(page.locator(".verdict.good")).to_be_visible(timeout=PATIENCE)
        with row.cause(desk):
            began, words = clock.monotonic(), ""
            expect(places.first).to_be_visible(timeout=PATIENCE)
            seconds["overview"] = clock.monotonic() - began
            for name, shown in views.items():
                words = until(shown, f"{row.fault} in {name}", seconds=MOST_SECONDS)
                seconds[name] = clock.monotonic() - began
        began = clock.monotonic()
        expect(places).to_have_count(0, timeout=PATIENCE)
        for name, shown in views.items():
            until(lambda shown=shown: not shown(), f"the end of {row.fault} in {name}", seconds=MOST_SECONDS)
        seconds["gone"] = clock.monotonic() - began
    context.close()
    write_row(row, words, seconds)
    assert max(seconds.values()) <= MOST_SECONDS, seconds


def issues_on(page: Page, row: Row) -> Locator:
    """The issues on the overview, which stays open, that tell of *row*."""
    kind = ".issue.unknown" if row.kind == "unknown" else f'.issue[data-kind="{row.kind}"]'
    return page.locator(kind).filter(has_text=re.compile(row.words, re.IGNORECASE))


def views_of(row: Row, desk: RunningNode) -> Views:
    """Where else *row* has to show: ``/metrics``, and `millstream status`."""
    is_unknown = row.kind == "unknown"
    metric = "verdict_unknown" if is_unknown else f'verdict_issues{{kind="{row.kind}"}}'

    def metrics() -> str:
        text = desk.served.ask("GET", "/metrics")[1]
        return "shown" if re.search(rf"^millstream_{re.escape(metric)} [1-9]", text, re.MULTILINE) else ""

    def status() -> str:
        code, found = desk.status()
        assert code == (0 if found["ok"] else 1) and found["watching"]
        issues = [one["what"] for one in found["issues"] if one["kind"] == row.kind]
        unknown = [one["what"] for one in found["unknown"]] if is_unknown else []
        return next((what for what in (*issues, *unknown) if re.search(row.words, what)), "")

    return {"metrics": metrics, "status": status}


def _may_mount() -> bool:
    found = shutil.which("unshare")
    return bool(found) and not subprocess.run([*PRIVATE, "true"], check=False, capture_output=True).returncode
