"""What a client is told besides what it is for."""

from __future__ import annotations

import msgspec

from millstream.messaging.client.signing import Credentials


class Intervals(msgspec.Struct, frozen=True):
    """How often a client does its chores, in seconds: the figures of the Java client."""

    first_route: float = 10.0
    route: float = 30.0
    first_heartbeat: float = 1.0
    heartbeat: float = 10.0
    settings: float = 300.0
    assignments: float = 5.0
    reopen: float = 1.0
    retry: float = 1.0
    """Between attempts to acknowledge, to receive after a failure, and while a cache is full."""

    throttled: float = 0.02


class Tls(msgspec.Struct, frozen=True):
    """Encrypt, and check the server against the certificates in ``ca`` (PEM; the system's own without it).

    ``certificate`` and ``key`` (PEM) are the client's own, for servers that ask for them.
    """

    ca: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = None

    def __repr__(self) -> str:
        return "<Tls>"


class Options(msgspec.Struct, frozen=True):
    """How a client reaches its servers. Times are in seconds.

    ``startup_timeout`` is for the whole of a start; ``attempts`` is how often a send is tried.
    """

    namespace: str = ""
    credentials: Credentials | None = None
    tls: Tls | None = None
    request_timeout: float = 3.0
    startup_timeout: float = 10.0
    attempts: int = 3
    intervals: Intervals = Intervals()


DEFAULTS = Options()
