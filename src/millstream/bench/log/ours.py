"""Our log in one of its stores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from millstream.bench.log.metered_bucket import BucketUsage, MeteredBucket
from millstream.bench.log.protocol import Part, QueueLocation
from millstream.core.clock import SystemClock
from millstream.log import LogSpec, LogStore, open_store
from millstream.log.backends.objects.bucket import Bucket, is_bucket_url
from millstream.testing.object_bucket import MemoryBucket

IN_MEMORY: dict[str, MemoryBucket] = {}
"""The buckets in memory of this process, by URL."""


class OurSender:
    """Our writer. ``bucket`` is what it writes to, where that is one."""

    def __init__(self, place: QueueLocation) -> None:
        self._store, self.bucket = _open(place)
        self._log = self._store.log(LogSpec(place.queue))
        self._writer = self._log.writer()

    @property
    def usage(self) -> BucketUsage:
        """What was asked of its bucket so far."""
        return BucketUsage() if self.bucket is None else self.bucket.usage

    @property
    def last_id(self) -> int:
        """The last durable id."""
        return self._writer.last_id

    def append_nowait(self, bodies: Sequence[bytes]) -> int:
        """As :meth:`append`, but return the last id at once."""
        ids = self._writer.append_nowait(bodies)
        assert ids is not None
        return ids.last

    async def durable_async(self, last_id: int) -> None:
        """Wait until all up to *last_id* is durable."""
        await self._writer.durable_async(last_id)

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
        self._store, self.bucket = _open(place)
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


def _open(place: QueueLocation) -> tuple[LogStore, MeteredBucket | None]:
    if not is_bucket_url(place.url):
        return open_store(place.url), None
    clock = SystemClock()
    bucket = MeteredBucket(_bucket(place.url), place.latency, clock)
    return open_store(place.url, clock, open_bucket=lambda _: bucket), bucket


def _bucket(url: str) -> Bucket:
    from millstream.stores.s3.log_bucket import open_log_bucket

    return IN_MEMORY[url] if url in IN_MEMORY else open_log_bucket(url)
