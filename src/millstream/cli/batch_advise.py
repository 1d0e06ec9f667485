"""``millstream batch advise``: recommend a window, a delay and a late policy for the records of a log."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import get_args

import click
import msgspec
from rich.console import Console
from rich.table import Table

from millstream.batching import BatchConfig, LatePolicy
from millstream.batching.simulation import SLACK, SimulationMetrics, recommend
from millstream.cli.common import json_option, print_json, store_options
from millstream.cli.examples import example
from millstream.cli.spark_progress import shown
from millstream.core.amounts import parse_duration
from millstream.core.clock import MICROSECONDS
from millstream.log import LogSpec
from millstream.node import Node
from millstream.settings import Settings

_FACTORS = (1, 2, 4)
_WIDTH, _HEIGHT = 60, 12

Points = dict[tuple[int, int], str]
"""The mark at a column and row of the chart."""


@example("millstream batch advise weather --windows 5m,30m")
@click.command("advise")
@click.argument("log")
@click.option(
    "--windows", metavar="LIST", help="Windows to try, such as 5m,30m (default: 1/4 to 4 times batching.window)."
)
@click.option(
    "--max-delays", metavar="LIST", help="Delays to try, such as 1m,20m (default: 1/4 to 4 times batching.max_delay)."
)
@click.option(
    "--late",
    "policies",
    metavar="LIST",
    default="reject",
    show_default=True,
    help="Policies for late records to try, such as reject,side,amend.",
)
@click.option(
    "--grace",
    metavar="TIME",
    help="Grace for late records with side and amend, such as 1h (default, and at least: one window).",
)
@click.option(
    "--late-share",
    type=click.FloatRange(0, 1),
    default=0.001,
    show_default=True,
    help="Share of records that may be rejected as late: 0.001 is 0.1 %.",
)
@click.option("--to", "last_id", type=click.IntRange(min=1), help="The last message id (default: the end of the log).")
@json_option
@store_options
def advise_command(
    settings: Settings,
    *,
    log: str,
    windows: str | None,
    max_delays: str | None,
    policies: str,
    grace: str | None,
    late_share: float,
    last_id: int | None,
    as_json: bool,
) -> None:
    """Compare windows, delays and late policies on the messages of LOG, and recommend one combination.

    One Spark job tries all combinations. Latency is the time from the first record of a group to its close. The
    recommendation has the lowest latency among the rules that reject at most --late-share of the records as late and
    whose share of single-record batches is about the smallest. Nothing is changed.
    """
    from millstream.pipeline.jobs.advise import try_rules

    with Node.open(settings, reads=True) as node:
        given = node.batching.rules.default
        choices = _choices(
            given,
            _times("--windows", windows, given.window),
            _times("--max-delays", max_delays, given.max_delay),
            _policies(policies),
            _time("--grace", grace) if grace else None,
        )
        node.logs.store.log(LogSpec(log), create=False)  # before Spark starts, which makes folders in the node's folder
        with node.spark.session(registered=False) as spark, shown(spark, "batch advise"):
            tried = try_rules(spark, settings.log_url, log, choices, last_id=last_id, clock=node.clock)
    best = recommend(tried.figures, late_share)
    if as_json:
        for figures in tried.figures:
            print_json(_told(figures) | {"recommended": figures == best})
    else:
        _show(log, tried.figures, best, late_share, tried.seconds)


def _choices(
    given: BatchConfig, windows: Sequence[int], delays: Sequence[int], policies: Sequence[LatePolicy], grace: int | None
) -> list[BatchConfig]:
    """*given* under each combination; leap limits that were not set follow the delay."""
    lead = None if given.lead == given.max_delay else given.lead
    return [
        msgspec.structs.replace(
            given.punctual,
            window=window,
            max_delay=delay,
            leap=lead,
            late=None if late == "reject" else late,
            grace=None if late == "reject" else max(window, grace or 0),
        )
        for late, window, delay in itertools.product(policies, windows, delays)
    ]


def _times(option: str, text: str | None, given: int) -> list[int]:
    """The times of a list, the value of *option*; without it those around *given*."""
    if text is not None:
        return sorted({_time(option, part) for part in text.split(",")})
    around = {given * factor for factor in _FACTORS} | {given // factor for factor in _FACTORS}
    return sorted(around)


def _time(option: str, text: str) -> int:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.UsageError(f"{option}: {error}") from error


def _policies(text: str) -> list[LatePolicy]:
    names = [name.strip() for name in text.split(",")]
    known = get_args(LatePolicy)
    for name in names:
        if name not in known:
            raise click.UsageError(f"--late: unknown policy {name!r}; choose from {', '.join(known)}")
    return [name for name in known if name in names]


def _told(figures: SimulationMetrics) -> dict[str, object]:
    """*figures* for machines: counts, shares, and latencies in seconds."""
    counts = {name: value for name, value in msgspec.to_builtins(figures).items() if name not in ("waits", "waited")}
    return counts | {
        "late_share": round(figures.late_share, 6),
        "single_share": round(figures.single_share, 6),
        "latency_seconds": round(figures.latency / MICROSECONDS, 3),
        "latency_99_seconds": round(figures.latency_quantile(0.99) / MICROSECONDS, 3),
    }


def _show(
    log: str, tried: Sequence[SimulationMetrics], best: SimulationMetrics, late_share: float, seconds: float
) -> None:
    table = Table(title=f"{tried[0].records:,} records of {log}, in {seconds:.1f} s", title_justify="left")
    for heading in ("", "window", "max delay", "late", "groups", "single", "rejected late", "latency", "99 %"):
        table.add_column(heading, justify="left" if heading == "late" else "right")
    for number, figures in enumerate(tried, start=1):
        table.add_row(
            f"{'▶ ' if figures == best else ''}{number}",
            _span(figures.window),
            _span(figures.max_delay),
            figures.late_policy,
            f"{figures.groups:,}",
            f"{figures.single_share:.1%}",
            f"{figures.late_share:.2%}",
            _span(figures.latency),
            _span(figures.latency_quantile(0.99)),
        )
    console = Console(highlight=False)
    console.print(table)
    click.echo(chart(tried, best))
    setting = f"window = {_span(best.window)}, max_delay = {_span(best.max_delay)}, late = {best.late_policy}"
    click.echo(f"Recommended: {setting}{f', grace = {_span(best.grace)}' if best.grace else ''}")
    click.echo(
        f"  (the lowest latency among the rules that reject at most {late_share:.2%} as late, and whose share of "
        f"single-record batches is at most {SLACK:.0%} above the smallest)"
    )


def chart(tried: Sequence[SimulationMetrics], best: SimulationMetrics) -> str:
    """Refused late records (upwards) against mean latency (to the right), a dot for each of *tried*, ◆ for *best*."""
    right = max(figures.latency for figures in tried) or 1
    top = max(figures.late_share for figures in tried) or 1
    points: Points = {}
    for figures in sorted(tried, key=lambda figures: figures == best):
        place = (
            round(figures.latency / right * (_WIDTH - 1)),
            _HEIGHT - 1 - round(figures.late_share / top * (_HEIGHT - 1)),
        )
        points[place] = "◆" if figures == best else "●"
    rows = ["".join(points.get((x, y), " ") for x in range(_WIDTH)).rstrip() for y in range(_HEIGHT)]
    labels = [f"{top:8.2%}", *[" " * 8] * (_HEIGHT - 2), f"{0:8.2%}"]
    drawn = [f"{label} │{row}" for label, row in zip(labels, rows, strict=True)]
    axis = f"{'':8} └{'─' * _WIDTH}\n{'':10}0{_span(right):>{_WIDTH - 1}}"
    return "\n".join(["rejected as late, against mean latency (◆: recommended)", *drawn, axis])


def _span(ticks: float) -> str:
    """*ticks* (microseconds) for people: ``30m``, ``1.5h``, ``250ms``."""
    for unit, size in (("d", 86_400e6), ("h", 3600e6), ("m", 60e6), ("s", 1e6), ("ms", 1e3)):
        if ticks >= size:
            return f"{ticks / size:.3g}{unit}"
    return f"{ticks:.0f}us"
