"""Every error of the registry.

::

    RegistryError          (AnchoringError)
    ├── QueueStoppedError    the operation queue is not started, or was closed
    ├── TooManyOpenError     too many operations are under way; ``retry_after`` seconds (BusyError)
    ├── NotTriedError        others of the same commit failed unexpectedly; the same call may succeed later (BusyError)
    ├── DatabaseBusyError    the database did not answer; the same call may succeed later (BusyError)
    ├── UnknownOperationError  no operation of this id was ever accepted (NotFoundError)
    ├── ReadOnlyError        the registry follows the ledger of another one
    └── FollowError          this registry cannot follow that ledger

    UnreadableAnchorError  (CasError)  an anchor can be neither recorded nor called invalid
"""

from __future__ import annotations

from millstream.anchoring.errors import AnchoringError, CasError
from millstream.core.errors import BusyError, NotFoundError


class RegistryError(AnchoringError):
    """The registry of identifiers could not do what was asked."""


class QueueStoppedError(RegistryError):
    """The operation queue is not started, or was closed; open a new one."""


class TooManyOpenError(RegistryError, BusyError):
    """Too many operations are under way. Try again after ``retry_after`` seconds."""

    def __init__(self, waiting: int, limit: int, retry_after: float) -> None:
        super().__init__(
            f"{waiting:,} operations are waiting or in progress; the limit is {limit:,}: try again in "
            f"{retry_after:.0f} s"
        )
        self.retry_after = retry_after


class NotTriedError(RegistryError, BusyError):
    """Many operations of the same commit failed unexpectedly, so that this one was not tried: send it again."""


class DatabaseBusyError(RegistryError, BusyError):
    """The registry's database did not answer or was locked; the same call may succeed later."""


class UnknownOperationError(RegistryError, NotFoundError):
    """No operation of this id was ever accepted here."""


class ReadOnlyError(RegistryError):
    """This registry follows the ledger of another one and takes no operations; send them to that registry."""

    code = "read_only"


class FollowError(RegistryError):
    """This registry cannot follow that ledger."""


class UnreadableAnchorError(CasError):
    """Reading or recording the operations of an anchor failed with an error that is not a verdict."""
