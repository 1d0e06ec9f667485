"""Differences between two policies, by meaning: pairs and ignored spaces that were added or removed, and where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec

from millstream.mill.policies.policy import DEFAULTS, IGNORED, Policy

Entry = TypeVar("Entry")


class PolicyChange(msgspec.Struct, frozen=True):
    """The differences in one part of a policy: ``where`` is a space, ``defaultPolicies`` or ``spacesToIgnore``;
    ``added`` and ``removed`` are pairs of stores, or names of spaces; ``note`` describes other differences.
    """

    where: str
    added: Sequence[str] = ()
    removed: Sequence[str] = ()
    note: str = ""


_IN_WORDS = {DEFAULTS: "all other spaces", IGNORED: "never copied"}


def changes_between(before: Policy, after: Policy) -> list[PolicyChange]:
    """The changes from *before* to *after*; empty if both have the same meaning."""
    found = [
        _change(DEFAULTS, list(map(str, before.defaults)), list(map(str, after.defaults))),
        *_of_spaces(before, after),
        _change(IGNORED, sorted(before.ignored), sorted(after.ignored)),
    ]
    return [each for each in found if each is not None]


def change_lines(changes: Sequence[PolicyChange], limit: int = 20) -> list[str]:
    """*changes* in words, a line each: ``space films: + one → two``; beyond *limit* only how many."""
    lines = []
    for one in changes[:limit]:
        marks = [*(f"− {each}" for each in one.removed), *(f"+ {each}" for each in one.added)]
        more = [f"and {len(marks) - limit:,} more"] if len(marks) > limit else []
        words = ", ".join([*marks[:limit], *more]) or one.note
        lines.append(
            f"{_IN_WORDS.get(one.where, one.where)}: {words}" + (f" ({one.note})" if one.note and marks else "")
        )
    return lines + ([f"and {len(changes) - limit:,} more changes"] if len(changes) > limit else [])


def merge_policies(base: Policy, mine: Policy, theirs: Policy) -> Policy:
    """*theirs* with what *mine* changed since *base*: what was added is added, what was removed is removed.

    Where both changed one list, both changes are in it; order is that of *theirs*.
    """
    gone = [space for space in base.spaces if space not in mine.spaces]
    spaces = {space: pairs for space, pairs in theirs.spaces.items() if space not in gone}
    for space, pairs in mine.spaces.items():
        if pairs != base.spaces.get(space):
            spaces[space] = _over(base.spaces.get(space, ()), pairs, spaces.get(space, ()))
    defaults = _over(base.defaults, mine.defaults, theirs.defaults)
    return Policy(theirs.account, spaces, defaults, _over(base.ignored, mine.ignored, theirs.ignored))


def _over(base: Sequence[Entry], mine: Sequence[Entry], theirs: Sequence[Entry]) -> tuple[Entry, ...]:
    kept = [one for one in theirs if one in mine or one not in base]
    return tuple(dict.fromkeys([*kept, *(one for one in mine if one not in base)]))


def _of_spaces(before: Policy, after: Policy) -> Iterator[PolicyChange | None]:
    for space in dict.fromkeys([*before.spaces, *after.spaces]):
        old, new = before.spaces.get(space), after.spaces.get(space)
        if old is None or new is None:
            pairs = list(map(str, old or new or ()))
            note = "a space of its own now" if old is None else "as all other spaces now"
            yield PolicyChange(f"space {space}", pairs if old is None else (), pairs if new is None else (), note)
        else:
            yield _change(f"space {space}", list(map(str, old)), list(map(str, new)))


def _change(where: str, before: Sequence[str], after: Sequence[str]) -> PolicyChange | None:
    if before == after:
        return None
    added, removed = [one for one in after if one not in before], [one for one in before if one not in after]
    return PolicyChange(where, added, removed, "" if added or removed else "in another order")
