"""Reading from untrusted web servers: limited in time, redirects and content.

Only ``http`` and ``https`` are spoken, and no proxy is used. A server that sends too slowly is cut off.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import socket
import threading
from collections.abc import Iterator, Mapping
from urllib.parse import SplitResult, urljoin, urlsplit

from millstream import __version__
from millstream.anchoring.errors import HttpError
from millstream.core.clock import Clock, SystemClock
from millstream.core.errors import InputError
from millstream.core.printable import MAX_SHOWN, printable
from millstream.core.url_schemes import scheme_of

RESPONSE_SECONDS = 30.0
"""How long a server may take for an answer, beside what its bytes need at :data:`MIN_BYTES_PER_SECOND`."""

MIN_BYTES_PER_SECOND = 20_000
"""Bytes a second that a server has to send on average."""

MAX_REDIRECTS = 5

_CHUNK = 1 << 16
_MOVED = frozenset({301, 302, 303, 307, 308})
_SCHEMES = ("http", "https")


class UrlError(InputError):
    """This is not a URL of a web server that can be read from."""


def check_url(url: str) -> SplitResult:
    """The parts of *url*. Raises :class:`UrlError` for what is not a plain ``http`` or ``https`` URL."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in _SCHEMES and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise UrlError(f"invalid URL {url[:200]!r}: write http://HOST/PATH or https://HOST/PATH")
    if parts.username is not None or parts.fragment:
        raise UrlError(
            f"the URL {redacted_url(url)} contains a user name, a password or a fragment (#…): remove that part"
        )
    if not url.isascii() or not url.isprintable() or " " in url:
        raise UrlError(
            f"the URL {redacted_url(url)!r} contains characters that are not allowed in a URL: write each of them as "
            "%XX"
        )
    return parts


def redacted_url(url: str) -> str:
    """*url* as it may be printed: its user and its query, which are often secret, are left out."""
    bare = url.partition("?")[0].partition("#")[0]
    scheme, separator, rest = bare.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}"[:300]


class HttpReader:
    """Asks web servers, each of which may take *seconds* for an answer and somewhat longer for a long one."""

    def __init__(self, *, seconds: float = RESPONSE_SECONDS, clock: Clock | None = None) -> None:
        self._seconds = seconds
        self._clock = clock or SystemClock()

    @contextlib.contextmanager
    def open(self, url: str, headers: Mapping[str, str] = {}) -> Iterator[HttpResponse]:
        """The answer to GET *url*, after at most :data:`MAX_REDIRECTS` redirects, for the length of the block.

        A server of the internet may not redirect to an address of this machine or of its networks.
        Raises :class:`HttpError` where there is none; the status of an answer is the caller's to judge.
        """
        with contextlib.ExitStack() as stack:
            yield self._answer(url, headers, stack)

    @contextlib.contextmanager
    def post(self, url: str, body: bytes, headers: Mapping[str, str] = {}) -> Iterator[HttpResponse]:
        """The answer to POST *body* to *url*, which is not redirected. Errors: see :meth:`open`."""
        with _asked(url, headers, self._seconds, self._clock, body) as answer:
            yield answer

    def _answer(self, url: str, headers: Mapping[str, str], stack: contextlib.ExitStack) -> HttpResponse:
        first, came_from = url, ""
        for _ in range(MAX_REDIRECTS + 1):
            answer = stack.enter_context(_asked(url, headers, self._seconds, self._clock, came_from=came_from))
            came_from = url if answer.is_public else came_from
            target = answer.headers.get("location")
            if answer.status not in _MOVED or target is None:
                return answer
            url = _redirected(url, target)
        raise HttpError(
            redacted_url(first), f"the server redirects more than {MAX_REDIRECTS} times: give the final URL"
        )


class HttpResponse:
    """The answer of a server: its ``status``, its ``headers``, and its body in pieces; ``is_public`` says whether the
    server has an address of the internet."""

    def __init__(self, url: str, response: http.client.HTTPResponse, watchdog: _Watchdog, *, is_public: bool) -> None:
        self.url, self.is_public = url, is_public
        self.status = response.status
        self.headers = response.headers
        self._response = response
        self._watchdog = watchdog

    @property
    def length(self) -> int | None:
        """The length of the body in bytes, if the server states it."""
        text = self.headers.get("content-length", "")
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None

    def chunks(self) -> Iterator[bytes]:
        """The body. Raises :class:`HttpError` where it breaks off or is too slow."""
        received = 0
        with _translated(self.url, self._watchdog):
            while chunk := self._response.read1(_CHUNK):
                received += len(chunk)
                self._watchdog.received(len(chunk))
                yield chunk
            if self._watchdog.has_ended or (self.length is not None and received < self.length):
                raise http.client.IncompleteRead(b"")

    def read(self, most_bytes: int) -> bytes:
        """The whole body. Raises :class:`HttpError` as :meth:`chunks`, and where it has more than *most_bytes*."""
        data = bytearray()
        for chunk in self.chunks():
            data += chunk
            if len(data) > most_bytes:
                raise HttpError(redacted_url(self.url), f"the response has more than {most_bytes:,} bytes, the limit")
        return bytes(data)


class _Watchdog:
    """Ends a connection that is too slow: the time-out of a socket restarts with every byte."""

    def __init__(self, connection: socket.socket, seconds: float, clock: Clock) -> None:
        self.has_ended = False
        self._connection, self._clock = connection, clock
        self._deadline = clock.monotonic() + seconds
        self._lock = threading.Lock()
        self._stopped = False
        self._arm(seconds)

    def received(self, size: int) -> None:
        """*size* bytes came, which gives the sender more time."""
        self._deadline += size / MIN_BYTES_PER_SECOND

    def stop(self) -> None:
        """Watch no longer."""
        with self._lock:
            self._stopped = True
            self._timer.cancel()

    def _arm(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._check)
        self._timer.daemon = True
        self._timer.start()

    def _check(self) -> None:
        with self._lock:
            left = self._deadline - self._clock.monotonic()
            if self._stopped:
                return
            if left > 0:
                self._arm(left)
                return
            self.has_ended = True
            with contextlib.suppress(OSError):  # below any encryption, whose end would have to be waited for
                socket.socket.shutdown(self._connection, socket.SHUT_RDWR)


@contextlib.contextmanager
def _asked(
    url: str,
    headers: Mapping[str, str],
    seconds: float,
    clock: Clock,
    body: bytes | None = None,
    *,
    came_from: str = "",
) -> Iterator[HttpResponse]:
    """The answer to one request; *came_from* is the URL of the server of the internet that redirects here, if any."""
    connection = _connection(check_url(url), seconds)
    watchdog = None
    try:
        with _translated(url, None):
            connection.connect()
            assert connection.sock is not None
            is_public = _is_public(connection.sock)  # an error where the server has reset the connection already
        if came_from and not is_public:
            raise HttpError(
                redacted_url(came_from),
                f"the server redirects to {redacted_url(url)}, which is an address of this machine or its networks: "
                "if that is meant, give this URL",
            )
        watchdog = _Watchdog(connection.sock, seconds, clock)
        with _translated(url, watchdog):
            method = "GET" if body is None else "POST"
            connection.request(method, _target(url), body, {**_HEADERS, **headers})
            response = connection.getresponse()
        with contextlib.closing(response):  # it keeps the socket that the connection has released
            yield HttpResponse(url, response, watchdog, is_public=is_public)
    finally:
        if watchdog is not None:
            watchdog.stop()
        connection.close()


def _is_public(connection: socket.socket) -> bool:
    address: str = connection.getpeername()[0]
    return ipaddress.ip_address(address.partition("%")[0]).is_global


_HEADERS = {"Accept-Encoding": "identity", "User-Agent": f"millstream/{__version__}", "Connection": "close"}


def _connection(parts: SplitResult, seconds: float) -> http.client.HTTPConnection:
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname or "", parts.port or scheme_of(parts).port, timeout=seconds)


def _target(url: str) -> str:
    parts = urlsplit(url)
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _redacted_target(url: str, target: str) -> str:
    """Where the server of *url* redirects to, as it may be printed: without user and query."""
    try:
        shown = redacted_url(urljoin(url, target))
    except ValueError:
        shown = redacted_url(target)
    return shown if "://" in shown else shown.rpartition("@")[2]


def _redirected(url: str, target: str) -> str:
    try:
        found = urljoin(url, target)
        parts = check_url(found.partition("#")[0])
    except (InputError, ValueError) as error:
        raise HttpError(
            redacted_url(url),
            f"the server redirects to an invalid URL {_redacted_target(url, target)!r}: give the final http or https "
            "URL, or correct the server",
        ) from error
    if urlsplit(url).scheme == "https" and parts.scheme != "https":
        raise HttpError(redacted_url(url), "the server redirects from https to http: give a URL that stays on https")
    return parts.geturl()


@contextlib.contextmanager
def _translated(url: str, watchdog: _Watchdog | None) -> Iterator[None]:
    try:
        yield
    except (OSError, http.client.HTTPException, ValueError) as error:
        slow = isinstance(error, TimeoutError) or (watchdog is not None and watchdog.has_ended)
        raise HttpError(redacted_url(url), "the server is too slow" if slow else _reason(error)) from error


def _reason(error: Exception) -> str:
    if isinstance(error, http.client.IncompleteRead):
        return "the server closed the connection before the end of its answer"
    if isinstance(error, OSError):
        return printable(error.strerror or str(error) or type(error).__name__, MAX_SHOWN)
    return f"the server sent an invalid HTTP answer ({type(error).__name__})"  # its text would be that of the server
