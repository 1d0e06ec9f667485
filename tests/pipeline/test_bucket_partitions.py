"""A log in a bucket: each task reads the objects of its partition, with a request for each, and nothing else."""

from __future__ import annotations

import copy
from collections import Counter

import pytest

from millstream.core.clock import SystemClock
from millstream.log import CorruptBlockError, LogSpec, LogStore, Message, MissingBlockError, Tiering, TrimmedError
from millstream.log.backends.objects.backend import ObjectsBackend
from millstream.log.backends.objects.probe import RECORD
from millstream.log.tiering import Compaction
from millstream.pipeline.block_ranges import IdRangePartition, decode_run, encode_run, plan_block_ranges
from millstream.pipeline.planning_store import forget_stores
from millstream.pipeline.read_options import LogReadOptions
from millstream.pipeline.run_reader import read_run
from millstream.pipeline.source import SPARK_SCHEMA, LogReader
from millstream.stores import tiers
from millstream.stores.memory import MemoryStore
from millstream.testing.object_bucket import MemoryBucket

SPEC = LogSpec("weather", compression="plain", block_messages=5)
COMMITS, A_COMMIT = 60, 20


class ReadBucket(MemoryBucket):
    """Keeps which objects were read and what was listed."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        self.read.append(name)
        return super().get(name, start, length)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> ReadBucket:
    """A bucket with a log of :data:`COMMITS` commits of four blocks of five messages each."""
    forget_stores()
    bucket, tier = ReadBucket(), tiers.TierSpace(MemoryStore("tier"))
    bucket.put(RECORD, b"{}")
    monkeypatch.setattr(tiers, "open_bucket", lambda _: bucket)
    monkeypatch.setattr(tiers, "open_tier", lambda _: tier)
    with opened(bucket) as store, store.log(SPEC).writer() as writer:
        for first in range(1, COMMITS * A_COMMIT, A_COMMIT):
            writer.append([message(number) for number in range(first, first + A_COMMIT)])
    return bucket


def opened(bucket: MemoryBucket) -> LogStore:
    return LogStore(ObjectsBackend(bucket, SystemClock()), SystemClock(), open_objects=tiers.open_tier)


def message(number: int) -> Message:
    return Message(b"%0500d" % number, "temp", "JFK", number)


def request(**options: int) -> LogReadOptions:
    return LogReadOptions({"store": "s3://bucket/logs", "log": "weather", **{k: str(v) for k, v in options.items()}})


def planned(partition_bytes: int) -> list[IdRangePartition]:
    """The partitions as they come to the tasks."""
    return [copy.deepcopy(partition) for partition in plan_block_ranges(request(partitionBytes=partition_bytes))]


def ids_of(partition: IdRangePartition) -> list[int]:
    return [m.id or 0 for batch in read_run(request(), partition, SPARK_SCHEMA.fieldNames(), "none") for m in batch]


def test_a_partition_of_several_objects_is_read_with_one_get_of_each(bucket: ReadBucket) -> None:
    partitions = planned(10 * A_COMMIT * 600)
    assert 5 <= len(partitions) <= 7
    everything: list[int] = []
    for partition in partitions:
        bucket.requests.clear()
        bucket.read.clear()
        everything += ids_of(partition)
        assert bucket.requests == {"get": len(bucket.read)}, "no listing, and nothing is written"
        assert Counter(bucket.read) == Counter({location.name for location in partition.locations})
        assert 8 <= len(bucket.read) <= 12
    assert everything == list(range(1, COMMITS * A_COMMIT + 1))


def test_partitions_that_share_an_object_read_their_part_of_it_each(bucket: ReadBucket) -> None:
    partitions = planned(1)
    assert len(partitions) == COMMITS * A_COMMIT // 5
    bucket.read.clear()
    for partition in partitions[:8]:
        assert ids_of(partition) == list(range(partition.first_id, partition.last_id + 1))
    assert len(bucket.read) == 8
    assert len(set(bucket.read)) == 2


def test_a_range_that_begins_and_ends_within_blocks_is_read_as_it_was_asked_for(bucket: ReadBucket) -> None:
    (partition,) = plan_block_ranges(request(), 33, 78)
    bucket.read.clear()
    assert ids_of(partition) == list(range(33, 79))
    assert len(bucket.read) == 3


def test_a_partition_in_a_row_of_a_table_is_the_same_partition(bucket: ReadBucket) -> None:
    partitions = planned(30_000)
    assert len(partitions) > 1
    for partition in partitions:
        again = decode_run(encode_run(partition))
        assert (again.first_id, again.last_id, again.files) == (partition.first_id, partition.last_id, partition.files)
        assert again.locations == partition.locations


def test_commits_that_were_merged_are_read_with_one_get_of_each_merged_object(bucket: ReadBucket) -> None:
    with LogStore(ObjectsBackend(bucket, SystemClock()), SystemClock(), compaction=Compaction(commits=40)) as store:
        assert store.log(SPEC).compact().objects == 1
    (partition,) = plan_block_ranges(request())
    objects = {location.name for location in partition.locations}
    assert len(objects) < COMMITS // 2
    bucket.read.clear()
    assert ids_of(partition) == list(range(1, COMMITS * A_COMMIT + 1))
    assert Counter(bucket.read) == Counter(objects)


def test_the_data_source_gives_the_same_messages_as_the_log(bucket: ReadBucket) -> None:
    reader = LogReader(request(), SPARK_SCHEMA)
    found = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    assert [body for batch in found for body in batch.column("body").to_pylist()] == [
        message(number).body for number in range(1, COMMITS * A_COMMIT + 1)
    ]


def test_blocks_that_were_moved_to_a_tier_meanwhile_are_read_through_the_log(bucket: ReadBucket) -> None:
    (partition,) = plan_block_ranges(request())
    with opened(bucket) as store:
        log = store.log(SPEC)
        log.set_tiering(Tiering("memory://tier", segment_bytes=1 << 18))
        log.move_blocks(partial=True)
    assert len([name for name in bucket.objects if "/commits/" in name]) < COMMITS // 2
    assert ids_of(partition) == list(range(1, COMMITS * A_COMMIT + 1))
    again = [number for other in plan_block_ranges(request()) for number in ids_of(other)]
    assert again == list(range(1, COMMITS * A_COMMIT + 1))


def test_what_was_trimmed_meanwhile_is_reported_as_trimmed(bucket: ReadBucket) -> None:
    (partition,) = plan_block_ranges(request())
    with opened(bucket) as store:
        store.log(SPEC).trim(401)
    with pytest.raises(TrimmedError):
        ids_of(partition)


def test_an_object_that_is_missing_is_reported_with_its_ids(bucket: ReadBucket) -> None:
    (partition,) = plan_block_ranges(request())
    bucket.delete([partition.locations[20].name])
    with pytest.raises(MissingBlockError, match="101"):
        ids_of(partition)


def test_damaged_bytes_are_reported_with_their_ids(bucket: ReadBucket) -> None:
    (partition,) = plan_block_ranges(request())
    location = partition.locations[20]
    data = bytearray(bucket.objects[location.name])
    data[location.start + location.size - 9] ^= 1
    bucket.objects[location.name] = bytes(data)
    with pytest.raises(CorruptBlockError, match="101"):
        ids_of(partition)
