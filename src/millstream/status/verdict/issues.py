"""Makes an issue of its kind, and the words that many of them share."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from millstream.core.shown_commands import arguments
from millstream.status.verdict.kinds import KINDS
from millstream.status.verdict.models import Issue, IssueAction

_NAMED = 5
"""Names that a text lists before it only counts."""


def make_issue(
    kind: str,
    subject: str,
    what: str,
    page: str,
    *,
    since: int | None = None,
    count: int = 1,
    action: IssueAction | None = None,
    where: str = "",
    severity: str | None = None,
) -> Issue:
    """An issue of *kind*, with the texts of that kind, and its severity unless *severity* is another one."""
    described = KINDS[kind]
    return Issue(
        kind=kind,
        subject=subject,
        severity=severity or described.severity,
        since=since,
        what=what,
        meaning=described.meaning,
        todo=_filled(described.todo, subject, where),
        page=page,
        area=described.area,
        count=count,
        action=action,
    )


def _filled(todo: str, subject: str, where: str) -> str:
    """*todo* with *subject* as the value of an option (``{subject}``) or as an argument (``{argument}``)."""
    values = {"{subject}": shlex.quote(subject), "{argument}": arguments(subject), "{where}": where}
    return re.sub("|".join(map(re.escape, values)), lambda found: values[found[0]], todo)


def named(noun: str, names: Iterable[str]) -> str:
    """*names* after *noun*; beyond :data:`_NAMED` of them only how many."""
    every = sorted(names)
    shown = ", ".join(every[:_NAMED]) + (f" and {len(every) - _NAMED:,} more" if len(every) > _NAMED else "")
    return f"the {noun}{'' if len(every) == 1 else 's'} {shown}"


def cut(text: str, most: int = 1_000) -> str:
    """*text*, which others wrote; the end of a very long one is left out, visibly."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
