"""Everything the log raises on purpose.

::

    LogError
    ├── LogInputError            what was handed in cannot be used
    │   ├── MessageTooLargeError
    │   └── SystemLogError       a log that Millstream keeps for itself can be read alone
    ├── LogNotFoundError
    ├── WriterBusyError          another writer holds the log
    ├── FencedError              this writer or reader was replaced by a newer one
    ├── WriterFailedError        a commit failed; this writer takes nothing more
    ├── DurabilityTimeoutError
    ├── TrimmedError             the messages that were asked for are gone on purpose
    ├── DamagedLogError          what is stored contradicts itself
    │   ├── CorruptBlockError
    │   └── MissingBlockError
    └── StorageError             the store below refused
        ├── StorageBusyError
        ├── StorageFullError
        ├── StorageReadOnlyError
        └── StorageUnavailableError
"""

from __future__ import annotations

from millstream.core.errors import BusyError, InputError, MillstreamError, NotFoundError

WHY_SHORTER = "the log was restored from an older backup or replaced, or lost messages at a power loss (durability=os)"
"""For errors of programs that have read a log farther than it now goes: why it ends earlier."""


class LogError(MillstreamError):
    """The log could not do what was asked."""


class LogInputError(LogError, InputError):
    """The log cannot use this argument."""


class MessageTooLargeError(LogInputError):
    """The message is larger than a log takes."""


class SystemLogError(LogInputError):
    """The log is one that Millstream keeps for itself: it can be read, and nothing else."""


class LogNotFoundError(LogError, NotFoundError):
    """There is no such log."""


class WriterBusyError(LogError, BusyError):
    """Another writer holds the log; a log has one writer at a time."""


class FencedError(LogError):
    """A newer writer or reader has taken this one's place; close it and do not continue."""


class WriterFailedError(LogError):
    """A commit failed, so this writer takes nothing more; close it and open a new one."""


class DurabilityTimeoutError(LogError):
    """The messages were not durable in the time allowed; they may be later."""

    transient = True


class TrimmedError(LogError):
    """Messages that were asked for have been trimmed."""

    def __init__(self, log: str, first_id: int, last_id: int) -> None:
        super().__init__(
            f"ids {first_id} to {last_id} of log {log!r} were trimmed and cannot be read: read from id {last_id + 1} on"
        )
        self.log = log
        self.first_id = first_id
        self.last_id = last_id


class DamagedLogError(LogError):
    """The stored data is inconsistent; nothing is skipped silently."""


class CorruptBlockError(DamagedLogError):
    """The bytes of a block are not the bytes that were written."""

    def __init__(self, log: str, first_id: int, reason: str) -> None:
        super().__init__(
            f"the block of log {log!r} that begins at id {first_id} is damaged: {reason}. Restore the log from a "
            f"backup, or read on after this block; `millstream log verify {log}` lists all damage"
        )
        self.log = log
        self.first_id = first_id
        self.reason = reason


class MissingBlockError(DamagedLogError):
    """Ids that were stored are gone."""

    def __init__(self, log: str, first_id: int, last_id: int) -> None:
        super().__init__(
            f"ids {first_id} to {last_id} of log {log!r} are missing from the store. Restore them from a backup, or "
            f"read on from id {last_id + 1}; `millstream log verify {log}` lists all damage"
        )
        self.log = log
        self.first_id = first_id
        self.last_id = last_id


class StorageError(LogError):
    """The store below the log refused."""


class StorageBusyError(StorageError, BusyError):
    """The store is locked by another process for longer than we wait."""


class StorageFullError(StorageError):
    """There is no space left for the log; free some and open the writer again."""


class StorageReadOnlyError(StorageError):
    """The store is open for reading only."""


class StorageUnavailableError(StorageError):
    """The server of the store cannot be reached; what was not confirmed may or may not be stored."""

    transient = True
