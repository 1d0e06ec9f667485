"""Our log in one of its stores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from millstream.bench.log.protocol import Part, QueueLocation
from millstream.log import LogSpec, open_store


class OurSender:
    """Our writer."""

    def __init__(self, place: QueueLocation) -> None:
        self._store = open_store(place.url)
        self._log = self._store.log(LogSpec(place.queue))
        self._writer = self._log.writer()

    def append(self, bodies: Sequence[bytes] | pa.RecordBatch) -> int:
        ids = self._writer.append(bodies)
        assert ids is not None
        return ids.first

    async def append_async(self, bodies: Sequence[bytes]) -> int:
        ids = await self._writer.append_async(bodies)
        assert ids is not None
        return ids.first

    def close(self) -> None:
        self._writer.close()
        self._store.close()


class OurReceiver:
    """Our reader."""

    def __init__(self, place: QueueLocation) -> None:
        self._store = open_store(place.url)
        self._log = self._store.log(LogSpec(place.queue))

    def follow(self, total: int) -> Iterator[Part]:
        with self._log.reader("follower") as reader:
            for batch in reader.batches(follow=True):
                ids: list[int] = []
                bodies: list[bytes] = []
                for number, body in batch.bodies():
                    ids.append(number)
                    bodies.append(body)
                reader.ack(batch.ids)
                yield ids, bodies
                if batch.last_id >= total:
                    return

    def columns(self, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        """All messages in order as Arrow, every column or those *columns*, acknowledged batch by batch."""
        with self._log.reader(f"arrow-{len(columns or ())}") as reader:
            for batch in reader.batches(columns=columns):
                yield batch.arrow
                reader.ack(batch.ids)

    def close(self) -> None:
        self._store.close()
