"""``millstream log relay``: from an application's outbox table into a log."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import click
import msgspec

from millstream.cli.common import json_option, log_options, print_json, store_options
from millstream.cli.stop_signals import stop_on_signals
from millstream.core.clock import Clock, SystemClock
from millstream.log import LogSpec
from millstream.log.relay import BatchLimits, Outbox, OutboxTable, Relay, RelayResult, open_outbox_database
from millstream.settings import Settings
from millstream.stores.tiers import open_store

_REPORT_SECONDS = 10.0


class RelayStatus(msgspec.Struct, frozen=True):
    """How a relay stands: ``waiting`` rows (counted up to 100,000), the rest since it was started."""

    outbox: str
    log: str
    messages: int
    batches: int
    dead: int
    last_row: int
    last_id: int
    waiting: int


@click.command()
@click.argument("source", metavar="SOURCE_URL")
@click.option("--log", "name", metavar="NAME", help="The log that the messages go to; made where it is absent.")
@click.option("--table", default="outbox", show_default=True, help="The outbox table, with its schema if it needs one.")
@click.option("--once", is_flag=True, help="End when the outbox is empty.")
@click.option("--id-column", "id", default="id", show_default=True, help="An integer that the database counts up.")
@click.option("--body-column", "body", default="body", show_default=True, help="The message: bytes, text or JSON.")
@click.option("--key-column", "key", default="key", show_default=True, help="May be absent, as the following.")
@click.option("--source-column", "source_column", default="source", show_default=True)
@click.option("--event-time-column", "event_time", default="event_time", show_default=True, help="µs, or a timestamp.")
@click.option("--headers-column", "headers", default="headers", show_default=True, help="A JSON object of texts.")
@click.option("--mark", default="", metavar="COLUMN", help="Keep the rows, and set this column to the time.")
@click.option(
    "--bad",
    type=click.Choice(["stop", "dead"]),
    default="stop",
    show_default=True,
    help="What to do with a row that is no message: stop at it, or put it into TABLE_dead.",
)
@click.option("--rows", type=click.IntRange(1, 100_000), default=5000, show_default=True, help="Rows in a batch.")
@click.option("--bytes", "size", type=click.IntRange(1), default=8 << 20, show_default=True, help="Bytes in a batch.")
@click.option("--poll", type=click.FloatRange(0.001), default=0.5, show_default=True, help="Longest pause, in seconds.")
@click.option("--standby", is_flag=True, help="Wait until the log has no other writer, then take over.")
@click.option("--adopt", is_flag=True, help="Go on though the outbox went to a log of another name or URL.")
@click.option("--create-table", is_flag=True, help="Make the outbox table, print its statement, and end.")
@click.option("--show-table", is_flag=True, help="Print that statement alone.")
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
    """Move what applications write to an outbox table into a log: in order, each row exactly once.

    SOURCE_URL is the application's database: sqlite:///path, mysql:// or postgresql://user:password@host/database. The
    log has this relay as its one writer. It runs until it is stopped, or with --once until the outbox is empty; SIGTERM
    lets it finish the batch it is at.
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
            raise click.UsageError("name the log that the messages go to with --log NAME")
        with open_store(settings.log_url) as store:
            target = f"{name} in {store.url}"
            outbox = Outbox(database, table, target, bad=bad, limits=BatchLimits(rows, size), adopt=adopt)
            mover = Relay(outbox, store.log(LogSpec(name)), clock, stop_on_signals())
            moved = mover.run() if once else mover.follow(longest_pause=poll, standby=standby)
            _report(moved, outbox, name, clock, as_json=as_json)


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
    dead = f", {found.dead:,} rows put aside" if found.dead else ""
    click.echo(
        f"{found.outbox} to {log}: {found.messages:,} messages in {found.batches:,} batches{dead}, last row "
        f"{found.last_row}, last id {found.last_id}; {found.waiting:,} wait"
    )
