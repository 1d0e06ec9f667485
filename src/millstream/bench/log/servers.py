"""The servers of the contenders: each private, on loopback, durable as far as it can be, gone afterwards."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from millstream.core.clock import SystemClock
from millstream.log import open_store
from millstream.testing.programs import find_program, run_program
from millstream.testing.services import SERVICES, Server, ServerDefinition, greets

DATABASE = "millstream_bench"
_DATABASES = ("mariadb-whole", "postgresql-whole")


class Redis:
    """Redis with the append-only file synced before each reply."""

    name = package = "redis-server"

    def prepare(self, folder: Path) -> None:  # noqa: ARG002
        find_program("redis-server", self.package)

    def command(self, folder: Path, port: int) -> Sequence[str]:
        return [
            find_program("redis-server", self.package), "--port", str(port), "--bind", "127.0.0.1",
            "--dir", str(folder), "--appendonly", "yes", "--appendfsync", "always", "--save", "", "--daemonize", "no",
            "--auto-aof-rewrite-percentage", "0",
        ]  # fmt: skip

    def answers(self, port: int) -> bool:
        import redis

        with contextlib.suppress(redis.ConnectionError), redis.Redis(port=port) as client:
            return bool(client.ping())
        return False

    def url(self, port: int) -> str:
        return f"redis://127.0.0.1:{port}"


class Nats:
    """NATS with JetStream in a file, which is synced before each reply where the version can do that."""

    name = package = "nats-server"

    def prepare(self, folder: Path) -> None:
        version = run_program([find_program("nats-server", self.package), "--version"])
        found = re.search(r"v(\d+)\.(\d+)", version)
        sync = "sync_interval: always, " if found and (int(found[1]), int(found[2])) >= (2, 10) else ""
        store = f'jetstream {{ {sync}store_dir: "{folder}/jetstream", max_mem: 64M, max_file: 20G }}\n'
        (folder / "server.conf").write_text(store, "utf-8")

    def command(self, folder: Path, port: int) -> Sequence[str]:
        config = str(folder / "server.conf")
        return [find_program("nats-server", self.package), "-c", config, "-a", "127.0.0.1", "-p", str(port)]

    def answers(self, port: int) -> bool:
        return greets(port)

    def url(self, port: int) -> str:
        return f"nats://127.0.0.1:{port}"


class Started(msgspec.Struct, frozen=True):
    """A server that answers, and the URL of the database or queues in it."""

    server: Server
    url: str

    @property
    def processes(self) -> tuple[int, ...]:
        """The ids of its processes at present."""
        return self.server.processes


class Servers:
    """Starts servers when they are first asked for, in *folder*, and ends them with the ``with`` block."""

    def __init__(self, folder: Path) -> None:
        folder.chmod(0o711)  # PostgreSQL runs under an account of its own
        self._folder = folder
        self._stack = contextlib.ExitStack()
        self._started: dict[str, Started] = {}

    def get(self, name: str) -> Started:
        """The server *name*. Raises :class:`ServiceError`."""
        if name not in self._started:
            services: dict[str, ServerDefinition] = {**SERVICES, "redis": Redis(), "nats": Nats()}
            self._started[name] = self._stack.enter_context(_started(services[name], self._folder))
        return self._started[name]

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *_: object) -> None:
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
