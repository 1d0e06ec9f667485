"""Real servers for tests: an explicit URL, else one that is kept running, else a private one on loopback.

A private server lives in a throw-away folder and ends with the block that asked for it, or with the process, whatever
that dies of. ``python -m millstream.testing.services NAME`` keeps one running in the foreground, for a day of
development; tests find it.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from millstream.core.clock import Clock, SystemClock
from millstream.core.processes import find_process
from millstream.log.backends.mysql.server import CONFIGURATION
from millstream.testing import rabbitmq
from millstream.testing.mosquitto import Mosquitto
from millstream.testing.parent_watchdog import ParentWatchdog
from millstream.testing.ports import free_ports
from millstream.testing.postgresql import PostgreSQL
from millstream.testing.programs import LocalServerError, LocalServerMissingError, find_program, run_program
from millstream.testing.spark import Spark
from millstream.testing.swift import CREDENTIALS, ENVIRONMENT
from millstream.testing.waiting import until

__all__ = [
    "SERVICES",
    "LocalServerError",
    "LocalServerMissingError",
    "RunningServer",
    "Server",
    "ServerDefinition",
    "private",
    "running",
]

START_SECONDS = 180.0
STOP_SECONDS = 30.0


class RunningServer(msgspec.Struct, frozen=True):
    """A server that answers. ``origin`` is ``environment``, ``running`` or ``private``."""

    url: str
    origin: str


class ServerDefinition(Protocol):
    """A kind of server that can be started privately."""

    name: str
    package: str
    """What to install for it."""

    def prepare(self, folder: Path) -> None:
        """Lay out *folder* for a server that has never run. Raises :class:`LocalServerMissingError`."""
        ...

    def command(self, folder: Path, port: int) -> Sequence[str]:
        """The command line of a server in *folder* that listens on 127.0.0.1:*port*."""
        ...

    def answers(self, port: int) -> bool:
        """Whether it serves on 127.0.0.1:*port* by now. May raise ``OSError``: it does not."""
        ...

    def url(self, port: int) -> str: ...


def greets(port: int, greeting: bytes = b"") -> bool:
    """Whether a server on 127.0.0.1:*port* speaks, by itself or in answer to *greeting*."""
    with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
        connection.sendall(greeting)
        return bool(connection.recv(1))


def serves_http(port: int) -> bool:
    """Whether a web server on 127.0.0.1:*port* answers, other than with an error of its own."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
        connection.request("GET", "/")
        return connection.getresponse().status < 500


class MariaDB:
    """MariaDB with the settings that we ship: every commit is on the disk before it is confirmed.

    Tests need no large server; a *whole* one has the shipped sizes as well, for benchmarks.
    """

    package = "mariadb-server"

    def __init__(self, *, whole: bool = False) -> None:
        self.name = "mariadb-whole" if whole else "mariadb"
        self._sizes = [] if whole else ["--innodb-buffer-pool-size=128M", "--innodb-log-file-size=96M"]

    def prepare(self, folder: Path) -> None:
        run_program(
            [
                find_program("mariadb-install-db", self.package),
                "--no-defaults", f"--datadir={folder / 'data'}", f"--tmpdir={self._temporary(folder)}",
                "--skip-test-db", *self._user(),
                "--auth-root-authentication-method=normal", "--skip-name-resolve",
            ]
        )  # fmt: skip

    def command(self, folder: Path, port: int) -> Sequence[str]:
        return [
            find_program("mariadbd", self.package),
            f"--defaults-file={CONFIGURATION}", f"--datadir={folder / 'data'}", f"--socket={folder / 'server.sock'}",
            f"--pid-file={folder / 'server.pid'}", f"--tmpdir={self._temporary(folder)}",
            "--bind-address=127.0.0.1", f"--port={port}", *self._user(), "--skip-name-resolve",
            "--character-set-server=utf8mb4", *self._sizes,
        ]  # fmt: skip

    def answers(self, port: int) -> bool:
        return greets(port)

    def url(self, port: int) -> str:
        return f"mysql://root@127.0.0.1:{port}/"

    @staticmethod
    def _temporary(folder: Path) -> Path:
        """A folder for its temporary files: a server that starts deletes all of them that it finds, of others too."""
        found = folder / "temporary"
        found.mkdir(parents=True, exist_ok=True)
        return found

    @staticmethod
    def _user() -> list[str]:
        return ["--user=root"] if os.geteuid() == 0 else []


class RabbitMQ:
    """RabbitMQ, with a port mapper of its own; see :mod:`millstream.testing.rabbitmq`."""

    name, package = "rabbitmq", "rabbitmq-server"

    def prepare(self, folder: Path) -> None:
        if not rabbitmq.PROGRAM.exists():
            raise LocalServerMissingError(f"rabbitmq-server is not installed: apt-get install {self.package}")
        rabbitmq.lay_out(folder)

    def command(self, folder: Path, port: int) -> Sequence[str]:
        return [sys.executable, "-m", "millstream.testing.rabbitmq", str(folder), str(port)]

    def answers(self, port: int) -> bool:
        return greets(port, rabbitmq.GREETING)

    def url(self, port: int) -> str:
        return f"amqp://guest:guest@127.0.0.1:{port}/%2F"


class Swift:
    """OpenStack Swift with its S3 interface. The URL is that of a bucket, to be made by whoever opens the store.

    Its credentials are in the environment variables that :data:`millstream.testing.swift.ENVIRONMENT` names.
    """

    name, package = "swift", "millstream[servers]"

    def prepare(self, folder: Path) -> None:  # noqa: ARG002 - the servers lay it out themselves
        if importlib.util.find_spec(self.name) is None:
            raise LocalServerMissingError(f"{self.name} is not installed: pip install '{self.package}'")

    def command(self, folder: Path, port: int) -> Sequence[str]:
        return [sys.executable, "-m", "millstream.testing.swift", str(folder), str(port)]

    def answers(self, port: int) -> bool:
        return serves_http(port)

    def url(self, port: int) -> str:
        return f"s3://millstream?endpoint=http://127.0.0.1:{port}&credentials={CREDENTIALS}"


class Moto(Swift):
    """The S3 part of moto: a mock that knows all of the interface, and believes everything it is told.

    Its conditional writes are made atomic; see :mod:`millstream.testing.moto`.
    """

    name = "moto"

    def command(self, folder: Path, port: int) -> Sequence[str]:  # noqa: ARG002 - it keeps nothing
        return [sys.executable, "-m", "millstream.testing.moto", str(port)]


class VersityGateway(Swift):
    """The Versity gateway over a folder: a real S3 server whose create-only PUT is atomic.

    It is a program in Go, which ``make test-object-storage`` builds and puts into the path.
    """

    name, package = "versitygw", "`make test-object-storage`"

    def prepare(self, folder: Path) -> None:
        if shutil.which(self.name) is None:
            raise LocalServerMissingError(f"{self.name} is not installed: build it with {self.package}, which needs Go")
        (folder / "data").mkdir()

    def command(self, folder: Path, port: int) -> Sequence[str]:
        access, secret = ENVIRONMENT.values()
        return [
            self.name, "--access", access, "--secret", secret, "--port", f"127.0.0.1:{port}", "--quiet",
            "--keep-alive", "posix", str(folder / "data"),
        ]  # fmt: skip


_ALL: Sequence[ServerDefinition] = (
    MariaDB(), MariaDB(whole=True), PostgreSQL(), PostgreSQL(whole=True), RabbitMQ(), Swift(), Moto(),
    VersityGateway(), Mosquitto(), Mosquitto(careful=True), Spark(),
)  # fmt: skip
SERVICES: dict[str, ServerDefinition] = {service.name: service for service in _ALL}


@contextlib.contextmanager
def running(name: str, *, clock: Clock | None = None) -> Iterator[RunningServer]:
    """The server *name* for the length of a ``with`` block.

    ``MILLSTREAM_TEST_<NAME>_URL`` names one that is already there. Raises :class:`LocalServerMissingError` with the
    package to install, :class:`LocalServerError` where the server does not come up.
    """
    url = os.environ.get(f"MILLSTREAM_TEST_{name.upper().replace('-', '_')}_URL")
    if url:
        yield RunningServer(url, "environment")
        return
    kept = _kept(name)
    if kept.exists():
        url = kept.read_text("utf-8")
        if _serves(SERVICES[name], url):
            yield RunningServer(url, "running")
            return
        kept.unlink(missing_ok=True)  # the process that kept it was killed
    with private(name, clock=clock) as server:
        yield RunningServer(server.url, "private")


@contextlib.contextmanager
def private(name: str, *, clock: Clock | None = None, folder: Path | None = None) -> Iterator[Server]:
    """A private server *name* for the length of a ``with`` block, to be killed and started again at will.

    It lives in a new folder under *folder* (the system's temporary folder without it). Raises
    :class:`LocalServerMissingError`, :class:`LocalServerError`.
    """
    with tempfile.TemporaryDirectory(prefix=f"millstream-{name}-", dir=folder) as own:
        SERVICES[name].prepare(Path(own))
        server = Server(SERVICES[name], Path(own), clock or SystemClock(), throw_away=True)
        try:
            server.start()
            yield server
        finally:
            server.stop()


class Server:
    """A private server in *folder*, on the same port of loopback each time it is started.

    It dies with this process, however that ends; a folder to *throw_away* goes with it.
    """

    def __init__(self, service: ServerDefinition, folder: Path, clock: Clock, *, throw_away: bool = False) -> None:
        self._service = service
        self.folder = folder
        self._clock = clock
        (self._port,) = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._keeper: ParentWatchdog | None = None
        self._throw_away = str(folder) if throw_away else ""

    @property
    def url(self) -> str:
        return self._service.url(self._port)

    @property
    def is_running(self) -> bool:
        """Whether it has not ended, by itself or otherwise."""
        return self._process is not None and self._process.poll() is None

    @property
    def processes(self) -> tuple[int, ...]:
        """The ids of its processes, the first of which started the others."""
        if self._process is None:
            return ()
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        return (self._process.pid, *map(int, children.read_text("ascii").split()))

    def start(self) -> None:
        """Start it and wait until it answers. Raises :class:`LocalServerError`."""
        path = self.folder / "server.log"
        with path.open("ab") as log:
            command = self._service.command(self.folder, self._port)
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, start_new_session=True
            )
        self._keeper = ParentWatchdog(self._process.pid, self._throw_away)
        _await(self._process, self._service, self._port, path, self._clock)

    def kill(self) -> None:
        """Let it die in mid-sentence, with all its processes, as when the machine's memory runs out."""
        if self._process is not None:
            children = _children(self._process.pid)  # of PostgreSQL each is a group of its own
            for group in (self._process.pid, *children):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGKILL)
            self._process.wait()
            self._process = None
            until(lambda: not any(map(_runs, children)), f"the end of {self._service.name}", seconds=STOP_SECONDS)
        if self._keeper is not None:
            self._keeper.dismiss()
            self._keeper = None

    def stop(self) -> None:
        """End it in its own way, or kill it where that takes too long."""
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
            self.kill()


def _await(process: subprocess.Popen[bytes], service: ServerDefinition, port: int, log: Path, clock: Clock) -> None:
    deadline = clock.monotonic() + START_SECONDS
    while clock.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if service.answers(port):
                return
        clock.sleep(0.05)
    text = log.read_text("utf-8", "replace")[-2000:]
    raise LocalServerError(f"{service.name} did not start on port {port}; the end of its log:\n{text}")


def _serves(service: ServerDefinition, url: str) -> bool:
    """Whether a *service* with this *url*, which was kept running, still answers."""
    port = re.search(r":(\d+)", url)
    with contextlib.suppress(OSError, http.client.HTTPException):
        return port is not None and service.answers(int(port[1]))
    return False


def _children(pid: int) -> list[int]:
    """The processes that *pid* has started."""
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()]
    return []


def _runs(pid: int) -> bool:
    """Whether *pid* is alive: dead ones may wait for somebody to notice."""
    return find_process(pid) is not None


def _kept(name: str) -> Path:
    return Path(tempfile.gettempdir()) / f"millstream-services-{os.getuid()}" / name


def main(name: str) -> None:
    """Keep the server *name* running, and known to tests, until the process is interrupted."""
    kept = _kept(name)
    kept.parent.mkdir(mode=0o700, exist_ok=True)
    with private(name) as server:
        kept.write_text(server.url, "utf-8")
        try:
            print(server.url, flush=True)
            sys.stdin.read()
        except KeyboardInterrupt:
            pass
        finally:
            kept.unlink()


if __name__ == "__main__":
    main(sys.argv[1])
