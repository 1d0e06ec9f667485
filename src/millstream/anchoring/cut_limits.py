"""How much is anchored together: by the format, the settings, and the statements that a database server accepts."""

from __future__ import annotations

import msgspec

from millstream.anchoring.cut_manifest import MAX_BATCHES, MAX_CONTENT_BYTES, MAX_FILE_BYTES, MAX_REJECTS
from millstream.anchoring.errors import BatchFormatError

_MESSAGE_BYTES = 20
"""Bytes that a message adds to the statement that stores an anchor: its id (8 bytes) and the index of its batch (4
bytes); the client escapes each zero byte as two. Measured: 17 to 19.4 bytes."""

_REJECT_BYTES = 40
"""Bytes that a rejected message adds: its id, its reason with a line break (up to 25 bytes), and the escapes."""

_LEAST_LINE_BYTES = 71
"""The shortest line of a message in a batch file (docs/formats/records.md): empty texts and numbers of one digit."""


class CutLimits(msgspec.Struct, frozen=True):
    """When a cut is full: at this many batches, or this many bytes of batch files; how large one file may be, and how
    many rejected messages a cut has at most.

    The defaults are the limits of the format, which no setting may exceed.
    """

    batches: int = MAX_BATCHES
    file_bytes: int = MAX_FILE_BYTES
    cut_bytes: int = MAX_CONTENT_BYTES
    rejects: int = MAX_REJECTS

    def __post_init__(self) -> None:
        for name, limit in zip(self.__struct_fields__, self.__struct_defaults__, strict=True):
            if not 1 <= getattr(self, name) <= limit:
                unit = " bytes" if name.endswith("_bytes") else ""
                raise BatchFormatError(
                    f"{name} of an anchor must be 1 to {limit:,}{unit}, not {getattr(self, name):,}{unit}"
                )

    def within(self, statement_bytes: int) -> CutLimits:
        """These limits, lowered so that the ids of the messages of an anchor, which are one row, fit into a statement.

        Half of it is for messages in batches, and half for rejected messages.
        """
        half = statement_bytes // 2
        return msgspec.structs.replace(
            self,
            cut_bytes=min(self.cut_bytes, max(1, half // _MESSAGE_BYTES * _LEAST_LINE_BYTES)),
            rejects=min(self.rejects, max(1, half // _REJECT_BYTES)),
        )


def least_statement_bytes(file_bytes: int) -> int:
    """Bytes of the statement that stores one batch of *file_bytes*, as the journal keeps it until it is anchored."""
    return 2 * file_bytes + 100_000  # the client escapes a byte as two at most
