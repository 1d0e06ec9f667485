"""Every page of the console is one that the browser tests open and that people can reach."""

from __future__ import annotations

import inspect
import pkgutil
import re

from chromium import PAGES

from millstream import console
from millstream.console.app import PAGE_MODULES
from millstream.console.menu import MENU

ROUTE = re.compile(r'Route\("(?P<path>[^"]+)", pages\.show\("(?P<template>[^"]+)"')
NOT_OPENED = {"/find", "/messages", "/batches/one", "/policies/new"}
"""Pages with tests of their own."""
PATHS = {"/": ["Overview"], "/logs/weather": ["Topics and logs"], "/messages": ["Search"], "/files/abc": ["Anchors"]}
"""Paths, and the entry of the menu that is marked there."""


def pages() -> dict[str, str]:
    """The template of each page without parameters, by its path."""
    source = "".join(inspect.getsource(module.routes) for module in PAGE_MODULES)
    return {found["path"]: found["template"] for found in ROUTE.finditer(source) if "{" not in found["path"]}


def test_every_module_of_pages_is_served() -> None:
    modules = {f"{console.__name__}.{module.name}" for module in pkgutil.iter_modules(console.__path__)}
    missing = {name for name in modules if name.endswith("_pages")} - {module.__name__ for module in PAGE_MODULES}
    assert not missing, f"list {missing} in PAGE_MODULES of console/app.py"


def test_every_page_without_parameters_is_opened_by_the_browser_tests() -> None:
    assert len(pages()) > 10
    opened = {path.partition("?")[0] for path in PAGES.values()}
    missing = set(pages()) - opened - NOT_OPENED
    assert not missing, f"add {missing} to PAGES in tests/console/chromium.py"


def test_every_page_of_the_first_level_is_in_the_menu() -> None:
    menu = {entry.path for _, entries in MENU for entry in entries}
    missing = {path for path in pages() if path.count("/") == 1} - menu - {"/messages"}
    assert not missing, f"add {missing} to MENU in console/menu.py"


def test_a_page_is_current_with_the_pages_below_it_and_those_that_it_covers() -> None:
    current = {
        path: [entry.name for _, entries in MENU for entry in entries if entry.is_current(path)] for path in PATHS
    }
    assert current == PATHS
