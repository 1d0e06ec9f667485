"""A request of a writer that the network holds back while others take over, compact and trim the log on a server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec
import pytest

from millstream.core.clock import SystemClock
from millstream.log import FencedError, Log, LogSpec, LogStore
from millstream.log.backend import Commit
from millstream.log.backends.objects.backend import ObjectsBackend
from millstream.log.backends.objects.names import LogNames
from millstream.log.backends.objects.probe import RECORD
from millstream.log.tiering import Compaction, compactor
from millstream.log.tiering.spec import MIN_COMMITS
from millstream.stores.s3 import S3Address, connect, parse_address
from millstream.stores.s3.log_bucket import S3LogBucket
from millstream.testing.log_backends import NAME, block
from millstream.testing.object_bucket import BucketFault
from millstream.testing.s3 import S3Server
from support.s3_fault_proxy import ProxiedRequest
from support.server_places import fault_proxy, through

COMMITS = 20


class HeldWriter:
    """A writer in epoch 1 of the log at *address*, whose create of commit 2 the network holds until :meth:`release`."""

    def __init__(self, address: S3Address) -> None:
        self._released, self.is_held = threading.Event(), threading.Event()
        self._proxy = fault_proxy(address)
        self._proxy.script = self._hold
        self._proxy.__enter__()
        line = through(address, self._proxy)
        self._backend = ObjectsBackend(S3LogBucket(line, client=connect(line)), SystemClock())
        assert self._backend.take_lease(NAME, epoch=0, holder=b"", until=1)
        self._pool = ThreadPoolExecutor(1)
        self.outcome: Future[None] = self._pool.submit(self._commit)
        assert self.is_held.wait(60)

    def release(self) -> BaseException | None:
        """Let the request go on; what the writer is told."""
        self._released.set()
        return self.outcome.exception(60)

    def close(self) -> None:
        self._released.set()
        self._pool.shutdown()
        self._backend.close()
        self._proxy.__exit__(None, None, None)

    def _commit(self) -> None:
        blocks = [block(1, [b"stale"])]
        self._backend.commit(NAME, Commit(epoch=1, previous_id=0, last_id=1, received_at=1, blocks=blocks))

    def _hold(self, request: ProxiedRequest) -> BucketFault:
        if request.kind == "create" and request.name.endswith(LogNames(NAME).commit(2)):
            self.is_held.set()
            assert self._released.wait(60)
        return BucketFault.NONE


class HeldLog(msgspec.Struct):
    """A log on a server with a writer whose request is held, and the log as its successor has it."""

    address: S3Address
    stale: HeldWriter
    log: Log

    def has_name(self) -> bool:
        """Whether there is an object of the name that the held request is to create."""
        return S3LogBucket(self.address).get(LogNames(NAME).commit(2)) is not None

    def messages(self) -> list[bytes]:
        """What a new process reads."""
        with LogStore(opened(self.address), SystemClock()) as store:
            log = store.log(LogSpec(NAME), create=False)
            assert log.verify(deep=True).problems == ()
            return [message.body for batch in log.read(log.first_id) for message in batch]


def opened(address: S3Address) -> ObjectsBackend:
    return ObjectsBackend(S3LogBucket(address), SystemClock())


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[HeldLog]:
    monkeypatch.setattr(compactor, "KEPT_BLOCKS", 4)
    server: S3Server = request.getfixturevalue(request.param)
    address = parse_address(server.new_url())
    S3LogBucket(address, client=server.client).put(RECORD, b"{}")
    opened(address).create(NAME)
    stale = HeldWriter(address)
    with LogStore(opened(address), SystemClock()) as store:
        log = store.log(LogSpec(NAME))
        with log.writer() as writer:
            for number in range(COMMITS):
                writer.append([b"%d" % number])
        yield HeldLog(address, stale, log)
    stale.close()


on_servers = pytest.mark.parametrize(
    "held",
    [
        pytest.param("moto", marks=pytest.mark.served),
        pytest.param("swift", marks=pytest.mark.served),
        pytest.param("versitygw", marks=pytest.mark.served),
    ],
    indirect=True,
)
EXPECTED = [b"%d" % number for number in range(COMMITS)]


@on_servers
def test_p10_one_writer_a_request_that_was_held_over_a_takeover_is_refused(held: HeldLog) -> None:
    assert isinstance(held.stale.release(), FencedError)
    assert held.messages() == EXPECTED


@on_servers
def test_p10_one_writer_a_request_that_was_held_over_a_compaction_counts_for_nobody(held: HeldLog) -> None:
    rules = Compaction(commits=MIN_COMMITS)
    with LogStore(opened(held.address), SystemClock(), compaction=rules) as store:
        assert store.log(LogSpec(NAME)).compact().objects == 1
    assert not held.has_name()
    assert isinstance(held.stale.release(), FencedError)
    assert held.has_name(), "it was created all the same"
    assert held.messages() == EXPECTED


@on_servers
def test_p10_one_writer_a_request_that_was_held_over_a_trim_counts_for_nobody(held: HeldLog) -> None:
    held.log.trim(COMMITS - 1)
    assert not held.has_name()
    assert isinstance(held.stale.release(), FencedError)
    assert held.has_name(), "it was created all the same"
    assert held.messages() == EXPECTED[-2:]
