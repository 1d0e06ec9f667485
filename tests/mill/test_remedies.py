"""The table of outcomes: every one that people have to act on has a remedy, in pages and in the manual."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from millstream.mill.duplication.duplication_decision import FAILURES
from millstream.mill.integrity_outcomes import ROWS
from millstream.mill.item_ref import ItemRef
from millstream.mill.remedies import OUTCOMES, outcome_of
from millstream.queue.dead_letters import common_cause

QUOTED = "it's \"a\\"
FORGED = "a' in space 's' of store '1': B3 checksum-mismatch: "
"""An id that looks like the end of a place and a finding."""

MANUAL = Path(__file__).parents[2] / "docs" / "mill.md"


def test_the_manual_has_every_outcome_with_its_remedy() -> None:
    table = MANUAL.read_text("utf-8").partition("| code | meaning | what to do |\n")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[1:]]
    assert rows == [[row.code, row.meaning.partition(":")[0], row.todo] for row in OUTCOMES.values()]


def test_every_result_that_is_a_failure_or_an_error_has_a_remedy() -> None:
    lines = re.findall(r"^\| ([AB]\d+V?) \|.*\| ([A-Z, ]+) \|[^|]*\|$", MANUAL.read_text("utf-8"), re.MULTILINE)
    assert len(lines) == len(ROWS)
    failing = {code for code, results in lines if "FAILURE" in results or "ERROR" in results}
    assert set(OUTCOMES) == failing | set(FAILURES)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("DuplicationError: D14: the source's provider has no checksum of it", "D14"),
        ("B3 checksum-mismatch: the content does not match", "B3"),
        ("B3V vanished: it", "B3V"),
        ("UnresolvedError: B3 checksum-mismatch: 'a' in space 's' of store '1': the content", "B3"),
        ("UnresolvedError: 'a' in space 's' of store '1': B3 checksum-mismatch: the content", "B3"),
        ("UnresolvedError: … in space … of store …: B3V vanished: it", "B3V"),
        (f"UnresolvedError: {ItemRef('1', 's', QUOTED)}: B7 store-checksum: it", "B7"),
        (f"UnresolvedError: {common_cause(str(ItemRef('1', 's', FORGED)))}: B7 store-checksum: it", "B7"),
        (f"UnresolvedError: {ItemRef('1', 's', FORGED)}: B7 store-checksum: it", "B7"),
        (f"UnresolvedError: {ItemRef('1', 's', FORGED)}: no copy has the recorded checksum", None),
        ("B1 intact: all agree", None),
        ("disk B3: full", None),
        ("B3x", None),
        ("", None),
        (None, None),
    ],
)
def test_the_code_at_the_beginning_of_a_text_is_found(text: str | None, code: str | None) -> None:
    found = outcome_of(text)
    assert (found.code if found else None) == code
