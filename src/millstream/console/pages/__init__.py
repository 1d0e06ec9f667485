"""The pages of the console: one module a topic. Each has a function ``routes``, and is found by being here."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from types import ModuleType


def page_modules() -> Sequence[ModuleType]:
    """The modules of this package, sorted by name."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return [importlib.import_module(f"{__name__}.{name}") for name in names]
