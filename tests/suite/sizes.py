"""How much a test does: ``quick`` by default, ``ci`` in ``make test-all``, ``long`` in ``make test-long``."""

from __future__ import annotations

import os
from typing import TypeVar

from hypothesis import HealthCheck, settings

T = TypeVar("T")

SIZES = ("quick", "ci", "long")
SIZE = os.environ.get("MILLSTREAM_TEST_SIZE", "quick")
if SIZE not in SIZES:
    raise ValueError(f"MILLSTREAM_TEST_SIZE is {SIZE!r}: set one of {', '.join(SIZES)}")

EXAMPLES = {"quick": 25, "ci": 100, "long": 2000}
LEAST_EXAMPLES, LEAST_STEPS = 10, 15
"""What a state machine does at any size: below this it hardly leaves its first states."""


def sized(*, ci: T, long: T, quick: T | None = None) -> T:
    """The value for the size of this run; ``quick`` is as ``ci`` unless it is given."""
    return {"quick": ci if quick is None else quick, "ci": ci, "long": long}[SIZE]


def examples(*, ci: int, long: int) -> settings:
    """Hypothesis settings with that many examples; a quick run does a quarter of CI's, but at least ten."""
    return settings(max_examples=sized(ci=ci, long=long, quick=_quick(ci)), deadline=None)


def machine(*, ci: int, long: int, steps: int) -> settings:
    """Settings of a state machine with that many examples of *steps* each, as :func:`examples`."""
    enough = examples(ci=max(ci, LEAST_EXAMPLES), long=max(long, LEAST_EXAMPLES))
    return settings(enough, stateful_step_count=max(steps, LEAST_STEPS))


def _quick(ci: int) -> int:
    return min(ci, max(ci // 4, LEAST_EXAMPLES))


def load_profile() -> None:
    """Load the Hypothesis profile of this size. An example costs what the machine takes: none has a deadline."""
    checks = {"quick": [HealthCheck.too_slow], "ci": [HealthCheck.too_slow], "long": list(HealthCheck)}
    for name, count in EXAMPLES.items():
        settings.register_profile(name, max_examples=count, deadline=None, suppress_health_check=checks[name])
    settings.load_profile(SIZE)
