"""A stream from a log in a bucket: what its driver asks of the bucket at each trigger."""

from __future__ import annotations

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from millstream.core.clock import SystemClock
from millstream.log import LogSpec, LogStore
from millstream.log.backends.objects.backend import ObjectsBackend
from millstream.log.backends.objects.probe import RECORD
from millstream.pipeline.block_ranges import IdRangePartition
from millstream.pipeline.planning_store import forget_stores
from millstream.pipeline.read_options import LogReadOptions
from millstream.pipeline.source import SPARK_SCHEMA, LogStreamReader
from millstream.stores import tiers
from millstream.testing.object_bucket import MemoryBucket

COMMITS = 300


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> MemoryBucket:
    forget_stores()
    bucket = MemoryBucket()
    bucket.put(RECORD, b"{}")
    monkeypatch.setattr(tiers, "open_bucket", lambda _: bucket)
    return bucket


def test_a_trigger_asks_for_what_is_new_and_not_for_all_commits_again(bucket: MemoryBucket) -> None:
    options = LogReadOptions({"store": "s3://bucket/logs", "log": "weather", "from": "1"})
    with (
        LogStore(ObjectsBackend(bucket, SystemClock()), SystemClock()) as store,
        store.log(LogSpec("weather")).writer() as writer,
    ):
        for number in range(COMMITS):
            writer.append([b"%d" % number])
        stream = LogStreamReader(options, SPARK_SCHEMA)
        start, asked, read = stream.initialOffset(), [], []
        for _ in range(4):
            bucket.requests.clear()
            end = stream.latestOffset(start, ReadAllAvailable())
            for partition in stream.partitions(start, end):
                assert isinstance(partition, IdRangePartition)
                read += [(one.first_id, one.last_id) for one in partition.locations]
            asked.append(bucket.requests.get("get", 0) + bucket.requests.get("list", 0))
            start = end
            writer.append([b"new"])
    assert read == [(number, number) for number in range(1, COMMITS + 4)]
    assert max(asked[1:]) < 60 < COMMITS <= asked[0]
