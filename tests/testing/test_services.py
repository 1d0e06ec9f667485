"""Real servers are started for tests, and are gone afterwards."""

from __future__ import annotations

import importlib.util
import io
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from millstream.stores import StoreUnavailableError, open_provider
from millstream.testing import services
from millstream.testing.s3 import S3Server
from millstream.testing.waiting import until
from suite.missing import end_without


def client(url: str, statement: str) -> str:
    """The answer of the server at *url* to *statement*, through the server's own command line client."""
    place = urlsplit(url)
    program = shutil.which("mariadb") or pytest.fail("the client comes with the server's package")
    command = [program, "--no-defaults", "--protocol=tcp", f"--host={place.hostname}", f"--port={place.port}"]
    result = subprocess.run(
        [*command, f"--user={place.username}", "-N", "-e", statement], check=False, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose path leaves room for that of a socket."""
    with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
        yield Path(folder)


def runs(pid: str) -> bool:
    """Whether *pid* is alive: a dead one may wait for somebody to notice."""
    try:
        return Path("/proc", pid, "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture
def installed() -> None:
    if not shutil.which("mariadbd", path=os.environ["PATH"] + ":/usr/sbin"):
        end_without("MariaDB is not installed: apt-get install mariadb-server")


@pytest.mark.served
@pytest.mark.usefixtures("installed")
def test_a_private_server_is_durable_on_loopback_and_ends_with_its_block(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("MILLSTREAM_TEST_MARIADB_URL", raising=False)
    monkeypatch.setattr(services, "_kept", lambda name: tmp_path / name)  # another one may be kept for the day
    with services.running("mariadb") as server:
        assert server.origin == "private"
        assert client(server.url, "select @@innodb_flush_log_at_trx_commit, @@bind_address") == "1\t127.0.0.1"
        data, temporary = client(server.url, "select @@datadir, @@tmpdir").split()
        assert Path(temporary).parent == Path(data).parent, "what others delete in a shared folder is not its own"
        port = urlsplit(server.url).port
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port or 0), timeout=1)


@pytest.mark.served
def test_swift_answers_as_s3_and_ends_with_all_its_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("swift") is None:
        end_without("Swift is not installed: pip install 'millstream[servers]'")
    monkeypatch.delenv("MILLSTREAM_TEST_SWIFT_URL", raising=False)
    with services.private("swift") as server:
        store = S3Server(server.url).new_store()
        store.create_space("space")
        store.put("space", "item", io.BytesIO(b"grain"))
        server.kill()
        with pytest.raises(StoreUnavailableError):
            open_provider(store.url).info("space", "item")
        server.start()
        assert open_provider(store.url).info("space", "item").size == 5


def test_an_explicit_url_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_TEST_MARIADB_URL", "mysql://elsewhere/")
    with services.running("mariadb") as server:
        assert server == services.RunningServer("mysql://elsewhere/", "environment")


class Echo:
    """A server that is there at once."""

    name, package = "echo", "nothing"

    def prepare(self, folder: Path) -> None:
        """There is nothing to lay out."""

    def command(self, folder: Path, port: int) -> Sequence[str]:
        lines = ("import socket", f"server = socket.create_server(('127.0.0.1', {port}))", "while True:")
        program = "\n".join([*lines, "    server.accept()[0].send(b'x')"])
        return [sys.executable, "-S", "-c", program]

    def answers(self, port: int) -> bool:
        return services.greets(port)

    def url(self, port: int) -> str:
        return f"echo://me@127.0.0.1:{port}/"


def test_a_server_that_is_kept_running_is_used_and_one_that_was_killed_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(services.SERVICES, "echo", Echo())
    monkeypatch.setattr(services, "_kept", lambda name: tmp_path / name)
    with services.private("echo") as kept:
        (tmp_path / "echo").write_text(kept.url)
        with services.running("echo") as server:
            assert server == services.RunningServer(kept.url, "running")
    with services.running("echo") as server:
        assert server.origin == "private" and server.url != kept.url
    assert not (tmp_path / "echo").exists()


def test_a_missing_program_is_an_error_that_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_args, **_kwargs: None)
    with pytest.raises(services.LocalServerMissingError, match="apt-get install mariadb-server"):
        services.MariaDB().prepare(tmp_path)


@pytest.mark.served
@pytest.mark.usefixtures("installed")
def test_a_server_dies_with_whoever_started_it_and_leaves_nothing_behind(short_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from millstream.testing import services\n"
        "with services.private('mariadb', folder=Path(sys.argv[1])) as server:\n"
        "    print(server.url, *server.processes, flush=True)\n"
        "    sys.stdin.read()"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", program, str(short_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert starter.stdin is not None and starter.stdout is not None
    url, *processes = starter.stdout.readline().split() or pytest.fail("the server did not start")
    assert client(url, "select 1") == "1"
    starter.kill()
    starter.communicate()
    until(lambda: not any(map(runs, processes)), "the end of the server")
    until(lambda: not list(short_path.iterdir()), "the end of its folder")


@pytest.mark.served
@pytest.mark.usefixtures("installed")
def test_a_server_outlives_the_thread_that_started_it() -> None:
    with services.private("mariadb") as server:
        server.kill()
        starter = threading.Thread(target=server.start)
        starter.start()
        starter.join()
        assert client(server.url, "select 1") == "1" and server.is_running
