"""One connection of an HTTP/1.1 client: uvicorn's protocol with timeouts, a size limit for headers, and JSON errors.

uvicorn waits indefinitely for the rest of a request, accepts headers of any size, answers malformed requests in plain
text, and continues to read a body that was refused. A server on a public network needs a limit for each of these.
"""

from __future__ import annotations

import asyncio
import enum
import http
import logging
from typing import Any, cast

import httptools
import msgspec
from starlette.types import Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from millstream.rest.bodies import answer, internal_error
from millstream.rest.direct_requests import DirectEndpoint, DirectRequest, Headers, encode_response
from millstream.rest.response_transport import PipelineFlow, ResponseTransport

LONGEST_URL, LONGEST_HEAD = 32 << 10, 64 << 10
"""Maximum bytes of a URL, and of a request line with its headers. A DID of the long form has up to 14 KB."""

SLOWEST_BODY = 500
"""Minimum bytes per second of a body on average, not counting ``body_timeout``."""

LINGER_SECONDS = 2.0
"""How long further input of a client is discarded after the last response, so that the client can read the response."""

_STEP = 8 << 10
_INCOMING = "millstream.incoming"
_log = logging.getLogger(__name__)


class HttpLimits(msgspec.Struct, frozen=True):
    """Timeouts of a client in seconds, and the maximum number of connections.

    ``header_timeout`` limits the time for the request line and all headers; ``body_timeout`` limits each pause within a
    request body, and each pause in which the client does not read the response.
    """

    header_timeout: float = 20.0
    body_timeout: float = 30.0
    max_connections: int = 1_000


class _Phase(enum.Enum):
    """The state of the client's request."""

    IDLE = "nothing"
    HEAD = "a request line and headers"
    BODY = "a body"
    IGNORED = "input that is ignored while earlier requests are answered"
    ENDING = "input that is discarded after the last response"


class _Refusal(msgspec.Struct, frozen=True):
    status: int
    code: str
    message: str

    def encode(self, common: list[tuple[bytes, bytes]]) -> bytes:
        """The whole response, with the *common* headers of the server."""
        response = answer({"code": self.code, "message": self.message}, self.status)
        headers = [*common, *response.raw_headers, (b"cache-control", b"no-store"), (b"connection", b"close")]
        if self.status == 503:
            headers.append((b"retry-after", b"1"))
        lines = b"".join(b"%s: %s\r\n" % header for header in headers)
        phrase = http.HTTPStatus(self.status).phrase.encode("ascii")
        return b"HTTP/1.1 %d %s\r\n%s\r\n%s" % (self.status, phrase, lines, bytes(response.body))


class _Incoming:
    """Whether a request was received completely, and whether it was refused before the application saw it."""

    complete = False
    refused = False


def bounded_protocol(limits: HttpLimits) -> type[BoundedHttpProtocol]:
    """The protocol class of connections with these *limits*."""
    return type("BoundedHttpProtocol", (BoundedHttpProtocol,), {"limits": limits})


class BoundedHttpProtocol(HttpToolsProtocol):
    """A connection with :attr:`limits`."""

    limits = HttpLimits()

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._inner, self.app = self.app, self._serve
        self._direct: DirectEndpoint | None = getattr(config.app, "direct", None)
        self._direct_request: DirectRequest | None = None
        self._served: RequestResponseCycle | None = None
        self._socket: asyncio.Transport
        self._output: ResponseTransport
        self._incoming = _Incoming()
        self._phase = _Phase.HEAD
        self._has_begun = self._has_eof = self.is_surplus = False
        self._head_bytes = self._body_bytes = self._unsent = 0
        self._waited = self._body_seconds = self._unread_seconds = 0.0
        self._unanswered = 0
        self._unparsed = b""
        self._fault: _Refusal | None = None
        self._refusal: _Refusal | None = None
        self._tick = min(1.0, self.limits.header_timeout / 4, self.limits.body_timeout / 4)
        self._timer: asyncio.TimerHandle | None = None
        self._checked_at = self._ends_at = 0.0

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        self._socket = transport
        self._output = ResponseTransport(transport, self.loop, self.end, self._is_ending)
        super().connection_made(cast(asyncio.Transport, self._output))
        self.flow = PipelineFlow(self.transport, self._may_read)
        self._checked_at = self.loop.time()
        self._timer = self.loop.call_later(self._tick, self._check)
        most = self.limits.max_connections
        if len(self.connections) > most:
            self._refuse_surplus(most)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client disconnected, or was disconnected."""
        if self._timer is not None:
            self._timer.cancel()
        self._unparsed = b""
        super().connection_lost(exc)
        if self._served is not None and not self._served.response_complete:  # uvicorn tells only the last request
            self._served.disconnected = True
            self._served.message_event.set()

    def data_received(self, data: bytes) -> None:
        """Parse *data*; headers in steps so small that their size limit is enforced in time.

        What follows a request that waits for the answer of an earlier one stays as it is: bytes need less memory.
        """
        self._unset_keepalive_if_required()
        rest = memoryview(self._unparsed + data)
        while rest and self._phase not in (_Phase.IGNORED, _Phase.ENDING) and not self.pipeline:
            part = rest[: _STEP if self._phase is not _Phase.BODY else LONGEST_HEAD]
            rest = rest[len(part) :]
            self._feed(part)
        self._unparsed = bytes(rest) if self.pipeline else b""

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client has closed its side; it may still read."""
        self._has_eof = True
        if self._phase is _Phase.BODY or (self._phase is _Phase.HEAD and self._has_begun):
            self._refuse(_Refusal(400, "bad_request", "the request is incomplete: send it again"))
        elif self._is_between_requests() and self._unanswered and not self.cycle.response_started:
            self.cycle.keep_alive = False
        else:
            return self._phase is _Phase.IGNORED
        return not self._socket.is_closing()

    def end(self) -> None:
        """Close the connection after the written data was delivered.

        The operating system resets a connection that is closed while the client still sends, and the client loses the
        response. So input is read and discarded for :data:`LINGER_SECONDS`.
        """
        if self._is_ending():
            return
        self._output.flush()
        everything_read = self._phase is _Phase.IDLE and not self.flow.read_paused
        if self.cycle is None or everything_read:
            self._socket.close()
        else:
            self._linger()

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        """The first byte of a request was received."""
        super().on_message_begin()
        if self._phase is _Phase.IDLE:
            self._expect_head()
        self._has_begun, self._head_bytes = True, 0
        self._incoming = _Incoming()
        cast(dict[str, Any], self.scope)[_INCOMING] = self._incoming

    def on_url(self, url: bytes) -> None:
        """A part of the URL was received."""
        super().on_url(url)
        if len(self.url) > LONGEST_URL:
            self._fault = _Refusal(414, "too_long", f"the request URL is longer than {LONGEST_URL:,} bytes: shorten it")
            raise ValueError(self._fault.message)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header was received. Trailers are not headers, and are not used."""
        if self._phase is _Phase.HEAD:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """All headers of a request were received: the application can start."""
        version = self.parser.get_http_version()
        if version not in ("1.0", "1.1"):
            self._fault = _Refusal(400, "bad_request", f"unsupported version HTTP {version}: use HTTP/1.1")
            raise ValueError(self._fault.message)
        self._direct_request = None
        if self._direct is not None and self._is_direct(self._direct, version):
            self._direct_request = DirectRequest(self, keep_alive=self.parser.should_keep_alive())
            self.cycle = cast(Any, self._direct_request)
        else:
            super().on_headers_complete()
        self._unanswered += 1
        self._phase = _Phase.BODY
        self._head_bytes, self._body_bytes, self._waited, self._body_seconds = 0, 0, 0.0, 0.0

    def on_body(self, body: bytes) -> None:
        """A part of the body was received."""
        if self._direct_request is None:
            super().on_body(body)
        else:
            self._direct_request.body += body
        self._body_bytes += len(body)
        self._waited = 0.0

    def on_message_complete(self) -> None:
        """A request was received completely."""
        self._phase = _Phase.IDLE
        self._incoming.complete = True
        if self._direct is None or self._direct_request is None:
            super().on_message_complete()
        else:
            self._direct.submit(self._direct_request.take_body(), self._direct_request.answer)

    def on_response_complete(self) -> None:
        """A response is complete: continue with the next request, or answer why it is refused."""
        self._output.flush()  # an answer without a body
        self._unanswered -= 1
        super().on_response_complete()
        if self._phase is _Phase.HEAD:  # the next request has begun, so this connection is not idle
            self._unset_keepalive_if_required()
        if self._unparsed and not self.pipeline:
            self.loop.call_soon(self._parse_rest)
        if self._refusal is not None and not self._unanswered and not self._is_ending():
            self._write_refusal(self._refusal)

    # The application

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application. A response before the end of its request closes the connection."""
        incoming: _Incoming = scope.pop(_INCOMING)
        has_started = False

        async def send_last_or_not(message: Message) -> None:
            nonlocal has_started
            has_started = True
            if message["type"] == "http.response.start":
                self._output.hold_next()
                if not incoming.complete:
                    message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            await send(message)

        if incoming.refused:
            return
        try:
            await cast(Any, self._inner)(scope, receive, send_last_or_not)
        except Exception:
            if has_started:
                raise
            _log.exception("a request failed: %s %s", scope["method"], scope["path"])
            await internal_error()(scope, receive, send_last_or_not)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._served = cycle
        super()._start_asgi_task(cycle, app)

    def _is_direct(self, direct: DirectEndpoint, version: str) -> bool:
        """Whether the request whose headers were received is answered without ASGI: none that has to wait is."""
        return (
            self.url == direct.url
            and self.parser.get_method() == b"POST"
            and version == "1.1"
            and not self._unanswered
            and not self.flow.write_paused
            and direct.takes(self.headers)
        )

    def respond(self, status: int, headers: Headers, body: bytes, *, keep_alive: bool) -> None:
        """Send the whole response to a direct request."""
        if self._is_ending():
            return
        headers = [*self.server_state.default_headers, *headers]
        self._output.write(encode_response(status, headers, body, keep_alive=keep_alive))
        if not keep_alive:
            self.end()
        self.on_response_complete()

    # Refusals

    def _parse_rest(self) -> None:
        """Parse what was received before the last of the waiting requests began, and read on."""
        if not self._is_ending():
            self.data_received(b"")
            self.flow.resume_reading()

    def _is_between_requests(self) -> bool:
        """Whether all that was received of the next request is empty lines, which some clients send after a body."""
        return self._phase is _Phase.IDLE or (self._phase is _Phase.HEAD and not self._has_begun)

    def _may_read(self) -> bool:
        return self._phase is _Phase.ENDING or not (self.pipeline or self._unparsed)

    def _feed(self, part: memoryview) -> None:
        if self._phase is _Phase.IDLE:
            self._expect_head()
        is_first = self._phase is _Phase.HEAD and not self._has_begun
        body_bytes, incoming = self._body_bytes, self._incoming
        try:
            self.parser.feed_data(part)
        except httptools.HttpParserUpgrade:  # answered without the upgrade; the following bytes are not HTTP
            self._phase = _Phase.IGNORED
            self.cycle.keep_alive = False
        except httptools.HttpParserError as error:
            self._refuse(self._fault or _malformed(error))
        else:
            if self._phase is _Phase.HEAD:
                self._bound_head(part, is_first=is_first, is_new=self._incoming is not incoming)
            elif self._phase is _Phase.BODY:
                self._bound_framing(part, has_body=self._body_bytes != body_bytes)

    def _bound_framing(self, part: memoryview, *, has_body: bool) -> None:
        """Refuse trailers and chunk extensions that are too long."""
        self._head_bytes = 0 if has_body else self._head_bytes + len(part)
        if self._head_bytes > LONGEST_HEAD:
            text = f"trailers and chunk extensions are longer than {LONGEST_HEAD:,} bytes: shorten them"
            self._refuse(_Refusal(431, "headers_too_large", text))

    def _bound_head(self, part: memoryview, *, is_first: bool, is_new: bool) -> None:
        """Refuse headers that are too long, and a request line without a version.

        A part in which the headers begin after other requests is not counted: how many of its bytes are headers is
        unknown.
        """
        self._head_bytes = 0 if is_new and not is_first else self._head_bytes + len(part)
        if self._head_bytes > LONGEST_HEAD:
            text = f"the request line and headers are longer than {LONGEST_HEAD:,} bytes: shorten them"
            self._refuse(_Refusal(431, "headers_too_large", text))
        elif is_first and self._has_begun:
            line, newline, _ = bytes(part[:_STEP]).lstrip(b"\r\n").partition(b"\n")
            if newline and b" HTTP/" not in line and self.url:
                text = "the request line has no HTTP version: use HTTP/1.1"
                self._refuse(_Refusal(400, "bad_request", text))

    def _refuse(self, refusal: _Refusal) -> None:
        """Answer *refusal* after the responses of earlier requests, and read nothing more."""
        if self._phase is _Phase.BODY and not self._drop_request():
            self._phase = _Phase.IGNORED
            self._socket.close()  # its response has begun, so no other can be sent
            return
        self._phase, self._refusal = _Phase.IGNORED, refusal
        if not self._unanswered:
            self._write_refusal(refusal)

    def _drop_request(self) -> bool:
        """Withdraw the request that is being read from the application; False if its response has begun."""
        if self.pipeline and self.pipeline[0][0] is self.cycle:
            self.pipeline.popleft()
        elif self.cycle.response_started:
            return False
        self._unanswered -= 1
        self._incoming.refused = True
        self.cycle.disconnected = True
        self.cycle.message_event.set()
        return True

    def _refuse_surplus(self, most: int) -> None:
        """Refuse this connection if *most* others are served."""
        surplus = sum(getattr(other, "is_surplus", False) for other in self.connections)
        if len(self.connections) - surplus <= most:
            return
        self.is_surplus = True
        if surplus > max(16, most // 8):
            self._socket.abort()
        else:
            self._refuse(_Refusal(503, "busy", f"all {most:,} connections are in use: try again later"))

    def _write_refusal(self, refusal: _Refusal) -> None:
        self._output.write(refusal.encode(self.server_state.default_headers))
        self._output.flush()
        self._linger()

    def _linger(self) -> None:
        self._phase = _Phase.ENDING
        self._unset_keepalive_if_required()
        if self._has_eof or not self._socket.can_write_eof():
            self._socket.close()
            return
        self._ends_at = self.loop.time() + LINGER_SECONDS
        self.flow.resume_reading()
        self._socket.write_eof()

    def _is_ending(self) -> bool:
        return self._phase is _Phase.ENDING or self._socket.is_closing()

    # Deadlines

    def _expect_head(self) -> None:
        self._phase, self._has_begun, self._head_bytes, self._waited = _Phase.HEAD, False, 0, 0.0

    def _check(self) -> None:
        """Count the client's time, and close the connection when it exceeds a limit.

        Time in which the server does not read, or does not run at all, is not counted.
        """
        now = self.loop.time()
        passed, self._checked_at = min(now - self._checked_at, 2 * self._tick), now
        self._timer = self.loop.call_later(self._tick, self._check)
        if self._phase is _Phase.ENDING:
            if now >= self._ends_at:
                self._socket.abort()
        elif not self._has_unread_answer(passed) and not self.flow.read_paused:
            self._count(passed)

    def _count(self, passed: float) -> None:
        self._waited += passed
        if self._phase is _Phase.HEAD and self._waited >= self.limits.header_timeout:
            if self._has_begun:
                text = f"the headers were not complete after {self.limits.header_timeout:g} seconds"
                self._refuse(_Refusal(408, "timeout", text))
            elif not self._unanswered:
                self._socket.close()  # a browser that connects in advance expects no answer
        elif self._phase is _Phase.BODY and not self.cycle.waiting_for_100_continue:
            self._body_seconds += passed
            self._refuse_slow_body()

    def _refuse_slow_body(self) -> None:
        longest = self.limits.body_timeout
        if self._waited >= longest:
            self._refuse(
                _Refusal(408, "timeout", f"no data of the body arrived for {longest:g} seconds: send the request again")
            )
        elif self._body_seconds >= longest + self._body_bytes / SLOWEST_BODY:
            text = f"the body comes too slowly: {self._body_bytes:,} bytes in {self._body_seconds:,.0f} seconds"
            self._refuse(_Refusal(408, "timeout", text))

    def _has_unread_answer(self, passed: float) -> bool:
        """Whether the client leaves an answer unread; one that does so for too long is disconnected."""
        before, self._unsent = self._unsent, self._socket.get_write_buffer_size()
        if not self._unsent:
            self._unread_seconds = 0.0
            return False
        self._unread_seconds = self._unread_seconds + passed if self._unsent >= before > 0 else 0.0
        if self._unread_seconds >= self.limits.body_timeout:
            self._socket.abort()
        return True


def _malformed(error: httptools.HttpParserError) -> _Refusal:
    text = str(error)
    if isinstance(error, httptools.HttpParserInvalidMethodError):
        text = "the method is unknown, or this is not HTTP"
    elif isinstance(error, httptools.HttpParserInvalidURLError | httptools.HttpParserCallbackError):
        text = "the address in the request line cannot be read"
    return _Refusal(400, "bad_request", f"invalid HTTP/1.1 request: {text[:1].lower()}{text[1:]}")
