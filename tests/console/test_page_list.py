"""Every page of the console is one that the browser tests open and that people can reach."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

from chromium import PAGES
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from millstream.console.menu import MENU
from millstream.console.pages import page_modules

ROUTE = re.compile(r'Route\("(?P<path>[^"]+)", pages\.show\("(?P<template>[^"]+)"')
NOT_OPENED = {"/find", "/messages", "/batches/one", "/policies/new"}
"""Pages with tests of their own."""
PATHS = {"/": ["Overview"], "/logs/weather": ["Topics and logs"], "/messages": ["Search"], "/files/abc": ["Anchors"]}
"""Paths, and the entry of the menu that is marked there."""


def pages() -> dict[str, str]:
    """The template of each page without parameters, by its path."""
    source = "".join(inspect.getsource(module.routes) for module in page_modules())
    return {found["path"]: found["template"] for found in ROUTE.finditer(source) if "{" not in found["path"]}


class NoPages:
    """In the place of the renderer: the handlers do nothing."""

    def __getattr__(self, _name: str) -> Callable[..., Callable[[Request], Response]]:
        return lambda *_, **__: lambda request: Response()


def test_every_page_is_reached_whatever_the_order_of_the_modules() -> None:
    routes: list[Route] = [route for module in page_modules() for route in module.routes(NoPages())]
    for route in routes:
        path, method = re.sub(r"{[^}]+}", "7", route.path), min(route.methods or {"GET"})
        scope = {"type": "http", "path": path, "method": method}
        hits = [other.path for other in routes if other.matches(scope)[0] == Match.FULL]
        assert hits[0] == route.path, f"{method} {route.path} is hidden by {hits[0]}"


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
