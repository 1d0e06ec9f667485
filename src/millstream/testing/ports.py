"""Ports of loopback for servers of tests."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

_WIDTH = 12_000
_draw = random.SystemRandom()


def free_ports(count: int) -> list[int]:
    """*count* different ports of 127.0.0.1 that are free now, and that the kernel gives to no other socket.

    They are below the range of ephemeral ports (ip(7)): a server that ends and starts again finds its port still free,
    however many connections others open meanwhile.
    """
    below = _first_ephemeral_port()
    with contextlib.ExitStack() as held:
        ports = list[int]()
        while len(ports) < count:
            probe = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", _draw.randrange(below - _WIDTH, below)))
                ports.append(int(probe.getsockname()[1]))
        return ports


def _first_ephemeral_port() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text("ascii").split()[0])
    except OSError:
        return 32_768
