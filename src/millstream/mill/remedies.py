"""The table of outcomes that people have to act on: the code of a check or of a duplication, what it means, what to do.

Findings, causes of dead tasks and reports begin with the code (``B3``, ``D14``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from millstream.mill.duplication.duplication_decision import FAILURES
from millstream.mill.integrity_outcomes import ROWS

_NAME = r"""(?:…|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_PLACE = f"{_NAME} in space {_NAME} of store {_NAME}: "
"""The text of an ``ItemRef``, also in the cause of a group, which has ``…`` for names. Dead letters of the queue
``bit-error`` that earlier versions stored have it before the code."""

_CODE = re.compile(rf"(?:[A-Za-z]+: )?(?:{_PLACE})?([A-Z][0-9]{{1,2}}[A-Z]?)(?=[: ]|$)")


class OutcomeText(msgspec.Struct, frozen=True):
    """The ``code`` of an outcome, what it means, and what to do."""

    code: str
    meaning: str
    todo: str


OUTCOMES: Mapping[str, OutcomeText] = {
    **{code: OutcomeText(code, row.detail, row.todo) for code, row in ROWS.items() if row.todo},
    **{code: OutcomeText(code, failure.reason, failure.todo) for code, failure in FAILURES.items()},
}
"""Every outcome that people have to act on, by its code; ``docs/mill.md`` has them as tables."""


def outcome_of(text: str | None) -> OutcomeText | None:
    """The outcome whose code *text* begins with, after the name of an error and an item; None where there is none."""
    found = _CODE.match(text or "")
    return OUTCOMES.get(found.group(1)) if found else None
