"""The data of commits in memory, as columns: about 200 bytes per commit."""

from __future__ import annotations

from array import array
from bisect import bisect_left

import msgspec

from millstream.log.backend import BlockStatistics

_DIGEST = 32


class CommitRecord(msgspec.Struct, frozen=True, gc=False):
    """The data of a commit in memory. If its head is damaged, ``digest`` may be empty, and times are unknown."""

    number: int
    epoch: int
    previous_id: int
    last_id: int
    received_at: int
    digest: bytes
    producer: str
    sequence: int | None
    sums: BlockStatistics
    is_damaged: bool = False


class CommitColumns:
    """The commits from number *start* on, the first of which begins after the id *previous_id*. Not thread-safe."""

    def __init__(self, start: int, previous_id: int) -> None:
        self.start, self._previous_id = start, previous_id
        self._producers: dict[str, int] = {}
        self._names: list[str] = []
        self._sequences: list[int | None] = []
        self._digests = bytearray()
        self._columns = {name: array("q") for name in _COLUMNS}
        self._lasts = self._columns["last_id"]

    def __len__(self) -> int:
        return len(self._lasts)

    def add(self, record: CommitRecord) -> None:
        """Add *record*, which comes after the last one."""
        producer = self._producers.setdefault(record.producer, len(self._names))
        if producer == len(self._names):
            self._names.append(record.producer)
        sums = record.sums
        values = (
            record.epoch,
            record.last_id,
            record.received_at,
            producer,
            sums.blocks,
            sums.bytes,
            *(getattr(sums, name) or 0 for name in _TIMES),
            int(record.is_damaged),
        )
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(value)
        self._sequences.append(record.sequence)
        self._digests += record.digest.ljust(_DIGEST, b"\0")

    def record(self, index: int) -> CommitRecord:
        """The commit at *index*, from 0 on."""
        row = {name: column[index] for name, column in self._columns.items()}
        previous_id = self._lasts[index - 1] if index else self._previous_id
        digest = bytes(self._digests[index * _DIGEST : (index + 1) * _DIGEST])
        is_damaged = bool(row["is_damaged"])
        sums = BlockStatistics()
        if row["blocks"]:
            times = dict.fromkeys(_TIMES) if is_damaged else {name: row[name] for name in _TIMES}
            sums = BlockStatistics(
                first_id=previous_id + 1,
                last_id=row["last_id"],
                count=row["last_id"] - previous_id,
                blocks=row["blocks"],
                bytes=row["bytes"],
                **times,
            )
        return CommitRecord(
            self.start + index,
            row["epoch"],
            previous_id,
            row["last_id"],
            row["received_at"],
            digest if any(digest) else b"",
            self._names[row["producer"]],
            self._sequences[index],
            sums,
            is_damaged,
        )

    def find(self, first_id: int) -> int:
        """The index of the first commit that ends at *first_id* or later."""
        return bisect_left(self._lasts, first_id)

    def drop(self, count: int) -> None:
        """Forget the first *count*."""
        if count:
            self._previous_id = self._lasts[count - 1]
            self.start += count
            for column in self._columns.values():
                del column[:count]
            del self._sequences[:count]
            del self._digests[: count * _DIGEST]


_TIMES = ("min_event_time", "max_event_time", "min_received_at", "max_received_at")
_COLUMNS = (
    "epoch", "last_id", "received_at", "producer", "blocks", "bytes", *_TIMES, "is_damaged"
)  # fmt: skip
