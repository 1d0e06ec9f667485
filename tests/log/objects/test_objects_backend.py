"""Logs in a bucket pass the conformance suites, in memory and on servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from millstream.core.clock import SystemClock
from millstream.log import LogStore
from millstream.log.backend import Backend
from millstream.log.backends.objects.backend import ObjectsBackend
from millstream.log.backends.objects.bucket import Bucket
from millstream.log.backends.objects.probe import RECORD
from millstream.stores.s3 import parse_address
from millstream.stores.s3.log_bucket import S3LogBucket
from millstream.testing.log_backends import BackendConformance
from millstream.testing.logs import LogStoreConformance
from millstream.testing.object_bucket import MemoryBucket
from millstream.testing.s3 import S3Server

OpenBackend = Callable[[], Backend]


@pytest.fixture
def opened() -> Iterator[list[Backend]]:
    """Backends that are closed after the test."""
    backends: list[Backend] = []
    yield backends
    for backend in backends:
        backend.close()


@pytest.fixture
def over(opened: list[Backend]) -> Callable[[Bucket], OpenBackend]:
    """Opens backends over the bucket that it is given."""

    def open_over(bucket: Bucket) -> OpenBackend:
        def open_backend() -> Backend:
            opened.append(ObjectsBackend(bucket, SystemClock()))
            return opened[-1]

        return open_backend

    return open_over


def on_server(server: S3Server) -> Bucket:
    """A bucket that counts as probed: Swift lets several creators win, and is used here by one at a time."""
    bucket = S3LogBucket(parse_address(server.new_url()), client=server.client)
    bucket.put(RECORD, b"{}")
    return bucket


class TestObjectsBackend(BackendConformance):
    renames = False

    @pytest.fixture
    def open_backend(self, over: Callable[[Bucket], OpenBackend]) -> OpenBackend:
        return over(MemoryBucket())


class TestObjectsLogStore(LogStoreConformance):
    @pytest.fixture
    def open_logs(self, over: Callable[[Bucket], OpenBackend]) -> Callable[[], LogStore]:
        open_backend = over(MemoryBucket())
        return lambda: LogStore(open_backend(), SystemClock())


@pytest.mark.smoke
class TestObjectsOnMoto(BackendConformance):
    renames = False

    @pytest.fixture
    def open_backend(self, over: Callable[[Bucket], OpenBackend], moto: S3Server) -> OpenBackend:
        return over(on_server(moto))


class TestObjectsOnSwift(BackendConformance):
    renames = False

    @pytest.fixture
    def open_backend(self, over: Callable[[Bucket], OpenBackend], swift: S3Server) -> OpenBackend:
        return over(on_server(swift))


class TestObjectsOnVersityGateway(BackendConformance):
    renames = False

    @pytest.fixture
    def open_backend(self, over: Callable[[Bucket], OpenBackend], versitygw: S3Server) -> OpenBackend:
        return over(on_server(versitygw))
