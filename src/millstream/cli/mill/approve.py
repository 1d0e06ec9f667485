"""``millstream mill approve`` and ``reject``: decide about changes that the change guard holds."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import click

from millstream.cli.change_log import decision_recorder, os_user
from millstream.cli.common import data_options, echo_line, json_option, print_json
from millstream.cli.examples import example
from millstream.cli.mill.plan_printing import HELD
from millstream.mill.duplication.change_guard import PendingApproval
from millstream.node import Node
from millstream.settings import Settings

_SHORTEST_REASON = 3


@example("millstream mill approve 1")
@click.command()
@click.argument("numbers", nargs=-1, type=click.IntRange(1))
@click.option("--all", "everything", is_flag=True, help="Approve all held plans that were not rejected.")
@data_options
@json_option
def approve(settings: Settings, numbers: Sequence[int], everything: bool, as_json: bool) -> int:
    """List the plans that the change guard holds, or approve the plans with the listed NUMBERS.

    The change guard holds the plan of a space if it would delete or replace more copies than the settings allow
    (mill.change_guard), if the source has none of the items and there are ten copies or more, or if more items vanished
    without a recorded deletion than may be deleted. The next `millstream mill duplicate` or loop of the producer
    executes an approved plan. Exit code 5 if plans are held and the command only lists them, 3 if a NUMBER is unknown.
    """
    if numbers and everything:
        raise click.UsageError("NUMBERS and --all cannot be combined: give one of them")
    with Node.open(settings, reads=not numbers and not everything) as node:
        if not numbers and not everything:
            holds = node.stores.change_guard.pending()
            for hold in holds:
                _print(hold, as_json)
            return HELD if holds else 0
        record = decision_recorder(node, "approve")
        approved = node.stores.change_guard.approve(None if everything else numbers, record)
        for hold in approved:
            _print(hold, as_json)
    if not as_json:
        for space in dict.fromkeys(hold.space for hold in approved):
            command = f"millstream mill duplicate --space {shlex.quote(space)}"
            click.echo(f"`{command}` does it now, the next loop of the producer later")
    return 0


@example('millstream mill reject 2 --reason "the source is on the wrong disk"')
@click.command()
@click.argument("number", type=click.IntRange(1))
@click.option("--reason", required=True, help="Reason, at least 3 characters; kept in the operator audit log.")
@data_options
@json_option
def reject(settings: Settings, number: int, reason: str, as_json: bool) -> None:
    """Reject the held plan NUMBER: it is not executed, and needs a new decision only if it grows.

    No plan for its space is executed between its stores until a new plan needs no approval, or the rejected plan is
    approved after all. Single copies after recorded changes of the source continue within the limits of the change
    guard. Exit code 3 if NUMBER is unknown.
    """
    if len(reason.strip()) < _SHORTEST_REASON:
        raise click.UsageError(f"the reason {reason!r} is too short: write at least {_SHORTEST_REASON} characters")
    with Node.open(settings) as node:
        record = decision_recorder(node, "reject", reason=reason)
        hold = node.stores.change_guard.reject(number, os_user(), reason, record)
        _print(hold, as_json)


def _print(hold: PendingApproval, as_json: bool) -> None:
    if as_json:
        print_json(hold)
        return
    waiting = "held" if hold.rejected_at is None else "rejected"
    state = waiting if hold.approved_at is None else "approved"
    echo_line(f"{hold.number}  {state}  {hold.space} {hold.pair}: {hold.reason}")
    click.echo(
        f"   {hold.deletes:,} to delete, {hold.changes:,} to replace, "
        f"{hold.vanished:,} without an original or a record of its deletion"
    )
