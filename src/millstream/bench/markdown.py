"""Benchmark reports as Markdown, each in its own section of one document."""

from __future__ import annotations

import datetime
import re

from millstream.bench.runner import BenchmarkReport, ComparisonResult, ContenderResult
from millstream.core.amounts import counted

_HEADING = "# Benchmarks\n\n`millstream bench NAME --markdown FILE` writes each section.\n"


def section(report: BenchmarkReport) -> str:
    """The section of *report*: what ran where, then one table a comparison."""
    machine = report.machine
    when = datetime.datetime.fromtimestamp(report.measured_at / 1e6, datetime.UTC)
    memory = f"{machine.memory_bytes / 2**30:.0f} GiB of memory" if machine.memory_bytes else "unknown memory"
    lines = [
        f"<!-- benchmark {report.benchmark} -->",
        f"## {report.benchmark}",
        "",
        report.purpose,
        "",
        f"Measured on {when:%Y-%m-%d} with `{command(report)}`, "
        f"on {counted(machine.cores, 'core')} ({machine.processor}) with {memory}, "
        f"{machine.system}, {machine.python}, {machine.libraries}. The load average was {machine.load:g} at the "
        f"start. The benchmark took {_minutes(report.seconds)} for {counted(report.runs, 'round')}; in a round the "
        "cases run one after the other. Figures are medians over the rounds. A ratio compares a row with the first row "
        "in the same round, and is the median over the rounds.",
        "",
    ]
    for result in report.results:
        lines += _table(result, report.runs)
    return "\n".join([*lines, f"<!-- end {report.benchmark} -->", ""])


def command(report: BenchmarkReport) -> str:
    """The command that makes *report*."""
    parts = "".join(f" --{name.replace('_', '-')} {value}" for name, value in report.parts.items())
    return f"millstream bench {report.benchmark} --size {report.size} --runs {report.runs}{parts}"


def put_section(document: str, report: BenchmarkReport) -> str:
    """*document* with the section of *report* in the place of an earlier one, or at its end."""
    text = section(report)
    found = re.compile(
        rf"<!-- benchmark {re.escape(report.benchmark)} -->.*?<!-- end {re.escape(report.benchmark)} -->\n", re.DOTALL
    )
    if found.search(document):
        return found.sub(lambda _: text, document, count=1)
    return (document.rstrip("\n") + "\n" if document.strip() else _HEADING) + "\n" + text


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def number(value: float) -> str:
    """*value* with the digits that mean something: ``1,234,000``, ``12.3``, ``0.046``."""
    if abs(value) >= 100:
        return f"{float(f'{value:.4g}'):,.0f}"
    return f"{value:.3g}"


def figure(name: str, row: ContenderResult) -> str:
    """The figure *name* of *row*, a dash where there is none; ratios as ``4.54×``."""
    if name not in row.figures:
        return "–"
    value = row.figures[name]
    if not name.endswith(", ratio"):
        return number(value)
    return f"{value:,.0f}×" if abs(value) >= 100 else f"{value:#.3g}×"


def _table(result: ComparisonResult, runs: int) -> list[str]:
    figures = sorted({name for row in result.rows for name in row.figures})
    is_repeated = any(len(row.values) > 1 for row in result.rows)
    columns = ["case", result.unit, *(["range"] if is_repeated else []), "ratio", *figures]
    rounds = " There was one round." if {len(row.values) for row in result.rows} == {1} and runs > 1 else ""
    lines = [f"### {result.title}", "", f"{result.conditions}{rounds}", "", "| " + " | ".join(columns) + " |"]
    lines.append("|" + "---|" + "---:|" * (len(columns) - 1))
    lines += ["| " + " | ".join(_cells(row, figures, is_repeated=is_repeated)) + " |" for row in result.rows]
    return [*lines, ""]


def _cells(row: ContenderResult, figures: list[str], *, is_repeated: bool) -> list[str]:
    spread = [f"{number(min(row.values))}–{number(max(row.values))}"] if is_repeated else []
    more = [figure(name, row) for name in figures]
    return [row.contender, number(row.median), *spread, f"{row.ratio:.2f}×", *more]
