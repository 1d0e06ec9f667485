"""Requests that are answered without ASGI: whole bodies in, whole responses out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

Headers = list[tuple[bytes, bytes]]
DirectAnswer = Callable[[int, Headers, bytes], object]
"""Gets the status, the headers and the whole body of a response."""


class DirectEndpoint(Protocol):
    """The attribute ``direct`` of an application: what answers ``POST`` requests of one URL without ASGI.

    A request through ASGI costs a task, a scope and several messages: more than checking and storing what it says.
    """

    @property
    def url(self) -> bytes:
        """The URL, as it is in the request line."""
        ...

    def takes(self, headers: Headers) -> bool:
        """Whether a request with *headers* (names in lower case) is answered here; all others go through ASGI."""
        ...

    def submit(self, body: bytes, answer: DirectAnswer) -> None:
        """Begin a request with the whole *body*; *answer* is called in this event loop, once."""
        ...


class DirectConnection(Protocol):
    """The connection of a direct request."""

    def respond(self, status: int, headers: Headers, body: bytes, *, keep_alive: bool) -> None:
        """Send the whole response."""
        ...


class _NoEvent:
    """In the place of the event of uvicorn's cycle, for which nothing waits here."""

    def set(self) -> None:
        """Nothing waits for a message."""


class DirectRequest:
    """A request that is answered without ASGI, with those attributes of uvicorn's cycle that a connection uses."""

    message_event = _NoEvent()

    def __init__(self, connection: DirectConnection, *, keep_alive: bool) -> None:
        self._connection = connection
        self.keep_alive = keep_alive
        self.body = bytearray()
        self.disconnected = self.response_started = self.response_complete = self.waiting_for_100_continue = False

    def take_body(self) -> bytes:
        """The whole body, which is not kept here: an idle connection keeps its last request."""
        body, self.body = bytes(self.body), bytearray()
        return body

    def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Send the response, unless the client has left."""
        if not self.disconnected:
            self.response_started = self.response_complete = True
            self._connection.respond(status, headers, body, keep_alive=self.keep_alive)


def encode_response(status: int, headers: Headers, body: bytes, *, keep_alive: bool) -> bytes:
    """The whole response."""
    lines = [b"%s: %s\r\n" % header for header in headers]
    end = b"\r\n" if keep_alive else b"connection: close\r\n\r\n"
    return b"".join([STATUS_LINE[status], *lines, end, body])
