"""What is concluded of the reports of a ledger that are in no chain: made by real archives, in any order of entries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from millstream.anchoring import LedgerEntry
from millstream.mill.integrity_decision import CheckVerdict
from millstream.mill.reports.folder import ReportFolder
from millstream.mill.reports.report import IntegrityReport, SpaceTally, build_report
from millstream.node.missing_reports import absent_reports
from millstream.node.reports import report_anchor

PLACE = ("second", "photos")


@pytest.mark.parametrize(
    ("ledger", "chain", "outside", "missing", "unknown"),
    [
        pytest.param("n1 o1 o2 n2", "n1 n2", "o1 o2", "", "", id="two archives"),
        pytest.param("n1 o1 n2 o3 n3", "n1 n2 n3", "o1 o3", "", "o3", id="one was never anchored"),
        pytest.param("n1 o1 o3 n2 o4", "n1 n2", "o1 o3 o4", "", "", id="one was never anchored, and more in turn"),
        pytest.param("o2 o3", "", "o2 o3", "", "o2 o3", id="the first one was never anchored"),
        pytest.param("n1 o1 o3", "n1", "o1 o2 o3", "", "", id="one outside was never anchored"),
        pytest.param("o1 o2 n1", "n1", "o1 o2", "", "o1 o2", id="ended before the other began"),
        pytest.param("n1 n2 n3", "n1", "n2 n3", "n2 n3", "", id="removed from the end, and put outside"),
        pytest.param("n1 n2 n3", "n1 n2", "", "n3", "", id="removed from the end"),
        pytest.param("n1 n2 n3", "", "n1 n2 n3", "n1 n2 n3", "", id="all put outside"),
        pytest.param("n1 n2 o1", "", "n1 n2 o1", "", "n1 n2 o1", id="all put outside, where another chain is"),
        pytest.param("n1 n2 o1 o2 n3", "n1 n2 n3", "o2", "o1", "o2", id="removed from the reports outside"),
        pytest.param("n1 o1 n2 o2 n3", "n1 n2 n3", "o2", "o1", "", id="removed from those outside, made in turn"),
        pytest.param("n1 n2 f2 n3", "n1 n2 n3", "f2", "", "", id="of a copy of the archive, later"),
        pytest.param("n1 f2 n2 n3", "n1 n2 n3", "f2", "", "f2", id="of a copy of the archive, or replaced"),
        pytest.param("n1 f2 n2 f3 n3", "n1 n2 n3", "f2 f3", "", "", id="of a copy of the archive, in turn"),
        pytest.param("v1 v2 n1", "n1", "v1 v2", "", "", id="of an early release"),
        pytest.param("v1 v2", "v1", "v2", "v2", "", id="of an early release, removed from the end"),
    ],
)
def test_only_reports_that_were_removed_are_missing(
    ledger: str, chain: str, outside: str, missing: str, unknown: str, tmp_path: Path
) -> None:
    reports = _reports(tmp_path)
    entries = {
        report_anchor(reports[name]): LedgerEntry(report_anchor(reports[name]), "", number, "", 0)
        for number, name in enumerate(ledger.split(), start=1)
    }
    chains = {PLACE: [report_anchor(reports[name]) for name in chain.split()]} if chain else {}
    found = absent_reports(entries, chains, [reports[name] for name in outside.split()])
    names = {report_anchor(one): name for name, one in reports.items()}

    def named(some: Sequence[LedgerEntry]) -> str:
        return " ".join(names[entry.anchor_string] for entry in some)

    assert (named(found.missing), named(found.unknown)) == (missing, unknown)
    accounted = {*chain.split(), *missing.split(), *unknown.split()}
    assert named(found.other).split() == [name for name in ledger.split() if name not in accounted]


def test_a_report_outside_the_chains_that_names_no_sha256_continues_none(tmp_path: Path) -> None:
    first = _reports(tmp_path)["n1"]
    entries = {report_anchor(first): LedgerEntry(report_anchor(first), "", 1, "", 0)}
    odd = [msgspec.structs.replace(first, previous=text) for text in ("", "no hex", "ab", "é")]
    found = absent_reports(entries, {}, [first, *odd])
    assert [entry.number for entry in found.missing] == [1] and not found.unknown and not found.other


def _reports(folder: Path) -> dict[str, IntegrityReport]:
    """Reports of a node (``n1`` to ``n3``), of another one (``o1`` …), of an early release (``v1``, ``v2``), and those
    that a copy of the node's archive got after ``n1`` (``f2``, ``f3``)."""
    made = dict[str, IntegrityReport]()
    for began, (letter, count, version) in enumerate((("n", 3, 2), ("o", 4, 2), ("v", 2, 1))):
        archive = ReportFolder(folder / letter)
        for number in range(1, count + 1):
            made[f"{letter}{number}"] = archive.save(_report(10 * began + number, version))
    copy = ReportFolder(folder / "copy")
    assert copy.save(_report(1, 2)) == made["n1"]
    return made | {f"f{number}": copy.save(_report(90 + number, 2)) for number in (2, 3)}


def _report(started_at: int, version: int) -> IntegrityReport:
    tally = SpaceTally()
    tally.count(CheckVerdict.SUCCESS, "B0 same")
    made = build_report(tally, *PLACE, started_at=started_at, ended_at=started_at + 1)
    return msgspec.structs.replace(made, version=version)
