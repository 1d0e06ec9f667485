"""The servers of the contenders: each private, on loopback, durable as far as it can be, gone afterwards."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from millstream.bench.log.contenders import log_peers
from millstream.core.clock import SystemClock
from millstream.core.closing import ClosesOnExit
from millstream.log import open_store
from millstream.testing.s3 import S3Server
from millstream.testing.services import SERVICES, Server, ServerDefinition

DATABASE = "millstream_bench"
_DATABASES = ("mariadb-whole", "postgresql-whole")


class Started(msgspec.Struct, frozen=True):
    """A server that answers, and the URL of the database or queues in it."""

    server: Server
    url: str

    @property
    def processes(self) -> tuple[int, ...]:
        """The ids of its processes at present."""
        return self.server.processes


class Servers(ClosesOnExit):
    """Starts servers when they are first asked for, in *folder*, and ends them with the ``with`` block."""

    def __init__(self, folder: Path) -> None:
        folder.chmod(0o711)  # PostgreSQL runs under an account of its own
        self._folder = folder
        self._stack = contextlib.ExitStack()
        self._started: dict[str, Started] = {}
        self._buckets: dict[str, S3Server] = {}

    def get(self, name: str) -> Started:
        """The server *name*. Raises :class:`ServiceError`."""
        if name not in self._started:
            peers = log_peers()
            known: dict[str, ServerDefinition] = {**SERVICES, **({} if peers is None else peers.SERVERS)}
            self._started[name] = self._stack.enter_context(_started(known[name], self._folder))
        return self._started[name]

    def bucket(self, name: str) -> S3Server:
        """A bucket on the server *name*. Raises :class:`ServiceError`."""
        if name not in self._buckets:
            self._buckets[name] = S3Server(self.get(name).url)
        return self._buckets[name]

    def close(self) -> None:
        """Stop all of them."""
        self._stack.close()


@contextlib.contextmanager
def _started(service: ServerDefinition, folder: Path) -> Iterator[Started]:
    with tempfile.TemporaryDirectory(prefix=f"{service.name}-", dir=folder) as own:
        service.prepare(Path(own))
        server = Server(service, Path(own), SystemClock(), throw_away=True)
        try:
            server.start()
            url = f"{server.url}{DATABASE}" if service.name in _DATABASES else server.url
            if service.name in _DATABASES:
                open_store(url).close()  # which makes the database
            yield Started(server, url)
        finally:
            server.stop()
