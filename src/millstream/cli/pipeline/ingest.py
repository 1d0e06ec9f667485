"""``millstream pipeline ingest``: append the rows of files to a log."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import click
import msgspec

from millstream.cli.common import echo_line, json_option, print_json, store_options
from millstream.cli.examples import example
from millstream.cli.spark_options import master_option
from millstream.cli.spark_progress import shown
from millstream.core.amounts import counted, size_text
from millstream.ingest.timestamps import Unit
from millstream.log import user_log
from millstream.node import Node
from millstream.settings import Settings

_NAMED = 20
"""Maximum number of unusable files that are named on the terminal."""


@example("millstream pipeline ingest readings/*.parquet --log weather")
@click.command("ingest")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="PATH...")
@click.option("--log", "log", metavar="LOG", required=True, help="Log of the messages; created if missing.")
@click.option(
    "--format", "wanted", type=click.Choice(["jsonl", "csv", "parquet"]), help="Format (default: by file name)."
)
@click.option(
    "--shape",
    type=click.Choice(["message", "record"]),
    default="message",
    show_default=True,
    help="Rows are whole messages, or records whose fields have locations.",
)
@click.option("--source", default="topic", show_default=True, help="Records: location of the source.")
@click.option("--key", default="topic/-1", show_default=True, help="Records: location of the key.")
@click.option("--time", "time", default="$.time", show_default=True, help="Records: location of the time.")
@click.option(
    "--unit", type=click.Choice(get_args(Unit)), default="s", show_default=True, help="Records: unit of numeric times."
)
@click.option("--value", default="$", show_default=True, help="Records: location of the body.")
@click.option(
    "--received",
    type=click.Choice(["now", "event"]),
    default="now",
    show_default=True,
    help="Receive time: that of the ingest, or that of the event, for history that is batched as if it had arrived in "
    "time.",
)
@click.option(
    "--nanoseconds",
    type=click.Choice(["floor", "reject"]),
    default="floor",
    show_default=True,
    help="Parquet times finer than a microsecond: truncate them, or reject the row.",
)
@click.option(
    "--staging",
    metavar="URL",
    help="Storage provider for intermediate files, which all hosts of a cluster reach (default: --results if it is a "
    "URL, otherwise the node's folder).",
)
@json_option
@store_options
@master_option
def ingest_command(
    settings: Settings, *, paths: tuple[Path, ...], log: str, wanted: Any, staging: str | None, as_json: bool,
    **mapping: Any,
) -> int:  # fmt: skip
    """Append the rows of files to a log, in parallel; files whose content LOG already has are skipped.

    A PATH is a file, or a folder with its subfolders: JSON lines (.jsonl .ndjson .json), tables with a header line
    (.csv .tsv), both also compressed (.gz), and .parquet. A message has body or body_base64, key, source, event_time,
    received_at and headers, as `millstream log read --jsonl` prints them or as columns. The location of a field of a
    record is topic (the file's name below PATH without its ending), topic/2 (its second level), topic/-1 (its last
    level), topic/:-1 (all levels but the last), $ (the row) or $.member.of.member (a member of the row); times are ISO
    8601 with a zone or numbers since the epoch.

    Invalid rows and files that cannot be read go to LOG.rejects with the reason; ingested files are recorded in
    LOG.files. Exit code 1 if anything was rejected.
    """
    from millstream.pipeline.jobs.ingest import default_staging, run_ingest
    from millstream.pipeline.planning.source_files import find_files

    user_log(log)
    rules = _rules(**mapping)
    files = find_files(paths, wanted)
    with (
        Node.open(settings, create=True) as node,
        node.spark.session(registered=False) as spark,
        shown(spark, "ingest"),
    ):
        results = settings.pipeline.results if settings.pipeline.results_at_url else ""
        staging = staging or results or default_staging(node.folder)
        done = run_ingest(spark, settings.log_url, log, files, rules, staging=staging, clock=node.clock)
    record = done.record
    if as_json:
        print_json(msgspec.to_builtins(record))
    else:
        click.echo(
            f"{log}: {counted(record.rows_out, 'message')} of "
            f"{counted(record.counts['files'], 'file')} ({size_text(record.bytes)}), "
            f"{counted(record.counts['passed_over'], 'file')} skipped, {record.seconds:.1f} s"
        )
    unusable = [file.unusable for file in done.files if file.unusable]
    for why in unusable[:_NAMED]:
        echo_line(f"not ingested: {why}", err=True)
    if len(unusable) > _NAMED:
        click.echo(
            f"{len(unusable) - _NAMED:,} more files were not ingested: millstream log read {log}.rejects", err=True
        )
    if record.counts["rejected"]:
        click.echo(f"{record.counts['rejected']:,} rows were rejected: millstream log read {log}.rejects", err=True)
    return 1 if unusable or record.counts["rejected"] else 0


def _rules(
    *, shape: Any, source: str, key: str, time: str, unit: Unit, value: str, received: Any, nanoseconds: Any
) -> Any:
    from millstream.ingest.plain_json import plain_json
    from millstream.pipeline.tasks.file_parsing import ParsingRules

    plain = plain_json(source=source, key=key, time=time, value=value, unit=unit)
    return ParsingRules(shape, plain, received, nanoseconds)
