"""The outbox relay: what applications write to a table in their own transactions goes to a log, in order, exactly once.

See ``docs/outbox.md`` for both sides of it.
"""

from __future__ import annotations

from millstream.log.relay.errors import OutboxError, OutboxTakenError, PoisonRowError
from millstream.log.relay.outbox import Limits, Outbox
from millstream.log.relay.relay import Relay, Relayed
from millstream.log.relay.source import Source, open_source
from millstream.log.relay.table import OutboxTable

__all__ = [
    "Limits",
    "Outbox",
    "OutboxError",
    "OutboxTable",
    "OutboxTakenError",
    "PoisonRowError",
    "Relay",
    "Relayed",
    "Source",
    "open_source",
]
