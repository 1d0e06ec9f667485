"""Ids without messages, as a record in the stream: nothing that a log no longer has is passed over in silence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import pyarrow as pa

from millstream.core.message import MESSAGE_SCHEMA, Message
from millstream.log.batch import Batch
from millstream.log.errors import DamagedLogError, LogError, TrimmedError
from millstream.log.ids import IdRange

Reason = Literal["trimmed", "missing", "corrupt"]
"""The reasons why ids have no messages: trimmed, missing from the store, or in a damaged block."""

Gaps = Literal["none", "trimmed", "all"]
"""The gaps that a reader gets as a :class:`Gap`; all others are raised."""


class Gap(Batch):
    """The ids *first_id* to *last_id*, whose messages are unavailable for *reason*.

    A batch of no messages: its length is 0, iterating it yields nothing, ``arrow`` has no rows, and ``ids`` is what is
    missing. A reader that treats it like a batch acknowledges it and
    continues; ``isinstance(batch, Gap)`` distinguishes them.
    """

    def __init__(
        self,
        log: str,
        ids: IdRange,
        reason: Reason,
        columns: Sequence[str] | None = None,
        *,
        error: DamagedLogError | None = None,
    ) -> None:
        """Made by the log. *columns* are those of :attr:`arrow`, *error* says what is wrong with a damaged block."""
        self.ids = ids
        self.reason: Reason = reason
        self._log = log
        self._columns = columns
        self._error = error

    @property
    def error(self) -> LogError:
        """What is raised where the gap is not wanted: :class:`TrimmedError`, or a :class:`DamagedLogError`."""
        return self._error or TrimmedError(self._log, self.first_id, self.last_id)

    def within(self, ids: IdRange, columns: Sequence[str] | None = None) -> Gap:
        """What of the gap lies within *ids*, with *columns* for :attr:`arrow`."""
        part = IdRange(max(self.first_id, ids.first), min(self.last_id, ids.last))
        return Gap(self._log, part, self.reason, columns, error=self._error)

    @property
    def raw_bytes(self) -> int:
        return 0

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[Message]:
        return iter(())

    def bodies(self) -> Iterator[tuple[int, bytes]]:
        return iter(())

    def __repr__(self) -> str:
        return f"<Gap of {self._log!r}, ids {self.first_id} to {self.last_id}: {self.reason}>"

    def at(self, rows: Sequence[int]) -> Iterator[Message]:  # noqa: ARG002
        return iter(())

    def decode(self, columns: Sequence[str] | None) -> pa.RecordBatch:
        names = MESSAGE_SCHEMA.names if columns is None else columns
        return pa.RecordBatch.from_pylist([], schema=pa.schema([MESSAGE_SCHEMA.field(name) for name in names]))


def is_wanted(gap: Gap, gaps: Gaps) -> bool:
    """Whether a reader that asked for *gaps* is given *gap*."""
    return gaps == "all" or (gaps == "trimmed" and gap.reason == "trimmed")
