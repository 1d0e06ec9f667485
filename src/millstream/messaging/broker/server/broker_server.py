"""The broker on the network."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from millstream.core.address import Address
from millstream.core.clock import Clock, SystemClock
from millstream.log import LogStore
from millstream.messaging.broker.address import RouteEndpoints
from millstream.messaging.broker.limits import Limits
from millstream.messaging.broker.security.access_keys import Keyring
from millstream.messaging.broker.security.tls import ServerTls
from millstream.messaging.broker.server.listener import Listener
from millstream.messaging.broker.server.rpc import CallAuthorizer, RecordChange, broker_handlers
from millstream.messaging.broker.server.supervisor import BrokerSupervisor
from millstream.messaging.errors import BrokerError

if TYPE_CHECKING:
    import grpc


class BrokerServer:
    """A broker on *store* at *place*, as an asynchronous context: it accepts calls inside.

    *keys*, *tls*, *tls_place* and *interceptors* are those of :class:`Listener`, which raises its errors here. Routes
    lead to *advertised*, where that is given, else to where clients say that they came. *record* gets each change by an
    administrative call. Raises the log's ``WriterBusyError`` where another broker has the store.
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
        advertised: Address | None = None,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
        record: RecordChange | None = None,
    ) -> None:
        self._listener = Listener(place, keys=keys, tls=tls, tls_place=tls_place, interceptors=interceptors)
        self._store = store
        self._clock = clock or SystemClock()
        self._limits = limits
        self._advertised = advertised
        self._record = record
        self._resources = contextlib.AsyncExitStack()
        self._supervisor: BrokerSupervisor | None = None

    @property
    def places(self) -> Sequence[Address]:
        """Its addresses: *place*, and *tls_place* if given, with the ports that the system chose."""
        return self._listener.places

    @property
    def port(self) -> int:
        """The port of *place*: the one that the system chose, while it accepts calls."""
        return self._listener.places[0].port

    @property
    def tls_port(self) -> int | None:
        """The port of *tls_place*, where that is given."""
        return self._listener.places[1].port if len(self._listener.places) > 1 else None

    @property
    def supervisor(self) -> BrokerSupervisor:
        """The broker itself, for who runs in the same process; only while it accepts calls."""
        if self._supervisor is None:
            raise BrokerError("the broker has not been started: use the server in an `async with` block")
        return self._supervisor

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            serve = await stack.enter_async_context(self._listener.listening())
            routes = route_endpoints(self._listener.places, self._advertised, as_asked=self._advertised is None)
            running = running_broker(self._store, self._clock, self._limits, routes)
            self._supervisor = await stack.enter_async_context(running)
            handlers = broker_handlers(CallAuthorizer(self._supervisor, self._listener.keys), self._record)
            await stack.enter_async_context(serve(handlers))
            self._resources = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._resources.aclose()


@contextlib.asynccontextmanager
async def running_broker(
    store: LogStore, clock: Clock, limits: Limits | None, routes: RouteEndpoints
) -> AsyncIterator[BrokerSupervisor]:
    """A broker without a network, for the length of the block. Raises like :class:`BrokerSupervisor`."""
    supervisor = BrokerSupervisor(store, clock, limits, routes)
    run = asyncio.ensure_future(supervisor.run())
    try:
        yield supervisor
    finally:
        run.cancel()
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await run  # raises where it failed before
        finally:
            await supervisor.close()


def route_endpoints(places: Sequence[Address], advertised: Address | None, *, as_asked: bool) -> RouteEndpoints:
    """Where routes lead of a broker that listens at *places*, the second of which encrypts.

    That is *advertised*, where it is given (port 0: the port of the first place), with the port of the second place for
    clients that encrypt.
    """
    first, *others = places
    host, port = (advertised.host, advertised.port or first.port) if advertised else (first.host, first.port)
    tls = [Address(host, place.port) for place in others]
    return RouteEndpoints(address=Address(host, port), tls_address=tls[0] if tls else None, as_asked=as_asked)
