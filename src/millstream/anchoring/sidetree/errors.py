"""Every error of the Sidetree protocol.

::

    SidetreeError          (AnchoringError)
    ├── RequestError         an operation breaks a rule; ``code`` names the rule (InputError)
    ├── BatchFileError       an anchored file, or the anchor string, breaks a rule (InputError)
    └── BatchTooLargeError   these operations do not fit into one batch; ``file`` names what would overflow
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Set
from typing import TypeVar

from millstream.anchoring.errors import AnchoringError
from millstream.core.errors import InputError

Item = TypeVar("Item")
Checked = TypeVar("Checked")


class SidetreeError(AnchoringError):
    """The Sidetree protocol could not do what was asked."""


class RequestError(SidetreeError, InputError):
    """The operation breaks a rule of the protocol. ``code`` is for programs, the text for people."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class BatchFileError(SidetreeError, InputError):
    """What was anchored breaks a rule of the file formats (Sidetree v1.0, "File Structures")."""


def check_each(items: Iterable[Item], name: str, file: str, check: Callable[[Item], Checked]) -> list[Checked]:
    """What *check* makes of each of *items*, the list *name* of the *file*.

    Raises :class:`BatchFileError` that names the item by its index, from 0.
    """
    found = []
    for index, item in enumerate(items):
        try:
            found.append(check(item))
        except (RequestError, BatchFileError) as error:
            raise BatchFileError(f"{name}[{index}] of the {file} is not valid: {error}") from error
    return found


def unknown_members(unknown: Set[str], allowed: Set[str]) -> str:
    """The end of an error about an object that has members *unknown* beside those *allowed*."""
    return f"has unknown members: {', '.join(sorted(unknown))[:100]}; allowed: {', '.join(sorted(allowed))}"


def repeated(texts: Iterable[str]) -> str:
    """The first of *texts*, which are not unique, that occurs more than once, shortened for an error."""
    return next(text for text, count in Counter(texts).items() if count > 1)[:60]


class BatchTooLargeError(SidetreeError):
    """The operations are too many for one batch. ``file`` is what would have more than ``limit`` units (bytes)."""

    def __init__(self, file: str, size: int, limit: int, unit: str = "bytes") -> None:
        super().__init__(f"the {file} would have {size:,} {unit}; the limit is {limit:,}: cut a smaller batch")
        self.file = file
        self.size = size
        self.limit = limit
