"""The broker on the network."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from millstream.core.address import Address, is_loopback
from millstream.core.clock import Clock, SystemClock
from millstream.log import LogStore
from millstream.messaging.broker.address import to_endpoints
from millstream.messaging.broker.limits import Limits
from millstream.messaging.broker.security.access_keys import Keyring
from millstream.messaging.broker.security.tls import ServerTls
from millstream.messaging.broker.server.rpc import CallAuthorizer, admin_handlers, batch_handlers, service_handlers
from millstream.messaging.broker.server.supervisor import BrokerSupervisor
from millstream.messaging.errors import BrokerCredentialsError, BrokerError, MissingExtraError

if TYPE_CHECKING:
    import grpc

MAX_REQUEST = 130 << 20


class BrokerServer:
    """A broker on *store* at *place*, as an asynchronous context: it accepts calls inside.

    With *keys* every call has to be signed by one of them. With *tls* connections are encrypted: those to *tls_place*
    where that is given, and those to *place* are not then, else those to *place*. Raises :class:`MissingExtraError`
    without grpcio, :class:`BrokerError` if a place is taken, :class:`BrokerCredentialsError` if other machines
    could reach one and everybody might do everything, and the log's ``WriterBusyError`` where another broker has the
    store. *interceptors* are gRPC's, and see every call first.
    """

    def __init__(
        self,
        store: LogStore,
        place: Address,
        *,
        clock: Clock | None = None,
        limits: Limits | None = None,
        keys: Keyring | None = None,
        tls: ServerTls | None = None,
        tls_place: Address | None = None,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    ) -> None:
        self._keys = keys or Keyring()
        self._places = [(place, tls)] if tls_place is None else [(place, None), (tls_place, tls)]
        if tls_place is not None and tls is not None and tls.client_ca is not None:
            raise BrokerCredentialsError(
                f"broker.tls_client_ca requires TLS, but {place} is not encrypted: omit --broker-tls, "
                "so that this port uses TLS"
            )
        for where, how in self._places:
            if not is_loopback(where) and not self._keys and (how is None or how.client_ca is None):
                raise BrokerCredentialsError(
                    f"{where} is reachable from other machines without access control: set access keys "
                    "(broker.keys), require client certificates (broker.tls_client_ca), or listen on "
                    "127.0.0.1"
                )
        self._store = store
        self._clock = clock or SystemClock()
        self._limits = limits
        self._interceptors = interceptors
        self._resources = contextlib.AsyncExitStack()
        self._supervisor: BrokerSupervisor | None = None
        self.port = 0
        self.tls_port: int | None = None
        """The port of *tls_place*, where that is given."""

    @property
    def supervisor(self) -> BrokerSupervisor:
        """The broker itself, for who runs in the same process; only while it accepts calls."""
        if self._supervisor is None:
            raise BrokerError("the broker has not been started")
        return self._supervisor

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            server = _make(self._interceptors)
            self.port, *others = (_listen(server, *each) for each in self._places)
            self.tls_port = others[0] if others else None
            stack.push_async_callback(server.stop, 1.0)
            supervisor = BrokerSupervisor(
                self._store, self._clock, self._limits, to_endpoints(Address(self._places[0][0].host, self.port))
            )
            self._supervisor = supervisor
            stack.push_async_callback(supervisor.close)
            stack.push_async_callback(_cancel, asyncio.ensure_future(supervisor.run()))
            auth = CallAuthorizer(supervisor, self._keys)
            server.add_generic_rpc_handlers((service_handlers(auth), batch_handlers(auth), admin_handlers(auth)))
            await server.start()
            stack.push_async_callback(server.stop, 1.0)
            self._resources = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._resources.aclose()


def _make(interceptors: Sequence[grpc.aio.ServerInterceptor]) -> grpc.aio.Server:
    try:
        import grpc
    except ImportError as error:
        raise MissingExtraError from error
    return grpc.aio.server(
        interceptors=interceptors,
        options=[
            ("grpc.max_receive_message_length", MAX_REQUEST),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.keepalive_time_ms", 30_000),  # a host that is gone ends its connections
            ("grpc.keepalive_timeout_ms", 20_000),
        ],
    )


def _listen(server: grpc.aio.Server, place: Address, tls: ServerTls | None) -> int:
    try:
        return server.add_secure_port(str(place), tls.credentials()) if tls else server.add_insecure_port(str(place))
    except RuntimeError as error:
        raise BrokerError(
            f"cannot listen on {place}: stop the program that uses the port, or use another port"
        ) from error


async def _cancel(task: asyncio.Future[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
