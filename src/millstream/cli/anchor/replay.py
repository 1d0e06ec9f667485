"""``millstream anchor replay``: verify every anchor again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from millstream.cli.common import data_options, echo_line, json_option, print_json
from millstream.cli.examples import example
from millstream.core.amounts import counted
from millstream.node import Node
from millstream.node.ledgers import LedgerName
from millstream.settings import Settings

if TYPE_CHECKING:
    from millstream.anchoring import ReplayReport


@example("millstream anchor replay")
@click.command()
@click.option(
    "--ledger",
    "ledger_name",
    type=click.Choice(["anchors", "registry"]),
    default="anchors",
    show_default=True,
    help="Replay the anchors of event batches, or of identifiers.",
)
@json_option
@data_options
def replay(settings: Settings, ledger_name: LedgerName, as_json: bool) -> None:
    """Verify every anchor again from the ledger and the files alone. Exit code 1 if anything is damaged."""
    with Node.open(settings, reads=True) as node:
        result = _replayed(node, registry=ledger_name == "registry")
    if as_json:
        print_json(result)
    else:
        print(
            f"{counted(result.anchors, 'anchor')} and {counted(result.files, 'file')} replayed, "
            f"{counted(len(result.findings), 'finding')}"
        )
        for finding in result.findings:
            place = f" (anchor {finding.number})" if finding.number is not None else ""
            echo_line(f"{finding.what}: {finding.reason}{place}")
    if result.findings:
        raise click.exceptions.Exit(1)


def _replayed(node: Node, *, registry: bool) -> ReplayReport:
    from millstream.anchoring import replay as replay_all
    from millstream.anchoring.registry import FollowError
    from millstream.anchoring.registry.registry_replay import replay_registry

    if not registry:
        return replay_all(node.anchoring.cas, node.anchoring.ledger, node.anchoring.observer.index)
    state = node.registry.follow_state()
    if state is not None and state.position:
        raise FollowError(
            f"cannot replay: this node follows {state.ledger} and keeps no ledger of its own; to check "
            "everything again, follow that ledger into an empty node (millstream anchor observe "
            "--ledger … --data DIR)"
        )
    instance = node.registry.instance
    return replay_registry(node.anchoring.cas, node.registry.ledger, instance.history, instance.versions)
