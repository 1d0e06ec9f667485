"""The audit of changes of a node's stores."""

from __future__ import annotations

from millstream.core.cached import locked_cached_property
from millstream.mill.audit.audit_log import AuditLog
from millstream.mill.audit.audit_lookup import AuditLookup
from millstream.mill.audit.export import AuditExport
from millstream.node.context import NodeContext
from millstream.node.databases import DatabasesPart
from millstream.node.stores import StoresPart
from millstream.stores.audit import AuditedStore


class AuditPart:
    """The audit log of the stores, its export, and what it says of single items."""

    def __init__(self, context: NodeContext, databases: DatabasesPart, stores: StoresPart) -> None:
        self._context = context
        self._databases = databases
        self._stores = stores

    @locked_cached_property
    def log(self) -> AuditLog:
        """Every change that was made to audited stores."""
        return AuditLog(self._databases.own)

    @locked_cached_property
    def export(self) -> AuditExport | None:
        """Exports the audit log to the space that the settings name; None where they name none."""
        place = self._context.settings.audit_log_space
        return None if place is None else AuditExport(self._stores.providers, self.log, self._stores.outbox, *place)

    @locked_cached_property
    def lookup(self) -> AuditLookup:
        """Look-ups of items in the audit, for checks."""
        audited = [name for name, store in self._stores.providers.items() if isinstance(store, AuditedStore)]
        return AuditLookup(self.log, self._stores.outbox, audited, account=self._context.settings.mill.account)
