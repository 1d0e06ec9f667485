"""The text format of Prometheus: the one place that writes it, for answers over HTTP and for files."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import msgspec

from millstream.core.durable import output_file
from millstream.core.metric_collection.collector import BOUNDS, Histogram, MetricsSnapshot

PREFIX = "millstream_"
"""The prefix of every name."""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The media type of :func:`prometheus_text`."""

Samples: TypeAlias = Iterable[tuple[Mapping[str, str], float | Histogram]]
"""The labels of each value, and the value."""


class MetricFamily(msgspec.Struct, frozen=True):
    """One metric: its ``kind`` (``counter``, ``gauge`` or ``histogram``), its ``name`` without :data:`PREFIX`, a
    ``help`` text or none, and all its samples."""

    kind: str
    name: str
    help: str
    samples: Samples


def gauge(name: str, help: str, samples: Samples | float) -> MetricFamily:
    """A metric that goes up and down; a number is its only sample, without labels."""
    return _family("gauge", name, help, samples)


def counter(name: str, help: str, samples: Samples | float) -> MetricFamily:
    """A metric that only grows; a number is its only sample, without labels."""
    return _family("counter", name, help, samples)


def _family(kind: str, name: str, help: str, samples: Samples | float) -> MetricFamily:
    return MetricFamily(kind, name, help, [({}, samples)] if isinstance(samples, float | int) else samples)


def families_of(snapshot: MetricsSnapshot) -> Iterator[MetricFamily]:
    """The metrics of a collector, by kind and name."""
    for kind, values in (
        ("counter", snapshot.counters),
        ("gauge", snapshot.gauges),
        ("histogram", snapshot.histograms),
    ):
        for name, rows in itertools.groupby(sorted(values), key=lambda key: key[0]):
            yield MetricFamily(kind, name, "", [(dict(key[1]), values[key]) for key in rows])


def prometheus_text(families: Iterable[MetricFamily]) -> str:
    """*families* in the text format: a line for each sample, and for each bucket of a histogram."""
    return "".join(f"{line}\n" for family in families for line in _lines(family))


def write_prometheus(path: Path, snapshot: MetricsSnapshot) -> None:
    """Replace the file at *path* by the metrics of a collector; a reader sees the old ones or the new ones."""
    with output_file(path) as file:
        file.write(prometheus_text(families_of(snapshot)).encode())


def _lines(family: MetricFamily) -> Iterator[str]:
    name = PREFIX + family.name
    if family.help:
        yield f"# HELP {name} {family.help}"
    yield f"# TYPE {name} {family.kind}"
    for labels, value in family.samples:
        if isinstance(value, Histogram):
            below = itertools.accumulate(value.classes)
            for bound, count in zip([*map(repr, BOUNDS), "+Inf"], below, strict=True):
                yield f"{name}_bucket{_labels({**labels, 'le': bound})} {count}"
            yield f"{name}_sum{_labels(labels)} {_number(value.total)}"
            yield f"{name}_count{_labels(labels)} {value.count}"
        else:
            yield f"{name}{_labels(labels)} {_number(value)}"


def _number(value: float) -> float:
    return int(value) if float(value).is_integer() else value


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}" if labels else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
