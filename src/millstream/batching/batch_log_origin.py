"""The origin of a log of batches, if a job over history batched the earlier messages: a state of the log. Without it
the job's batches would seem to be lost.
"""

from __future__ import annotations

import msgspec

from millstream.batching.errors import SnapshotError
from millstream.core.decoding import prepared
from millstream.log import Log

ORIGIN_METADATA = "batching/origin"
"""The state of a log of batches that holds its :class:`BatchLogOrigin` (``docs/formats/log-states.md``)."""


class BatchLogOrigin(msgspec.Struct, frozen=True):
    """A job over history took the messages of *log* up to the id *position*, and closed what is certain at *clock*."""

    log: str
    position: int
    clock: int


def write_origin(output: Log, origin: BatchLogOrigin) -> None:
    """Keep *origin* with the log of batches *output*, durably."""
    output.put_metadata(ORIGIN_METADATA, msgspec.json.encode(origin))


def read_origin(output: Log) -> BatchLogOrigin | None:
    """The origin of the log of batches *output*; None where it has all that came of its input.

    Raises :class:`SnapshotError` where the note is not one of ours.
    """
    note = output.metadata(ORIGIN_METADATA)
    try:
        return msgspec.json.decode(note, type=prepared(BatchLogOrigin)) if note else None
    except msgspec.DecodeError as error:
        raise SnapshotError(
            f"cannot read the state {ORIGIN_METADATA} of log {output.name!r}: {error}; restore the log from a backup"
        ) from error
