"""The table of outcomes that people have to act on: the code of a check or of a duplication, what it means, what to do.

Findings, causes of dead tasks and reports begin with the code (``B3``, ``D14``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from millstream.mill.duplication.duplication_table import FAILURES
from millstream.mill.integrity_outcomes import ROWS

_REPAIR = "repair it in the console, or with `millstream mill repair`; without a good copy, put it back from elsewhere"
_DECIDE = "compare the copies, then restore the right one (`millstream mill repair`) or record this one "
_DECIDE += "(`millstream mill accept`)"
_RUN = "nothing: it is recorded at the next check; if not, see the log of the process"
_ANSWER = "check the store's disk or server, then redrive the task"
_CHECKSUM = "put the item again through the node (`millstream store put`), or let the provider keep checksums; then "
_CHECKSUM += "redrive the task"

_REMEDIES: Mapping[str, str] = {
    "B3": _REPAIR,
    "B3V": "check again (`millstream mill check`); if it is missing, repair it",
    "B4": f"look for errors of the disk; then {_REPAIR}",
    "B7": "ask the provider to correct its checksum; the bytes and the manifest agree",
    "B9": _DECIDE,
    "B10": _REPAIR,
    "B15": _RUN,
    "B16": _DECIDE,
    "B18": _REPAIR,
    "B19": "check again; if the bytes differ from the manifest, repair it",
    "B22": "check the store's disk or server, then check again (`millstream mill check`)",
    "B24": "delete it there, or let `millstream mill duplicate` delete the copy",
    "B25": _DECIDE,
    "B27": _REPAIR,
    "B28": "repair it: it is written again as a file of its own",
    "B29": "run `millstream protect`, which sets the properties of the copy",
    "B30": "put it back at the source, or record that it was deleted (`millstream mill forget STORE SPACE --vanished`)",
    "A5": _RUN,
    "A6": _RUN,
    "A7": _RUN,
    "D1": "discard the task: it cannot be done",
    "D6": _ANSWER,
    "D13": _CHECKSUM,
    "D14": _CHECKSUM,
    "D18": "put the item back at the source, or record its deletion (`millstream mill forget STORE SPACE ID`); then "
    "redrive the task",
    "D20": "put the item back at the source, or record its deletion (`millstream mill forget STORE SPACE ID`); then "
    "redrive the task",
    "D22": _ANSWER,
    "D25": "find out who changed the source; put the right bytes through the node, then redrive the task",
}

_CODE = re.compile(r"(?:[A-Za-z]+: )?([ABD][0-9]{1,2}V?)(?=[: ]|$)")


class OutcomeText(msgspec.Struct, frozen=True):
    """The ``code`` of an outcome, what it means, and what to do."""

    code: str
    meaning: str
    todo: str


OUTCOMES: Mapping[str, OutcomeText] = {
    code: OutcomeText(code, FAILURES[code] if code in FAILURES else ROWS[code].detail, todo)
    for code, todo in _REMEDIES.items()
}
"""Every outcome that people have to act on, by its code; ``docs/mill.md`` has them as tables."""


def outcome_of(text: str | None) -> OutcomeText | None:
    """The outcome whose code *text* begins with, after the name of an error; None where there is none."""
    found = _CODE.match(text or "")
    return OUTCOMES.get(found.group(1)) if found else None
