"""Everybody can read the console and use it without a mouse: contrast (WCAG 2.1 AA), names, and the keyboard."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any

import pytest
from chromium import PAGES, expect, walk_steps
from world import Served

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SHEET = resources.files("millstream.console").joinpath("static", "console.css").read_text("utf-8")
TEXT = {
    "ink": ("paper", "card", "hover", "accent-soft", "bad-bg", "warn-bg"),
    "soft": ("paper", "card", "hover"),
    "accent": ("paper", "card", "hover", "accent-soft"),
    "accent-ink": ("accent",),
    "good": ("paper", "card", "good-bg"),
    "warn": ("paper", "card", "warn-bg"),
    "bad": ("paper", "card", "bad-bg"),
    "card": ("bad", "good"),
}
"""Colours of text, and what they stand on."""

DRAWN = ("line", "line2", "series1", "series2", "series3", "series4", "good", "warn", "bad", "accent")
"""What is drawn on a card: lines of charts, edges, the mark of the focus."""

TEXT_RATIO, DRAWN_RATIO = 4.5, 3.0

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

NAMELESS = """
() => [...document.querySelectorAll("a[href], button, input:not([type=hidden]), select, textarea")].filter((each) => {
  const label = each.labels && each.labels.length ? each.labels[0].textContent : "";
  const name = [each.textContent, each.title, each.ariaLabel, label, each.alt].join("").trim();
  return !name;
}).map((each) => each.outerHTML.slice(0, 120))
"""

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


def themes() -> Mapping[str, Mapping[str, str]]:
    """The colours of the stylesheet, by theme and name."""
    blocks = {
        "light": re.search(r":root \{(.*?)\n\}", SHEET, re.DOTALL),
        "dark": re.search(r':root\[data-theme="dark"\] \{(.*?)\n\}', SHEET, re.DOTALL),
        "dark by the system": re.search(r":root:not\(\[data-theme\]\) \{(.*?)\n  \}", SHEET, re.DOTALL),
    }
    return {
        theme: dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block.group(1)))
        for theme, block in blocks.items()
        if block
    }


def ratio(one: str, other: str) -> float:
    """The contrast of two colours (WCAG 2.1, "contrast ratio")."""
    lights = sorted((_luminance(one), _luminance(other)))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_the_ratio_is_that_of_the_guidelines() -> None:
    assert ratio("#000000", "#ffffff") == pytest.approx(21)
    assert ratio("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def test_dark_is_the_same_whether_it_was_chosen_or_is_the_systems() -> None:
    found = themes()
    assert len(found) == 3 and found["dark"] == found["dark by the system"]
    assert found["dark"].keys() == found["light"].keys()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_pair_of_colours_of_the_stylesheet_has_enough_contrast(theme: str) -> None:
    colours = themes()[theme]
    text = {(one, on): ratio(colours[one], colours[on]) for one, grounds in TEXT.items() for on in grounds}
    drawn = {(one, "card"): ratio(colours[one], colours["card"]) for one in DRAWN}
    assert {pair: found for pair, found in text.items() if found < TEXT_RATIO} == {}
    assert {pair: found for pair, found in drawn.items() if found < DRAWN_RATIO} == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_of_every_page_can_be_read_and_everything_to_act_on_has_a_name(
    browser: Browser, served: Served, theme: str
) -> None:
    context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme=theme)  # type: ignore[arg-type]
    page = context.new_page()
    poor, nameless = dict[str, list[str]](), dict[str, list[str]]()
    for name, path in PAGES.items():
        page.goto(served.url + path)
        found = page.evaluate(CONTRASTS)
        assert found["seen"] > 30, name
        poor[name], nameless[name] = found["poor"], page.evaluate(NAMELESS)
    context.close()
    assert {name: texts for name, texts in poor.items() if texts} == {}
    assert {name: elements for name, elements in nameless.items() if elements} == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_same_holds_where_people_sign_in_confirm_and_are_refused(
    browser: Browser, guarded: Served, theme: str
) -> None:
    context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme=theme)  # type: ignore[arg-type]
    page = context.new_page()
    found = {}

    def look(name: str) -> None:
        texts = page.evaluate(CONTRASTS)
        assert texts["seen"] > 10, name
        found[name] = [*texts["poor"], *page.evaluate(NAMELESS)]
        _walk(page, name)

    walk_steps(page, guarded, look)
    context.close()
    assert {name: texts for name, texts in found.items() if texts} == {}


def test_the_first_key_leads_past_the_menu_and_every_step_is_seen_and_in_order(
    browser: Browser, served: Served
) -> None:
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(f"{served.url}/queues/duplication-high")
    page.keyboard.press("Tab")
    skip = page.evaluate(FOCUS)
    assert skip["text"] == "Skip to the content" and skip["inView"] and skip["outline"]
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate(FOCUS)["inMain"]
    page.goto(f"{served.url}/queues/duplication-high")
    _walk(page, "queue", 45)
    page.goto(f"{served.url}/policies/local")
    _walk(page, "policy", 45)
    page.close()


def test_a_queue_is_found_and_a_form_left_by_keyboard_alone(browser: Browser, served: Served) -> None:
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(served.url)
    page.keyboard.press("/")
    page.keyboard.type("duplication-high")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("duplication-high")
    _tab_to(page, "Redrive")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text("Redrive")
    _tab_to(page, "Cancel")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("duplication-high")
    page.close()


def _walk(page: Page, name: str, most: int = 40) -> None:
    """Go through *page* with the Tab key until it begins again: every step is seen, and they come in order."""
    page.evaluate("document.activeElement.blur()")
    steps: list[dict[str, Any]] = []
    for _ in range(most):
        page.keyboard.press("Tab")
        step = page.evaluate(FOCUS)
        if step["tag"] == "BODY" or (steps and step["order"] <= steps[0]["order"]):
            break
        steps.append(step)
    assert [step for step in steps if not (step["outline"] and step["inView"])] == [], name
    orders = [step["order"] for step in steps]
    assert len(orders) > 3 and orders == sorted(set(orders)), name


def _tab_to(page: Page, text: str) -> None:
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate(FOCUS)["text"] == text:
            return
    raise AssertionError(f"{text!r} cannot be reached")
