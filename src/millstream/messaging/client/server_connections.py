"""The connections of a client to servers, and its telemetry stream on each of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from millstream.core.clock import Clock
from millstream.messaging.client.endpoints import Endpoints
from millstream.messaging.client.errors import ClientError, StartupError, TransportError
from millstream.messaging.client.telemetry_stream import TelemetryStream
from millstream.messaging.client.transport import Transport

_log = logging.getLogger(__name__)

COOLDOWN = 30.0
"""Seconds between two new connections to a server that no client asked for."""

_LATE_IN_A_ROW = 2


class ConnectionRecovery:
    """Watches the heartbeats to one server. A connection may seem to work and be dead: then it is opened again.

    That is so when two heartbeats in a row had no answer in time, or when one could not be sent although the
    connection claims to be there. A busy server is left alone.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._late = 0
        self._last: float | None = None

    def succeeded(self) -> None:
        """A heartbeat was answered."""
        self._late = 0

    def failed(self, error: ClientError, *, is_ready: bool) -> bool:
        """Note the *error* of a heartbeat on a connection with the state *is_ready*; whether to open it again."""
        reason = error.reason if isinstance(error, TransportError) else ""
        self._late = self._late + 1 if reason == "DEADLINE_EXCEEDED" else 0
        if self._late < _LATE_IN_A_ROW and not (reason == "UNAVAILABLE" and is_ready):
            return False
        now = self._clock.monotonic()
        if self._last is not None and now - self._last < COOLDOWN:
            return False
        self._late, self._last = 0, now
        return True


class ServerConnections:
    """A transport for each server that is asked, and a telemetry stream for each that a route names.

    *connect* makes a transport, *open_stream* a stream.
    """

    def __init__(
        self,
        connect: Callable[[Endpoints], Transport],
        open_stream: Callable[[Endpoints], TelemetryStream],
        clock: Clock,
        client_id: str,
    ) -> None:
        self._connect = connect
        self._open_stream = open_stream
        self._clock = clock
        self._client_id = client_id
        self.transports: dict[Endpoints, Transport] = {}
        self._used: dict[Endpoints, float] = {}
        self._streams: dict[Endpoints, TelemetryStream] = {}
        self._recoveries: dict[Endpoints, ConnectionRecovery] = {}
        self._settling: list[Endpoints] = []  # once for each caller
        self._keeping = asyncio.Lock()

    @property
    def with_streams(self) -> list[Endpoints]:
        """The servers to which there is a stream."""
        return list(self._streams)

    def transport(self, endpoints: Endpoints) -> Transport:
        """The connection to *endpoints*."""
        found = self.transports.get(endpoints)
        if found is None:
            found = self.transports[endpoints] = self._connect(endpoints)
        self._used[endpoints] = self._clock.monotonic()
        return found

    def reconnect(self, endpoints: Endpoints) -> None:
        """Use a new connection to *endpoints*, and open the telemetry stream on it."""
        _log.info("client %s reconnects to %s", self._client_id, endpoints)
        self.transport(endpoints).reconnect()
        stream = self._streams.get(endpoints)
        if stream is not None:
            stream.restart()

    def heartbeat_failed(self, endpoints: Endpoints, error: ClientError) -> None:
        """Reconnect where *error* says that the connection is of no use any more."""
        if self._recovery(endpoints).failed(error, is_ready=self.transport(endpoints).is_ready):
            self.reconnect(endpoints)

    def heartbeat_succeeded(self, endpoints: Endpoints) -> None:
        """The connection is of use."""
        self._recovery(endpoints).succeeded()

    async def settle(self, endpoints: Endpoints, topic: str, *, seconds: float) -> None:
        """Wait until a stream to *endpoints* has settled. Raises :class:`StartupError`, which names *topic*."""
        stream: TelemetryStream | None = None
        self._settling.append(endpoints)
        try:
            async with asyncio.timeout(seconds):
                is_settled = False
                while not is_settled:
                    stream = self._streams.get(endpoints)
                    if stream is None:
                        stream = self._streams[endpoints] = self._open_stream(endpoints)
                    is_settled = await self._has_settled(endpoints, stream)
        except (ClientError, TimeoutError) as error:
            if stream is not None:
                if self._streams.get(endpoints) is stream:
                    del self._streams[endpoints]
                await stream.close()
            text = str(error) or f"no settings within {seconds:g} seconds"
            raise StartupError(
                f"{endpoints} did not confirm the settings of this client for {topic}: {text}",
                code=getattr(error, "code", 0),
            ) from error
        finally:
            self._settling.remove(endpoints)

    async def _has_settled(self, endpoints: Endpoints, stream: TelemetryStream) -> bool:
        """Wait until *stream* to *endpoints* has settled; False where another caller gave it up meanwhile."""
        try:
            await stream.settled()
        except ClientError:
            if self._streams.get(endpoints) is stream:
                raise
            return False
        return True

    async def sync(self, endpoints: Collection[Endpoints] | None = None) -> None:
        """Send the settings to *endpoints*, as far as there are streams; None: to all."""
        for each in self.with_streams if endpoints is None else endpoints:
            if each in self._streams:
                await self._streams[each].sync()

    async def keep_streams(self, endpoints: set[Endpoints]) -> None:
        """Have streams to *endpoints* and to no other server, but for those with which a caller is settling."""
        async with self._keeping:
            for each in [each for each in self._streams if each not in endpoints and each not in self._settling]:
                self._recoveries.pop(each, None)
                if (stream := self._streams.pop(each, None)) is not None:
                    await stream.close()
            for each in endpoints.difference(self._streams):
                self._streams[each] = self._open_stream(each)

    async def close_idle(self, seconds: float, needed: Collection[Endpoints]) -> None:
        """Close the connections that no client has used for *seconds*, but for *needed* ones."""
        limit = self._clock.monotonic() - seconds
        for endpoints in [each for each, used in self._used.items() if used <= limit and each not in needed]:
            del self._used[endpoints]
            await self.transports.pop(endpoints).close()

    async def close(self) -> None:
        """Close all streams and connections."""
        for stream in self._streams.values():
            await stream.close()
        for transport in self.transports.values():
            await transport.close()
        for cache in (self._streams, self.transports, self._used, self._recoveries):
            cache.clear()

    def _recovery(self, endpoints: Endpoints) -> ConnectionRecovery:
        return self._recoveries.setdefault(endpoints, ConnectionRecovery(self._clock))
