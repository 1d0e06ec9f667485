"""Repairs of the copies of a node."""

from __future__ import annotations

from millstream.core.cached import locked_cached_property
from millstream.mill.repair.repair_log import RepairLog
from millstream.mill.repair.repairer import Repairer
from millstream.node.audit import AuditPart
from millstream.node.databases import DatabasesPart
from millstream.node.policies import PoliciesPart
from millstream.node.stores import StoresPart


class RepairsPart:
    """Repairs copies, and keeps what was repaired."""

    def __init__(self, databases: DatabasesPart, stores: StoresPart, policies: PoliciesPart, audit: AuditPart) -> None:
        self._databases = databases
        self._stores = stores
        self._policies = policies
        self._audit = audit

    @locked_cached_property
    def log(self) -> RepairLog:
        """The log of repairs, and of refused repairs with reasons."""
        return RepairLog(self._databases.own)

    @locked_cached_property
    def repairer(self) -> Repairer:
        """Repairs copies from the one that our own records agree with."""
        repairer = Repairer(
            self._stores.providers,
            self._stores.manifest,
            self.log,
            sources=self._sources,
            audit_lookup=self._audit.lookup,
        )
        repairer.settle_left()
        return repairer

    def _sources(self, space: str) -> frozenset[str]:
        policies = self._policies.require()  # asked for each repair: a policy may be saved meanwhile
        return policies.originals(space, self._stores.providers)
