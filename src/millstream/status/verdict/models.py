"""The verdict on a node: its issues, and what is not known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

import msgspec


class IssueAction(msgspec.Struct, frozen=True):
    """A form of the console that resolves an issue: its ``label``, the ``path`` to post it to, and its ``fields``."""

    label: str
    path: str
    fields: Mapping[str, str] = {}


class Issue(msgspec.Struct, frozen=True, kw_only=True):
    """An issue.

    ``kind`` and ``subject`` identify it while it lasts. ``severity`` is ``bad`` or ``warn``. ``since`` is the time at
    which it began or was first seen (microseconds; None if unknown). ``what`` is the state, ``meaning`` its consequence
    and ``todo`` the remedy. ``page`` is the page of the console about it, ``area`` the part of the overview, and
    ``count`` the number of affected objects.
    """

    kind: str
    subject: str
    severity: str
    since: int | None
    what: str
    meaning: str
    todo: str
    page: str
    area: str
    count: int = 1
    action: IssueAction | None = None


class Unknown(msgspec.Struct, frozen=True, kw_only=True):
    """Something whose state is unknown.

    ``since`` is the time of the last answer (microseconds; None if there was none). ``area`` is the part of the
    overview.
    """

    subject: str
    area: str
    since: int | None
    what: str
    todo: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The issues of a node at the time ``at`` (microseconds), the most severe first, and what is unknown.

    ``ok`` is true only if both lists are empty.
    """

    at: int
    ok: bool
    issues: Sequence[Issue] = ()
    unknown: Sequence[Unknown] = ()

    def severity_of(self, area: str) -> str:
        """How bad one part of the overview is: ``bad``, ``warn`` (also where something is unknown) or ``good``."""
        found = {issue.severity for issue in self.issues if issue.area == area}
        found |= {"warn" for one in self.unknown if one.area == area}
        return next((severity for severity in ("bad", "warn") if severity in found), "good")

    @classmethod
    def of(cls, at: int, issues: Sequence[Issue], unknown: Sequence[Unknown]) -> Self:
        """The verdict of these *issues* and what is *unknown*."""
        return cls(at=at, ok=not issues and not unknown, issues=issues, unknown=unknown)
