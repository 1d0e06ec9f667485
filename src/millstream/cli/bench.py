"""``millstream bench``: measure Millstream, and in a checkout its peers in the same run."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table

from millstream.bench import BENCHMARKS
from millstream.bench.markdown import figure, number, put_section
from millstream.bench.runner import ComparisonResult, Size, run_benchmark
from millstream.cli.common import is_terminal
from millstream.cli.examples import example
from millstream.core.clock import SystemClock
from millstream.core.durable import output_file


@example("millstream bench log --quick")
@click.command()
@click.argument("name", type=click.Choice(list(BENCHMARKS)))
@click.option("--runs", type=click.IntRange(1, 1000), default=5, show_default=True, help="Number of rounds.")
@click.option(
    "--size", type=click.Choice(["quick", "small", "full"]), default="small", show_default=True, help="Amount of work."
)
@click.option("--quick", is_flag=True, help="Short for --size quick --runs 1.")
@click.option("--payloads", metavar="LIST", help="log, log-buckets: bytes per message, such as 4,100,1000.")
@click.option("--packs", metavar="LIST", help="log, log-buckets: messages per append, such as 200,10,1.")
@click.option(
    "--backends",
    metavar="LIST",
    help="log, log-buckets, pipeline: stores of Millstream to measure, such as mariadb,sqlite.",
)
@click.option(
    "--peers",
    metavar="LIST",
    help="log: other programs to measure, such as mariadb-rows,redis, or none (default: all, in a checkout).",
)
@click.option(
    "--modes",
    metavar="LIST",
    help="Which comparisons, of log (alone,both,processes,arrow,ahead,lone), batching (core,spark), pipeline "
    "(read,ingest,anchor,sweep,plan) or mill (copy,sweep,loop,adopt,listed); default: all, of log all but ahead.",
)
@click.option("--cores", metavar="N", help="batching, batching-spark, pipeline: number of cores (default: 2).")
@click.option(
    "--counts",
    metavar="LIST",
    help="pipeline: numbers of messages, rows or items, such as 1e5,1e6 (default: by --size).",
)
@click.option("--workers", metavar="LIST", help="pipeline: numbers of workers, such as 1,2,3 (default: 0, no cluster).")
@click.option(
    "--share",
    metavar="S",
    help="pipeline: share of a core for each worker, such as 0.5, on Linux as root (default: 1).",
)
@click.option("--heap", metavar="SIZE", help="pipeline: heap of the driver's Java machine (default: 512m).")
@click.option("--senders", metavar="N", help="log, log-buckets: number of concurrent senders (default: 1000).")
@click.option(
    "--unconfirmed",
    metavar="N",
    help="log, log-buckets: maximum unconfirmed messages per sender in the mode ahead (default: 100).",
)
@click.option(
    "--latency",
    metavar="MS",
    help="log, log-buckets: time added to each request to a bucket named *-far, in ms (default: 50).",
)
@click.option("--kind", metavar="KIND", help="log: run senders as coroutines or threads (default: coroutines).")
@click.option(
    "--seconds",
    metavar="S",
    help="log, log-buckets: approximate write time per system and round, in seconds (default: by --size).",
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), metavar="FILE", help="Write the report as JSON.")
@click.option(
    "--markdown",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the report into its section of FILE, a Markdown document.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Work in a new folder below this one, on the disk to measure (default: the folder for temporary files).",
)
@click.option("--up-to", metavar="N", help="log-flat: final number of messages, such as 1e9 (default: by --size).")
@click.option("--stores", metavar="LIST", help="log-flat: stores, such as segments,sqlite (default: segments).")
@click.option("--files", metavar="N", help="mill: number of small files (default: by --size).")
@click.option("--megabytes", metavar="N", help="mill: total size of the large files, in MiB (default: by --size).")
@click.option("--listed", metavar="N", help="mill: number of listed items (default: by --size).")
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
    """Run a benchmark: in each round, the systems run one after the other. Reports medians and ratios.

    An option whose text begins with names of benchmarks is for these benchmarks only.
    """
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
        with output_file(json_file) as file:
            file.write(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    if markdown is not None:
        before = markdown.read_text("utf-8") if markdown.exists() else ""
        with output_file(markdown) as file:
            file.write(put_section(before, report).encode())


def _table(result: ComparisonResult, width: int) -> Table:
    """A row a contender; a row a figure where this many figures do not fit beside each other into *width* cells."""
    figures = sorted({name for row in result.rows for name in row.figures})
    lines = [["", result.unit, "ratio", *figures]]
    for row in result.rows:
        more = [figure(name, row) for name in figures]
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
