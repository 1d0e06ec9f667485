"""The demo's report as one HTML file: figures, charts, findings, proof. Nothing in it is fetched from anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from millstream.demo.stage_figures import StageMetrics

_STYLE = """
:root { color-scheme: light dark; --ink: #1b2430; --paper: #fdfdfb; --soft: #5b6675; --rule: #d8dce2;
        --bar: #2f6f8f; --band: #bcd6e2; --good: #23733d; --bad: #a32a1f }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ee; --paper: #14181d; --soft: #9aa5b1; --rule: #343c46; --bar: #6fb3d2; --band: #27485a;
          --good: #7fce97; --bad: #f0968c } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem;
       margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.7rem; margin-bottom: .2rem } h2 { font-size: 1.15rem; margin-top: 2.2rem }
p.lead { color: var(--soft); margin-top: 0 }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { text-align: left; padding: .3rem .6rem .3rem 0; border-bottom: 1px solid var(--rule); vertical-align: top }
td.n, th.n { text-align: right } code { font-size: .88em; overflow-wrap: anywhere }
figure { margin: 1.2rem 0 } figcaption { color: var(--soft); font-size: .9rem }
svg { width: 100%; height: auto } svg text { font: 12px system-ui, sans-serif; fill: var(--soft) }
svg text.end { text-anchor: end } .bar { fill: var(--bar) } .band { fill: var(--band) }
.line { fill: none; stroke: var(--bar) } .good { color: var(--good) } .bad { color: var(--bad) }
"""


def draw_page(
    *,
    lead: str,
    stages: Sequence[StageMetrics],
    charts: Iterable[str],
    sweeps: Sequence[Mapping[str, object]],
    findings: Sequence[Mapping[str, object]],
    proof: Mapping[str, object],
    next_steps: Sequence[str],
) -> str:
    """The whole page. *sweeps*, *findings* and *proof* are shown as tables, with their members as columns."""
    parts = [
        f"<h1>Results of the demo</h1><p class=lead>{escape(lead)}</p>",
        "<h2>Steps</h2>" + _stage_table(stages),
        "<h2>Charts</h2>" + "".join(charts),
        "<h2>Integrity sweeps</h2>" + _table(sweeps),
        "<h2>What was broken, found and repaired</h2>" + _table(findings),
        "<h2>One message, proven</h2>" + _table([{"what": name, "value": value} for name, value in proof.items()]),
        "<h2>Next</h2>" + "".join(f"<p><code>{escape(step)}</code></p>" for step in next_steps),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Millstream: results of the demo</title>'
        '<meta name="viewport" content="width=device-width"><meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _stage_table(stages: Sequence[StageMetrics]) -> str:
    rows = "".join(
        f"<tr><td>{escape(stage.title)}</td><td>{_counts(stage.counts)}</td><td class=n>{stage.bytes / 1e6:,.1f}</td>"
        f"<td class=n>{stage.seconds:,.1f}</td><td class=n>{stage.rate:,.0f}</td></tr>"
        for stage in stages
    )
    head = (
        "<tr><th>step</th><th>results</th><th class=n>MB</th><th class=n>seconds</th><th class=n>per second</th></tr>"
    )
    return f"<table>{head}{rows}</table>"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {escape(name)}" for name, count in counts.items())


def _table(rows: Sequence[Mapping[str, object]]) -> str:
    if not rows:
        return "<p>none</p>"
    head = "".join(f"<th>{escape(str(name))}</th>" for name in rows[0])
    body = "".join("<tr>" + "".join(_cell(value) for value in row.values()) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"<td>{value:,}</td>"
    text = escape(str(value))
    if text in ("SUCCESS", "repaired"):
        return f'<td class="good">{text}</td>'
    if text in ("FAILURE", "INCOMPLETE", "open"):
        return f'<td class="bad">{text}</td>'
    return f"<td><code>{text}</code></td>" if len(text) > 40 else f"<td>{text}</td>"
