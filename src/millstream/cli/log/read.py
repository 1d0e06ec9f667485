"""``millstream log read`` and ``tail``: print messages of a log."""

from __future__ import annotations

import sys

import click

from millstream.cli.common import store_options
from millstream.cli.examples import example
from millstream.cli.log.existing_log import existing_log
from millstream.cli.log.filters import filter_options, print_matches
from millstream.cli.output import ends_with_reader
from millstream.core.message import encode_line
from millstream.log import Batch, Gap, MessageFilter
from millstream.settings import Settings


@example("millstream log read weather --from 1000 --max 10")
@click.command()
@click.argument("name")
@click.option("--from", "first_id", type=click.IntRange(1), help="First id (default: the first of the log).")
@click.option("--max", "count", type=click.IntRange(0), help="Maximum number of messages (default: all).")
@click.option("--jsonl", is_flag=True, help="Print whole messages as JSON lines instead of bodies.")
@filter_options
@store_options
@ends_with_reader
def read(
    settings: Settings,
    name: str,
    first_id: int | None,
    count: int | None,
    jsonl: bool,
    wanted: MessageFilter | None,
) -> int:
    """Print the bodies of the messages of the log NAME, in order, one per line.

    With filters it prints the messages that match all of them, and reports on standard error which ids it searched.
    Ids that were trimmed are reported there too. Exit code 1 if messages are damaged.
    """
    with existing_log(settings, name, read_only=True) as found:
        if wanted is not None:
            return print_matches(found, wanted, first_id, count, jsonl=jsonl)
        first_id = first_id or found.first_id
        last_id = None if count is None else first_id + count - 1
        for batch in found.read(first_id, last_id, columns=None if jsonl else ["body"]):
            _print_batch(batch, jsonl)
        sys.stdout.buffer.flush()
    return 0


@example("millstream log tail weather -n 5 --follow")
@click.command()
@click.argument("name")
@click.option(
    "-n", "--lines", "count", type=click.IntRange(0), default=10, show_default=True, help="Number of messages."
)
@click.option("-f", "--follow", is_flag=True, help="Continue with new messages until interrupted.")
@click.option("--jsonl", is_flag=True, help="Print whole messages as JSON lines instead of bodies.")
@store_options
@ends_with_reader
def tail(settings: Settings, name: str, count: int, follow: bool, jsonl: bool) -> None:
    """Print the bodies of the last messages of the log NAME, one per line."""
    columns = None if jsonl else ["body"]
    with existing_log(settings, name, read_only=True) as found:
        first_id = max(found.last_id - count + 1, found.first_id)
        for batch in found.follow(first_id, columns) if follow else found.read(first_id, columns=columns):
            _print_batch(batch, jsonl)
            sys.stdout.buffer.flush()


def _print_batch(batch: Batch, jsonl: bool) -> None:
    if isinstance(batch, Gap):
        click.echo(f"ids {batch.first_id} to {batch.last_id} were trimmed", err=True)
        return
    lines = map(encode_line, batch) if jsonl else batch.arrow.column("body").to_pylist()
    sys.stdout.buffer.write(b"\n".join(lines) + b"\n")
