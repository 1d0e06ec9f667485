"""Ten tasks of an operator, done in a browser from the overview: where each leads, and how many clicks it takes.

A click is one on a link or a button, or Enter in a field; what is typed is not counted. ``docs/console.md`` has the
table: a task that takes more clicks than it says fails here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from chromium import Watched, expect
from world import DAMAGED, Served, serving

from millstream.batching import Reject
from millstream.log import LogSpec, Message
from millstream.node import Node
from millstream.settings import load_settings
from millstream.testing.batches import CONFIG

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

TABLE = Path(__file__).parents[2] / "docs" / "console.md"


class Operator:
    """Somebody who begins each task on the overview of *served*, and whose clicks are counted by task."""

    def __init__(self, page: Page, served: Served, rejected: int) -> None:
        self.page, self._served, self.rejected = page, served, rejected
        self.clicks: dict[str, int] = {}
        self._task = ""

    def begin(self, task: str) -> None:
        self.page.goto(self._served.url)
        self._task = task
        self.clicks[task] = 0

    def click(self, target: Locator) -> None:
        self.clicks[self._task] += 1
        with self.page.expect_navigation():
            target.click()

    def menu(self, name: str) -> None:
        self.click(self.page.get_by_role("navigation", name="Pages").get_by_role("link", name=name, exact=True))

    def button(self, name: str | re.Pattern[str]) -> None:
        self.click(self.page.locator("main").get_by_role("button", name=name, exact=isinstance(name, str)).first)

    def find(self, text: str) -> None:
        """Type *text* into the field at the top, and press Enter."""
        self.page.locator("#find").fill(text)
        self.clicks[self._task] += 1
        with self.page.expect_navigation():
            self.page.locator("#find").press("Enter")

    def sees(self, text: str | re.Pattern[str]) -> None:
        expect(self.page.locator("main")).to_contain_text(text)


def documented() -> dict[str, int]:
    """The clicks of each task as the documentation has them."""
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \| [^|]+ \| (\d+) \|", TABLE.read_text("utf-8"), re.MULTILINE)
    return {task: int(clicks) for _, task, clicks in rows}


@pytest.fixture
def operator(copied: Callable[[], Path], watched: Watched) -> Iterator[Operator]:
    folder = copied()
    rejected = reject_message(folder)
    with serving(folder) as served:
        yield Operator(watched.page(served.url), served, rejected)
    assert watched.complaints == []


def reject_message(folder: Path) -> int:
    """Append a message to the log weather of the node in *folder*, and reject it; its id."""
    settings, _ = load_settings({"data": str(folder)})
    with Node.open(settings) as node:
        with node.logs.store.log(LogSpec("weather")).writer() as writer:
            ids = writer.append([Message(b"21.5", key="temperature", source="JFK")])
        assert ids is not None
        node.anchoring.batch_writer.add("weather", [], [Reject(ids.first, "late")], config=CONFIG)
    return ids.first


def test_ten_tasks_of_an_operator_take_the_clicks_that_the_documentation_says(operator: Operator) -> None:
    for look_at in (look_for_messages, look_at_copies, act_on_queue, act_on_policy, approve_deletion, look_at_node):
        look_at(operator)
    assert operator.clicks == documented() and len(operator.clicks) == 10


def look_for_messages(operator: Operator) -> None:
    page = operator.page
    operator.begin("Find a message by its key")
    operator.find("temperature")
    operator.click(page.locator("section", has_text="Results").locator("tbody a").first)
    operator.sees("21.5")

    operator.begin("Why was a message rejected?")
    operator.find(f"weather/{operator.rejected:,}")
    operator.sees("late: received after its batch was final")


def look_at_copies(operator: Operator) -> None:
    operator.begin("Where are the copies of an item, and when were they last read?")
    operator.find(DAMAGED)
    operator.sees("last verified")
    expect(operator.page.locator("tbody tr")).to_have_count(3)

    operator.begin("Prove a message")
    operator.find("weather/7")
    operator.click(operator.page.get_by_role("link", name="Prove", exact=True))
    operator.sees("the proof holds")


def act_on_queue(operator: Operator) -> None:
    page = operator.page
    operator.begin("Redrive dead letters")
    operator.click(page.locator('.issue[data-kind="dead-letters"]').get_by_role("button", name="Redrive…"))
    operator.sees("All 30 dead tasks, whatever their cause, of the queue duplication-high")
    operator.sees("10 × the provider did not answer")
    operator.button("Redrive")
    expect(page.get_by_role("status")).to_contain_text("ready again")


def act_on_policy(operator: Operator) -> None:
    page = operator.page
    operator.begin("Preview, save and undo a change of a policy")
    operator.menu("Policies")
    operator.click(page.get_by_role("link", name="local", exact=True))
    page.get_by_label("Another space").last.fill("films")
    operator.button("Preview")
    operator.sees("+ films")
    operator.button("Save")
    operator.button("Undo")
    expect(page.get_by_role("status")).to_contain_text("is in force again")


def approve_deletion(operator: Operator) -> None:
    page = operator.page
    operator.begin("Approve a held deletion")
    operator.click(page.locator('.issue[data-kind="held"]').first.get_by_role("button", name="Approve…"))
    operator.sees("photo-11.txt")
    page.get_by_label("Reason").fill("deleted on purpose")
    operator.button("Approve")
    expect(page.get_by_role("status")).to_contain_text("Approved")


def look_at_node(operator: Operator) -> None:
    page = operator.page
    operator.begin("Who changed what?")
    operator.menu("Audit log")
    expect(page.get_by_role("row", name="approve")).to_contain_text("deleted on purpose")
    expect(page.get_by_role("row", name="save policy").first).to_contain_text("local")

    operator.begin("Is the node healthy?")
    expect(page.locator(".verdict h2")).to_contain_text("issue")

    operator.begin("What will fill the disk first?")
    operator.menu("System")
    operator.sees("What the node stores")
    expect(page.locator("section", has=page.get_by_role("heading", name="Disks")).first).to_contain_text("data folder")
