"""The outbox relay: what applications write to a table in their own transactions goes to a log, in order, exactly once.

See ``docs/outbox.md`` for both sides of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from millstream.log.relay.errors import OutboxError, OutboxTakenError, PoisonRowError
    from millstream.log.relay.outbox import BatchLimits, Outbox
    from millstream.log.relay.outbox_database import OutboxDatabase, open_outbox_database
    from millstream.log.relay.relay import Relay, RelayResult
    from millstream.log.relay.table import OutboxTable

__all__ = [
    "BatchLimits",
    "Outbox",
    "OutboxDatabase",
    "OutboxError",
    "OutboxTable",
    "OutboxTakenError",
    "PoisonRowError",
    "Relay",
    "RelayResult",
    "open_outbox_database",
]

__getattr__ = lazy_names(__name__)
