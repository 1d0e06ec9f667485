"""Hooks through which packages report figures, without knowing who collects them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt


class Metrics(Protocol):
    """Where counts and measurements go. Implementations must be cheap, thread-safe and must not raise."""

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        """Add *amount* to the counter *name*."""
        ...

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set the gauge *name* to *value*."""
        ...

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Put *value* (seconds or bytes, as the name says) into the histogram *name*."""
        ...

    def observe_many(self, name: str, values: Sequence[float] | npt.NDArray[np.float64], **labels: str) -> None:
        """Put all of *values* into the histogram *name*: for those who have many at once."""
        ...


class NoMetrics:
    """Collects nothing."""

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        pass

    def gauge(self, name: str, value: float, **labels: str) -> None:
        pass

    def observe(self, name: str, value: float, **labels: str) -> None:
        pass

    def observe_many(self, name: str, values: Sequence[float] | npt.NDArray[np.float64], **labels: str) -> None:
        pass
