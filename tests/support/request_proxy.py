"""A line to a web server that notes which requests pass."""

from __future__ import annotations

import re
from typing import NamedTuple

from support.cutting_proxy import CuttingProxy, Side

_REQUEST = re.compile(rb"(GET|PUT|POST|HEAD|DELETE) (\S+) HTTP/1\.1\r\n(.*?)\r\n\r\n", re.DOTALL)
_RANGE = re.compile(rb"\r\nrange: bytes=(\d+)-", re.IGNORECASE)


class Request(NamedTuple):
    """A request: its method, its target, and the first byte that it asks for."""

    method: str
    target: str
    start: int


class RequestProxy(CuttingProxy):
    """Passes on what comes to a port of loopback, and keeps the :attr:`requests` in it. Use it in a ``with`` block."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self.requests: list[Request] = []

    def _looked_at(self, side: Side, data: bytes) -> None:
        if side == "client":
            for method, target, headers in _REQUEST.findall(data):
                first = _RANGE.search(b"\r\n" + headers)
                self.requests.append(Request(method.decode(), target.decode(), int(first[1]) if first else 0))
