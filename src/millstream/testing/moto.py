"""The S3 part of moto as a server whose conditional writes are atomic, for tests.

moto looks whether an object exists, and stores the new one in a second step. Its server has a thread for each
connection, so that of several who create one name at the same time more than one may be told that it won. Here, writes
to one path wait for each other. ``python -m millstream.testing.moto PORT`` serves on loopback until it is ended.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]

_LOCKS = 64
_WRITES = frozenset({"PUT", "POST"})


class SerializedWrites:
    """The WSGI application *inner*, which gets one PUT or POST of a path at a time."""

    def __init__(self, inner: Application) -> None:
        self._inner = inner
        self._locks = [threading.Lock() for _ in range(_LOCKS)]

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] not in _WRITES:
            return self._inner(environ, start_response)
        with self._locks[hash(environ["PATH_INFO"]) % _LOCKS]:
            return self._inner(environ, start_response)


def serve(port: int) -> None:
    """Serve on 127.0.0.1:*port* until the process is ended."""
    from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
    from werkzeug.serving import run_simple

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    application = SerializedWrites(create_backend_app("s3"))  # moto's own would look among 200 services at each request
    run_simple("127.0.0.1", port, application, threaded=True, request_handler=MotoRequestHandler)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
