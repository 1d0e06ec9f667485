"""Public names of a package that are loaded from its modules when they are first used."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any


def lazy_names(package: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of *package*: it loads a name as the package imports it under ``if TYPE_CHECKING``.

    What type checkers read is the only list of where a name comes from, as with the stubs of Scientific Python.
    """
    modules: dict[str, str] = {}

    def load(name: str) -> Any:
        modules.update({} if modules else _imports(package))
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(modules[name]), name)

    return load


def _imports(package: str) -> dict[str, str]:
    """The module of each name that *package* imports under ``if TYPE_CHECKING``."""
    import ast  # 5 ms, of which most programs have no need

    source = (pkgutil.get_data(package, "__init__.py") or b"").decode()
    guarded = [
        one for one in ast.parse(source).body if isinstance(one, ast.If) and ast.unparse(one.test) == "TYPE_CHECKING"
    ]
    imports = [one for block in guarded for one in block.body if isinstance(one, ast.ImportFrom)]
    return {alias.name: one.module for one in imports if one.module for alias in one.names}
