"""Messages of commands about changes with an unknown outcome."""

from __future__ import annotations

from millstream.cli.common import echo_line
from millstream.mill.audit.open_changes import open_changes
from millstream.node import Node


def print_open_changes(node: Node, store: str | None = None, space: str | None = None) -> bool:
    """Print whose changes are open, and what to do; True where an operator has to act."""
    found, now = open_changes(node.stores.outbox, node.stores.providers.unchecked, store, space), node.clock.now()
    for one in found:
        echo_line(str(one), err=True)
    return any(one.is_left(now) for one in found)
