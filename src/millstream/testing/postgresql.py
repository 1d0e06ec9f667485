"""A private PostgreSQL: its programs, the account that it runs as, and the cluster it serves."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path

from millstream.log.backends.postgres.server import CONFIGURATION
from millstream.testing.programs import LocalServerMissingError, find_program, run_program

_RULES = """
host all postgres 127.0.0.1/32 trust
host all all      127.0.0.1/32 scram-sha-256
"""


_HELLO = b"\x00\x00\x00\x29\x00\x03\x00\x00user\x00postgres\x00database\x00postgres\x00\x00"
"""A message that begins a session."""


class PostgreSQL:
    """PostgreSQL with the settings that we ship: every commit is on the disk before it is confirmed.

    The account ``postgres`` needs no password. The server refuses to run as root, so that root runs it as the system's
    account ``postgres`` or ``nobody``. Tests need no large server; a *whole* one has the shipped sizes as well.
    """

    package = "postgresql"

    def __init__(self, *, whole: bool = False) -> None:
        self.name = "postgresql-whole" if whole else "postgresql"
        self._sizes = [] if whole else ["-c", "shared_buffers=64MB", "-c", "max_wal_size=512MB"]

    def prepare(self, folder: Path) -> None:
        """Make a cluster in *folder*."""
        initdb = _program("initdb", self.package)
        shutil.copy(CONFIGURATION, folder / "server.conf")
        (folder / "rules.conf").write_text(_RULES, "utf-8")
        if os.geteuid() == 0:
            for path in (folder, *folder.iterdir()):
                shutil.chown(path, _account())
        run_program(
            [
                *_as_account(), initdb, "--pgdata", str(folder / "data"), "--username=postgres", "--auth=trust",
                "--encoding=UTF8", "--locale=C", "--data-checksums", "--no-sync", "--no-instructions",
            ]
        )  # fmt: skip

    def command(self, folder: Path, port: int) -> Sequence[str]:
        """The command line of a server in *folder* that listens on 127.0.0.1:*port*."""
        return [
            *_as_account(), _program("postgres", self.package), "-D", str(folder / "data"),
            "-c", f"config_file={folder / 'server.conf'}", "-c", f"hba_file={folder / 'rules.conf'}",
            "-c", "listen_addresses=127.0.0.1", "-p", str(port), "-c", "unix_socket_directories=",
            "-c", "lc_messages=C", *self._sizes,
        ]  # fmt: skip

    def answers(self, port: int) -> bool:
        """Whether the server on *port* takes sessions: until then it answers with an error."""
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(_HELLO)
            return connection.recv(1) == b"R"

    def url(self, port: int) -> str:
        return f"postgresql://postgres@127.0.0.1:{port}/"


def _program(name: str, package: str) -> str:
    """Debian keeps the programs of each version in a folder of their own; the newest is taken."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name), reverse=True)
    return find_program(name, package, folders=[str(path) for path in versions])


def _account() -> str:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    raise LocalServerMissingError(
        "PostgreSQL does not run as root, and there is no account postgres or nobody: create one of them, such as "
        "with `useradd postgres`"
    )


def _as_account() -> list[str]:
    if os.geteuid() != 0:
        return []
    account = pwd.getpwnam(_account())
    setpriv = find_program("setpriv", "util-linux")
    return [setpriv, f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups", "--"]
