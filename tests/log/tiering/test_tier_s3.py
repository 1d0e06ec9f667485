"""A log whose older blocks lie in a bucket of a real S3 server, over connections that fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

from millstream.core.clock import SystemClock
from millstream.core.retry import NO_RETRY
from millstream.log import Gap, LogSpec, LogStore, StorageError, Tiering
from millstream.log.backends.sqlite.backend import SqliteBackend
from millstream.stores.s3 import S3Store, parse_address
from millstream.stores.tiers import TierSpace, open_log_store
from millstream.testing.s3 import FaultyClient, S3Server

SPEC = LogSpec("weather", compression="plain")


def fill(url: str, count: int) -> None:
    with open_log_store(url) as store, store.log(SPEC).writer() as writer:
        for first in range(writer.last_id + 1, writer.last_id + count, 100):
            writer.append([b"%0500d" % n for n in range(first, first + 100)])


def test_a_log_goes_to_a_bucket_and_reads_as_before(swift: S3Server, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    fill(url, 5000)
    with open_log_store(url) as store:
        log = store.log(SPEC)
        log.set_tiering(Tiering(swift.new_url(), segment_bytes=1 << 20))
        assert log.move_blocks().objects == 2
    with open_log_store(url, read_only=True) as store:
        log = store.log(SPEC)
        found = [message for batch in log.read() for message in batch]
        assert [message.id for message in found] == list(range(1, 5001))
        assert all(message.body == b"%0500d" % (message.id or 0) for message in found)
        assert log.read(1500, 1500, ["body"]).__next__().arrow.column("body").to_pylist() == [b"%0500d" % 1500]
        deep = log.verify(deep=True)
        assert (deep.problems, deep.messages, deep.objects) == ((), 5000, 2)
    with open_log_store(url) as store:
        log = store.log(SPEC)
        log.trim(3000)
        gap, *_ = log.read(1)
        assert isinstance(gap, Gap)
        assert gap.last_id == 2999
        tier = log.info().tier
        assert tier is not None
        assert tier.objects == 1
        assert log.verify(deep=True).messages == 2001


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_bucket_that_goes_away_at_any_operation_loses_nothing(swift: S3Server, tmp_path: Path, when: str) -> None:
    url, bucket = f"sqlite:///{tmp_path / 'log.db'}", swift.new_url()
    fill(url, 2000)
    clock, count, failed = SystemClock(), 0, 0

    def fault(_: str, moment: str) -> None:
        nonlocal count
        count += moment == when
        if count > failed and moment == when:
            raise EndpointConnectionError(endpoint_url="the bucket's")

    def open_objects(found: str) -> TierSpace:
        client: Any = FaultyClient(swift.client, fault)
        return TierSpace(S3Store(parse_address(found), client=client, retries=NO_RETRY))

    for _ in range(40):
        count = 0
        with LogStore(SqliteBackend(tmp_path / "log.db", clock), clock, open_objects=open_objects) as store:
            log = store.log(SPEC)
            try:
                log.set_tiering(Tiering(bucket, segment_bytes=500_000))
                log.move_blocks()
                break
            except StorageError:
                failed += 1
    assert failed >= 3
    with open_log_store(url) as store:
        log = store.log(SPEC)
        log.move_blocks()
        assert [m.id for batch in log.read() for m in batch] == list(range(1, 2001))
        assert log.verify(deep=True).problems == ()
        tier = log.info().tier
        assert tier is not None
        assert tier.objects == 2
