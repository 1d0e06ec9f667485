"""Debian's Chromium for the tests of the console, and the pages that they go through."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from world import DAMAGED, Served, did

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Locator, Page

CHROMIUM = shutil.which("chromium") or ""
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
PAGES = {
    "overview": "/", "logs": "/logs", "log": "/logs/weather", "message": "/logs/weather/7", "batches": "/batches",
    "anchors": "/anchors", "anchor": "/anchors/2", "ledgers": "/ledgers", "ledger": "/ledgers/registry",
    "proof": "/proof?log=weather&id=7", "policies": "/policies",
    "policy": "/policies/local", "integrity": "/integrity", "findings": "/integrity/findings",
    "space": "/integrity/space?store=second&space=photos",
    "item": f"/integrity/item?space=photos&content_id={quote(DAMAGED, safe='')}", "queues": "/queues",
    "queue": "/queues/duplication-high", "task": "/queues/duplication-high/1", "workers": "/workers",
    "dead-letters": "/dead-letters", "audit": "/audit", "reports": "/integrity/reports",
    "identifiers": f"/identifiers?did={did()}", "system": "/system", "policy-text": "/policies/local?view=text",
    "policy-older": "/policies/local?number=1", "rejected": "/batches/rejected?log=weather",
    "batches-narrowed": "/batches?log=weather&ended=conflict", "batch-rules": "/batches/rules",
    "search": "/find?q=photo",
    "search-nothing": "/find?q=no-such-name", "messages": "/messages?log=weather&key=temp",
    "vanished": "/integrity/vanished", "hold": "/integrity/holds/1", "members": "/members",
}  # fmt: skip
PATIENCE = 30_000


def pages_of(served: Served) -> Mapping[str, str]:
    """:data:`PAGES`, and an anchored batch of *served* with its file."""
    batch = served.ask("GET", "/api/v1/batches?before=60&limit=1")[1]["items"][0]["batch"]
    where = f"log=weather&batch={batch}"
    file = served.ask("GET", f"/api/v1/batches/one/places?{where}")[1]["items"][0]["file"]
    return {**PAGES, "batch": f"/batches/one?{where}", "file": f"/files/{file}"}


class Watched:
    """A context of the browser that knows what its pages complained of, and which hosts they asked."""

    def __init__(self, context: BrowserContext) -> None:
        self.context, self.complaints, self.hosts = context, list[str](), set[str]()
        context.set_default_timeout(PATIENCE)
        context.on("request", lambda request: self.hosts.add(urlsplit(request.url).hostname or ""))
        context.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        context.on("weberror", lambda error: self.complaints.append(str(error.error)))

    def page(self, url: str) -> Page:
        page = self.context.new_page()
        page.goto(url)
        return page


def expect(found: Any) -> Any:
    """Playwright's ``expect``, which takes a quarter of a second to import: only tests that look at a page pay."""
    from playwright.sync_api import expect

    expect.set_options(timeout=PATIENCE)
    return expect(found)


def to_sign_in(page: Page, served: Served) -> None:
    """The page that asks who is there, after a wrong password."""
    page.goto(f"{served.url}/queues")
    page.get_by_label("Name").fill("ada")
    page.get_by_label("Password").fill("a guess")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_be_visible()


def sign_in(page: Page, served: Served, name: str) -> None:
    """Sign in as *name*."""
    page.goto(f"{served.url}/sign-in")
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(f"secret of {name}")
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator(".who")).to_contain_text(name)


def _follow(page: Page, button: Locator) -> None:
    """Click *button*, and wait until the page that it leads to is whole: a click returns before that."""
    with page.expect_navigation():
        button.click()


def _press(path: str, button: str) -> Callable[[Page, Served], None]:
    def press(page: Page, served: Served) -> None:
        page.goto(served.url + path)
        _follow(page, page.get_by_role("button", name=button, exact=True).first)

    return press


def _amended(page: Page, served: Served) -> None:
    page.goto(f"{served.url}/queues/duplication-high/2")
    page.get_by_label("Body").fill(page.get_by_label("Body").input_value().replace("gone", "second"))
    _follow(page, page.get_by_role("button", name="Preview change…"))


def _conflicting(page: Page, served: Served) -> None:
    """An editor whose policy somebody saved meanwhile; it is saved once, however often this is done."""
    page.goto(f"{served.url}/policies/local")
    page.get_by_label("Another space").last.fill("mine")
    page.locator(".editor [name=version]").evaluate("each => { each.value = 'none' }")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("alert")).to_be_visible()


def _changed(page: Page, served: Served) -> None:
    page.goto(f"{served.url}/policies/local")
    page.get_by_label("Another space").first.fill("films")
    page.get_by_role("button", name="Add to those").first.click()
    _follow(page, page.get_by_role("button", name="Preview"))


_STEPS: Mapping[str, Callable[[Page, Served], None]] = {
    "confirm-redrive": _press("/queues/duplication-high", "Redrive"),
    "confirm-discard": _press("/queues/duplication-high", "Discard…"),
    "confirm-amend": _amended,
    "confirm-repair": _press("/integrity/findings", "Repair…"),
    "confirm-approve": _press("/integrity", "Approve…"),
    "confirm-withdraw": _press("/policies/local", "Withdraw policy…"),
    "policy-changed": _changed,
    "policy-conflict": _conflicting,
    "error-missing": lambda page, served: page.goto(f"{served.url}/nothing") and None,
    "error-refused": _press("/queues/duplication-high", "Redrive selected"),
}
"""Ways to the pages that come before something is done, or instead of it; none of them changes anything."""


def walk_steps(page: Page, served: Served, look: Callable[[str], None]) -> None:
    """Go to each page that comes before an action or instead of it, signing in first; *look* is told its name."""
    to_sign_in(page, served)
    look("sign-in")
    sign_in(page, served, "ada")
    for name, go in _STEPS.items():
        go(page, served)
        look(name)


FOCUS = """
() => {
  const each = document.activeElement, style = getComputedStyle(each), box = each.getBoundingClientRect();
  return {
    tag: each.tagName, text: (each.textContent || each.id || each.name || "").trim().slice(0, 60),
    outline: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2, inMain: !!each.closest("main"),
    inView: box.bottom > 0 && box.top < innerHeight && box.right > 0,
    order: [...document.querySelectorAll("*")].indexOf(each),
  };
}
"""
"""What has the focus, and whether that can be seen."""


def keyboard_faults(page: Page, most: int = 40) -> list[str]:
    """What is wrong for people who go through *page* with the Tab key, at most *most* steps: a step that cannot be
    seen, or steps that do not come in order.
    """
    page.evaluate("document.activeElement.blur()")
    steps: list[dict[str, Any]] = []
    for _ in range(most):
        page.keyboard.press("Tab")
        step = page.evaluate(FOCUS)
        if step["tag"] == "BODY" or (steps and step["order"] <= steps[0]["order"]):
            break
        steps.append(step)
    faults = [f"cannot be seen: {step}" for step in steps if not (step["outline"] and step["inView"])]
    orders = [step["order"] for step in steps]
    if len(orders) <= 3 or orders != sorted(set(orders)):
        faults.append(f"not in order: {steps}")
    return faults
