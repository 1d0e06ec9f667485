"""``millstream anchor status``: batches and operations by their states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from millstream.anchoring.states import state_word
from millstream.cli.anchor.observe import observed_entries, print_follow_state
from millstream.cli.anchor.operations import print_status
from millstream.cli.common import data_options, echo_line, json_option, print_json
from millstream.cli.examples import example
from millstream.core.amounts import counted
from millstream.node import Node
from millstream.settings import Settings

if TYPE_CHECKING:
    from millstream.anchoring.registry import OperationStatus


@example("millstream anchor status")
@click.command()
@click.argument("operation", metavar="[ID or DID]", required=False)
@json_option
@data_options
def status(settings: Settings, operation: str | None, as_json: bool) -> None:
    """Show how many batches are in each state, and what is invalid or rejected, with reasons.

    With the ID of an operation on an identifier, show the state of that operation (exit code 3 if it is unknown); with
    a DID, of all its operations. The states are accepted, waiting (in a queue), being anchored, anchored, verified
    (read back from the ledger), rejected (never to be anchored), and for operations dead (all retries failed).
    """
    with Node.open(settings, reads=True) as node:
        if operation is not None:
            for found in _statuses(node, operation):
                print_status(found, as_json=as_json)
            return
        figures = _figures(node)
    if as_json:
        print_json(figures)
        return
    for section in ("batches", "observed", "operations", "registry"):
        counts = ", ".join(
            f"{count:,} {state_word(name).replace('_', ' ')}" for name, count in figures[section].items()
        )
        print(f"{state_word(section):<10} {counts}")
    entries, position, head = (figures[name] for name in ("ledger_entries", "position", "ledger_head"))
    print(f"ledger     {counted(entries, 'entry')}, {position:,} verified, head {head or '–'}")
    if figures["following"]:
        print_follow_state(figures["following"])
    for fault in figures["faults"]:
        echo_line(f"fault      {fault}")


def _statuses(node: Node, name: str) -> Sequence[OperationStatus]:
    from millstream.anchoring.sidetree import parse_did

    if not name.startswith("did:"):
        return [node.registry.operation_status(name)]
    registry = node.registry.instance
    return registry.statuses_of(parse_did(name, registry.versions.latest.profile).suffix)


def _figures(node: Node) -> dict[str, Any]:
    journal, index, head = node.anchoring.journal, node.anchoring.observer.index, node.anchoring.ledger.head()
    faults = [f"anchor {number}, {batch or 'as a whole'}: {reason}" for number, batch, reason in index.invalid()]
    faults += [f"batch {batch} of {log}: {reason}" for log, batch, reason in journal.rejected()]
    registry, last = node.registry.instance, node.registry.ledger.head()
    return {
        "operations": registry.store.counts(),
        "registry": {
            "ledger_entries": last.number if last else 0,
            "observed": observed_entries(node, registry=True),
            "waiting_for_files": registry.history.postponed_count(),
            "instances": len(registry.instances.known()),
        },
        "batches": msgspec.structs.asdict(journal.totals()),
        "observed": msgspec.structs.asdict(index.totals()),
        "ledger_entries": head.number if head else 0,
        "ledger_head": head.hash if head else None,
        "position": observed_entries(node, registry=False),
        "following": node.registry.follow_state(),
        "faults": faults,
    }
