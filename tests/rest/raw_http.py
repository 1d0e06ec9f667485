"""HTTP as bytes on a socket: for requests that no library would send."""

from __future__ import annotations

import contextlib
import json
import select
import socket
from collections.abc import Mapping
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """One response: its status, its headers and its body, parsed where it is JSON."""

    status: int
    headers: Mapping[str, str]
    body: Any


class RawConnection:
    """A connection to a server on this machine."""

    def __init__(self, port: int, timeout: float = 30.0) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout)
        self._file = self._socket.makefile("rb")

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave."""
        self._file.close()
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Send *data*, all of it unless the server has gone."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(data)

    def send_no_more(self) -> None:
        """Tell the server that nothing follows."""
        self._socket.shutdown(socket.SHUT_WR)

    def is_answered_within(self, seconds: float) -> bool:
        """Wait until there is something to read, or *seconds* are over."""
        return bool(select.select([self._socket], [], [], seconds)[0])

    def answer(self) -> Answer:
        """The next response. Raises :class:`EOFError` where the server closes without one."""
        line = self._file.readline()
        if not line:
            raise EOFError("the server closed the connection")
        headers = dict(self._headers())
        body = self._file.read(int(headers.get("content-length", 0)))
        value = json.loads(body) if body and headers.get("content-type", "").endswith("json") else body
        return Answer(int(line.split()[1]), headers, value)

    def is_closed(self) -> bool:
        """Wait for more; whether the server closes instead."""
        try:
            return self._file.read(1) == b""
        except ConnectionResetError:
            return True

    def _headers(self) -> list[tuple[str, str]]:
        found = []
        while line := self._file.readline().strip():
            name, _, value = line.decode("latin-1").partition(":")
            found.append((name.lower(), value.strip()))
        return found
