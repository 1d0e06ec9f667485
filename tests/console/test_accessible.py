"""Everybody can read the console and use it without a mouse: contrast (WCAG 2.1 AA), and the keyboard.

``test_every_page.py`` looks at the contrast and the names on each page.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from typing import TYPE_CHECKING

import pytest
from chromium import FOCUS, expect, keyboard_faults
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
    assert keyboard_faults(page, 45) == []
    page.goto(f"{served.url}/policies/local")
    assert keyboard_faults(page, 45) == []
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


def _tab_to(page: Page, text: str) -> None:
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate(FOCUS)["text"] == text:
            return
    raise AssertionError(f"{text!r} cannot be reached")
