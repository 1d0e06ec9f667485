"""Checks of the ledgers of a node: unsigned and lost entries, and the location of copied checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from millstream.cli.doctor_machine import Check
from millstream.core.amounts import counted
from millstream.core.errors import MillstreamError
from millstream.node import Node
from millstream.node.ledger_trees import LEDGERS, LedgerName
from millstream.settings import Settings

_COPY = "checkpoint copy"
_SHOWS = "detection of a restored backup before it forks a ledger"
_ELSEWHERE = (
    "set anchoring.checkpoint_copy to a folder on another disk, or to a bucket, that is not backed up with the node"
)


def check_ledgers(settings: Settings) -> Iterator[Check]:
    """Checks that all entries of the node's ledgers are signed, and that checkpoints are copied."""
    from millstream.node.databases import has_database

    try:
        if not has_database(settings):  # looking must not begin a node
            return
        with Node.open(settings, reads=True) as node:
            for name in LEDGERS:
                if node.ledgers.has(name):
                    yield _signed(node, name)
            yield from _lost_entries(node)
            yield _copy(node)
    except MillstreamError as error:
        fix = "start what it names, or correct the settings"
        yield Check("ledgers", False, str(error), "anchors and their proofs", fix)


def _signed(node: Node, name: LedgerName) -> Check:
    status = node.ledgers.tree(name).status()
    signed = status.signed or 0  # None if there is no checkpoint yet, as of a ledger without entries
    return Check(
        f"ledger {name}",
        signed == status.entries,
        f"{counted(status.entries, 'entry')}, of which {signed:,} are signed",
        "small proofs of the newest anchors",
        f"millstream anchor checkpoint --ledger {name}, which signs them or reports why it cannot",
    )


def _lost_entries(node: Node) -> Iterator[Check]:
    """A check that fails for each ledger without entries that the node has observed, such as one of an older backup."""
    from millstream.anchoring.errors import LedgerReplacedError

    checks: list[tuple[LedgerName, Callable[[], object]]] = []
    if node.ledgers.has("anchors"):
        checks.append(("anchors", node.anchoring.observer.check_ledger))
    if node.ledgers.has("registry") and node.registry.follow_state() is None:
        checks.append(("registry", node.registry.instance.observer.check_ledger))
    for name, check in checks:
        try:
            check()
        except LedgerReplacedError as error:
            what, _, fix = str(error).partition(". ")
            yield Check(f"entries of ledger {name}", False, what, "anchoring", fix)


def _copy(node: Node) -> Check:
    place = node.settings.anchoring.checkpoint_copy
    if not place:
        return Check(_COPY, False, "none: a restored backup can fork the ledgers unnoticed", _SHOWS, _ELSEWHERE, True)
    if "://" not in place and Path(place).resolve().is_relative_to(node.folder.resolve()):
        return Check(_COPY, False, f"{place} is in the data folder", _SHOWS, _ELSEWHERE)
    try:
        node.ledgers.copied("anchors")
    except MillstreamError as error:
        return Check(_COPY, False, str(error), "signing of the ledger", "mount it, or correct the setting")
    return Check(_COPY, True, f"{place} can be read", _SHOWS)
