"""Templates and files of the console: read once, named by their content, so that browsers may keep them for ever."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from itertools import pairwise
from typing import Any, NamedTuple
from urllib.parse import urlencode

import jinja2
import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from millstream import __version__
from millstream.anchoring.journal_reader import BatchHistogramBucket, BatchRow
from millstream.anchoring.states import state_word
from millstream.console import formatting
from millstream.console.menu import MENU
from millstream.core.amounts import counted
from millstream.core.clock import MICROSECONDS
from millstream.core.timestamps import format_timestamp
from millstream.mill.remedies import outcome_of
from millstream.status.models import QueueSample, Sample

_MEDIA = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_MOST_SOURCES = 20
"""Rows of bars, one a source, that are drawn."""

_OPEN = jinja2.Undefined()

SAMPLE_GAP = 150 * MICROSECONDS
"""Samples that are farther apart have a time between them when the node was down."""

FOREVER = "public, max-age=31536000, immutable"


class Assets:
    """The files of the folder ``static``, under names that hold a part of their SHA-256."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[bytes, str]] = {}
        self._names: dict[str, str] = {}
        for folder in ("", "vendor"):
            for file in resources.files("millstream.console").joinpath("static", folder).iterdir():
                stem, dot, ending = file.name.rpartition(".")
                if dot + ending in _MEDIA:
                    data = file.read_bytes()
                    name = f"{stem}.{hashlib.sha256(data).hexdigest()[:12]}.{ending}"
                    self._files[name] = data, _MEDIA[dot + ending]
                    self._names[file.name] = f"/static/{name}"

    def url(self, name: str) -> str:
        """The path of the file that was written as *name*."""
        return self._names[name]

    async def serve(self, request: Request) -> Response:
        """One file; the browser may keep it."""
        found = self._files.get(request.path_params["name"])
        if found is None:
            return PlainTextResponse("not found\n", 404)
        return Response(found[0], media_type=found[1], headers={"cache-control": FOREVER})


def make_templates(assets: Assets, clock: Callable[[], int]) -> jinja2.Environment:
    """The templates, which escape everything; *clock* is the present time in microseconds."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("millstream.console"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters.update(
        number=formatting.number,
        counted=counted,
        brief=formatting.brief,
        size=formatting.size,
        percent=formatting.percent,
        rate=formatting.rate,
        span=formatting.span,
        length_of=formatting.length_of,
        short=formatting.short,
        tree=formatting.tree,
        iso=format_timestamp,
        ticks=formatting.ticks,
        outcome=outcome_of,
        state_word=state_word,
        when=lambda at: formatting.when(at, clock()),
        since=lambda at: formatting.since(at, clock()),
        ago=lambda at: formatting.ago(at, clock()),
    )
    environment.globals.update(
        asset=assets.url, release=__version__, menu=MENU, link=link, sparkline=sparkline, bars=bars, spans=spans
    )
    return environment


def link(path: str, **query: Any) -> str:
    """*path* with *query*; what is None, empty, or left open by a template (``a if b``) is left out."""
    given = {name: value for name, value in query.items() if value not in (None, "", _OPEN)}
    return f"{path}?{urlencode(given)}" if given else path


def sparkline(values: Sequence[float], width: int = 240, height: int = 36) -> str:
    """*values* as the points of an SVG polyline, from left to right; empty for fewer than two."""
    if len(values) < 2:
        return ""
    most = max(*values, 1e-9)
    step = width / (len(values) - 1)
    return " ".join(f"{n * step:.1f},{height - 1 - value / most * (height - 2):.1f}" for n, value in enumerate(values))


def idle_since(samples: Sequence[Sample | QueueSample], values: Sequence[int]) -> int | None:
    """The time of the first of *samples* (microseconds) if all *values* are zero: a sentence says more than a chart.

    None without two samples, and where the node was down between two of them: nothing is known about that time.
    """
    if len(samples) < 2 or any(values) or any(b.at - a.at > SAMPLE_GAP for a, b in pairwise(samples)):
        return None
    return samples[0].at


class TimelineBar(msgspec.Struct, frozen=True):
    """One rectangle of a timeline in the units of its drawing, and the rows that it stands for."""

    x: str
    y: str
    width: str
    height: str
    row: BatchHistogramBucket


class Spans(NamedTuple):
    """When batches began and ended, between ``first`` and ``last`` (microseconds).

    ``lanes`` has, by log and source, the left edge and the width of each bar, and its batch.
    """

    first: int
    last: int
    lanes: Mapping[str, Sequence[tuple[str, str, BatchRow]]]


def spans(rows: Sequence[BatchRow], width: int = 960) -> Spans | None:
    """The batches *rows* as bars; None where none of them lasts, or where too many sources have some."""
    ends = [row.end if row.end is not None else row.start for row in rows]
    names = sorted({f"{row.log} {row.source}" for row in rows})
    if all(row.start == end for row, end in zip(rows, ends, strict=True)) or len(names) > _MOST_SOURCES:
        return None
    first, last = min(row.start for row in rows), max(ends)
    lanes: dict[str, list[tuple[str, str, BatchRow]]] = {name: [] for name in names}
    for row, end in zip(rows, ends, strict=True):
        left, wide = ((each - first) / (last - first) * width for each in (row.start, first + end - row.start))
        lanes[f"{row.log} {row.source}"].append((f"{left:.2f}", f"{max(1.5, wide):.2f}", row))
    return Spans(first, last, lanes)


def bars(
    rows: Sequence[BatchHistogramBucket], width: int = 960, height: int = 40
) -> Mapping[str, Sequence[TimelineBar]]:
    """Counts over time as rectangles by log, those of one time on top of one another."""
    if not rows:
        return {}
    first, last = min(row.at for row in rows), max(row.until for row in rows)
    sums, below = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
    for row in rows:
        sums[row.log, row.at] += row.batches
    most, scale, drawn = max(sums.values()), width / (last - first), dict[str, list[TimelineBar]]()
    for row in rows:
        top = below[row.log, row.at] = below[row.log, row.at] + row.batches
        tall = max(1.0, row.batches / most * height)
        x, wide = (row.at - first) * scale, max(0.8, (row.until - row.at) * scale - 0.4)
        y = max(0.0, height - max(1.0, top / most * height))
        drawn.setdefault(row.log, []).append(TimelineBar(f"{x:.2f}", f"{y:.2f}", f"{wide:.2f}", f"{tall:.2f}", row))
    return drawn
