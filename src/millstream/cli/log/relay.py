"""``millstream log relay``: move the rows of an application's outbox table into a log."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import click
import msgspec

from millstream.cli.common import json_option, log_options, print_json, store_options
from millstream.cli.examples import example
from millstream.cli.parameter_types import Seconds, SizeType
from millstream.cli.stop_signals import end_if_stopped, stop_on_signals
from millstream.core.amounts import counted
from millstream.core.clock import Clock, SystemClock
from millstream.log import LogSpec
from millstream.log.relay import BatchLimits, Outbox, OutboxTable, Relay, RelayResult, open_outbox_database
from millstream.settings import Settings
from millstream.stores.tiers import open_log_store

_REPORT_SECONDS = 10.0


class RelayStatus(msgspec.Struct, frozen=True):
    """The status of a relay: ``waiting`` rows (counted up to 100,000), the rest since it was started."""

    outbox: str
    log: str
    messages: int
    batches: int
    dead: int
    last_row: int
    last_id: int
    waiting: int


@example("millstream log relay mysql://app:secret@127.0.0.1/shop --log orders --create-table")
@click.command()
@click.argument("source", metavar="SOURCE_URL")
@click.option("--log", "name", metavar="NAME", help="Target log, created if missing; required to move rows.")
@click.option("--table", default="outbox", show_default=True, help="Outbox table, with its schema if needed.")
@click.option("--once", is_flag=True, help="Exit when the outbox is empty.")
@click.option("--id-column", "id", default="id", show_default=True, help="Column of the auto-increment integer key.")
@click.option(
    "--body-column", "body", default="body", show_default=True, help="Column of the message body: bytes, text or JSON."
)
@click.option("--key-column", "key", default="key", show_default=True, help="Column of the key of a message.")
@click.option(
    "--source-column", "source_column", default="source", show_default=True, help="Column of the source of a message."
)
@click.option(
    "--event-time-column",
    "event_time",
    default="event_time",
    show_default=True,
    help="Column of the event time: microseconds since the epoch, or a timestamp (UTC if it has no zone).",
)
@click.option(
    "--headers-column",
    "headers",
    default="headers",
    show_default=True,
    help="Column of the headers: a JSON object of strings, or a JSON array of pairs.",
)
@click.option(
    "--mark",
    default="",
    metavar="COLUMN",
    help="Keep processed rows, and set this column to the current time (default: delete processed rows).",
)
@click.option(
    "--bad",
    type=click.Choice(["stop", "dead"]),
    default="stop",
    show_default=True,
    help="Invalid rows: stop at the first one, or move them to the table TABLE_dead.",
)
@click.option(
    "--rows", type=click.IntRange(1, 100_000), default=5000, show_default=True, help="Maximum rows per batch."
)
@click.option("--bytes", "size", type=SizeType(1), default="8MiB", show_default=True, help="Maximum size of a batch.")
@click.option(
    "--poll",
    type=Seconds(0.001),
    default="500ms",
    show_default=True,
    help="Maximum pause before an empty outbox is read again.",
)
@click.option("--standby", is_flag=True, help="Without --once: wait until no other process writes to the log.")
@click.option(
    "--adopt",
    is_flag=True,
    help="Continue an unfinished batch of another log: only if that is this log under an earlier name or URL.",
)
@click.option("--create-table", is_flag=True, help="Create the outbox table, print the SQL statement for it, and exit.")
@click.option("--show-table", is_flag=True, help="Print the SQL statement that creates the outbox table, and exit.")
@json_option
@store_options
@log_options
def relay(
    settings: Settings,
    source: str,
    name: str | None,
    once: bool,
    bad: Any,
    rows: int,
    size: int,
    poll: float,
    standby: bool,
    adopt: bool,
    create_table: bool,
    show_table: bool,
    as_json: bool,
    **columns: str,
) -> None:
    """Move the rows of an outbox table into a log, in order, each exactly once.

    SOURCE_URL is the application's database: sqlite:///path, mysql://user:password@host/database, or postgresql:// in
    the same form. The outbox table must have the columns of the id and the body, and other columns that you name by an
    option. This relay is the only writer of the log. It runs until it is stopped, or with --once until the outbox is
    empty; SIGTERM or Ctrl-C stops it after the current batch.
    """
    table = OutboxTable(name=columns.pop("table"), source=columns.pop("source_column"), **columns)
    clock = SystemClock()
    with contextlib.closing(open_outbox_database(source, clock)) as database:
        statement = database.outbox_dialect.make_table(table)
        if create_table:
            database.call(lambda connection: connection.execute(statement))
        if create_table or show_table:
            click.echo(f"{statement};")
            return
        if not name:
            raise click.UsageError("--log NAME is missing: give the target log")
        with open_log_store(settings.log_url) as store:
            target = f"{name} in {store.url}"
            outbox = Outbox(database, table, target, bad=bad, limits=BatchLimits(rows, size), adopt=adopt)
            stop = stop_on_signals()
            mover = Relay(outbox, store.log(LogSpec(name)), clock, stop)
            moved = mover.run() if once else mover.follow(longest_pause=poll, standby=standby)
            _report(moved, outbox, name, clock, as_json=as_json)
            if once:
                end_if_stopped(stop)


def _report(moved: Iterator[RelayResult], outbox: Outbox, log: str, clock: Clock, *, as_json: bool) -> None:
    """Go through *moved*, with a line every ten seconds in which there was something, and one at the end."""
    shown, due, relayed = RelayResult(), clock.monotonic() + _REPORT_SECONDS, RelayResult()
    for relayed in moved:
        if relayed != shown and clock.monotonic() >= due:
            _show(relayed, outbox, log, as_json=as_json)
            shown, due = relayed, clock.monotonic() + _REPORT_SECONDS
    _show(relayed, outbox, log, as_json=as_json)


def _show(relayed: RelayResult, outbox: Outbox, log: str, *, as_json: bool) -> None:
    found = RelayStatus(outbox=outbox.table.name, log=log, waiting=outbox.waiting(), **msgspec.structs.asdict(relayed))
    if as_json:
        print_json(found)
        return
    dead = f", {counted(found.dead, 'dead row')}" if found.dead else ""
    click.echo(
        f"{found.outbox} to {log}: {counted(found.messages, 'message')} in "
        f"{counted(found.batches, 'batch')}{dead}, last row "
        f"{found.last_row}, last id {found.last_id}; waiting: {counted(found.waiting, 'row')}"
    )
