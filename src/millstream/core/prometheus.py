"""Figures of a collector in the text format of Prometheus, as an answer or as a file for its node exporter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from millstream.core.durable import write_durably
from millstream.core.metrics_collector import BOUNDS, Histogram, Labels, MetricsSnapshot

PREFIX = "millstream_"
"""What every name begins with."""


def prometheus_text(figures: MetricsSnapshot) -> str:
    """*figures* by name: counters and gauges a line for each set of labels, histograms a line for each class."""
    return "".join(f"{line}\n" for line in _lines(figures))


def write_prometheus(path: Path, figures: MetricsSnapshot) -> None:
    """Put *figures* in place of the file at *path*; whoever reads it sees the old ones or the new ones."""
    write_durably(path, prometheus_text(figures).encode())


def _lines(figures: MetricsSnapshot) -> Iterator[str]:
    for kind, values in (("counter", figures.counters), ("gauge", figures.gauges)):
        known = ""
        for (name, labels), value in sorted(values.items()):
            if name != known:
                yield f"# TYPE {PREFIX}{name} {kind}"
                known = name
            yield f"{PREFIX}{name}{_labels(labels)} {value}"
    for (name, labels), histogram in sorted(figures.histograms.items()):
        yield f"# TYPE {PREFIX}{name} histogram"
        yield from _classes(f"{PREFIX}{name}", labels, histogram)


def _classes(name: str, labels: Labels, histogram: Histogram) -> Iterator[str]:
    below = 0
    for bound, count in zip([*map(repr, BOUNDS), "+Inf"], histogram.classes, strict=True):
        below += count
        yield f"{name}_bucket{_labels((*labels, ('le', bound)))} {below}"
    yield f"{name}_sum{_labels(labels)} {histogram.total}"
    yield f"{name}_count{_labels(labels)} {histogram.count}"


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
