"""Serving an application over HTTP until the process is told to end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket as sockets_
from collections.abc import AsyncIterator, Callable, Iterator

import uvicorn
from starlette.types import ASGIApp

from millstream.core.errors import InputError

DRAIN_SECONDS = 20


def serve_app(app: ASGIApp, host: str, port: int) -> None:
    """Serve *app* on *host* and *port* until SIGTERM or SIGINT: requests that run are finished, a second signal aborts.

    Prints ``serving http://HOST:PORT`` once it listens. Raises :class:`OSError` where the address cannot be used.
    """
    config = uvicorn.Config(
        app,
        host,
        port,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )
    with _outliving_signals():
        _Server(config).run()


class PortError(InputError):
    """The address to serve on cannot be used."""


@contextlib.asynccontextmanager
async def serving(
    app: ASGIApp, host: str, port: int, *, end: Callable[[], object] = lambda: None
) -> AsyncIterator[int]:
    """Serve *app* in this event loop for the length of the block, which gets the port; signals are the caller's.

    *end* is called before requests that run are waited for. Raises :class:`PortError`.
    """
    listening = _listen(host, port)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )
    server = _QuietServer(config)
    task = asyncio.ensure_future(server.serve([listening]))
    try:
        yield listening.getsockname()[1]
    finally:
        end()
        server.should_exit = True
        await task
        listening.close()


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
            f"{host}:{port} cannot be listened on ({error.strerror or error}): name another address"
        ) from error
    return listening


class _QuietServer(uvicorn.Server):
    """A server that leaves signals to its caller."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.contextmanager
def _outliving_signals() -> Iterator[None]:
    """The server raises a signal once more when it has drained; the caller still has things to close then."""
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        await super().startup(sockets)  # type: ignore[arg-type]
        for server in self.servers:
            for socket in server.sockets:
                host, port = socket.getsockname()[:2]
                print(f"serving http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)
