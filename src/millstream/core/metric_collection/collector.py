"""A collector of figures in this process: counters, gauges and histograms that can be looked at while they grow."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

BOUNDS = (
    *(0.0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
    *(60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0, 21_600.0, 86_400.0, 604_800.0),
)
"""Upper bounds of a histogram's classes, seconds, up to a week; larger values have their own class."""

Labels = tuple[tuple[str, str], ...]
"""Names and values of labels, sorted by name."""


class Histogram(msgspec.Struct, frozen=True, kw_only=True):
    """How many values there were, their sum, least and greatest, and how many fell into each class.

    ``classes`` has one entry more than :data:`BOUNDS`: values up to the first bound, up to the second, …, beyond all.
    """

    count: int
    total: float
    least: float
    greatest: float
    classes: tuple[int, ...]

    def quantile(self, share: float) -> float:
        """A bound that at least *share* (0 to 1) of the values do not exceed: that of their class, or the greatest."""
        below = np.cumsum(self.classes)
        place = int(np.searchsorted(below, share * self.count))
        return min(BOUNDS[place], self.greatest) if place < len(BOUNDS) else self.greatest


class MetricsSnapshot(msgspec.Struct, frozen=True):
    """The values of a collector at one moment, by name and labels."""

    counters: Mapping[tuple[str, Labels], int]
    gauges: Mapping[tuple[str, Labels], float]
    histograms: Mapping[tuple[str, Labels], Histogram]

    def by_label(self, name: str, label: str) -> dict[str, int]:
        """The counters *name* added up by the values of *label*."""
        found: dict[str, int] = {}
        for (counter, labels), value in self.counters.items():
            if counter == name:
                key = dict(labels).get(label, "")
                found[key] = found.get(key, 0) + value
        return found


class MetricsCollector:
    """Keeps what packages report; a :class:`~millstream.core.metric_collection.hook.Metrics`. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: dict[tuple[str, Labels], int] = {}
        self._gauges: dict[tuple[str, Labels], float] = {}
        self._histograms: dict[tuple[str, Labels], _HistogramBuilder] = {}

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        """Add *amount* to the counter *name*."""
        key = _key(name, labels)
        with self._lock:
            self._counters[key] = self._counters.get(key, 0) + amount

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set the gauge *name* to *value*."""
        with self._lock:
            self._gauges[_key(name, labels)] = value

    def remove_gauge(self, name: str, **labels: str) -> None:
        """Forget the gauge *name*, of something that this process has no more; nothing where it was not set."""
        with self._lock:
            self._gauges.pop(_key(name, labels), None)

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Put *value* (seconds) into the histogram *name*."""
        self.observe_many(name, (value,), **labels)

    def observe_many(self, name: str, values: Sequence[float] | npt.NDArray[np.float64], **labels: str) -> None:
        """Put all of *values* (seconds) into the histogram *name*."""
        if len(values):
            with self._lock:
                self._histograms.setdefault(_key(name, labels), _HistogramBuilder()).add(np.asarray(values, np.float64))

    def absorb(self, figures: MetricsSnapshot) -> None:
        """Take in what another collector holds: its gauges take the place of ours, the rest is added."""
        with self._lock:
            for counter, amount in figures.counters.items():
                self._counters[counter] = self._counters.get(counter, 0) + amount
            self._gauges.update(figures.gauges)
            for key, histogram in figures.histograms.items():
                self._histograms.setdefault(key, _HistogramBuilder()).absorb(histogram)

    def figures(self) -> MetricsSnapshot:
        """The present values."""
        with self._lock:
            histograms = {key: found.histogram() for key, found in self._histograms.items()}
            return MetricsSnapshot(dict(self._counters), dict(self._gauges), histograms)


class _HistogramBuilder:
    """A histogram that grows."""

    def __init__(self) -> None:
        self._count, self._total, self._least, self._greatest = 0, 0.0, np.inf, -np.inf
        self._classes = np.zeros(len(BOUNDS) + 1, np.int64)

    def add(self, values: npt.NDArray[np.float64]) -> None:
        self._count += len(values)
        self._total += float(values.sum())
        self._least = min(self._least, float(values.min()))
        self._greatest = max(self._greatest, float(values.max()))
        self._classes += np.bincount(np.searchsorted(BOUNDS, values), minlength=len(BOUNDS) + 1)

    def absorb(self, other: Histogram) -> None:
        self._count += other.count
        self._total += other.total
        self._least, self._greatest = min(self._least, other.least), max(self._greatest, other.greatest)
        self._classes += np.array(other.classes)

    def histogram(self) -> Histogram:
        return Histogram(
            count=self._count,
            total=self._total,
            least=self._least,
            greatest=self._greatest,
            classes=tuple(self._classes.tolist()),
        )


def _key(name: str, labels: Mapping[str, str]) -> tuple[str, Labels]:
    return name, tuple(sorted(labels.items()))
