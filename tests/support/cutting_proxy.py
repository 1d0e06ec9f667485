"""A line to a server that breaks in the middle of a packet, as real networks do."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Literal, Self

Side = Literal["client", "server"]


class CuttingProxy:
    """Passes on what comes to a port of loopback, until it is told to break. Use it in a ``with`` block."""

    def __init__(self, host: str, port: int, *, own_port: int = 0) -> None:
        """A line to *host*:*port*; connect to :attr:`port` instead, which is *own_port* or a free one."""
        self._target = (host, port)
        self._lock = threading.Lock()
        self._left: dict[Side, int | None] = {"client": None, "server": None}
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", own_port))
        self.port: int = self._listener.getsockname()[1]
        self.cuts = 0

    def cut(self, side: Side, after: int) -> None:
        """Break all connections once *after* more bytes have come from *side*."""
        with self._lock:
            self._left[side] = after

    def __enter__(self) -> Self:
        self._acceptor = self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._acceptor.join()  # it may have accepted a connection just now, which is to be closed, too
        self._break()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                with self._lock:
                    self._sockets.add(near)
                far = socket.create_connection(self._target)
                with self._lock:
                    self._sockets.add(far)
                self._start(self._pass, near, far, "client")
                self._start(self._pass, far, near, "server")

    def _pass(self, source: socket.socket, target: socket.socket, side: Side) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._looked_at(side, data)
                allowed = self._allowed(side, len(data))
                target.sendall(data[:allowed])
                if allowed < len(data):
                    self.cuts += 1
                    self._break()
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _looked_at(self, side: Side, data: bytes) -> None:
        """For subclasses: *data* have come from *side*."""

    def _allowed(self, side: Side, size: int) -> int:
        with self._lock:
            left = self._left[side]
            if left is None or size <= left:
                self._left[side] = None if left is None else left - size
                return size
            self._left[side] = None
            return left

    def _break(self) -> None:
        with self._lock:
            sockets, self._sockets = self._sockets, set()
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _start(self, work: object, *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        thread.start()
        return thread
