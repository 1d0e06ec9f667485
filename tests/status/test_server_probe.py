"""The look at servers whether they can be reached, and what it leaves behind there."""

from __future__ import annotations

import socket
import struct
import threading
from pathlib import Path

import msgspec
import pytest

from millstream.node import Node
from millstream.settings import Settings
from millstream.status.verdict.process import look_at_process

pytest.importorskip("pymysql")

OK = b"\0\0\0\2\0\0\0"
QUIT = b"\1"
PLUGIN = b"mysql_native_password\0"
GREETING = (
    b"\x0a11.4.2-MariaDB\0" + struct.pack("<I", 1) + b"saltsalt\0" + struct.pack("<HBHH", 0x8200, 45, 2, 0x0008)
    + b"\x15" + bytes(10) + b"saltsaltsalt\0" + PLUGIN
)  # fmt: skip


def _serve_mysql(server: socket.socket, received: list[bytes]) -> None:
    """Greet one client of *server*, and answer OK to all that it sends, which is *received*."""
    connection, _ = server.accept()
    with connection, connection.makefile("rb") as packets:
        _send(connection, 0, GREETING)
        while len(head := packets.read(4)) == 4:
            received.append(packets.read(int.from_bytes(head[:3], "little")))
            if received[-1] != QUIT:
                _send(connection, head[3] + 1, OK)


def _send(connection: socket.socket, number: int, payload: bytes) -> None:
    connection.sendall(len(payload).to_bytes(3, "little") + bytes([number]) + payload)


def test_a_mysql_server_that_is_probed_sees_a_client_that_logs_in_and_out(tmp_path: Path) -> None:
    """It refuses a host after 100 connections that end before the login."""
    received: list[bytes] = []
    with Node.open(Settings(data=str(tmp_path)), create=True) as node, socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_serve_mysql, args=(server, received), daemon=True)
        thread.start()
        url = f"mysql://otto:secret@127.0.0.1:{server.getsockname()[1]}/did"
        registry = msgspec.structs.replace(node.settings.registry, database=url)
        node.settings = msgspec.structs.replace(node.settings, registry=registry)
        assert look_at_process(node).unreachable == {}
        thread.join(10)
    assert b"otto\0" in received[0] and received[-1] == QUIT
