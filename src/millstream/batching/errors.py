"""The errors of batching."""

from __future__ import annotations

from collections.abc import Callable

from millstream.core.errors import InputError, MillstreamError

OLDER_SNAPSHOT = (
    "use an older snapshot, and replay the log from the position of that snapshot; if there is none, delete the "
    "snapshot, and replay the log from the start of the oldest open batch"
)
"""What to do about a snapshot that cannot be used."""


class BatchingError(MillstreamError):
    """The batcher could not do what was asked."""


class ConfigError(BatchingError, InputError):
    """The batching rules cannot be used as they are."""


class GraceTooShortError(ConfigError):
    """Late records can amend batches only within a ``grace`` of at least the ``window``; both are in ticks.

    *where* begins the text, and *shown* makes the text of a number of ticks.
    """

    def __init__(
        self, grace: int, window: int, where: str = "", shown: Callable[[int], str] = "{:,} ticks".format
    ) -> None:
        super().__init__(
            f"{where}grace is {shown(grace)}, but late = amend requires at least the window, {shown(window)}: increase "
            "grace"
        )
        self.grace, self.window, self.where = grace, window, where


class BoundBrokenError(BatchingError, InputError):
    """A record was received before a time that the caller had declared to be past.

    ``advance(bound)`` promises that no later record has a ``received_at`` below the bound. Batches settled on that
    promise may be out already, so the record is refused whole and the batcher stays as it was.
    """


class FlushedError(BatchingError, InputError):
    """This batcher was flushed: its stream has ended. Build a new one for another stream."""


class SnapshotError(BatchingError, InputError):
    """The bytes are no snapshot that this batcher can continue from."""


class BatchServiceError(BatchingError, InputError):
    """The log cannot be batched while it grows."""


class EventLineError(BatchingError, InputError):
    """Not an event: give an object of id, key, event_time, received_at; optionally source, digest, size."""


class ColumnsError(BatchingError, InputError):
    """The columns do not have the shape of events."""
