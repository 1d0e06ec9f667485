"""``millstream bench``: measure our own parts, and in a checkout their peers in the same run."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table

from millstream.bench import BENCHMARKS
from millstream.bench.markdown import number, put_section
from millstream.bench.runner import ComparisonResult, Size, run_benchmark
from millstream.cli.common import is_terminal
from millstream.core.clock import SystemClock
from millstream.core.durable import write_durably


@click.command()
@click.argument("name", type=click.Choice(list(BENCHMARKS)))
@click.option("--runs", type=click.IntRange(1, 1000), default=5, show_default=True, help="Rounds of all contenders.")
@click.option(
    "--size", type=click.Choice(["quick", "small", "full"]), default="small", show_default=True, help="How much work."
)
@click.option("--quick", is_flag=True, help="The same as --size quick --runs 1: does it work?")
@click.option("--payloads", metavar="LIST", help="Of the log: bytes a message, as in 4,100,1000.")
@click.option("--packs", metavar="LIST", help="Of the log: messages that a sender sends at once, as in 200,10,1.")
@click.option("--backends", metavar="LIST", help="Of log and pipeline: which of our stores, as in mariadb,sqlite.")
@click.option(
    "--peers", metavar="LIST", help="Of the log: which others, in a checkout, as in mariadb-rows,redis; none for none."
)
@click.option(
    "--modes",
    metavar="LIST",
    help="Which comparisons, of log (alone,both,arrow), batching (core,spark) or pipeline (read,ingest,anchor,sweep,"
    "plan).",
)
@click.option("--cores", metavar="N", help="Of batching and batching-spark: the cores that Spark has, 2 without it.")
@click.option("--senders", metavar="N", help="Of the log: how many send at once.")
@click.option("--kind", metavar="KIND", help="Of the log: senders are coroutines or threads.")
@click.option("--seconds", metavar="S", help="Of the log: about how long each contender writes, each time.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), metavar="FILE", help="Write the report as JSON.")
@click.option(
    "--markdown", type=click.Path(path_type=Path), metavar="FILE", help="Put the report into its section of FILE."
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Work in a new folder in this one: the disk that is measured.",
)
@click.option("--up-to", metavar="N", help="Of log-flat: how many messages the log grows to, as in 1e9.")
@click.option("--stores", metavar="LIST", help="Of log-flat: where, as in segments,sqlite.")
@click.option("--files", metavar="N", help="Of the mill: how many small files.")
@click.option("--megabytes", metavar="N", help="Of the mill: the size of all large files together.")
@click.option("--listed", metavar="N", help="Of the mill: how many items are listed.")
def bench(
    name: str,
    runs: int,
    size: Size,
    quick: bool,
    json_file: Path | None,
    markdown: Path | None,
    folder: Path | None,
    **parts: str | None,
) -> None:
    """Run the benchmark NAME: contenders turn by turn, medians and ratios."""
    console = Console(width=None if is_terminal() else 120)
    err = Console(stderr=True)

    def tell(result: ComparisonResult) -> None:
        console.print(result.title, style="bold")
        console.print(result.conditions, _table(result, console.width), "", sep="\n", markup=False)

    report = run_benchmark(
        name,
        size="quick" if quick else size,
        runs=1 if quick else runs,
        clock=SystemClock(),
        show=lambda line: err.print(line, style="dim"),
        each=tell,
        folder=folder,
        parts={part: value for part, value in parts.items() if value is not None},
    )
    if json_file is not None:
        write_durably(json_file, msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    if markdown is not None:
        before = markdown.read_text("utf-8") if markdown.exists() else ""
        write_durably(markdown, put_section(before, report).encode())


def _table(result: ComparisonResult, width: int) -> Table:
    """A row a contender; a row a figure where so many figures do not fit beside each other into *width* cells."""
    figures = sorted({name for row in result.rows for name in row.figures})
    lines = [["", result.unit, "ratio", *figures]]
    for row in result.rows:
        more = [number(row.figures[name]) if name in row.figures else "–" for name in figures]
        lines.append([row.contender, number(row.median), f"{row.ratio:.2f}×", *more])
    columns: list[tuple[str, ...]] = list(zip(*lines, strict=True))
    if sum(max(map(len, column)) + 3 for column in columns) >= width:
        columns = [tuple(line) for line in lines]
    table = Table()
    for place, (heading, *_) in enumerate(columns):
        table.add_column(heading, justify="right" if place else "left")
    for cells in zip(*(column[1:] for column in columns), strict=True):
        table.add_row(*cells)
    return table
