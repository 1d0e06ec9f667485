"""``millstream anchor cosign`` and ``witnesses``: asking witnesses for cosignatures, and how they answered."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click
import msgspec

from millstream.cli.anchor.keys import ledger_option
from millstream.cli.common import data_options, echo_line, json_option, print_json
from millstream.cli.examples import example
from millstream.cli.parameter_types import Duration
from millstream.core.amounts import counted
from millstream.core.clock import MICROSECONDS
from millstream.core.timestamps import format_timestamp
from millstream.node import Node
from millstream.node.ledgers import LedgerName
from millstream.settings import Settings

if TYPE_CHECKING:
    from millstream.anchoring.witness.collector import CosignatureStatus
    from millstream.status.ledger_status import LedgerStatus

_PAUSE_SECONDS = 0.2


@example("millstream anchor cosign --wait 1m")
@click.command()
@click.option(
    "--wait",
    type=Duration(),
    default="30s",
    show_default=True,
    help="How long to wait for witnesses that do not answer.",
)
@ledger_option
@json_option
@data_options
def cosign(settings: Settings, *, wait: int, ledger_name: LedgerName, as_json: bool) -> None:
    """Ask the witnesses to cosign the newest checkpoint of a ledger, and print how each answered.

    The witnesses are those of anchoring.witness_policy; `millstream serve` asks them after each anchor. Exit code 1 if
    the quorum is missing after --wait.
    """
    with Node.open(settings) as node:
        node.ledgers.signed(ledger_name).checkpoint()
        collector = node.ledgers.cosignatures.required_collector(ledger_name)
        deadline = node.clock.monotonic() + wait / MICROSECONDS
        while not (is_complete := collector.collect()) and node.clock.monotonic() < deadline:
            node.clock.sleep(_PAUSE_SECONDS)
        status = collector.status()
    if as_json:
        print_json(cosignature_json(status))
    else:
        _print_status(status)
    if not is_complete:
        sys.exit(1)


@example("millstream anchor witnesses --json")
@click.command()
@ledger_option
@json_option
@data_options
def witnesses(settings: Settings, ledger_name: LedgerName, as_json: bool) -> None:
    """Show the newest cosigned checkpoint of a ledger, and how each witness answered last. Sends no request.

    Exit code 1 if the checkpoint that was last offered to the witnesses lacks the quorum of the policy
    (anchoring.witness_policy), or if a witness has cosigned another history.
    """
    from millstream.status.ledger_status import ledger_status

    with Node.open(settings, reads=True) as node:
        node.ledgers.cosignatures.required_collector(ledger_name)
        found = ledger_status(node, ledger_name)
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        _print_ledger(found)
    if found.missing or any(each.state == "forked" for each in found.witnesses):
        sys.exit(1)


def _print_ledger(found: LedgerStatus) -> None:
    echo_line(f"quorum      {found.quorum}")
    cosigned, offered = found.cosigned, found.offered
    if cosigned is None or cosigned.completed_at is None or cosigned.seconds is None:
        echo_line("cosigned    no checkpoint has the quorum yet")
    else:
        reached = format_timestamp(cosigned.completed_at)
        echo_line(
            f"cosigned    {counted(cosigned.size, 'entry')}, quorum reached {reached}, after {cosigned.seconds:.1f} s"
        )
        for each in cosigned.cosignatures:
            echo_line(
                f"            {each.witness} at {format_timestamp(each.time) if each.time else 'an invalid time'}"
            )
    if offered is not None and found.missing:
        since = format_timestamp(offered.offered_at)
        echo_line(
            f"pending     {counted(offered.size, 'entry')} since {since}: "
            f"{counted(found.missing, 'more cosignature')} needed"
        )
    for witness in found.witnesses:
        asked = "" if witness.asked_at is None else f", asked {format_timestamp(witness.asked_at)}"
        said = f": {witness.problem}" if witness.problem else ""
        echo_line(f"witness     {witness.witness} {witness.state}{asked}{said}")


def cosignature_json(status: CosignatureStatus) -> dict[str, Any]:
    """*status* as JSON has it: sizes, times in microseconds, and the missing cosignatures."""
    complete, collecting = status.complete, status.collecting
    return {
        "complete_size": complete.size if complete else None,
        "completed_at": complete.completed_at if complete else None,
        "offered_size": collecting.size if collecting else None,
        "signed": status.signed,
        "missing": status.missing,
        "witnesses": status.witnesses,
    }


def _print_status(status: CosignatureStatus) -> None:
    complete, collecting = status.complete, status.collecting
    if complete is not None and complete.completed_at is not None:
        echo_line(
            f"cosigned: {counted(complete.size, 'entry')}, quorum reached {format_timestamp(complete.completed_at)}"
        )
    if collecting is not None and status.missing:
        echo_line(f"pending: {counted(collecting.size, 'entry')}, {counted(status.missing, 'more cosignature')} needed")
    for name, record in sorted(status.witnesses.items()):
        said = "cosigned" if record.problem is None else record.problem
        echo_line(f"{name}: {said} (knows {counted(record.known_size, 'entry')})")
