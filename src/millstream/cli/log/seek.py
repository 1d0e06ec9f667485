"""``millstream log seek``: move a consumer."""

from __future__ import annotations

import click

from millstream.cli.change_log import is_recorded, record_change_if_node, require_audit_log
from millstream.cli.common import store_options
from millstream.cli.examples import example
from millstream.cli.log.existing_log import existing_log
from millstream.cli.log.filters import microseconds
from millstream.core.errors import InputError
from millstream.node import Node
from millstream.settings import Settings


@example("millstream log seek weather --consumer report --time 2026-11-22T00:00:00Z")
@click.command()
@click.argument("name")
@click.option("--consumer", required=True, help="Name of the consumer.")
@click.option("--to", "first_id", type=click.IntRange(1), help="Id of the next message.")
@click.option(
    "--time",
    "time",
    help="Start at the first message received at or after this time: 2013-01-31T12:00Z, or microseconds since the "
    "epoch.",
)
@store_options
def seek(settings: Settings, name: str, consumer: str, first_id: int | None, time: str | None) -> None:
    """Set the position of a consumer of the log NAME to an id or a time.

    Give either --to or --time. An open reader of the consumer is fenced: it cannot acknowledge any more.
    """
    if (first_id is None) == (time is None):
        raise click.UsageError("give exactly one of --to ID and --time T")
    require_audit_log(settings)
    with existing_log(settings, name, create=False) as found:
        first_id = first_id or found.first_id_since(microseconds("--time", time or ""))
        if first_id < found.first_id:
            raise InputError(
                f"cannot move the consumer to id {first_id}: log {name} was trimmed and begins at id "
                f"{found.first_id}; choose that id or a later one"
            )
        _forget_other_position(settings, name, consumer)  # before it moves: feeding would move it back
        found.set_pointer(consumer, first_id - 1)
    record_change_if_node(settings, "seek", f"log {name}", consumer=consumer, next_id=first_id)
    click.echo(f"consumer {consumer} continues with id {first_id} of {name}")


def _forget_other_position(settings: Settings, name: str, consumer: str) -> None:
    """Where *consumer* anchors the batches of the log *name*: remove its position in the node's database, which may be
    earlier, and would count."""
    from millstream.anchoring.feed import CONSUMER

    if consumer == CONSUMER and is_recorded(settings):
        with Node.open(settings) as node:
            node.anchoring.journal.forget_fed(name)
