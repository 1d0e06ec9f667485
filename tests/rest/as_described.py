"""An interface for programs is asked whatever its OpenAPI description allows, and whatever it does not.

Collecting reads the description as JSON; schemathesis, which takes a second to import, is loaded by the first question.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

MODES = ("positive", "negative")


class Described(NamedTuple):
    """One operation of a description: its label (``GET /path``) and where its parameters are."""

    label: str
    places: frozenset[str]
    """Of ``query``, ``path`` and ``body``."""


def described_operations(description: Path) -> Sequence[Described]:
    """The operations of the OpenAPI document in the file *description*."""
    paths: Mapping[str, Mapping[str, Any]] = json.loads(description.read_bytes())["paths"]
    return [
        Described(f"{method.upper()} {path}", _places(operation))
        for path, methods in paths.items()
        for method, operation in methods.items()
    ]


def _places(operation: Mapping[str, Any]) -> frozenset[str]:
    places = {parameter["in"] for parameter in operation.get("parameters") or ()}
    return frozenset(places | ({"body"} if "requestBody" in operation else set()))


def described(document: Mapping[str, Any]) -> set[tuple[str, str]]:
    """The methods and paths of the OpenAPI *document*."""
    return {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}


def routed(routes: Sequence[Any]) -> set[tuple[str, str]]:
    """The methods and paths of *routes*, as an OpenAPI document has them."""
    return {(method, route.path_format) for route in routes for method in route.methods - {"HEAD"}}


def questions(operations: Sequence[Described], can_be_wrong: Callable[[Described], object]) -> Sequence[Any]:
    """Parameters of a test: every operation, asked as described, and otherwise where *can_be_wrong* says it can be."""
    return [
        pytest.param(operation.label, mode, id=f"{operation.label} {mode}")
        for operation in operations
        for mode in MODES
        if mode == "positive" or can_be_wrong(operation)
    ]


def ask_as_described(description: Path, label: str, mode: str, url: str, examples: int) -> None:
    """Ask the operation *label* at *url* so many times; the answers must be as described and never 500."""
    from hypothesis import HealthCheck, Phase, given, settings
    from schemathesis import GenerationMode

    operation = operations_of(description)[label]

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    @given(case=operation.as_strategy(generation_mode=GenerationMode(mode)))
    def ask(case: Any) -> None:
        case.validate_response(case.call(base_url=url), checks=described_checks())

    ask()


def described_checks() -> list[Any]:
    """What every answer is checked for."""
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    return [
        not_a_server_error, checks.status_code_conformance, checks.content_type_conformance,
        checks.response_schema_conformance,
    ]  # fmt: skip


@functools.cache
def operations_of(description: Path) -> Mapping[str, Any]:
    """The operations of the OpenAPI document in the file *description*, by label."""
    import schemathesis

    @schemathesis.serializer("application/jsonl")
    def write_lines(_context: Any, value: Any) -> bytes:
        """A text as the lines that it is."""
        return value.encode("utf-8", "replace") if isinstance(value, str) else json.dumps(value).encode()

    found = schemathesis.openapi.from_dict(_without_tuples(json.loads(description.read_bytes()))).get_all_operations()
    return {result.ok().label: result.ok() for result in found}


def _without_tuples(document: Any) -> Any:
    """*document* with lists in place of tuples, which schemathesis rewrites while it draws, and then refuses."""
    if isinstance(document, list):
        return [_without_tuples(one) for one in document]
    if not isinstance(document, dict):
        return document
    found = {name: _without_tuples(one) for name, one in document.items()}
    if "prefixItems" in found:
        found["items"] = {"anyOf": found.pop("prefixItems")}
    return found
