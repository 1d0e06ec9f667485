"""Serving an application over HTTP until the process is told to end."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import socket as sockets_
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from millstream.core.address import Address
from millstream.core.clock import MICROSECONDS
from millstream.core.errors import InputError
from millstream.core.event_loop import run_server
from millstream.core.sql import patience_within, waiting_with
from millstream.core.tls_files import KeyPairError, load_key_pair
from millstream.rest.connection import HttpLimits, bounded_protocol
from millstream.rest.direct_requests import DirectEndpoint
from millstream.settings.serving import HttpSettings

DRAIN_SECONDS = 20
OWN_FILES = 1_024
"""Open files of a process that are no HTTP connections: logs, databases, clients of the broker."""


class TlsFiles(msgspec.Struct, frozen=True):
    """PEM files: the ``certificate`` with its chain, and its private ``key``."""

    certificate: Path
    key: Path


class TlsFilesError(InputError):
    """The certificate or its key cannot be used."""


def serve_app(app: ASGIApp, host: str, port: int, settings: HttpSettings, *, tls: TlsFiles | None = None) -> None:
    """Serve *app* on *host* and *port* until SIGTERM or SIGINT: requests that run are finished, a second signal aborts.

    Prints ``serving http://HOST:PORT`` once it listens (``https`` with *tls*). Raises :class:`OSError` where the
    address cannot be used, :class:`TlsFilesError`.
    """
    config = _config(app, settings, host=host, port=port, proxy_headers=False)
    if tls is not None:
        config.ssl_certfile, config.ssl_keyfile = str(tls.certificate), str(tls.key)
        try:
            load_key_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), config.ssl_certfile, config.ssl_keyfile)
        except KeyPairError as error:
            raise TlsFilesError(f"cannot serve with TLS: {error}") from error
    with _restored_signals():
        run_server(_Server(config).serve())


class PortError(InputError):
    """The address to serve on cannot be used."""


@contextlib.asynccontextmanager
async def serving(
    app: ASGIApp,
    host: str,
    port: int,
    settings: HttpSettings,
    *,
    end: Callable[[], object] = lambda: None,
    behind_proxy: bool = False,
) -> AsyncIterator[int]:
    """Serve *app* in this event loop for the length of the block, which gets the port; signals are the caller's.

    *end* is called before requests that run are waited for. Only with *behind_proxy* a client's address is taken from
    ``X-Forwarded-For`` of a proxy on this machine: any client can send that header. Raises :class:`PortError`.
    """
    listening = _listen(host, port)
    server = _QuietServer(_config(app, settings, proxy_headers=behind_proxy))
    task = asyncio.ensure_future(server.serve([listening]))
    try:
        yield listening.getsockname()[1]
    finally:
        end()
        server.should_exit = True
        await task
        listening.close()


class _ImpatientApp:
    """*app*, whose requests wait at most *seconds* for a database that does not answer."""

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self._app, self._patience = app, patience_within(seconds)
        self.direct: DirectEndpoint | None = getattr(app, "direct", None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with waiting_with(self._patience):
            await self._app(scope, receive, send)


def _config(app: ASGIApp, settings: HttpSettings, **more: Any) -> uvicorn.Config:
    return uvicorn.Config(
        _ImpatientApp(app, settings.database_timeout / MICROSECONDS),
        http=bounded_protocol(_limits(settings)),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=DRAIN_SECONDS,
        **more,
    )


def _limits(settings: HttpSettings) -> HttpLimits:
    head, body = settings.header_timeout / MICROSECONDS, settings.body_timeout / MICROSECONDS
    return HttpLimits(head, body, _room_for(settings.max_connections))


def _room_for(connections: int) -> int:
    """How many of *connections* each server of this process may hold; the limit of open files is raised for them.

    A process has two servers at most. What is refused costs one connection; what a log cannot open costs more.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return connections
    wanted = OWN_FILES + 2 * connections
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    return min(connections, max((soft - OWN_FILES) // 2, soft // 4))


def _listen(host: str, port: int) -> sockets_.socket:
    name = host.strip("[]")
    family = sockets_.AF_INET6 if ":" in name else sockets_.AF_INET
    listening = sockets_.socket(family)
    listening.setsockopt(sockets_.SOL_SOCKET, sockets_.SO_REUSEADDR, 1)
    try:
        listening.bind((name, port))
        listening.listen(512)
    except OSError as error:
        listening.close()
        raise PortError(
            f"cannot listen on {host}:{port} ({error.strerror or error}): use another address or port"
        ) from error
    return listening


class _QuietServer(uvicorn.Server):
    """A server that leaves signals to its caller."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.contextmanager
def _restored_signals() -> Iterator[None]:
    """The server raises a signal once more when it has drained; the caller still has things to close then."""
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Server(uvicorn.Server):
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains the server, and a second one ends the process."""
        if self.should_exit:
            signal.signal(sig, signal.SIG_DFL)
            signal.raise_signal(sig)
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        await super().startup(sockets)  # type: ignore[arg-type]
        for server in self.servers:
            for socket in server.sockets:
                host, port = socket.getsockname()[:2]
                scheme = "https" if self.config.is_ssl else "http"
                print(f"serving {scheme}://{Address(host, port)}", flush=True)
