"""The chains of commitments of DIDs as they were observed, kept up to date as the ledger grows."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final

import sqlalchemy as sa

from millstream.anchoring.registry.history import OperationHistory
from millstream.anchoring.sidetree import AnchoredOperation, Chain

MAX_CACHED_OPERATIONS: Final = 20_000
"""How many operations the chains that are kept may have together; some 3 kB each."""


class _CachedChain:
    """A chain, and the place of the last operation that was added to it.

    ``counted`` is how many of its ``operations`` are in the sum of those that are kept.
    """

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.last = (-1, -1)
        self.operations = self.counted = 0

    def add(self, anchored: AnchoredOperation) -> None:
        """Add the operation, if it comes behind the last one. One of a great many bytes counts as many."""
        if (anchored.number, anchored.index) <= self.last:
            return
        self.chain.add(anchored)
        self.last = (anchored.number, anchored.index)
        signed = anchored.operation.signed
        self.operations += 1 + (len(signed.text) // 3_000 if signed else 0)


class ChainCache:
    """The chains of the DIDs in *history*, without their documents. Those last used are kept. Thread-safe."""

    def __init__(self, history: OperationHistory) -> None:
        self._history = history
        self._empty = history.empty_chain()
        self._kept: OrderedDict[str, _CachedChain] = OrderedDict()
        self._operations = 0
        self._late = (0, 0)
        self._lock = threading.Lock()

    def of(self, connection: sa.Connection, suffixes: Sequence[str]) -> Mapping[str, Chain]:
        """The chains of *suffixes* after all that was observed; empty ones for DIDs that were not."""
        with self._lock:
            late = self._history.late_entries(connection)
            if late != self._late:  # something was put before what is kept
                self._kept, self._operations, self._late = OrderedDict(), 0, late
            used = {suffix: self._kept[suffix] for suffix in suffixes if suffix in self._kept}
            behind = min((entry.last[0] for entry in used.values()), default=-1)
            older, fresh = list(used), [suffix for suffix in suffixes if suffix not in used]
            for asked, after in ((fresh, -1), (older, behind)):
                for suffix, anchored in self._history.anchored(connection, asked, after=after):
                    if suffix not in used:
                        used[suffix] = _CachedChain(self._history.empty_chain())
                    used[suffix].add(anchored)
            self._keep(used)
            return {suffix: used[suffix].chain if suffix in used else self._empty for suffix in suffixes}

    def _keep(self, used: Mapping[str, _CachedChain]) -> None:
        for suffix, entry in used.items():
            self._kept[suffix] = entry
            self._kept.move_to_end(suffix)
            self._operations += entry.operations - entry.counted
            entry.counted = entry.operations
        while self._operations > MAX_CACHED_OPERATIONS:
            _, dropped = self._kept.popitem(last=False)
            self._operations -= dropped.counted
