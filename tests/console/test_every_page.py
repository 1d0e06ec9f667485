"""What holds on every page of the console, in Debian's Chromium: it is whole, and everybody can read it.

Each way to look at the pages (a theme, a telephone, no script) goes through them once, for all tests. With
``MILLSTREAM_SCREENSHOTS=FOLDER`` every page is kept as a picture, light and dark.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from chromium import PAGES, Watched, expect, keyboard_faults, pages_of, walk_steps
from world import Served

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CUT_OFF = """
() => [...document.querySelectorAll("main .card")].filter((card) => card.querySelector("table"))
  .filter((card) => card.scrollWidth > card.clientWidth + 1)
  .map((card) => card.querySelector("h2, h3")?.textContent ?? "card")
"""
"""The cards whose tables are cut off at the right."""

FIELDS_CUT_OFF = """
() => {
  const right = (box) => box.getBoundingClientRect().right;
  return [...document.querySelectorAll("main .card :is(input, select, textarea)")]
    .filter((field) => right(field) > right(field.closest(".card")) + 1).map((field) => field.name);
}
"""
"""The fields of forms that end outside their card."""

SWATCHES_ALONE = """
() => [...document.querySelectorAll(".legend > span")]
  .filter((each) => each.getBoundingClientRect().height > 30).map((each) => `${each.innerText} on two lines`)
"""
"""The entries of legends of which the colour and the words are on different lines."""

MENU_IN_SIGHT = """
() => {
  const here = document.querySelector(".folded summary b")?.getBoundingClientRect();
  return Boolean(here) && here.width > 0 && here.left >= 0 && here.right <= innerWidth;
}
"""
"""Whether the entry of the menu for this page can be seen."""

TABLES = """
() => [...document.querySelectorAll("main table")].map((table) => {
  const csv = ".export a[href*='format=csv']";
  let near = table;
  while (near && !near.querySelector(csv)) near = near.parentElement.closest("section, main");
  const inside = near && near.tagName === "SECTION" ? [...near.querySelectorAll(".export a")] : [];
  return { table: table.textContent.trim().slice(0, 60), links: inside.map((a) => a.pathname + a.search) };
})
"""
"""Every table of a page, and the links to what it shows in other formats."""


CONTRASTS = """
() => {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, bottom) => [0, 1, 2].map((n) => top[n] * top[3] + bottom[n] * (1 - top[3])).concat(1);
  const ground = (element) => {
    const layers = [];
    for (let each = element; each; each = each.parentElement) layers.push(rgba(getComputedStyle(each).backgroundColor));
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255, 1]);
  };
  const light = (colour) => {
    const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = colour.slice(0, 3).map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const poor = [];
  let seen = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const style = getComputedStyle(element);
    const box = element.getBoundingClientRect();
    const unseen = element.closest(".hidden, .skip, script, style, details:not([open]) > :not(summary), svg, canvas");
    if (!walker.currentNode.data.trim() || unseen || !box.width || style.visibility === "hidden") continue;
    let opacity = 1;
    for (let each = element; each; each = each.parentElement) opacity *= Number(getComputedStyle(each).opacity);
    const below = ground(element);
    const colour = rgba(style.color);
    const lights = [light(over([...colour.slice(0, 3), colour[3] * opacity], below)), light(below)];
    const ratio = (Math.max(...lights) + 0.05) / (Math.min(...lights) + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    seen += 1;
    const text = walker.currentNode.data.trim().slice(0, 40);
    if (ratio < (large ? 3 : 4.5)) poor.push(`${ratio.toFixed(2)} ${element.tagName}.${element.className}: ${text}`);
  }
  return { seen, poor };
}
"""
"""The texts whose contrast is too low (WCAG 2.1 AA), and how many texts there are."""

NAMELESS = """
() => [...document.querySelectorAll("a[href], button, input:not([type=hidden]), select, textarea")].filter((each) => {
  const label = each.labels && each.labels.length ? each.labels[0].textContent : "";
  const name = [each.textContent, each.title, each.ariaLabel, label, each.alt].join("").trim();
  return !name;
}).map((each) => each.outerHTML.slice(0, 120))
"""
"""Links, buttons and fields that have no name."""


class Walk(NamedTuple):
    """What was seen on pages, by their names: all faults of each kind, and on how many texts the contrast rests."""

    broken: list[str]
    """Pages that did not come, are wider than the window, or have cards that are cut off."""
    poor: dict[str, list[str]]
    nameless: dict[str, list[str]]
    texts: dict[str, int]
    tables: dict[str, list[dict[str, Any]]]
    unreachable: dict[str, list[str]]
    """What the Tab key does not lead to as it should."""
    complaints: list[str]
    hosts: set[str]


Walked = Callable[[str], Walk]


def keep_picture(page: Page, name: str) -> None:
    """Keep *page* as a picture, where somebody wants pictures."""
    if pictures := os.environ.get("MILLSTREAM_SCREENSHOTS"):
        Path(pictures).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=f"{pictures}/{name}.png", full_page=True)


def look_at(page: Page, name: str, walk: Walk) -> None:
    """Note what is wrong with *page*."""
    if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
        walk.broken.append(f"{name} is wider than the window")
    walk.broken.extend(f"{name}: {title}" for title in page.evaluate(CUT_OFF))
    contrasts = page.evaluate(CONTRASTS)
    walk.poor[name], walk.texts[name] = contrasts["poor"], contrasts["seen"]
    walk.nameless[name] = page.evaluate(NAMELESS)


def faults(by_page: dict[str, list[str]]) -> dict[str, list[str]]:
    """The pages that have any."""
    return {name: found for name, found in by_page.items() if found}


SCHEMES = ["light", "dark"]
Pages = tuple[Watched, dict[str, Walk], Callable[["Page", str], None]]


def pages_on(browser: Browser, device: str) -> Pages:
    """A context of *browser* on a large screen (no *device*) or a telephone (``phone-``), the walks that begin in it by
    theme, and what notes the faults of a page in both themes.

    Each page comes in the theme in which the one before it was left, so that half of them begin in either.
    """
    size = {"width": 390, "height": 844} if device else {"width": 1440, "height": 900}
    options: dict[str, Any] = {"viewport": size, "color_scheme": SCHEMES[0], "is_mobile": bool(device)}
    watching = Watched(browser.new_context(**options))
    walks = {
        f"{device}{scheme}": Walk([], {}, {}, {}, {}, {}, watching.complaints, watching.hosts) for scheme in SCHEMES
    }
    order = list(SCHEMES)

    def look(page: Page, name: str) -> None:
        for turn, scheme in enumerate(order):
            theme = f"{device}{scheme}"
            if turn:
                page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            look_at(page, name, walks[theme])
            keep_picture(page, f"{name}-{theme}")
        order.reverse()

    return watching, walks, look


@pytest.fixture(scope="module")
def walked(browser: Browser, served: Served) -> Walked:
    """The pages on a large screen, by theme."""

    @functools.cache
    def walk_through() -> dict[str, Walk]:
        watching, walks, look = pages_on(browser, "")
        page = watching.page(served.url)
        expect(page.locator("#live-state")).to_have_text("live")
        for name, path in pages_of(served).items():
            response = page.goto(served.url + path)
            assert response is not None and response.status == 200, path
            expect(page.locator("h1").first).to_be_visible()
            look(page, name)
            walks["light"].tables[name] = page.evaluate(TABLES)
        watching.context.close()
        return walks

    return lambda theme: walk_through()[theme]


@pytest.fixture(scope="module")
def stepped(browser: Browser, guarded: Served) -> Walked:
    """The pages that come before an action or instead of it, by device and theme."""

    @functools.cache
    def walk_through(device: str) -> dict[str, Walk]:
        watching, walks, look = pages_on(browser, device)
        page = watching.context.new_page()

        def look_here(name: str) -> None:
            look(page, name)
            if not device:
                walks["light"].unreachable[name] = keyboard_faults(page)

        walk_steps(page, guarded, look_here)
        watching.context.close()
        return walks

    return lambda theme: walk_through(theme.rpartition("light")[0] or theme.rpartition("dark")[0])[theme]


@pytest.mark.parametrize("theme", [pytest.param("light", marks=pytest.mark.smoke), "dark"])
def test_every_page_is_whole_without_a_complaint(walked: Walked, theme: str) -> None:
    walk = walked(theme)
    assert walk.broken == []
    assert walk.complaints == [] and walk.hosts == {"127.0.0.1"}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_of_every_page_can_be_read_and_everything_to_act_on_has_a_name(walked: Walked, theme: str) -> None:
    walk = walked(theme)
    assert {name: walk.texts[name] for name in PAGES if walk.texts[name] <= 30} == {}
    assert faults(walk.poor) == {}
    assert faults(walk.nameless) == {}


def test_every_table_leads_to_itself_as_csv_and_as_json(walked: Walked, served: Served) -> None:
    seen, without = dict[str, int](), list[str]()
    for name, tables in walked("light").tables.items():
        if PAGES.get(name, "").startswith(("/find", "/messages")):  # the steps of a search are JSON alone
            continue
        for each in tables:
            if not each["links"]:
                without.append(f"{name}: {each['table']}")
            for link in each["links"]:
                seen[link] = seen[link] if link in seen else served.ask("GET", link)[0]
    assert without == []
    assert {link: status for link, status in seen.items() if status != 200} == {} and len(seen) > 50


@pytest.mark.parametrize("theme", ["light", "dark", "phone-light", "phone-dark"])
def test_what_comes_before_an_action_or_instead_of_it_is_a_whole_page(stepped: Walked, theme: str) -> None:
    walk = stepped(theme)
    assert walk.broken == []
    refused = [text for text in walk.complaints if "the server responded with a status of" not in text]
    assert refused == [] and walk.hosts == {"127.0.0.1"}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_same_holds_where_people_sign_in_confirm_and_are_refused(stepped: Walked, theme: str) -> None:
    walk = stepped(theme)
    assert {name: texts for name, texts in walk.texts.items() if texts <= 10} == {}
    assert [faults(walk.poor), faults(walk.nameless), faults(walk.unreachable)] == [{}, {}, {}]


def test_every_page_can_be_read_on_a_telephone(browser: Browser, served: Served) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
    page = context.new_page()
    wide = []
    for name, path in pages_of(served).items():
        page.goto(served.url + path)
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            wide.append(name)
        wide += [f"{name}: {title}" for title in page.evaluate(CUT_OFF)]
        if not page.evaluate(MENU_IN_SIGHT):
            wide.append(f"{name}: the menu does not show where one is")
        wide += [f"{name}: {field}" for field in page.evaluate(FIELDS_CUT_OFF)]
        wide += [f"{name}: {words}" for words in page.evaluate(SWATCHES_ALONE)]
        for theme in ("light", "dark") if "MILLSTREAM_SCREENSHOTS" in os.environ else ():
            page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
            keep_picture(page, f"{name}-phone-{theme}")
    context.close()
    assert wide == []


class ScriptlessWalk(NamedTuple):
    """What was seen without a script: on a telephone, and on a large screen."""

    wide: list[str]
    """Pages of a telephone that are wider than it, or have cards that are cut off."""
    label: str
    """What the style sheet writes before a cell of a telephone's table."""
    unreadable: list[str]
    """Pages without a heading, without text, or with parts that wait for a script."""


@pytest.fixture(scope="module")
def scriptless(browser: Browser, served: Served) -> ScriptlessWalk:
    """The pages in a browser that runs no scripts."""
    telephone, screen = {"width": 390, "height": 844}, {"width": 1280, "height": 720}
    context = browser.new_context(java_script_enabled=False)
    page, wide, unreadable = context.new_page(), list[str](), list[str]()
    for name, path in pages_of(served).items():
        page.set_viewport_size(telephone)  # type: ignore[arg-type]
        page.goto(served.url + path)
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            wide.append(name)
        wide += [f"{name}: {title}" for title in page.evaluate(CUT_OFF)]
        page.set_viewport_size(screen)  # type: ignore[arg-type]
        heading = page.locator("h1")
        whole = heading.count() == 1 and heading.is_visible() and len(page.locator("main").inner_text()) > 100
        if not whole or page.locator("main [hx-get]:empty, main .chart:empty").count():
            unreadable.append(name)
    page.set_viewport_size(telephone)  # type: ignore[arg-type]
    page.goto(f"{served.url}/queues")
    cell = page.locator("tbody tr", has_text="duplication-high").locator("td").nth(4)
    label = cell.evaluate("cell => getComputedStyle(cell, '::before').content")
    context.close()
    return ScriptlessWalk(wide, label, unreadable)


def test_tables_are_cards_on_a_telephone_without_a_script(scriptless: ScriptlessWalk) -> None:
    assert (scriptless.wide, scriptless.label) == ([], '"dead"')


def test_pages_can_be_read_without_a_script(browser: Browser, served: Served, scriptless: ScriptlessWalk) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(served.url)
    expect(page.locator(".station")).to_have_count(5)
    page.get_by_role("link", name="Queues", exact=True).first.click()
    page.get_by_role("link", name="duplication-high").first.click()
    expect(page.locator("h1")).to_have_text("duplication-high")
    context.close()
    assert scriptless.unreadable == []
