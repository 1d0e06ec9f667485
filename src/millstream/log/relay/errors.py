"""The errors of the relay, besides those of the log and of its database."""

from __future__ import annotations

from millstream.log.errors import LogError, LogInputError


class OutboxError(LogInputError):
    """The outbox table cannot be used as it is."""


class OutboxTakenError(LogError):
    """Another relay moves this outbox, into another log."""


class PoisonRowError(LogError):
    """A row of the outbox cannot be made into a message; nothing after it is moved."""
