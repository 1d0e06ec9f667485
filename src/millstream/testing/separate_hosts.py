"""Hosts that share nothing but the network, on one machine: a network and a mount namespace for each, and a switch.

The switch is a namespace of its own with a bridge. Everything disappears with the processes in it: nothing has to be
removed, whatever they die of. This machine is a host on the same switch, and passes on connections to ports of its
loopback interface, on which private servers listen.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.testing.programs import LocalServerMissingError
from millstream.testing.waiting import until

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

_ENTER = 'read _ && mount -t tmpfs none "$0" && exec "$@"'
"""What a host does first: wait until it is connected, then cover the folder that it does not share."""


def check_namespaces() -> None:
    """Raises :class:`LocalServerMissingError` where this machine or this user may not make network namespaces."""
    for program, package in (("ip", "iproute2"), ("unshare", "util-linux"), ("nsenter", "util-linux")):
        if shutil.which(program) is None:
            raise LocalServerMissingError(f"{program} is not installed: apt-get install {package}")
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "ip", "link", "add", "tried", "type", "veth"], capture_output=True, check=False
    )
    if tried.returncode:
        raise LocalServerMissingError(
            "separate hosts need network namespaces: run as root, in a container with CAP_NET_ADMIN "
            f"and CAP_SYS_ADMIN ({tried.stderr.decode('utf-8', 'replace').strip()})"
        )


class Switch:
    """A network 10.x.y.0/24 for the length of a ``with`` block; this machine is host 1 in it. Needs root."""

    def __init__(self) -> None:
        pid = os.getpid()
        self._prefix = f"10.{200 + (pid >> 8) % 50}.{pid % 256}"
        self._bridge = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        self.address = self._address(1)

    def __enter__(self) -> Self:
        self._wait_until_apart(self._bridge.pid)
        self._inside(self._bridge.pid, "link add hub type bridge")
        self._inside(self._bridge.pid, "link set hub up")
        name = f"ms{os.getpid()}"
        self._connect(os.getpid(), 1, name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bridge.kill()
        self._bridge.wait()

    def start_host(
        self, number: int, command: Sequence[str], folder: str, environment: dict[str, str], cwd: Path
    ) -> subprocess.Popen[bytes]:
        """Run *command* as host *number* (2 to 254) with an empty disk at *folder*.

        ``ADDRESS`` in *command* and in values of *environment* stands for the address of the host.
        """
        address = self._address(number)
        words = [address if word == "ADDRESS" else word for word in command]
        values = {name: address if value == "ADDRESS" else value for name, value in environment.items()}
        host = subprocess.Popen(
            ["unshare", "--net", "--mount", "sh", "-c", _ENTER, folder, *words],
            stdin=subprocess.PIPE, env=values, cwd=cwd,
        )  # fmt: skip
        self._wait_until_apart(host.pid)
        self._connect(host.pid, number, "eth0")
        assert host.stdin is not None
        host.stdin.write(b"\n")
        host.stdin.close()
        return host

    def _address(self, number: int) -> str:
        return f"{self._prefix}.{number}"

    def _connect(self, pid: int, number: int, name: str) -> None:
        """Plug the host of the process *pid* into the switch, with an interface *name*."""
        port = f"port{number}"
        self._inside(self._bridge.pid, f"link add {port} type veth peer name {name} netns {pid}")
        self._inside(self._bridge.pid, f"link set {port} master hub up")
        for words in ("link set lo up", f"addr add {self._address(number)}/24 dev {name}", f"link set {name} up"):
            self._inside(pid, words)

    @staticmethod
    def _inside(pid: int, words: str) -> None:
        subprocess.run(["nsenter", f"--net=/proc/{pid}/ns/net", "ip", *words.split()], check=True)

    @staticmethod
    def _wait_until_apart(pid: int) -> None:
        ours = Path("/proc/self/ns/net").readlink()
        until(lambda: Path(f"/proc/{pid}/ns/net").readlink() != ours, "a network namespace")


def pass_on(address: tuple[str, int], target: tuple[str, int]) -> None:
    """Pass on connections to *address* to *target*, in threads, until this process ends."""
    listener = socket.create_server(address)
    threading.Thread(target=_accept, args=(listener, target), daemon=True).start()


def _accept(listener: socket.socket, target: tuple[str, int]) -> None:
    while True:
        near, _ = listener.accept()
        try:
            far = socket.create_connection(target)
        except OSError:
            near.close()
            continue
        for source, sink in ((near, far), (far, near)):
            source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_copy, args=(source, sink), daemon=True).start()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
