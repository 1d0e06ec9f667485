"""The pairs of stores that commands copy by policy, and what they print of stores that cannot be listed."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.cli.common import echo_line
from millstream.mill.duplication.planning import duplication_rounds
from millstream.mill.policies.policy import Pair
from millstream.node import Node


def listed_rounds(node: Node, space: str | None) -> tuple[Sequence[Sequence[tuple[Pair, str]]], int]:
    """The pairs to copy by the policies of *node*, as :func:`duplication_rounds` has them; the number of stores that
    cannot be listed.

    Prints the name and the reason of each such store to standard error, and that there is no list of accounts.
    """
    policies, unlisted = node.policies.current, dict[str, str]()
    if not policies.found:
        echo_line(policies.missing, err=True)
    rounds = duplication_rounds(policies, node.stores.providers, space, unlisted=unlisted)
    for store, error in unlisted.items():
        echo_line(f"{store}: {error}", err=True)
    return rounds, len(unlisted)


def print_failed_plan(space: str, pair: Pair, error: Exception) -> None:
    """Print that *space* of *pair* could not be planned to standard error."""
    echo_line(f"{space} {pair}: {error}", err=True)
