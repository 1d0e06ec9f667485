"""Small charts as inline SVG, drawn without a library and readable without JavaScript."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

WIDTH, HEIGHT, MARGIN = 900, 150, 46


def band_chart(values: NDArray[np.int64], *, title: str, first: str, last: str) -> str:
    """*values* over time, as a band from the least to the greatest in each column of pixels and a line at the mean.

    *first* and *last* label the ends of the time axis.
    """
    columns = np.array_split(values, min(len(values), WIDTH - MARGIN)) if len(values) else []
    top = int(values.max()) if len(values) else 0
    scale = (HEIGHT - 30) / max(top, 1)
    xs = [MARGIN + n * (WIDTH - MARGIN) / max(len(columns), 1) for n in range(len(columns))]
    high = [HEIGHT - 20 - column.max() * scale for column in columns]
    low = [HEIGHT - 20 - column.min() * scale for column in columns]
    mean = [HEIGHT - 20 - column.mean() * scale for column in columns]
    band = _points(xs, high) + " " + _points(xs[::-1], low[::-1])
    return _figure(
        title,
        f'<polygon class="band" points="{band}"/><polyline class="line" points="{_points(xs, mean)}"/>'
        f'<text x="{MARGIN - 6}" y="18" class="end">{top:,}</text>'
        f'<text x="{MARGIN - 6}" y="{HEIGHT - 20}" class="end">0</text>'
        f'<text x="{MARGIN}" y="{HEIGHT - 4}">{escape(first)}</text>'
        f'<text x="{WIDTH}" y="{HEIGHT - 4}" class="end">{escape(last)}</text>',
        HEIGHT,
    )


def bar_chart(rows: Sequence[tuple[str, float, str]], *, title: str, most: float | None = None) -> str:
    """One horizontal bar a row of (label, value, text). *most* is the value of a full bar (default: the greatest)."""
    full = most or max((value for _, value, _ in rows), default=1) or 1
    left, room = 280, WIDTH - 280 - 150
    bars = "".join(
        f'<text x="{left - 8}" y="{n * 24 + 16}" class="end">{escape(label)}</text>'
        f'<rect class="bar" x="{left}" y="{n * 24 + 3}" width="{max(1.0, room * value / full):.1f}" height="17"/>'
        f'<text x="{left + max(1.0, room * value / full) + 8:.1f}" y="{n * 24 + 16}">{escape(text)}</text>'
        for n, (label, value, text) in enumerate(rows)
    )
    return _figure(title, bars, 24 * len(rows) + 4)


def _points(xs: Sequence[float], ys: Sequence[float]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))


def _figure(title: str, drawing: str, height: int) -> str:
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">{drawing}</svg></figure>'
    )
