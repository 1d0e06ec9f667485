"""What a process takes of its machine while it is asked, and what its course says: a slope, and a picture."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

COLOURS = ("#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad", "#d68910", "#34495e")


def memory_mib(pid: int) -> float:
    """The proportional share of memory (PSS) of the process *pid* and of all that it started."""
    total = 0
    for one in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += one.memory_full_info().pss
    return total / (1 << 20)


def folder_sizes(folder: Path) -> Mapping[str, tuple[int, int]]:
    """The files and the bytes below each entry of *folder*. A process of its own counts them, at the lowest priority:
    a million files take seconds, and the program that asks the node must not wait for them."""
    counted = subprocess.run(
        ["nice", "-n", "19", sys.executable, "-P", __file__, folder], capture_output=True, check=True
    )
    sizes: Mapping[str, tuple[int, int]] = json.loads(counted.stdout)
    return sizes


def _size(path: Path) -> tuple[int, int]:
    if not path.is_dir():
        return 1, path.stat().st_size
    files, size, folders = 0, 0, [str(path)]
    while folders:
        with contextlib.suppress(FileNotFoundError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                    continue
                with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
                    size += entry.stat().st_size
                    files += 1
    return files, size


class Slope(NamedTuple):
    """A straight line through a series: by how much it rises an hour, and the half width of the 95 % interval."""

    an_hour: float
    margin: float

    @property
    def is_flat(self) -> bool:
        """Whether no rise and no fall is within the interval."""
        return abs(self.an_hour) <= self.margin


def slope(seconds: Sequence[float], values: Sequence[float]) -> Slope:
    """The least squares line through *values* at *seconds*.

    Values that follow one another are alike: the interval counts only as many of them as are independent, by the
    correlation of neighbours that the line leaves.
    """
    x, y = np.asarray(seconds, float) / 3600, np.asarray(values, float)
    if len(x) < 4 or float(np.ptp(x)) == 0.0:
        return Slope(math.nan, math.inf)
    x = x - x.mean()
    rise = float((x * y).sum() / (x * x).sum())
    left = y - y.mean() - rise * x
    spread = float((left * left).sum())
    if spread <= 1e-18 * float((y * y).sum()):  # a straight line, but for rounding
        return Slope(round(rise, 6), 0.0)
    alike = max(0.0, min(0.99, float((left[1:] * left[:-1]).sum()) / spread))
    independent = max(3.0, len(x) * (1 - alike) / (1 + alike))
    error = math.sqrt(spread / len(x) / (independent - 2) / float((x * x).mean()))
    return Slope(rise, 1.96 * error)


def picture(series: Mapping[str, Sequence[tuple[float, float]]], title: str, unit: str) -> str:
    """An SVG of *series* (second, value), on a logarithmic scale."""
    points = [point for values in series.values() for point in values if point[1] > 0]
    if not points:
        return ""
    last = max(second for second, _ in points) or 1.0
    low = math.floor(math.log10(min(value for _, value in points)))
    high = max(low + 1, math.ceil(math.log10(max(value for _, value in points))))
    return "\n".join(_drawn(series, title, unit, last, low, high)) + "\n"


def _drawn(
    series: Mapping[str, Sequence[tuple[float, float]]], title: str, unit: str, last: float, low: int, high: int
) -> Iterator[str]:
    width, height, left, top = 900, 360, 70, 40

    def at(second: float, value: float) -> str:
        share = (math.log10(max(value, 10.0**low)) - low) / (high - low)
        return f"{left + second / last * width:.1f},{top + height - share * height:.1f}"

    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width + left + 160} {height + top + 50}"'
    yield 'font-family="sans-serif" font-size="13"><rect width="100%" height="100%" fill="white"/>'
    yield f'<text x="{left}" y="22" font-size="16">{title}</text>'
    for power in range(low, high + 1):
        y = top + height - (power - low) / (high - low) * height
        yield f'<line x1="{left}" x2="{left + width}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
        yield f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g} {unit}</text>'
    for minute in range(0, int(last // 60) + 1, max(1, int(last // 600))):
        x = left + minute * 60 / last * width
        yield f'<text x="{x:.1f}" y="{top + height + 20}" text-anchor="middle">{minute}</text>'
    yield f'<text x="{left + width}" y="{top + height + 40}" text-anchor="end">minutes</text>'
    for number, (name, values) in enumerate(series.items()):
        colour, drawn = COLOURS[number % len(COLOURS)], " ".join(at(*point) for point in values if point[1] > 0)
        yield f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        yield f'<text x="{left + width + 12}" y="{top + 16 + number * 20}" fill="{colour}">{name}</text>'
    yield "</svg>"


if __name__ == "__main__":
    print(json.dumps({path.name: _size(path) for path in sorted(Path(sys.argv[1]).iterdir())}))
