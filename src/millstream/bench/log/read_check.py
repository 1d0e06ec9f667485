"""Nothing counts that was not read back: every id, and the checksum over every body in the order of ids.

The checksum runs over each body and a zero byte, which no body has: so it also holds where one ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from millstream.bench.log.load import Sent
from millstream.bench.log.protocol import Part
from millstream.log.encoding.columns import offsets_of

_END = b"\0"


class ReadCheckError(AssertionError):
    """What was read is not what was written."""


class ReadCheck:
    """What a reader has seen: ids 1, 2, 3 … up to ``last_id``, bodies of *payload* bytes with the checksum ``crc``.

    Of messages, or else of columns: the checksum over columns is over the bodies alone, whose lengths are examined.
    """

    def __init__(self, payload: int) -> None:
        self._payload = payload
        self.last_id = 0
        self.crc = 0

    def add(self, ids: Sequence[int], bodies: Sequence[bytes]) -> None:
        """Take in the next messages. Raises :class:`ReadCheckError`."""
        numbers = np.fromiter(ids, np.int64, len(ids))
        if len(ids) != len(bodies) or not np.array_equal(numbers, self._next(len(ids))):
            raise ReadCheckError(
                f"expected {len(ids):,} messages with consecutive ids from {self.last_id + 1}, but read ids {ids[0]} "
                f"to {ids[-1]} and {len(bodies):,} bodies"
            )
        self.crc = crc32c(_END, crc32c(_END.join(bodies), self.crc))
        self.last_id += len(ids)

    def add_all(self, parts: Iterable[Part]) -> None:
        """Take in all *parts*."""
        for ids, bodies in parts:
            self.add(ids, bodies)

    def add_columns(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Take in record batches with the columns ``id`` and ``body``."""
        for batch in batches:
            ids, body = batch.column("id").to_numpy(), batch.column("body")
            if not np.array_equal(ids, self._next(len(ids))):
                raise ReadCheckError(
                    f"messages are missing, repeated or out of order: after id {self.last_id} came messages "
                    f"with ids {ids[0]} to {ids[-1]}"
                )
            offsets = offsets_of(body)
            if (np.diff(offsets) != self._payload).any():
                raise ReadCheckError(
                    f"one of the messages {ids[0]} to {ids[-1]} has a body that is not {self._payload:,} bytes long"
                )
            self.crc = crc32c(memoryview(body.buffers()[2])[int(offsets[0]) : int(offsets[-1])], self.crc)
            self.last_id += len(ids)

    def expect(self, sent: Sent, packs: Sequence[Sequence[bytes]]) -> None:
        """Raises :class:`ReadCheckError` unless this is exactly what was *sent*, under the ids that were confirmed."""
        joined = [b"".join(body + _END for body in pack) for pack in packs]
        crc, last_id = 0, 0
        for first, which in sorted(sent.packs):
            if first != last_id + 1:
                raise ReadCheckError(f"an append was confirmed with the first id {first}, expected {last_id + 1}")
            crc, last_id = crc32c(joined[which], crc), last_id + len(packs[which])
        if (self.last_id, self.crc) != (last_id, crc):
            raise ReadCheckError(
                f"{self.last_id:,} messages with the checksum {self.crc:08x} were read, but {last_id:,} with the "
                f"checksum {crc:08x} were sent"
            )

    def _next(self, count: int) -> npt.NDArray[np.int64]:
        return np.arange(self.last_id + 1, self.last_id + count + 1)


def drain(batches: Iterator[pa.RecordBatch], total: int) -> None:
    """Take all *batches* as they are, without a look at rows. Raises :class:`ReadCheckError` unless they are *total*.

    The log itself has checked ids and checksums of all blocks.
    """
    rows = 0
    for batch in batches:
        rows += batch.num_rows
    if rows != total:
        raise ReadCheckError(f"{rows:,} rows were read, but {total:,} were written")
