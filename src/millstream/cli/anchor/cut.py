"""``millstream anchor cut``: anchor the waiting batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from millstream.cli.common import data_options, json_option, print_json
from millstream.cli.examples import example
from millstream.node import Node
from millstream.settings import Settings

if TYPE_CHECKING:
    pass


@example("millstream anchor cut --force")
@click.command()
@click.option("--force", is_flag=True, help="Also anchor batches and operations that do not fill an anchor.")
@json_option
@data_options
def cut(settings: Settings, force: bool, as_json: bool) -> None:
    """Anchor the waiting batches and operations, and finish an interrupted run.

    Without --force, batches and operations that do not fill an anchor (anchoring.max_batches, registry.max_operations)
    wait for more. Rejected messages wait for a batch of their log. Operations that a killed run had begun to anchor are
    finished by a run that starts registry.op_queue_task_expiration (60 s) later, or by a running registry.
    """
    with Node.open(settings) as node:
        entries = [*node.anchoring.batch_writer.cut(force=force), *node.registry.instance.cut_once(force=force)]
    for entry in entries:
        if as_json:
            print_json(entry)
        else:
            print(f"{entry.number}  {entry.anchor_string}")
    if not entries and not as_json:
        print("nothing to anchor")
