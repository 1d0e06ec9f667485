"""The example of each command, read from the source, so that no extra has to be installed."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path


def example_lines() -> list[str]:
    """Every example, as a user types it, sorted."""
    spec = importlib.util.find_spec("millstream.cli")
    assert spec is not None and spec.submodule_search_locations
    modules = Path(spec.submodule_search_locations[0]).rglob("*.py")
    return sorted(line for module in modules for line in _examples_in(ast.parse(module.read_text("utf-8"))))


def _examples_in(module: ast.Module) -> Iterator[str]:
    for definition in module.body:
        for call in definition.decorator_list if isinstance(definition, ast.FunctionDef) else ():
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "example":
                yield ast.literal_eval(call.args[0])
