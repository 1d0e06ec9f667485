"""The errors of the mill."""

from __future__ import annotations

from millstream.core.errors import BusyError, InputError, MillstreamError, NotFoundError
from millstream.stores.protocol import ItemNotFoundError, StoreError, StoreUnavailableError


class MillError(MillstreamError):
    """The mill could not do what was asked."""


class PolicyError(MillError, InputError):
    """The duplication policy cannot be used as it is."""


class TaskError(MillError, InputError):
    """The task is not one that the mill knows."""

    permanent = True


class UnknownStoreError(MillError, NotFoundError):
    """No store of the id ``store`` is configured."""

    def __init__(self, message: str, store: str = "") -> None:
        super().__init__(message)
        self.store = store


class UnknownSpaceError(MillError, NotFoundError):
    """There is no such space, neither in a store nor in the manifest."""


class FilterError(MillError, InputError):
    """The list of spaces cannot be used as it is."""


class UnknownPoolError(MillError, InputError):
    """There is no such pool of workers."""


class ProducerStateError(MillError, InputError):
    """The state file of a producer cannot be used."""


class ProducerBusyError(MillError, BusyError):
    """Another process is at the same loop."""


class UnknownApprovalError(MillError, NotFoundError):
    """Nothing waits for an approval under this number."""


class ChangedSinceAdoptionError(StoreError):
    """The item of a source that other programs write is not as it was adopted."""


class ItemLeftOutError(ItemNotFoundError):
    """The item is left out of a source that other programs write, on purpose."""


class DuplicationError(MillError):
    """The content item could not be brought in line with its source."""


class NoAnswerError(DuplicationError):
    """A provider did not answer, all retries used; the same task may succeed later."""

    transient = True


class ChangePendingError(MillError):
    """A change of the item was begun, and it is not known yet whether it happened."""

    transient = True


class PoliciesUnavailableError(MillError, StoreUnavailableError):
    """The setting names a place of policies that has none: its disk may not be mounted."""


class RepairError(MillError):
    """The copy could not be repaired."""


class UnresolvedError(MillError):
    """A finding that needs a person."""


class ReportError(MillError):
    """The report cannot be used: it was changed after it was written, or its chain is broken."""
