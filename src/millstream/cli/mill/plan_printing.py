"""How a plan of duplication is printed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click
import msgspec

from millstream.cli.common import echo_line, print_json
from millstream.core.amounts import counted, size_text
from millstream.mill.duplication.differences import DuplicationPlan

HELD = 5
"""The exit code if a plan waits for an approval."""


def print_plan(plan: DuplicationPlan, as_json: bool) -> None:
    """Print the counts of *plan*, and its held items."""
    if as_json:
        print_json({"tasks": plan.tasks, **msgspec.to_builtins(plan)})
        return
    click.echo(
        f"{plan.space} {plan.pair}: {plan.copies:,} to copy, {plan.changes:,} to compare, {plan.deletes:,} to delete, "
        f"{plan.same:,} unchanged; {size_text(plan.bytes)} to read"
    )
    for line in _what_is_held(plan):
        echo_line(line)


def print_total(plans: Sequence[DuplicationPlan], as_json: bool) -> None:
    """Print the totals of *plans*."""
    names = ("copies", "changes", "deletes", "same", "held", "bytes")
    total = {name: sum(getattr(plan, name) for plan in plans) for name in names}
    spaces = len({plan.space for plan in plans})
    if as_json:
        print_json({"total": {"spaces": spaces, **total}})
        return
    click.echo(
        f"in all {counted(spaces, 'space')}: {total['copies']:,} to copy, {total['changes']:,} to compare, "
        f"{total['deletes']:,} to delete, {total['same']:,} unchanged; {size_text(total['bytes'])} to read"
    )


def print_held(plan: DuplicationPlan, as_json: bool) -> None:
    """What of *plan* is held."""
    if as_json:
        print_json({"held_plan": plan})
        return
    for line in held_lines(plan):
        echo_line(line)


def held_lines(plan: DuplicationPlan) -> Iterator[str]:
    """What of *plan* is held, for people."""
    yield f"{plan.space} {plan.pair}:"
    yield from _what_is_held(plan)


def _what_is_held(plan: DuplicationPlan) -> Iterator[str]:
    if plan.held:
        names = ", ".join(plan.held_examples) + (" …" if plan.held > len(plan.held_examples) else "")
        yield f"  {plan.held:,} only at {plan.pair.destination}, kept because no deletion is recorded: {names}"
    if plan.hold_reason is not None:
        yield f"  would be HELD as a whole until it is approved: {plan.hold_reason}"
    if plan.hold is not None:
        yield f"  HELD as a whole under number {plan.hold}: see `millstream mill approve`"
