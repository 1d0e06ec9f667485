"""Serving an application over HTTP until the process is told to end."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

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
        lifespan="off",
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )
    with _outliving_signals():
        _Server(config).run()


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
