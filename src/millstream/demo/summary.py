"""The summary of the demo as a JSON object, a table and an HTML page."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from millstream.core.amounts import share_text
from millstream.core.decoding import prepared
from millstream.core.durable import write_durably
from millstream.demo.hourly_counts import HourlyCounts
from millstream.demo.page import draw_page
from millstream.demo.plan import DemoPlan
from millstream.demo.stage_figures import StageMetrics


class Summary(msgspec.Struct, frozen=True):
    """The whole run: its plan, its stages, and where its files lie; ``put_aside`` rows could not be read."""

    data: str
    plan: DemoPlan
    stages: list[StageMetrics]
    put_aside: int
    report: str

    @property
    def seconds(self) -> float:
        """The seconds of all stages, of this run and earlier ones; those in which two of them ran count once."""
        return sum(stage.seconds - stage.beside for stage in self.stages)

    def facts(self, stage: str) -> Mapping[str, Any]:
        """The facts of *stage*."""
        return next(figures.facts for figures in self.stages if figures.stage == stage)

    def lead(self) -> str:
        """One sentence on the delivery."""
        way = self.plan.delivery
        return (
            f"window {_minutes(self.plan.window)}, longest delay {_minutes(way.max_delay)}, "
            f"{way.late_share:.0%} later than that, {way.twice_share:.0%} sent twice, seed {way.seed}"
        )

    def overlap(self) -> str:
        """The steps that ran beside others, as a second sentence; empty where there are none."""
        names = [stage.title for stage in self.stages if stage.beside]
        return f"; beside other steps, whose seconds count once: {', '.join(names)}" if names else ""

    def next_steps(self) -> list[str]:
        """Commands to try on the data."""
        log, proven = self.plan.log, self.facts("prove")["id"]
        data = shown(self.data)
        at = "" if data == "millstream-data" else f" --data {data}"
        return [
            f"millstream log read {log} --from 1 --max 3 --jsonl{at}",
            f"millstream anchor key show{at} > ledger.key && millstream prove {log} {proven}{at} > proof.json "
            f"&& millstream verify proof.json --key ledger.key --cas {data}/cas",
            f"millstream anchor ledger --json{at}",
            f"millstream mill check{at}",
        ]

    def to_json(self) -> dict[str, Any]:
        """The object that ``--json`` prints."""
        stages = [
            {"stage": s.stage, "title": s.title, "seconds": s.seconds, "beside": s.beside, "bytes": s.bytes}
            | {
                "rate": round(s.rate, 1),
                "earlier": s.earlier,
                "counts": s.counts,
                "facts": {k: v for k, v in s.facts.items() if k != "per_hour"},
            }
            for s in self.stages
        ]
        return {
            "data": self.data,
            "plan": msgspec.to_builtins(self.plan),
            "put_aside": self.put_aside,
            "report": self.report,
            "seconds": round(self.seconds, 3),
            "stages": stages,
        }


def shown(path: str) -> str:
    """*path* as a person would type it here."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path


def print_summary(summary: Summary, console: Console) -> None:
    """The table of stages, the sweeps' words, the proof, and what to try next."""
    caption = summary.lead() + summary.overlap()
    table = Table(title="Steps of the demo", caption=caption, box=None, pad_edge=False)
    for name in ("step", "results", "MB", "seconds", "per second"):
        table.add_column(name, justify="left" if name in ("step", "results") else "right")
    for stage in summary.stages:
        counts = ", ".join(f"{count:,} {name}" for name, count in stage.counts.items())
        table.add_row(stage.title, counts, f"{stage.bytes / 1e6:,.1f}", f"{stage.seconds:,.1f}", f"{stage.rate:,.0f}")
    table.add_row("all", "", "", f"{summary.seconds:,.1f}", "")
    console.print(table)
    for line in _words(summary):
        console.print(line, highlight=False, soft_wrap=True)


def _words(summary: Summary) -> list[str]:
    reasons = Counter[str]()
    for stage in summary.stages:
        reasons.update(stage.facts.get("rejected", {}))
    rejected = ", ".join(f"{n:,} {reason}" for reason, n in sorted(reasons.items()))
    proof = summary.facts("prove")
    findings = [
        f"  found    {f['store']}/{f['space']}/{f['content_id']}: {f['detail']}"
        for f in summary.facts("sweep-2")["findings"]
    ]
    return [
        "",
        f"every message is in one batch or has a reason: {rejected or 'none rejected'}",
        *([f"{summary.put_aside:,} unreadable rows skipped"] if summary.put_aside else []),
        *(
            f"  damaged  {d['store']}/{d['space']}/{d['content_id']}: {d['how']}"
            for d in summary.facts("damage")["damage"]
        ),
        *findings,
        f"after repair: {_verdict(summary.facts('sweep-3')['spaces'])}",
        f"proven: {proof['message']}",
        f"  batch {proof['batch']} in {proof['batch file']}, anchor {proof['anchor']}, copies: {proof['copies']}",
        "",
        f"data    {shown(summary.data)}",
        f"report  {shown(summary.report)}",
        "try     " + "\n        ".join(summary.next_steps()),
    ]


def write_page(summary: Summary, path: Path) -> None:
    """Draw the HTML report into *path*."""
    sweeps = [{"sweep": n} | dict(row) for n in (1, 2, 3) for row in summary.facts(f"sweep-{n}")["spaces"]]
    shown = ("store", "space", "content_id", "verdict", "detail")
    findings = [{name: f[name] for name in shown} | {"now": "repaired"} for f in summary.facts("sweep-2")["findings"]]
    text = draw_page(
        lead=f"{summary.data}: {summary.lead()}",
        stages=summary.stages,
        charts=_charts(summary),
        sweeps=sweeps,
        findings=findings,
        proof=summary.facts("prove"),
        next_steps=summary.next_steps(),
    )
    write_durably(path, text.encode("utf-8"))


def _charts(summary: Summary) -> list[str]:
    charts = [
        _hourly(f"messages per hour in the log {stage.stage.removeprefix('publish-')}", stage.facts)
        for stage in summary.stages
        if stage.stage.startswith("publish-")
    ]
    charts += [
        _hourly(
            f"batches per hour of the log {log}", summary.facts("batch" if log == summary.plan.log else f"batch-{log}")
        )
        for log in summary.plan.logs
    ]
    rates = [(stage.title, stage.seconds, _pace(stage)) for stage in summary.stages]
    charts.append(bar_chart(rates, title="seconds and rate of each stage"))
    covered = [
        (
            f"{row['store']} / {row['space']}",
            100 * (row["coverage"] or 0),
            f"{_share(row['coverage'])} of {row['listed']:,}",
        )
        for row in summary.facts("sweep-3")["spaces"]
    ]
    return [*charts, bar_chart(covered, title="coverage of the last sweep, by store and space", most=100)]


def _pace(stage: StageMetrics) -> str:
    return f"{stage.seconds:,.1f} s" + (f", {stage.rate:,.0f}/s" if stage.counts else "")


def _hourly(title: str, facts: Mapping[str, Any]) -> str:
    hours = msgspec.convert(facts["per_hour"], prepared(HourlyCounts))
    if not hours.counts:
        return f"<p>{title}: the hours are too far apart to draw</p>"
    first, last = hours.span
    return band_chart(np.array(hours.counts), title=title, first=first, last=last)


def _verdict(spaces: Sequence[Mapping[str, Any]]) -> str:
    results = sorted({row["result"] for row in spaces})
    coverage = _share(min((row["coverage"] or 0.0 for row in spaces), default=None))
    return f"{' and '.join(results)}, coverage {coverage}, {sum(row['checked'] for row in spaces):,} copies checked"


def _share(coverage: float | None) -> str:
    return "nothing checked" if coverage is None else share_text(coverage)


def _minutes(microseconds: int) -> str:
    return str(dt.timedelta(microseconds=microseconds))


WIDTH, HEIGHT, MARGIN = 900, 150, 46


def band_chart(values: NDArray[np.int64], *, title: str, first: str, last: str) -> str:
    """*values* over time, as a band from the least to the greatest in each column of pixels and a line at the mean.

    *first* and *last* label the ends of the time axis.
    """
    columns = np.array_split(values, min(len(values), WIDTH - MARGIN)) if len(values) else []
    top = int(values.max()) if len(values) else 0
    scale = (HEIGHT - 30) / max(top, 1)
    xs = [MARGIN + n * (WIDTH - MARGIN) / max(len(columns), 1) for n in range(len(columns))]
    high = [HEIGHT - 20 - column.max() * scale for column in columns]
    low = [HEIGHT - 20 - column.min() * scale for column in columns]
    mean = [HEIGHT - 20 - column.mean() * scale for column in columns]
    band = _points(xs, high) + " " + _points(xs[::-1], low[::-1])
    return _figure(
        title,
        f'<polygon class="band" points="{band}"/><polyline class="line" points="{_points(xs, mean)}"/>'
        f'<text x="{MARGIN - 6}" y="18" class="end">{top:,}</text>'
        f'<text x="{MARGIN - 6}" y="{HEIGHT - 20}" class="end">0</text>'
        f'<text x="{MARGIN}" y="{HEIGHT - 4}">{escape(first)}</text>'
        f'<text x="{WIDTH}" y="{HEIGHT - 4}" class="end">{escape(last)}</text>',
        HEIGHT,
    )


def bar_chart(rows: Sequence[tuple[str, float, str]], *, title: str, most: float | None = None) -> str:
    """One horizontal bar a row of (label, value, text). *most* is the value of a full bar (default: the greatest)."""
    full = most or max((value for _, value, _ in rows), default=1) or 1
    left, room = 280, WIDTH - 280 - 150
    bars = "".join(
        f'<text x="{left - 8}" y="{n * 24 + 16}" class="end">{escape(label)}</text>'
        f'<rect class="bar" x="{left}" y="{n * 24 + 3}" width="{max(1.0, room * value / full):.1f}" height="17"/>'
        f'<text x="{left + max(1.0, room * value / full) + 8:.1f}" y="{n * 24 + 16}">{escape(text)}</text>'
        for n, (label, value, text) in enumerate(rows)
    )
    return _figure(title, bars, 24 * len(rows) + 4)


def _points(xs: Sequence[float], ys: Sequence[float]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))


def _figure(title: str, drawing: str, height: int) -> str:
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">{drawing}</svg></figure>'
    )
