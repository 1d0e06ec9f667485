"""Reports as pages for people: plain HTML, with no script and nothing loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from html import escape

from millstream.core.clock import MICROSECONDS
from millstream.mill.reports.report import IntegrityReport, ReportResult, coverage_text, difference_lines

MOST_FINDINGS = 1000
"""Findings shown on a page; the report itself has all."""

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #222 }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse; width: 100% } th, td { text-align: left; padding: .3rem .8rem .3rem 0;
border-bottom: 1px solid #ddd; vertical-align: top; overflow-wrap: anywhere } td.n, th.n { text-align: right }
.SUCCESS { color: #146c2e } .FAILURE { color: #a8071a } .INCOMPLETE, .NEVER { color: #8a5a00 } code { font-size: .85em }
"""
_SOURCES = ("manifest", "provider", "content")


def page(report: IntegrityReport) -> Iterator[str]:
    """The page of one report, part by part."""
    place = f"{report.store}/{report.space}"
    yield from _head(f"Integrity report on {place}")
    yield f"<p>{_result(report.result.value)}: {escape(coverage_text(report))}.</p>\n"
    rows: list[tuple[str, object]] = [
        ("account", report.account),
        ("checked from", _time(report.started_at)),
        ("until", _time(report.ended_at)),
        ("listed", f"{report.listed:,}"),
        ("checked", f"{report.checked:,}"),
        ("explained", f"{report.explained:,}"),
        ("failed", f"{report.failed:,}"),
        ("bytes read", f"{report.bytes:,}"),
        ("no checksum but that of adoption", f"{report.adopted.items:,} items, {report.adopted.bytes:,} bytes"),
        ("SHA-256 of this report", report.sha256),
        ("of the report before", report.previous or "there is none"),
    ]
    yield from _table(("", ""), rows)
    for note in (*difference_lines(report), *report.notes):
        yield f"<p class=INCOMPLETE>{escape(note)}</p>\n"
    yield "<h2>Outcomes</h2>\n"
    yield from _table(("outcome", "items"), [(name, f"{count:,}") for name, count in report.outcomes.items()])
    yield "<h2>By row of the decision table</h2>\n"
    yield from _table(("row", "items"), [(name, f"{count:,}") for name, count in report.kinds.items()])
    yield from _findings(report)
    yield "</body></html>\n"


def overview(places: Sequence[tuple[str, str]], reports: Iterable[IntegrityReport | None], now: int) -> Iterator[str]:
    """A page with a line for each of *places* (store, space): its latest report, and how old that is at *now*.

    The result of a place without a report is NEVER.
    """
    yield from _head("Integrity of all spaces")
    yield f"<p>As of {_time(now)}.</p>\n<table>\n<tr>"
    for name in ("store", "space", "result", "coverage", "listed", "failed", "bytes read", "last check", "age"):
        yield f"<th>{name}</th>"
    yield "</tr>\n"
    for (store, space), report in zip(places, reports, strict=True):
        cells = [escape(store), escape(space)]
        if report is None:
            cells += [_result("NEVER"), *[""] * 6]
        else:
            cells += [
                _result(report.result.value), escape(coverage_text(report).removeprefix("coverage ")),
                f"{report.listed:,}", f"{report.failed:,}", f"{report.bytes:,}", _time(report.ended_at),
                age_text(now - report.ended_at),
            ]  # fmt: skip
        yield "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>\n"
    yield "</table>\n</body></html>\n"


def age_text(microseconds: int) -> str:
    """How long ago something was, in its largest unit; what lies ahead is `0 s`."""
    seconds = max(0, microseconds) // MICROSECONDS
    for unit, length in (("years", 365 * 86_400), ("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def _findings(report: IntegrityReport) -> Iterator[str]:
    if not report.findings:
        return
    yield f"<h2>Findings</h2>\n<p>{len(report.findings):,} items are not in order.</p>\n"
    shown = report.findings[:MOST_FINDINGS]
    rows = [
        (one.content_id, one.verdict, f"{one.row} {one.kind}: {one.detail}", *(getattr(one, n) for n in _SOURCES))
        for one in shown
    ]
    yield from _table(("item", "outcome", "what", *_SOURCES), rows)
    if len(shown) < len(report.findings):
        yield f"<p>The first {len(shown):,} are shown; the report has all.</p>\n"


def _head(title: str) -> Iterator[str]:
    yield '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
    yield f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head><body>\n<h1>{escape(title)}</h1>\n"


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    yield "<table>\n"
    if any(heads):
        yield "<tr>" + "".join(f"<th>{head}</th>" for head in heads) + "</tr>\n"
    for row in rows:
        yield "<tr>" + "".join(f"<td>{escape('–' if cell is None else str(cell))}</td>" for cell in row) + "</tr>\n"
    yield "</table>\n"


def _result(name: str) -> str:
    assert name in (*ReportResult, "NEVER")
    return f'<strong class="{name}">{name}</strong>'


def _time(microseconds: int) -> str:
    return datetime.fromtimestamp(microseconds / MICROSECONDS, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
