"""The listening ports of a broker."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, TypeAlias

from millstream.core.address import Address, is_loopback
from millstream.messaging.broker.security.access_keys import Keyring
from millstream.messaging.broker.security.tls import ServerTls
from millstream.messaging.errors import BrokerCredentialsError, BrokerError, MissingExtraError

if TYPE_CHECKING:
    import grpc

MAX_REQUEST = 130 << 20

_GRACE_SECONDS = 1.0
"""For how long calls may run on when serving ends."""

Serve: TypeAlias = "Callable[[Sequence[grpc.GenericRpcHandler]], AbstractAsyncContextManager[None]]"
"""Answers calls by these handlers, for the length of the block."""


class Listener:
    """Listens at *place*, and at *tls_place* where that is given. For one event loop.

    With *keys* every call has to be signed by one of them. With *tls* connections are encrypted: those to *tls_place*
    where that is given, and those to *place* are not then, else those to *place*. *interceptors* are gRPC's, and see
    every call first. Raises :class:`BrokerCredentialsError` if other machines could reach a place and everybody might
    do everything.
    """

    def __init__(
        self,
        place: Address,
        *,
        keys: Keyring | None = None,
        tls: ServerTls | None = None,
        tls_place: Address | None = None,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    ) -> None:
        self.keys = keys or Keyring()
        places = [(place, tls)] if tls_place is None else [(place, None), (tls_place, tls)]
        if tls_place is not None and tls is not None and tls.client_ca is not None:
            raise BrokerCredentialsError(
                f"broker.tls_client_ca requires TLS, but {place} is not encrypted: omit --broker-tls, "
                "so that this port uses TLS"
            )
        for where, how in places:
            if not is_loopback(where) and not self.keys and (how is None or how.client_ca is None):
                raise BrokerCredentialsError(
                    f"{where} is reachable from other machines without access control: set access keys "
                    "(broker.keys), require client certificates (broker.tls_client_ca), or listen on "
                    "127.0.0.1"
                )
        self._tls = [how for _, how in places]
        self._interceptors = interceptors
        self.places = [where for where, _ in places]
        """Its addresses, with the ports that the system chose, after the first start."""

    @property
    def is_encrypted(self) -> bool:
        """Whether connections to the first place are encrypted."""
        return self._tls[0] is not None

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[Serve]:
        """Takes the places for the length of the block, which gets what serves there.

        Raises :class:`MissingExtraError` without grpcio, :class:`BrokerError` if a place is taken.
        """
        server = _make(self._interceptors)
        self.places = [_bind(server, *each) for each in zip(self.places, self._tls, strict=True)]

        @contextlib.asynccontextmanager
        async def serve(handlers: Sequence[grpc.GenericRpcHandler]) -> AsyncIterator[None]:
            server.add_generic_rpc_handlers(tuple(handlers))
            await server.start()
            try:
                yield
            finally:
                await server.stop(_GRACE_SECONDS)

        try:
            yield serve
        finally:
            await server.stop(_GRACE_SECONDS)


def _make(interceptors: Sequence[grpc.aio.ServerInterceptor]) -> grpc.aio.Server:
    try:
        import grpc
    except ImportError as error:
        raise MissingExtraError from error
    return grpc.aio.server(
        interceptors=interceptors,
        options=[
            ("grpc.max_receive_message_length", MAX_REQUEST),
            # Identity only: grpcio 1.80 decompresses a request of any size before it refuses it by that limit.
            ("grpc.compression_enabled_algorithms_bitset", 1),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.keepalive_time_ms", 30_000),  # a host that is gone ends its connections
            ("grpc.keepalive_timeout_ms", 20_000),
        ],
    )


def _bind(server: grpc.aio.Server, place: Address, tls: ServerTls | None) -> Address:
    try:
        port = server.add_secure_port(str(place), tls.credentials()) if tls else server.add_insecure_port(str(place))
    except RuntimeError as error:
        raise BrokerError(
            f"cannot listen on {place} ({error}): stop the program that uses the port, or use another port; ports "
            "below 1024 need root or the capability CAP_NET_BIND_SERVICE, and the address must be one of this machine"
        ) from error
    return Address(place.host, port)
