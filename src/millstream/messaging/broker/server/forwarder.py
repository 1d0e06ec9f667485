"""Passes calls on to the broker in another process, for clients that do not follow its routes."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millstream.core.address import Address
from millstream.core.clock import Clock
from millstream.core.errors import MillstreamError

if TYPE_CHECKING:
    import grpc

FORWARDED = "x-millstream-forwarded"
"""The header of a call that was passed on: it is not passed on again. Its value is that of :func:`forwarding_proof`."""

_IDLE_SECONDS = 60.0
"""How long a connection is kept that no call uses."""

_OPTIONS = (
    ("grpc.enable_retries", 0),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # a connection of its own
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.keepalive_time_ms", 30_000),  # a host that is gone, or a process that hangs, ends the calls
    ("grpc.keepalive_timeout_ms", 20_000),
)


@dataclass(slots=True)
class _Connection:
    """A connection to the broker for one connection of a client: its running calls, when the last one ended, and
    whether the broker is elsewhere by now."""

    channel: grpc.aio.Channel
    used: float
    calls: int = 0
    is_former: bool = False


def forwarding_proof(member_key: bytes, method: str, headers: Mapping[str, str | bytes]) -> str:
    """Proves to members of the node that a process with their *member_key* passed on a call of *method* (its path) with
    these *headers*; other callers cannot make it."""
    signed = (method, *(str(headers.get(name, "")) for name in ("authorization", "x-mq-date-time")))
    return hmac.new(member_key, "\n".join(signed).encode(), hashlib.sha256).hexdigest()


class Forwarder:
    """Forwards calls to the address that *owner* returns. For one event loop. Each connection of a client gets its own
    connection to the broker, which detects by it that the client is alive. Headers (keys, signatures) and the deadline
    of a call go with it, its end, and a proof by *member_key*, which all members have, that a member passed it on.
    """

    def __init__(self, owner: Callable[[], Awaitable[Address]], clock: Clock, member_key: bytes) -> None:
        self._owner, self._clock, self._member_key = owner, clock, member_key
        self._connections: dict[tuple[str, Address], _Connection] = {}

    async def pass_on(self, method: str, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """The answers of the broker to a call of *method* (its path), whatever streams; ends as the call does there.

        It ends as UNAVAILABLE where no process has the broker, or the one that is asked has it no more.
        """
        import grpc

        headers = [pair for pair in context.invocation_metadata() or () if not _is_of_transport(pair[0])]
        if any(name == FORWARDED for name, _ in headers):
            await context.abort(
                grpc.StatusCode.UNAVAILABLE, "the broker of this node is moving to another process: try again"
            )
        try:
            place = await self._owner()
        except MillstreamError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        with self._connection(context.peer(), place) as connection:
            calls: Any = connection.channel.stream_stream(method)
            proof = FORWARDED, forwarding_proof(self._member_key, method, dict(headers))
            call = calls(requests, timeout=context.time_remaining(), metadata=[*headers, proof])
            try:
                async for answer in call:
                    yield answer
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details() or "")
            except asyncio.CancelledError:
                if not connection.is_former:
                    raise
                await context.abort(
                    grpc.StatusCode.UNAVAILABLE, "the broker of this node has moved to another process: try again"
                )
            finally:
                call.cancel()

    async def close(self) -> None:
        """Close all connections."""
        while self._connections:
            _, connection = self._connections.popitem()
            await connection.channel.close()

    async def close_idle(self) -> None:
        """Close the connections that were not used lately."""
        limit = self._clock.monotonic() - _IDLE_SECONDS
        for key in [key for key, each in self._connections.items() if not each.calls and each.used < limit]:
            await self._connections.pop(key).channel.close()

    async def close_former(self, owner: Address) -> None:
        """End the calls to brokers elsewhere than at *owner*: one that hangs or is gone ends no stream by itself."""
        for key in [key for key in self._connections if key[1] != owner]:
            connection = self._connections.pop(key)
            connection.is_former = True
            await connection.channel.close()

    @property
    def has_connections(self) -> bool:
        """Whether it has connections to a broker."""
        return bool(self._connections)

    @contextlib.contextmanager
    def _connection(self, peer: str, place: Address) -> Iterator[_Connection]:
        """The connection for the client's connection *peer*, in use for the length of the block."""
        import grpc

        found = self._connections.get((peer, place))
        if found is None:
            channel = grpc.aio.insecure_channel(str(place), _OPTIONS)
            found = self._connections[peer, place] = _Connection(channel, self._clock.monotonic())
        found.calls += 1
        try:
            yield found
        finally:
            found.calls -= 1
            found.used = self._clock.monotonic()


def _is_of_transport(header: str) -> bool:
    """Whether gRPC writes *header* itself."""
    return header.startswith((":", "grpc-")) or header in ("user-agent", "content-type", "te")
