"""The program ``millstream`` for tests that type in many commands: forked, so that none of them starts anew.

What is left out is the start of the interpreter and the imports; a command is a process of its own.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, Any

from millstream.testing.forked_programs import ForkedProgram, import_before

_COMMAND = "millstream.cli.main:main"

import_before(
    [
        "millstream.cli.main",
        "millstream.cli.mill",
        "millstream.cli.change_log",
        "millstream.cli.progress",
        "millstream.mill.adoption.status",
        "millstream.mill.restore",
        "millstream.node.missing_databases",
        "millstream.node.cosignatures",
        "millstream.node.ledgers",
        "millstream.node.mill",
        "millstream.node.producers",
        "millstream.node.registry",
        "millstream.node.repairs",
        "millstream.node.reports",
        "millstream.rest.ledger_files",
        "millstream.rest.server",
        "millstream.status.poller",
        "pandas",  # imported by pyarrow where it is installed
        "sqlalchemy.dialects.sqlite",
    ]
)

_PROGRAM = """#!{python} -IS
import marshal, os, socket, sys
if "serve" in sys.argv:  # what the page ends by a signal
    os.execv({real!r}, [{real!r}, *sys.argv[1:]])
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    told = marshal.dumps((sys.argv, dict(os.environ), os.getcwd()))
    socket.send_fds(server, [len(told).to_bytes(4, "big")], [0, 1, 2])
    server.sendall(told)
    code = int(server.recv(16))
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


@contextlib.contextmanager
def forked_commands() -> Iterator[Path]:
    """A folder for the front of ``PATH`` whose ``millstream`` hands its command to this process, which forks it.

    A command is killed where its ``millstream`` dies first. Commands named ``serve`` start anew, so that they get
    signals themselves.
    """
    real = shutil.which("millstream", path=str(Path(sys.executable).parent))
    assert real is not None
    with tempfile.TemporaryDirectory(prefix="millstream-") as name, socket.socket(socket.AF_UNIX) as server:
        program, address = Path(name) / "millstream", f"{name}/socket"
        program.write_text(_PROGRAM.format(python=sys.executable, real=real, address=address), "utf-8")
        program.chmod(0o700)
        server.bind(address)
        server.listen()
        thread = threading.Thread(target=_serve, args=(server,))
        thread.start()
        try:
            yield Path(name)
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


class ForkedCommand(ForkedProgram):
    """``millstream`` with *words* in a process of its own, whose output is read from ``stdout``.

    What it writes to standard error goes to the file *errors*; without one, where that of this process goes.
    """

    def __init__(
        self, *words: str, errors: IO[Any] | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        out, to_out = os.pipe()
        self.stdout = open(out, encoding="utf-8")  # noqa: SIM115, PTH123 - a pipe, closed by whoever reads it
        with Path(os.devnull).open("rb") as nothing, open(to_out, "wb") as output:  # noqa: PTH123
            streams = (nothing.fileno(), output.fileno(), 2 if errors is None else errors.fileno())
            super().__init__(_COMMAND, ["millstream", *words], streams, environment=environment)


def _serve(server: socket.socket) -> None:
    threads = []
    with contextlib.suppress(OSError):  # shut down
        while True:
            threads.append(threading.Thread(target=_run, args=(server.accept()[0],)))
            threads[-1].start()
    for thread in threads:
        thread.join()


def _run(caller: socket.socket) -> None:
    with caller:
        size, streams, _, _ = socket.recv_fds(caller, 4, 3)
        with caller.makefile("rb") as file:
            arguments, environment, folder = marshal.loads(file.read(int.from_bytes(size, "big")))
        program = ForkedProgram(_COMMAND, arguments, streams, environment=environment, folder=folder)
        for stream in streams:
            os.close(stream)
        if caller in wait([program.sentinel, caller]):
            program.kill()
        with contextlib.suppress(OSError):  # the caller has died
            caller.sendall(b"%d" % program.wait())
