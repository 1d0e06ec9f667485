"""The options of the benchmark of the jobs on Spark. A value that cannot be used raises :class:`InputError`."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence

from millstream.core.amounts import counted
from millstream.core.errors import InputError


def chosen_names(option: str, text: str, known: Sequence[str]) -> list[str]:
    """The names in *text*, which are separated by commas and must be *known*."""
    names = text.split(",")
    for name in names:
        if name not in known:
            raise InputError(f"--{option}: unknown value {name!r}; choose from {', '.join(known)}")
    return names


def worker_counts(text: str) -> list[int]:
    """The sizes of clusters in *text*, such as ``1,2,3``, ascending; 0 stands for no cluster."""
    words = text.split(",")
    if not all(word.isdecimal() for word in words):
        raise InputError(f"--workers: invalid value {text!r}: write whole numbers, such as 1,2,3")
    return sorted({int(word) for word in words})


def core_share(text: str) -> float:
    """The share of a core in *text*, such as ``0.5``."""
    with contextlib.suppress(ValueError):
        if 0.1 <= (share := float(text)) <= 1:
            return share
    raise InputError(f"--share: invalid value {text!r}: write a number from 0.1 to 1, such as 0.5")


def heap_with_unit(heap: str) -> str:
    """*heap*, as Spark takes it (``512m``, ``1g``), for people."""
    found = re.fullmatch(r"(\d+)([kmg])b?", heap, re.IGNORECASE)
    return f"{found[1]} {found[2].upper()}iB" if found else heap


def workers_with_cores(workers: int, share: float) -> str:
    """So many *workers*, and the *share* of a core that each of them has, for people."""
    core = "one core" if share == 1 else f"{share:g} of a core"
    return f"{counted(workers, 'worker')} with {core}{' each' if workers > 1 else ''}"


def record_counts(text: str) -> list[int]:
    """The numbers in *text*, such as ``1e5,1000000``."""
    try:
        found = [int(float(word)) for word in text.split(",") if word]
    except (ValueError, OverflowError):
        found = [0]
    if any(count < 1 for count in found):
        raise InputError(f"--counts: invalid value {text!r}: write numbers of at least 1, such as 1e5,1e6")
    return found
