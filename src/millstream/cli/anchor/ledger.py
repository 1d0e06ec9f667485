"""``millstream anchor ledger``: print a ledger, or repair it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from millstream.cli.anchor.keys import ledger_option
from millstream.cli.anchor.observe import observed_entries
from millstream.cli.change_log import prepare_audit_log, record_change
from millstream.cli.common import data_options, json_option, print_json
from millstream.cli.examples import example
from millstream.core.amounts import counted
from millstream.core.timestamps import time_text
from millstream.node import Node
from millstream.node.ledgers import LedgerName
from millstream.settings import Settings

if TYPE_CHECKING:
    from millstream.anchoring import LedgerRepair


@example("millstream anchor ledger --from 10")
@click.command()
@click.option("--from", "first", type=click.IntRange(min=1), default=1, show_default=True, help="First entry number.")
@ledger_option
@click.option("--repair", is_flag=True, help="Exclude messages that are not entries, which older releases accepted.")
@json_option
@data_options
def ledger(settings: Settings, first: int, ledger_name: LedgerName, repair: bool, as_json: bool) -> None:
    """Print the entries of a ledger, one per line.

    With --json, each entry is an object with number, time (microseconds since the epoch), anchor_string, previous and
    hash. --repair excludes messages that are not ledger entries: they stay in the log, but no longer count.
    """
    with Node.open(settings, reads=not repair) as node:
        found = node.ledgers.ledger(ledger_name)
        if repair:
            prepare_audit_log(node)
            known = 0 if ledger_name == "reports" else observed_entries(node, registry=ledger_name == "registry")
            done = found.repair(known=known)
            record_change(node, "repair ledger", f"ledger {ledger_name}", put_aside=len(done.put_aside))
            _print_repaired(done, as_json=as_json)
            return
        for entry in found.entries(first):
            if as_json:
                print_json(entry)
            else:
                print(f"{entry.number}  {time_text(entry.time)}  {entry.anchor_string}  {entry.hash}")


def _print_repaired(done: LedgerRepair, *, as_json: bool) -> None:
    if as_json:
        print_json(done)
    elif done.put_aside:
        ids = ", ".join(map(str, done.put_aside[:20])) + (", …" if len(done.put_aside) > 20 else "")
        print(
            f"{counted(done.entries, 'entry')} in the chain; {counted(len(done.put_aside), 'message')} excluded: {ids}"
        )
    else:
        print(f"{counted(done.entries, 'entry')} in the chain, and nothing else in the log")
