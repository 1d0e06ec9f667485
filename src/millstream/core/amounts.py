"""Amounts as people write them: lengths of time, numbers of bytes, and numbers of things."""

from __future__ import annotations

import re
from typing import NewType

from millstream.core.clock import MICROSECONDS

Duration = NewType("Duration", int)
"""A length of time in microseconds; written as ``500ms``, ``30s``, ``20m``, ``2h``, ``7d`` or a number of seconds.

Shown to people as ``500 ms``, ``30 s``, ``20 min``, ``2 h``, ``7 d``, which may be written as well.
"""

Size = NewType("Size", int)
"""A number of bytes; written as ``500000``, ``64MB`` or ``10GiB``."""

_UNITS = {"µs": 1, "ms": 1_000, "s": MICROSECONDS, "min": 60 * MICROSECONDS, "h": 3600 * MICROSECONDS}
_UNITS["d"] = 24 * _UNITS["h"]
_WRITTEN = {**_UNITS, "us": _UNITS["µs"], "m": _UNITS["min"]}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(us|µs|ms|s|min|m|h|d)?")
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kMGT]?)(i?)B?")


def parse_duration(text: str | float) -> Duration:
    """Microseconds of a duration such as ``30m`` or ``1.5`` (seconds). Raises :class:`ValueError`."""
    match = _DURATION.fullmatch(str(text).strip())
    if not match:
        raise ValueError(
            f"invalid duration {text!r}: write a time such as 500ms, 30s, 20m, 2h or 7d, or a number of seconds"
        )
    return Duration(round(float(match[1]) * _WRITTEN[match[2] or "s"]))


def format_duration(duration: int) -> str:
    """A length of time in microseconds, for people and for :func:`parse_duration`: ``46 min``, in the largest unit of
    which it is a whole number."""
    if not duration:
        return "0 s"
    return next(f"{duration // long} {unit}" for unit, long in reversed(_UNITS.items()) if duration % long == 0)


def parse_size(text: str | int) -> Size:
    """The bytes of a size such as ``500000``, ``64MB`` or ``10GiB``. Raises :class:`ValueError`."""
    match = _SIZE.fullmatch(str(text).strip())
    if match is None:
        raise ValueError(f"invalid size {text!r}: write a number of bytes, such as 500000, 64MB or 10GiB")
    unit: int = (1024 if match[3] else 1000) ** " kMGT".index(match[2] or " ")
    return Size(round(float(match[1]) * unit))


def share_text(share: float, digits: int = 1) -> str:
    """A share as a percentage: ``99.9%``. Less than all is never rounded up to ``100.0%``, nor something to 0."""
    step = 10 ** -(digits + 2)
    if 0 < share < 1:
        share = min(max(share, step), 1 - step)
    return f"{share:.{digits}%}"


def size_text(count: float) -> str:
    """Bytes for people: ``35.2 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def counted(count: int, one: str, many: str = "") -> str:
    """``1 batch``, ``20 batches``; *many* is the plural where it does not follow the rules of spelling."""
    return f"{count:,} {one if count == 1 else many or _plural(one)}"


def _plural(one: str) -> str:
    if one.endswith("y") and one[-2:] not in ("ay", "ey", "oy", "uy"):
        return f"{one[:-1]}ies"
    return f"{one}es" if one.endswith(("ch", "sh", "s", "x")) else f"{one}s"
