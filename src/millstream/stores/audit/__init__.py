"""An audit of every change to a store, of which no event is lost and none is invented.

:class:`AuditedStore` decorates a store. Before a change it writes its intent to the :class:`AuditOutbox`, a table of
the database in which the audit log will be; after the change, that it was done. What a crash leaves open is settled
by looking at the store: the change is there, or it is not (``docs/formats/audit.md``).
"""

from millstream.stores.audit.events import CONTENT_CHANGES, AuditAction, AuditEvent
from millstream.stores.audit.holders import HolderState, describe_holder
from millstream.stores.audit.intents import AuditBusyError, AuditIntent
from millstream.stores.audit.outbox import AuditOutbox
from millstream.stores.audit.store import AuditedStore, settle_ended

__all__ = [
    "CONTENT_CHANGES",
    "AuditAction",
    "AuditBusyError",
    "AuditEvent",
    "AuditIntent",
    "AuditOutbox",
    "AuditedStore",
    "HolderState",
    "describe_holder",
    "settle_ended",
]
