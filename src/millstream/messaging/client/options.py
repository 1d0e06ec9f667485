"""General options of clients."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from millstream.messaging.client.signing import Credentials

if TYPE_CHECKING:
    import grpc


class Intervals(msgspec.Struct, frozen=True):
    """How often a client does its chores, in seconds: the figures of the Java client."""

    first_route: float = 10.0
    route: float = 30.0
    first_heartbeat: float = 1.0
    heartbeat: float = 10.0
    settings: float = 300.0
    sweep: float = 60.0
    idle: float = 1800.0
    """How long a connection to a server that no route names any more is kept unused."""

    assignments: float = 5.0
    reopen: float = 1.0
    retry: float = 1.0
    """Between attempts to acknowledge, to receive after a failure, and while a cache is full."""

    resend: float = 0.5
    """Before a message is sent a second time, to the same server; four times as long before the third time."""

    throttled: float = 0.02


class Tls(msgspec.Struct, frozen=True):
    """Encrypt, and check the server against the certificates in ``ca`` (the system's own without it).

    ``certificate`` and its ``key`` are for servers that want to know the client; all three are PEM. ``server_name`` is
    the name in the server's certificate, where it is not the one that the client connects to.
    """

    ca: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = None
    server_name: str = ""

    def __repr__(self) -> str:
        return "<Tls>"

    def credentials(self) -> grpc.ChannelCredentials:
        """The same for gRPC."""
        import grpc

        return grpc.ssl_channel_credentials(self.ca, self.key, self.certificate)


class Options(msgspec.Struct, frozen=True):
    """How a client reaches its servers. Times are in seconds.

    ``startup_timeout`` is for the whole of a start; ``attempts`` is how often a send is tried. ``meter_provider`` is
    OpenTelemetry's, for an application that collects the metrics of its clients.
    """

    namespace: str = ""
    credentials: Credentials | None = None
    tls: Tls | None = None
    request_timeout: float = 3.0
    startup_timeout: float = 10.0
    attempts: int = 3
    meter_provider: Any = None
    intervals: Intervals = Intervals()


DEFAULTS = Options()


def seconds_of(duration: float | timedelta) -> float:
    """*duration* in seconds."""
    return duration.total_seconds() if isinstance(duration, timedelta) else duration
