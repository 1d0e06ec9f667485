"""``millstream anchor timestamp`` and ``timestamps``: have a checkpoint time-stamped, and list the time stamps."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from millstream.cli.anchor.keys import ledger_option
from millstream.cli.common import data_options, echo_line, json_option, print_json
from millstream.cli.examples import example
from millstream.core.amounts import counted
from millstream.core.timestamps import format_timestamp
from millstream.node import Node
from millstream.node.ledgers import LedgerName
from millstream.settings import Settings

if TYPE_CHECKING:
    from millstream.anchoring.timestamps.timestamp_tables import TimestampRecord


@example("millstream anchor timestamp --ledger reports")
@click.command()
@ledger_option
@json_option
@data_options
def timestamp(settings: Settings, *, ledger_name: LedgerName, as_json: bool) -> None:
    """Have the newest checkpoint of a ledger time-stamped now, and print the answer of each authority.

    The authorities are those of anchoring.timestamp_authorities; `millstream serve` asks them at
    anchoring.timestamp_interval. An authority that has stamped this checkpoint already is not asked again. Exit code 1
    if an authority gives no time stamp.
    """
    with Node.open(settings) as node:
        collector = node.ledgers.timestamps.required_collector(ledger_name)
        node.ledgers.signed(ledger_name).checkpoint()
        new = collector.collect(now=True)
        problems = collector.problems()
    if as_json:
        print_json({"new": new, "problems": problems})
    else:
        for record in new:
            echo_line(_line(record))
        for problem in problems.values():
            echo_line(f"no time stamp: {problem}")
        if not new and not problems:
            echo_line("nothing to stamp: the ledger is empty, or its newest checkpoint has its time stamps")
    if problems:
        sys.exit(1)


@example("millstream anchor timestamps --json")
@click.command()
@click.option(
    "--find",
    is_flag=True,
    help="First search content-addressed storage for the time stamps, after the node's database was lost.",
)
@ledger_option
@json_option
@data_options
def timestamps(settings: Settings, *, find: bool, ledger_name: LedgerName, as_json: bool) -> None:
    """List the time stamps of a ledger, and what was wrong when authorities were asked last.

    `document` is the stamped file and `token` the token of the authority, both in content-addressed storage: `openssl
    ts -verify -token_in` reads them. With --json, times are microseconds since the epoch. --find is refused if the
    node's database already lists time stamps of the ledger.
    """
    with Node.open(settings, reads=not find) as node:
        if find:
            node.ledgers.timestamps.find(ledger_name)
        table = node.ledgers.timestamps.table(ledger_name)
        records, authorities = table.records(), table.authorities()
    if as_json:
        print_json({"ledger": ledger_name, "timestamps": records, "authorities": authorities})
        return
    for record in records:
        echo_line(f"{record.number}  {_line(record)}")
        echo_line(f"   document {record.document}, token {record.token}")
    for authority in authorities.values():
        if authority.problem is not None:
            echo_line(f"no time stamp at {format_timestamp(authority.asked_at)}: {authority.problem}")
    if not records:
        echo_line("no time stamps")


def _line(record: TimestampRecord) -> str:
    of = (
        f"renewal of {counted(record.renews, 'time stamp')}"
        if record.renews is not None
        else counted(record.size or 0, "entry")
    )
    end = format_timestamp(record.ends_at)
    return (
        f"{of}: not later than {format_timestamp(record.time)} by {record.name} (valid until {end}), {record.authority}"
    )
