"""Places on a real S3 server, which each process reaches through a proxy of its own on which requests go wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

import msgspec
from mypy_boto3_s3 import S3Client

from millstream.core.clock import VirtualClock
from millstream.log.backends.objects.bucket import Bucket
from millstream.stores.s3 import S3Address, connect, parse_address
from millstream.stores.s3.log_bucket import S3LogBucket
from millstream.testing.object_bucket import RandomFaults
from millstream.testing.s3 import S3Server
from support.s3_fault_proxy import ProxiedAnswer, ProxiedRequest, S3FaultProxy

Line = tuple[S3FaultProxy, S3Client]


@contextlib.contextmanager
def lines(server: S3Server, count: int) -> Iterator[Sequence[Line]]:
    """*count* proxies before *server*, each with a client of its own, on which nothing goes wrong yet."""
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            proxy = stack.enter_context(fault_proxy(server.address))
            found.append((proxy, connect(through(server.address, proxy))))
        yield found


def fault_proxy(address: S3Address) -> S3FaultProxy:
    """A proxy before the server of *address*; a late request is done after thirty more."""
    server = urlsplit(address.endpoint)
    assert server.port is not None
    return S3FaultProxy(str(server.hostname), server.port, delay=30)


def through(address: S3Address, proxy: S3FaultProxy) -> S3Address:
    """*address*, reached through *proxy*."""
    return msgspec.structs.replace(address, endpoint=f"http://127.0.0.1:{proxy.port}")


class ServerPlace:
    """A bucket on *server* that nobody has used; see ``BucketPlace``."""

    def __init__(self, server: S3Server, lines: Sequence[Line], clock: VirtualClock) -> None:
        self._address = parse_address(server.new_url())
        self._lines, self._clock, self._client = lines, clock, server.client
        self.first: dict[str, bytes] = {}
        self.deleted = 0

    def direct(self) -> Bucket:
        return S3LogBucket(self._address, clock=self._clock, client=self._client)

    def process(self, index: int, seed: int, rate: float) -> Bucket:
        proxy, client = self._lines[index]
        faults = RandomFaults(seed, rate)
        proxy.script = lambda request: faults(request.kind, request.name)
        proxy.observe = self._observe
        return S3LogBucket(self._address, clock=self._clock, client=client)

    def settle(self) -> None:
        for proxy, _ in self._lines:
            proxy.settle()

    def _observe(self, request: ProxiedRequest, answer: ProxiedAnswer) -> None:
        name = request.name.removeprefix(self._address.prefix)
        if request.kind == "create" and answer.status == 200:
            self.first.setdefault(name, request.body)
        if request.kind == "delete":
            self.deleted += request.body.count(b"<Key>")
