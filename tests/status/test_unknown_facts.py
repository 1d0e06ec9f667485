"""What could not be read is not judged as if it were known."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.anchoring.ledger import LedgerEntry
from millstream.anchoring.states import JournalTotals
from millstream.core.clock import MICROSECONDS
from millstream.log import LogSpec, WriterBusyError, open_store
from millstream.log.runtime.writer_refusals import WriterRefusal
from millstream.node import Node
from millstream.settings import AlarmSettings, Settings
from millstream.settings.verdict import VerdictSettings
from millstream.status.snapshot import JOURNAL, LEDGER, OBSERVER, StatusSnapshot
from millstream.status.verdict.facts import Facts
from millstream.status.verdict.judge_messages import anchor_issues
from millstream.status.verdict.process import look_at_process

NOW = 100_000 * MICROSECONDS
LONG_AGO = NOW - 7200 * MICROSECONDS


@pytest.mark.parametrize(
    ("unreadable", "kinds"),
    [
        (None, ["ledger-stuck", "observer-behind"]),
        (JOURNAL, ["observer-behind"]),
        (OBSERVER, ["ledger-stuck"]),
        (LEDGER, []),
    ],
)
def test_anchors_are_judged_only_by_what_could_be_read(unreadable: str | None, kinds: list[str]) -> None:
    head = LedgerEntry(anchor_string="x", hash="x", number=5, previous="x", time=LONG_AGO)
    snapshot = StatusSnapshot(
        at=NOW,
        seconds=0.0,
        journal=JournalTotals(accepted=3),
        waiting_since=LONG_AGO,
        head=None if unreadable == LEDGER else head,
        behind_since=LONG_AGO,
        troubles={} if unreadable is None else {unreadable: "it does not answer"},
    )
    facts = Facts(
        at=NOW,
        limits=VerdictSettings(),
        snapshot=snapshot,
        copies=None,
        stores=[],
        depths={},
        unreadable={},
        alarms=AlarmSettings(),
        patience=0,
    )
    assert [one.kind for one in anchor_issues(facts)] == kinds


def test_a_log_that_was_removed_does_not_keep_the_refusals_of_others(tmp_path: Path) -> None:
    with Node.open(Settings(data=str(tmp_path)), create=True) as node, open_store(node.logs.store.url) as other:
        node.logs.store._refusals.add(WriterRefusal(log="a-removed-one", producer="batching", at=1, why="it was busy"))
        for name in ("free", "held"):
            with other.log(LogSpec(name)).writer(), pytest.raises(WriterBusyError):
                node.logs.store.log(LogSpec(name)).writer("batching")
        with other.log(LogSpec("held")).writer():
            assert [one.log for one in look_at_process(node).refused] == ["held"]
