"""The meaning of a server's error: whether to retry, and the message with the remedy."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import TypeAlias

import msgspec

from millstream.log.backends.database.driver import Code, ServerError
from millstream.log.errors import (
    LogError,
    StorageBusyError,
    StorageError,
    StorageReadOnlyError,
    StorageUnavailableError,
)

ErrorAdvice: TypeAlias = tuple[type[LogError], str]
"""The exception for an error, and the remedy in its message."""

DENIED_ADVICE = "check the user and the password, and grant the user all rights on the database"
DAMAGED_ADVICE = "check the server's error log, and restore the damaged tables from a backup"
ABSENT_ADVICE = "check the URL, or create the store with `millstream log create NAME --store URL`"


class ErrorCodes(msgspec.Struct, frozen=True, kw_only=True):
    """The errors of one kind of server, by code; a code of letters may also stand as its class, the first two.

    ``lost`` are worth a new connection after a pause, ``contended`` another try at once; ``duplicate`` is a key that
    was there already, ``unknown_database`` what connecting to an absent database gives; ``advice`` is all the others.
    """

    lost: Set[Code]
    contended: Set[Code]
    duplicate: Code
    unknown_database: Code
    advice: Mapping[Code, ErrorAdvice]

    def is_lost(self, error: ServerError) -> bool:
        """Whether the connection, or the server, is gone for now."""
        return bool(self.lost & _names(error.code))

    def is_worth_another_try(self, error: ServerError) -> bool:
        """Whether the same call may succeed later."""
        return self.is_lost(error) or bool(self.contended & _names(error.code))

    def is_read_only(self, error: ServerError) -> bool:
        """Whether the server takes no changes: after a failover, one that was the primary."""
        return issubclass(self._advice_for(error)[0], StorageReadOnlyError)

    def explained(self, url: str, error: ServerError) -> LogError:
        """*error* of the store *url* as people are told."""
        kind, advice = self._advice_for(error)
        return kind(f"{url}: {error}; {advice}")

    def _advice_for(self, error: ServerError) -> ErrorAdvice:
        if self.is_lost(error):
            return StorageUnavailableError, "check that the server runs and can be reached"
        if self.is_worth_another_try(error):
            return StorageBusyError, "find the transaction that holds the lock, and end it"
        known = (self.advice[name] for name in _names(error.code) if name in self.advice)
        return next(known, (StorageError, "look up the error in the server's documentation"))


def _names(code: Code) -> Set[Code]:
    """*code* itself, and the class that it belongs to."""
    return {code, code[:2]} if isinstance(code, str) else {code}
