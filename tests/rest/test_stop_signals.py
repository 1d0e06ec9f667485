"""A served application and the signals that end it."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from millstream.testing.waiting import until

PROGRAM = """
import asyncio
from millstream.rest.server import serve_app
from millstream.settings.serving import HttpSettings
async def app(scope, receive, send):
    if scope["type"] == "http":
        print("asked", flush=True)
        await asyncio.Event().wait()
serve_app(app, "127.0.0.1", 0, HttpSettings())
"""


@pytest.fixture
def hanging() -> Iterator[subprocess.Popen[bytes]]:
    """A server with a request that never ends."""
    child = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert child.stdout is not None
    with child.stdout:
        host, _, port = child.stdout.readline().decode().rpartition("//")[2].rpartition(":")
        with socket.create_connection((host, int(port)), timeout=30) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert child.stdout.readline() == b"asked\n"
            yield child
    child.kill()
    child.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_a_server_whose_request_does_not_end(
    hanging: subprocess.Popen[bytes], number: signal.Signals
) -> None:
    def has_ended() -> bool:
        hanging.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return hanging.wait(0.2) == -number
        return False

    until(has_ended, seconds=15)
