"""The durability of confirmed messages, chosen when a store in files is opened."""

from __future__ import annotations

import re
from typing import Literal

from millstream.log.errors import LogInputError

Durability = Literal["fsync", "os", "memory"]
"""``fsync`` survives a power loss, ``os`` the death of the process but not of the machine, ``memory`` neither."""

FileDurability = Literal["fsync", "os"]

_OPTION = re.compile(r"(.+)\?durability=([^?=/]*)", re.DOTALL)


def split_durability(url: str) -> tuple[str, str | None]:
    """*url* without the option ``?durability=…`` at its end, and what that says. Paths may have ``?`` themselves."""
    found = _OPTION.fullmatch(url)
    return (found[1], found[2]) if found else (url, None)


def file_durability(asked: str | None) -> FileDurability:
    """The durability of a store of files for which *asked* was asked. Raises :class:`LogInputError`."""
    if asked is None or asked == "fsync":
        return "fsync"
    if asked == "os":
        return "os"
    raise LogInputError(f"invalid durability {asked[:40]!r}: use fsync or os; memory:// keeps logs in memory")


def durability_option(durability: FileDurability) -> str:
    """The option of a store's URL for *durability*."""
    return "" if durability == "fsync" else f"?durability={durability}"
