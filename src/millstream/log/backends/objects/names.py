"""The names of the objects of a log (docs/formats/object-log.md)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import quote, unquote

LOGS = "logs/"
"""The prefix of the names of the objects that create logs."""

_DIGITS = 16
_COMMIT = re.compile(f"[0-9]{{{_DIGITS}}}")


def created_name(log: str) -> str:
    """The object whose creation makes *log*."""
    return LOGS + quoted(log)


def log_of(name: str) -> str:
    """The log that the object *name* makes; empty where *name* is not of the form that :func:`created_name` writes."""
    log = unquote(name.removeprefix(LOGS))
    return log if created_name(log) == name else ""


def quoted(text: str) -> str:
    """*text* as one part of a name: what it begins with stays what it begins with."""
    name = quote(text, safe="")
    return "%2E" + name[1:] if name.startswith(".") else name


class LogNames:
    """The names of the objects of *log*."""

    def __init__(self, log: str) -> None:
        self.log = log
        self.root = f"data/{quoted(log)}/"
        self.commits = f"{self.root}commits/"
        self.states = f"{self.root}states/"
        self.state_keys = f"{self.root}state-keys/"

    def commit(self, number: int) -> str:
        """The commit with that dense number, from 1 on."""
        return f"{self.commits}{number:0{_DIGITS}}"

    def commit_numbers(self, names: Iterable[str]) -> list[int]:
        """The numbers of the commits among *names*, without the objects of other programs."""
        return [commit_number(name) for name in names if _COMMIT.fullmatch(name.removeprefix(self.commits))]

    def epoch(self, number: int) -> str:
        """The object of a takeover, by its epoch."""
        return f"{self.root}epochs/{number:0{_DIGITS}}"

    def lease(self, epoch: int) -> str:
        """Until when the writer of *epoch* holds the log."""
        return f"{self.root}lease/{epoch:0{_DIGITS}}"

    def layout(self, version: int) -> str:
        """The object with the begin of commits, by its version."""
        return f"{self.root}layout/{version:0{_DIGITS}}"

    def state(self, key: str, version: int) -> str:
        """A version of the state *key*."""
        return f"{self.states}{quoted(key)}/{version:0{_DIGITS}}"

    def state_key(self, number: int) -> str:
        """The key that was added as that number."""
        return f"{self.state_keys}{number:0{_DIGITS}}"

    def state_gone(self, key: str, block: int) -> str:
        """The mark that versions of the state *key* up to the end of that block may be deleted."""
        return f"{self.root}states-gone/{quoted(key)}/{block:0{_DIGITS}}"


def commit_number(name: str) -> int:
    """The number of the commit with that name."""
    return int(name[-_DIGITS:])
