"""Every page of the console is one that the browser tests open and that people can reach."""

from __future__ import annotations

import inspect
import pkgutil
import re
from pathlib import Path

from chromium import PAGES

from millstream import console
from millstream.console.app import PAGE_MODULES

TEMPLATES = Path(inspect.getfile(console)).parent / "templates"
ROUTE = re.compile(r'Route\("(?P<path>[^"]+)", pages\.show\("(?P<template>[^"]+)"')
NOT_OPENED = {"/find", "/messages", "/batches/one", "/policies/new"}
"""Pages with tests of their own."""


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
    menu = (TEMPLATES / "base.html").read_text("utf-8")
    missing = {path for path in pages() if path.count("/") == 1 and f'("{path}", "' not in menu} - {"/messages"}
    assert not missing, f"add {missing} to the menu in console/templates/base.html"
