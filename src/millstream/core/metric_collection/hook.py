"""Hooks through which packages report figures, without knowing who collects them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt


class Metrics(Protocol):
    """Receives counts and measurements. Implementations must be cheap, thread-safe and must not raise."""

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


class LabelledMetrics:
    """Reports to *metrics*, with *labels* on everything: where several parts report under the same names."""

    def __init__(self, metrics: Metrics, **labels: str) -> None:
        self._metrics, self._labels = metrics, labels

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        self._metrics.count(name, amount, **self._labels, **labels)

    def gauge(self, name: str, value: float, **labels: str) -> None:
        self._metrics.gauge(name, value, **self._labels, **labels)

    def observe(self, name: str, value: float, **labels: str) -> None:
        self._metrics.observe(name, value, **self._labels, **labels)

    def observe_many(self, name: str, values: Sequence[float] | npt.NDArray[np.float64], **labels: str) -> None:
        self._metrics.observe_many(name, values, **self._labels, **labels)


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
