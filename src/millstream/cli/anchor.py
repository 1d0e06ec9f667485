"""``millstream anchor``: the ledger, the status of batches, and replaying every anchor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from millstream.anchoring.states import state_word
from millstream.cli.anchor_cosign import cosign, witnesses
from millstream.cli.anchor_feed import feed_command
from millstream.cli.anchor_keys import checkpoint, key, ledger_option, verify
from millstream.cli.anchor_linksets import linksets
from millstream.cli.anchor_monitor import monitor
from millstream.cli.anchor_observe import observe, print_follow_state
from millstream.cli.anchor_operations import cut_operations, print_status, redrive, serve, submit
from millstream.cli.anchor_timestamps import timestamp, timestamps
from millstream.cli.change_log import record_change
from millstream.cli.common import data_options, json_option, print_json
from millstream.cli.examples import example
from millstream.node import Node
from millstream.node.ledgers import LedgerName
from millstream.settings import Settings

if TYPE_CHECKING:
    from millstream.anchoring import LedgerRepair, ReplayReport
    from millstream.anchoring.registry import OperationStatus


@click.group()
def anchor() -> None:
    """Show, check and extend the ledger of anchors; submit operations on identifiers."""


anchor.add_command(feed_command)
anchor.add_command(key)
anchor.add_command(checkpoint)
anchor.add_command(verify)
anchor.add_command(cosign)
anchor.add_command(monitor)
anchor.add_command(timestamp)
anchor.add_command(timestamps)
anchor.add_command(witnesses)
anchor.add_command(submit)
anchor.add_command(redrive)
anchor.add_command(serve)
anchor.add_command(linksets)
anchor.add_command(observe)


@example("millstream anchor ledger --from 10")
@anchor.command()
@click.option("--from", "first", type=click.IntRange(min=1), default=1, show_default=True, help="First entry number.")
@ledger_option
@click.option("--repair", is_flag=True, help="Exclude messages that are not entries, which older releases accepted.")
@json_option
@data_options
def ledger(settings: Settings, first: int, ledger_name: LedgerName, repair: bool, as_json: bool) -> None:
    """Print the entries of the ledger, one per line.

    With --json, each entry is an object with number, time (microseconds since the epoch), anchor_string, previous and
    hash. --repair excludes messages that are not ledger entries: they stay in the log, but no longer count.
    """
    with Node.open(settings) as node:
        found = node.ledgers.ledger(ledger_name)
        if repair:
            known = 0 if ledger_name == "reports" else _observed(node, registry=ledger_name == "registry")
            done = found.repair(known=known)
            record_change(node, "repair ledger", f"ledger {ledger_name}", put_aside=len(done.put_aside))
            _print_repaired(done, as_json=as_json)
            return
        for entry in found.entries(first):
            if as_json:
                print_json(entry)
            else:
                print(f"{entry.number}  {entry.time}  {entry.anchor_string}  {entry.hash}")


def _observed(node: Node, *, registry: bool) -> int:
    """How many entries of the ledger were read back and noted in the node's database."""
    if registry:
        return node.registry.instance.history.position()[0]
    position = node.anchoring.observer.index.position()
    return position[0] if position else 0


def _print_repaired(done: LedgerRepair, *, as_json: bool) -> None:
    if as_json:
        print_json(done)
    elif done.put_aside:
        ids = ", ".join(map(str, done.put_aside[:20])) + (", …" if len(done.put_aside) > 20 else "")
        print(f"{done.entries:,} entries form the chain; {len(done.put_aside):,} messages are aside: {ids}")
    else:
        print(f"{done.entries:,} entries form the chain, and there is nothing else in the log")


@example("millstream anchor status")
@anchor.command()
@click.argument("operation", metavar="[ID or DID]", required=False)
@json_option
@data_options
def status(settings: Settings, operation: str | None, as_json: bool) -> None:
    """Show how many batches are in each state, and what is invalid or rejected, with reasons.

    With the ID of an operation on an identifier, show the state of that operation; with a DID, of all its operations.
    """
    with Node.open(settings) as node:
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
    print(f"ledger     {entries:,} entries, {position:,} verified, head {head or '–'}")
    if figures["following"]:
        print_follow_state(figures["following"])
    for fault in figures["faults"]:
        print(f"fault      {fault}")


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
            "observed": _observed(node, registry=True),
            "waiting_for_files": registry.history.postponed_count(),
            "instances": len(registry.instances.known()),
        },
        "batches": msgspec.structs.asdict(journal.totals()),
        "observed": msgspec.structs.asdict(index.totals()),
        "ledger_entries": head.number if head else 0,
        "ledger_head": head.hash if head else None,
        "position": _observed(node, registry=False),
        "following": node.registry.follow_state(),
        "faults": faults,
    }


@example("millstream anchor cut --force")
@anchor.command()
@click.option("--force", is_flag=True, help="Anchor all waiting batches, also if they do not fill an anchor.")
@json_option
@data_options
def cut(settings: Settings, force: bool, as_json: bool) -> None:
    """Anchor the waiting batches and operations, and finish an interrupted run."""
    with Node.open(settings) as node:
        entries = [*node.anchoring.batch_writer.cut(force=force), *cut_operations(node.registry.instance, force=force)]
    for entry in entries:
        if as_json:
            print_json(entry)
        else:
            print(f"{entry.number}  {entry.anchor_string}")
    if not entries and not as_json:
        print("nothing to anchor")


@example("millstream anchor replay")
@anchor.command()
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
    with Node.open(settings) as node:
        result = _replayed(node, registry=ledger_name == "registry")
    if as_json:
        print_json(result)
    else:
        print(f"{result.anchors} anchors and {result.files} files replayed, {len(result.findings)} findings")
        for finding in result.findings:
            place = f" (anchor {finding.number})" if finding.number is not None else ""
            print(f"{finding.what}: {finding.reason}{place}")
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
