"""Which spaces a producer leaves out: patterns of ``/account/store/space``, one a line."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from millstream.mill.errors import FilterError

MAX_BYTES = 1024 * 1024
SEGMENTS = ("account", "store", "space")


class Pattern(msgspec.Struct, frozen=True):
    """The parts of a path. One that ends with ``*`` stands for all names that begin so; one that is not there for all.

    >>> Pattern(("me", "*", "tmp-*")).matches(("me", "one", "tmp-7"))
    True
    """

    parts: tuple[str, ...]

    def matches(self, path: tuple[str, str, str]) -> bool:
        """Whether *path* (account, store, space) is meant."""
        pairs = zip(self.parts, path, strict=False)
        return all(name.startswith(part[:-1]) if part.endswith("*") else name == part for part, name in pairs)


class SpaceFilter(msgspec.Struct, frozen=True):
    """Spaces are taken that an inclusion names (all, where there is none) and that no exclusion names."""

    inclusions: tuple[Pattern, ...] = ()
    exclusions: tuple[Pattern, ...] = ()

    def takes(self, account: str, store: str, space: str) -> bool:
        """Whether the space is to be worked on."""
        path = (account, store, space)
        included = not self.inclusions or any(pattern.matches(path) for pattern in self.inclusions)
        return included and not any(pattern.matches(path) for pattern in self.exclusions)


def read_patterns(path: Path) -> tuple[Pattern, ...]:
    """The patterns in the file *path*; what follows a ``#``, and empty lines, are skipped.

    Raises :class:`FilterError` with the line of what is not a pattern.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise FilterError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise FilterError(f"{path} is not UTF-8 text ({error}): save the file as UTF-8") from error
    if len(data) > MAX_BYTES:
        raise FilterError(
            f"{path} is larger than the limit of {MAX_BYTES:,} bytes: remove lines, or combine them with *"
        )
    return tuple(_patterns(text.splitlines(), path))


def _patterns(lines: Iterable[str], path: Path) -> Iterable[Pattern]:
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip()
        if text:
            yield _pattern(text, f"{path}, line {number}")


def _pattern(text: str, where: str) -> Pattern:
    if not text.startswith("/"):
        raise FilterError(f"{where}: {text!r} must begin with a slash; write /account/store/space")
    parts = tuple(text[1:].split("/"))
    if len(parts) > len(SEGMENTS):
        raise FilterError(f"{where}: {text!r} has too many parts; write /account/store/space")
    for name, part in zip(SEGMENTS, parts, strict=False):
        if not part or "*" in part[:-1]:
            raise FilterError(
                f"{where}: {name} {part!r} must not be empty or have a * before its end; write name, name* or *"
            )
    return Pattern(parts)
