"""The collectors of cosignatures of witnesses for the ledgers of a node."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.anchoring.errors import TrustPolicyError
from millstream.anchoring.transparency.ledger_tree import LedgerTree
from millstream.core.cached import locked_cached_property
from millstream.node.context import NodeContext
from millstream.node.ledger_trees import LedgerName, LedgerTreesPart

if TYPE_CHECKING:
    from millstream.anchoring.transparency.policy import TrustPolicy
    from millstream.anchoring.witness.collector import CosignatureCollector


class CosignaturesPart:
    """A collector for each ledger, by the policy of the settings; *tree* opens the tree of a ledger."""

    def __init__(self, context: NodeContext, trees: LedgerTreesPart, tree: Callable[[LedgerName], LedgerTree]) -> None:
        self._context = context
        self._trees = trees
        self._tree = tree
        self._lock = threading.Lock()
        self._collectors: dict[LedgerName, CosignatureCollector] = {}

    @locked_cached_property
    def policy(self) -> TrustPolicy | None:
        """The policy whose witnesses cosign checkpoints; None if the settings name none.

        Raises :class:`TrustPolicyError`.
        """
        from millstream.anchoring.transparency.policy import read_policy

        path = self._context.settings.anchoring.witness_policy
        return read_policy(Path(path)) if path else None

    def collector(self, name: LedgerName) -> CosignatureCollector | None:
        """The collector of cosignatures for the ledger *name*, None without witnesses.

        Raises :class:`TrustPolicyError`.
        """
        from millstream.anchoring.witness.collector import CosignatureCollector
        from millstream.anchoring.witness.cosignature_tables import CosignatureTable

        if self.policy is None:
            return None
        with self._lock:
            if name not in self._collectors:
                table = CosignatureTable(self._trees.engine, name)
                self._collectors[name] = CosignatureCollector(self._tree(name), self.policy, table, self._context.clock)
            return self._collectors[name]

    def required_collector(self, name: LedgerName) -> CosignatureCollector:
        """The collector of cosignatures for the ledger *name*. Raises :class:`TrustPolicyError` without witnesses."""
        collector = self.collector(name)
        if collector is None:
            raise TrustPolicyError("no witnesses are configured: set anchoring.witness_policy to a file with a policy")
        return collector
