"""A log in a bucket on Spark: what tasks ask of the server, and the same batches as from a log in files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
import pytest

from millstream.batching import BatchConfig
from millstream.core.clock import SystemClock
from millstream.core.message import Message
from millstream.log import LogSpec
from millstream.pipeline.jobs.batch import run_batch
from millstream.pipeline.source import read_log
from millstream.stores.s3 import parse_address
from millstream.stores.tiers import open_log_store
from millstream.testing.s3 import S3Server
from support.request_proxy import RequestProxy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

COMMITS = 24


@pytest.fixture(scope="module")
def proxy(moto: S3Server) -> Iterator[RequestProxy]:
    at = urlsplit(moto.address.endpoint or "")
    with RequestProxy(at.hostname or "", at.port or 0) as proxy:
        yield proxy


@pytest.fixture
def bucket_url(moto: S3Server, proxy: RequestProxy) -> str:
    """The URL of a log store in a bucket, behind *proxy*."""
    address = parse_address(moto.new_url())
    return msgspec.structs.replace(address, endpoint=f"http://127.0.0.1:{proxy.port}").url


def write(url: str, messages: list[Message]) -> None:
    """Write *messages* in :data:`COMMITS` commits."""
    each = len(messages) // COMMITS
    spec = LogSpec("untidy", block_messages=40)
    with open_log_store(url, SystemClock(), bucket_linger=0.0) as store, store.log(spec).writer() as writer:
        for first in range(0, len(messages), each):
            writer.append(messages[first : first + each])


def test_a_task_makes_one_get_for_each_of_its_objects(
    spark: SparkSession, moto: S3Server, proxy: RequestProxy, bucket_url: str
) -> None:
    assert moto.client is not None
    messages = [Message(b"%0300d" % number, "temp", "JFK", number, number) for number in range(1, 40 * COMMITS + 1)]
    write(bucket_url, messages)
    others = []
    for partition_bytes in (2 * 40 * 400, 2 * 40 * 400, 10 * 40 * 400):  # the first plan opens the log as well
        proxy.requests.clear()
        frame = read_log(spark, bucket_url, "untidy", columns=["id"], partition_bytes=partition_bytes)
        assert sorted(row.id for row in frame.collect()) == list(range(1, len(messages) + 1))
        read = Counter(request.target for request in proxy.requests if request.start)
        assert len(read) == COMMITS
        assert set(read.values()) <= {1, 2}, "some tasks are killed, and read their objects again"
        others.append(Counter(request.method for request in proxy.requests if not request.start))
    assert others[1] == others[2], "the other requests are those of planning, however many tasks there are"
    assert not any(other["PUT"] for other in others)


def test_batches_of_a_log_in_a_bucket_are_those_of_a_log_in_files(
    spark: SparkSession, tmp_path: Path, bucket_url: str, untidy: Callable[..., list[Message]]
) -> None:
    rules, messages = BatchConfig(50, 20), untidy(7, 1500)
    ids = []
    for name, url in (("bucket", bucket_url), ("files", f"segments:///{tmp_path / 'logs'}")):
        write(url, messages)
        job = run_batch(spark, tmp_path / name, url, "untidy", rules)
        ids.append([batch.batch for batch in job.batches()])
    assert ids[0] == ids[1]
    assert len(ids[0]) > 50
