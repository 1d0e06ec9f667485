"""Between uvicorn and the transport of a connection: how responses are written, and when reading is resumed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from uvicorn.protocols.http.flow_control import FlowControl


class ResponseTransport:
    """The transport as uvicorn sees it: it closes by *end*, which delivers responses first.

    The headers of a response are sent together with the first part of its body: in one system call and one packet.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        end: Callable[[], None],
        is_ending: Callable[[], bool],
    ) -> None:
        self._socket, self._loop = transport, loop
        self._head = b""
        self._holds_next = False
        self.abort = transport.abort
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading
        self.get_extra_info = transport.get_extra_info
        self.close = end
        self.is_closing = is_ending

    def hold_next(self) -> None:
        """The next write has the headers of a response."""
        self._holds_next = True

    def write(self, data: bytes) -> None:
        """Send *data*. Headers are sent with the next write, or at the end of this iteration of the event loop."""
        if self._holds_next:
            self._holds_next, self._head = False, data
            self._loop.call_soon(self.flush)
            return
        head, self._head = self._head, b""
        self._socket.write(head + data)

    def flush(self) -> None:
        """Send headers that are still held."""
        if self._head and not self._socket.is_closing():
            self.write(b"")


class PipelineFlow(FlowControl):
    """Reading is resumed only if *may_read*: uvicorn resumes it at each answer, which lets in more requests than one.

    A client that sends many requests at once and reads no answer would fill the memory with requests that wait.
    """

    def __init__(self, transport: asyncio.Transport, may_read: Callable[[], bool]) -> None:
        super().__init__(transport)
        self._may_read = may_read

    def resume_reading(self) -> None:
        """Read on, unless requests wait for the answers of earlier ones."""
        if self._may_read():
            super().resume_reading()
