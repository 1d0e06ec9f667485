"""An interface for programs is asked whatever its OpenAPI description allows, and whatever it does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

_CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


def described_operations(description: Path) -> Sequence[Any]:
    """The operations of the OpenAPI document in the file *description*."""
    return [result.ok() for result in schemathesis.openapi.from_path(str(description)).get_all_operations()]


def questions(operations: Sequence[Any], can_be_wrong: Callable[[Any], object]) -> Sequence[Any]:
    """Parameters of a test: every operation, asked as described, and otherwise where *can_be_wrong* says it can be."""
    return [
        pytest.param(operation, mode, id=f"{operation.label} {mode.value}")
        for operation in operations
        for mode in schemathesis.GenerationMode
        if mode is schemathesis.GenerationMode.POSITIVE or can_be_wrong(operation)
    ]


def ask_as_described(operation: Any, mode: Any, url: str, examples: int) -> None:
    """Ask *operation* at *url* so many times; the answers must be as described, and never a fault of the server."""

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        case.validate_response(case.call(base_url=url), checks=_CHECKS)

    ask()
