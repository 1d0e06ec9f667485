"""A proxy before an S3 server on which requests are lost, late, doubled or refused, as a script says.

Clients connect to it instead of the server, so that their own code handles it: connections break, answers are 409 and
503, and retries are real requests. The faults are those of ``millstream.testing.object_bucket``.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from millstream.testing.object_bucket import BucketFault

_ERROR = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>the test says so</Message></Error>"
_REFUSALS = {
    BucketFault.CONFLICT: (409, _ERROR.format(code="ConditionalRequestConflict").encode()),
    BucketFault.UNAVAILABLE: (503, _ERROR.format(code="SlowDown").encode()),
}
_ON_THE_WAY = frozenset({"connection", "expect", "keep-alive", "transfer-encoding"})


class ProxiedRequest(msgspec.Struct, frozen=True):
    """A request: ``kind`` is create, put, get, list or delete; ``name`` is the key (of a list, its prefix)."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def kind(self) -> str:
        query = urlsplit(self.target).query
        if self.method == "PUT":
            return "create" if self.headers.get("if-none-match") else "put"
        if self.method == "POST":
            return "delete"
        return "list" if "list-type" in query or "delimiter" in query else "get"

    @property
    def name(self) -> str:
        parts = urlsplit(self.target)
        if self.kind == "list":
            return parse_qs(parts.query).get("prefix", [""])[0]
        return unquote(parts.path).lstrip("/").partition("/")[2]


class ProxiedAnswer(msgspec.Struct, frozen=True):
    """What the server has answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes


Script = Callable[[ProxiedRequest], BucketFault]
Observer = Callable[[ProxiedRequest, ProxiedAnswer], None]


class S3FaultProxy:
    """Passes requests on to *host*:*port*, each subject to ``script``. Use it in a ``with`` block. Thread-safe.

    ``observe`` is called with every request that the server has done, before it is answered, also a late one. A late
    request is done after *delay* further requests, or with :meth:`settle`; a slow one waits for as many, or a moment.
    """

    def __init__(self, host: str, port: int, *, delay: int = 3) -> None:
        self._target, self._delay = (host, port), delay
        self.script: Script = lambda _request: BucketFault.NONE
        self.observe: Observer = lambda _request, _answer: None
        self._changed = threading.Condition()
        self._serial = 0
        self._late: list[tuple[int, ProxiedRequest]] = []
        self._listings: dict[str, ProxiedAnswer] = {}
        self.faults: dict[BucketFault, int] = {}
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self.port: int = self._server.server_address[1]

    def settle(self) -> None:
        """All requests that are late are done now."""
        with self._changed:
            late, self._late = self._late, []
        for _, request in late:
            self._do(request)

    def handle(self, request: ProxiedRequest) -> ProxiedAnswer | None:
        """The answer to *request*; None where the connection breaks instead."""
        self._do_due()
        fault = self.script(request)
        self.faults[fault] = self.faults.get(fault, 0) + 1
        if fault in _REFUSALS:
            status, body = _REFUSALS[fault]
            return ProxiedAnswer(status, {"content-type": "application/xml"}, body)
        if fault is BucketFault.LOST:
            return None
        if fault in (BucketFault.LATE, BucketFault.DOUBLED):
            with self._changed:
                self._late.append((self._serial + self._delay, request))
        if fault is BucketFault.LATE:
            return None
        if fault is BucketFault.SLOW:
            self._wait()
        answer = self._do(request)
        if request.kind == "list":
            before = self._listings.get(request.target, answer)
            self._listings[request.target] = answer
            return before if fault is BucketFault.STALE else answer
        return None if fault is BucketFault.REPLY_LOST else answer

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _do_due(self) -> None:
        with self._changed:
            self._serial += 1
            self._changed.notify_all()
            due = [request for serial, request in self._late if serial <= self._serial]
            self._late = [(serial, request) for serial, request in self._late if serial > self._serial]
        for request in due:
            self._do(request)

    def _wait(self) -> None:
        with self._changed:
            until = self._serial + self._delay
            self._changed.wait_for(lambda: self._serial >= until, 0.05)

    def _do(self, request: ProxiedRequest) -> ProxiedAnswer:
        with contextlib.closing(http.client.HTTPConnection(*self._target, timeout=60)) as connection:
            headers = {name: value for name, value in request.headers.items() if name not in _ON_THE_WAY}
            connection.request(request.method, request.target, request.body, headers)
            response = connection.getresponse()
            kept = {name.lower(): value for name, value in response.getheaders() if name.lower() not in _ON_THE_WAY}
            answer = ProxiedAnswer(response.status, kept, response.read())
        self.observe(request, answer)
        return answer


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that has gone away is no news."""


def _handler(proxy: S3FaultProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _pass(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = proxy.handle(ProxiedRequest(self.command, self.path, headers, body))
            if answer is None:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self.send_response_only(answer.status)
            length = answer.headers.get("content-length") if self.command == "HEAD" else None
            for name, value in answer.headers.items():
                if name != "content-length":
                    self.send_header(name, value)
            self.send_header("Content-Length", length or str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass

        def log_message(self, *_: object) -> None:
            """The test says what is of interest."""

    return Handler
