"""Reports: honest results, escaping, and a chain that shows every change."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.amounts import share_text
from millstream.core.canonical import parse_canonical
from millstream.mill.errors import ReportError
from millstream.mill.integrity_decision import CheckVerdict
from millstream.mill.manifest import CheckResult
from millstream.mill.reports.archive import decode_report, reports_of, verify_chain
from millstream.mill.reports.folder import ReportFolder
from millstream.mill.reports.page import page
from millstream.mill.reports.report import (
    COLUMNS,
    IntegrityReport,
    ReportResult,
    SpaceTally,
    build_report,
    coverage_text,
    encode_report,
    report_lines,
    tsv_lines,
)


def result(verdict: CheckVerdict, content_id: str = "c", size: int = 10) -> CheckResult:
    return CheckResult("1", "s", content_id, verdict, "B0", "kind", "detail", 5, size, "a" * 64, "b" * 64, None)


def report(*verdicts: CheckVerdict, note: str = "", store: str = "1", space: str = "s") -> IntegrityReport:
    tally = SpaceTally()
    tally.add([result(verdict, f"c{n}") for n, verdict in enumerate(verdicts)])
    if note:
        tally.fail(note)
    return build_report(tally, store, space, started_at=1, ended_at=2)


@pytest.mark.parametrize(
    ("made", "outcome", "coverage"),
    [
        (report(), ReportResult.SUCCESS, None),
        (report(CheckVerdict.SUCCESS, CheckVerdict.IGNORE), ReportResult.SUCCESS, 1.0),
        (report(CheckVerdict.IGNORE, CheckVerdict.IGNORE), ReportResult.INCOMPLETE, None),
        (report(CheckVerdict.ERROR, CheckVerdict.ERROR), ReportResult.INCOMPLETE, None),
        (report(CheckVerdict.SUCCESS, CheckVerdict.FAILURE), ReportResult.FAILURE, 1.0),
        (report(CheckVerdict.SUCCESS, CheckVerdict.ERROR), ReportResult.INCOMPLETE, 0.5),
        (report(CheckVerdict.SUCCESS, CheckVerdict.RETRY), ReportResult.INCOMPLETE, 0.5),
        (report(CheckVerdict.ERROR, CheckVerdict.FAILURE), ReportResult.FAILURE, 0.5),
        (report(CheckVerdict.SUCCESS, note="the listing stopped before its end"), ReportResult.INCOMPLETE, 1.0),
        (report(note="the listing stopped before its end"), ReportResult.INCOMPLETE, None),
    ],
)
def test_p9_a_report_says_success_only_if_all_was_listed_checked_or_explained_and_nothing_failed(
    made: IntegrityReport, outcome: ReportResult, coverage: float | None
) -> None:
    assert (made.result, made.coverage) == (outcome, coverage)


@given(st.lists(st.sampled_from(CheckVerdict)), st.booleans())
def test_p9_the_figures_of_a_report_add_up(verdicts: list[CheckVerdict], broken: bool) -> None:
    made = report(*verdicts, note="broken" if broken else "")
    assert made.listed == len(verdicts) == sum(made.outcomes.values()) == sum(made.kinds.values())
    assert made.bytes == 10 * len(verdicts)
    assert len(made.findings) == made.listed - made.outcomes.get("SUCCESS", 0) - made.explained
    good = all(verdict in (CheckVerdict.SUCCESS, CheckVerdict.IGNORE) for verdict in verdicts) and not broken
    good = good and (not verdicts or CheckVerdict.SUCCESS in verdicts)
    assert (made.result == ReportResult.SUCCESS) == good


def test_counts_of_a_job_make_the_same_report_as_single_results() -> None:
    singly, together = SpaceTally(), SpaceTally()
    singly.add([result(CheckVerdict.SUCCESS, str(n)) for n in range(5)])
    together.count(CheckVerdict.SUCCESS, "B0 kind", number=5, size=50)
    times = {"started_at": 1, "ended_at": 2}
    assert build_report(singly, "1", "s", **times) == build_report(together, "1", "s", **times)


def test_a_report_names_the_first_findings_and_counts_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.mill.reports.report.MOST_NAMED", 3)
    tally = SpaceTally()
    for number in reversed(range(10)):
        tally.add([result(CheckVerdict.FAILURE, f"c{number}")])
        assert len(tally.findings) < 6
    made = build_report(tally, "1", "s", started_at=1, ended_at=2)
    assert [finding.content_id for finding in made.findings] == ["c0", "c1", "c2"]
    assert (made.failed, made.result) == (10, ReportResult.FAILURE)
    assert made.notes == ("7 more findings are only in the TSV file of this report",)


def test_a_report_is_canonical_json_that_reads_back() -> None:
    made = report(CheckVerdict.SUCCESS, CheckVerdict.FAILURE, CheckVerdict.SUCCESS)
    data = encode_report(made)
    assert msgspec.convert(parse_canonical(data), IntegrityReport).sha256 == made.sha256
    assert b'"coverage":1' in data


@given(st.lists(st.text(alphabet=st.sampled_from("a\t\n\r\\tn")), min_size=1, max_size=5))
def test_a_line_of_the_tsv_is_one_item_whatever_its_id(names: list[str]) -> None:
    lines = list(tsv_lines(result(CheckVerdict.SUCCESS, name) for name in names))
    assert lines[0] == "\t".join(COLUMNS) + "\n"
    assert len(lines) == len(names) + 1
    for name, line in zip(names, lines[1:], strict=True):
        assert line.count("\n") == 1 and "\r" not in line
        fields = line[:-1].split("\t")
        assert len(fields) == len(COLUMNS)
        assert unescape(fields[COLUMNS.index("content-id")]) == name


def unescape(text: str) -> str:
    plain, signs = "", iter(text)
    for sign in signs:
        plain += {"\\": "\\", "t": "\t", "n": "\n", "r": "\r"}[next(signs)] if sign == "\\" else sign
    return plain


def test_reports_of_a_space_are_chained(tmp_path: Path) -> None:
    folder = ReportFolder(tmp_path)
    assert folder.latest("1", "s") is None
    assert verify_chain(folder, "1", "s") is None
    for verdict in (CheckVerdict.SUCCESS, CheckVerdict.FAILURE, CheckVerdict.SUCCESS):
        folder.save(report(verdict), ["tsv"])
    first, second, third = reports_of(folder, "1", "s")
    assert (first.previous, second.previous, third.previous) == (None, first.sha256, second.sha256)
    assert verify_chain(folder, "1", "s") == third.sha256
    assert folder.latest("1", "s") == third
    assert (tmp_path / "1" / "s" / "000001.tsv").read_bytes() == b"tsv"


def three_reports(root: Path) -> ReportFolder:
    folder = ReportFolder(root)
    for _ in range(3):
        folder.save(report(CheckVerdict.FAILURE))
    return folder


def test_a_report_that_was_changed_or_taken_out_is_seen(tmp_path: Path) -> None:
    middle = tmp_path / "1" / "s" / "000002.json"
    folder = three_reports(tmp_path)
    middle.write_bytes(middle.read_bytes().replace(b'"FAILURE":1', b'"FAILURE":0'))
    with pytest.raises(ReportError, match=r"000003\.json does not continue"):
        verify_chain(folder, "1", "s")
    middle.unlink()
    with pytest.raises(ReportError, match=r"000003\.json does not continue"):
        verify_chain(folder, "1", "s")
    middle.write_bytes(b'{ "not": "canonical" }')
    with pytest.raises(ReportError, match=r"000002\.json differs from the report"):
        verify_chain(folder, "1", "s")


def test_reports_are_counted_beyond_a_million(tmp_path: Path) -> None:
    folder = ReportFolder(tmp_path)
    folder.save(report(CheckVerdict.SUCCESS))
    first = tmp_path / "1" / "s" / "000001.json"
    first.rename(first.with_name("999999.json"))
    for verdict in (CheckVerdict.FAILURE, CheckVerdict.SUCCESS):
        folder.save(report(verdict))
    assert [stored.number for stored in folder.stored("1", "s")] == [999_999, 1_000_000, 1_000_001]
    chain = [decode_report(stored) for stored in folder.stored("1", "s")]
    assert [made.previous for made in chain] == [None, chain[0].sha256, chain[1].sha256]
    assert folder.latest("1", "s") == chain[2]


def test_a_report_that_was_taken_out_does_not_let_the_next_one_replace_the_last(tmp_path: Path) -> None:
    folder = three_reports(tmp_path)
    (tmp_path / "1" / "s" / "000002.json").unlink()
    folder.save(report(CheckVerdict.SUCCESS))
    assert [stored.number for stored in folder.stored("1", "s")] == [1, 3, 4]


def test_odd_names_stay_inside_the_folder(tmp_path: Path) -> None:
    folder = ReportFolder(tmp_path / "reports")
    for store, space in (("..", ".."), ("a/b", "../../c"), (".", ".hidden")):
        folder.save(report(CheckVerdict.SUCCESS, store=store, space=space))
        path = Path(next(folder.stored(store, space)).place)
        assert path.resolve().is_relative_to((tmp_path / "reports").resolve())
        assert path.parent.parent.parent == tmp_path / "reports"
        assert folder.latest(store, space) is not None


def test_p9_the_coverage_of_nothing_is_no_number() -> None:
    def told(tally: SpaceTally) -> str:
        return next(report_lines(build_report(tally, "1", "s", started_at=1, ended_at=2)))

    empty, away, unread = SpaceTally(), SpaceTally(), SpaceTally()
    away.fail("the listing stopped before its end")
    unread.count(CheckVerdict.IGNORE, "B11 fresh", number=3)
    assert told(empty).endswith("the space is empty")
    assert told(away).endswith("coverage unknown: nothing could be listed")
    assert told(unread).endswith("coverage unknown: nothing was checked")


def test_a_report_of_an_earlier_release_keeps_its_hash_and_claims_no_coverage_of_nothing() -> None:
    older = encode_report(report()).replace(b'"coverage":null', b'"coverage":1')
    read = msgspec.convert(parse_canonical(older), IntegrityReport)
    assert (read.known_coverage, read.sha256) == (None, hashlib.sha256(older).hexdigest())
    assert "the space is empty" in "".join(page(read)) and "100" not in coverage_text(read)


@pytest.mark.parametrize(
    ("share", "text"), [(1, "100.0%"), (0.99999, "99.9%"), (0.5, "50.0%"), (1e-9, "0.1%"), (0, "0.0%")]
)
def test_a_share_is_rounded_neither_to_all_nor_to_nothing(share: float, text: str) -> None:
    assert share_text(share) == text
