"""The broker of a process whose node is served by several: one of them has the topics, the others are on standby."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from millstream.core.address import Address
from millstream.core.clock import Clock
from millstream.log import LogStore, Writer
from millstream.messaging.broker.address import RouteEndpoints
from millstream.messaging.broker.limits import Limits
from millstream.messaging.broker.server.broker_server import route_endpoints, running_broker
from millstream.messaging.broker.server.listener import Listener
from millstream.messaging.broker.server.rpc import CallAuthorizer, RecordChange, broker_handlers
from millstream.messaging.broker.server.standby import Standby
from millstream.messaging.broker.server.supervisor import BrokerSupervisor

if TYPE_CHECKING:
    import grpc

_log = logging.getLogger(__name__)


class SharedBroker:
    """Listens by *listener* as an asynchronous context: on standby, and between :meth:`begin` and :meth:`end` as the
    broker of the topics in *store*.

    Its routes lead to *advertised*, else to where it listens. On standby they lead where *owner* says, as
    :class:`Standby` calls it. *member_key* is a secret that all members have and no client. *record* gets each change
    by an administrative call.
    """

    def __init__(
        self,
        store: LogStore,
        listener: Listener,
        owner: Callable[[], RouteEndpoints | None],
        *,
        clock: Clock,
        member_key: bytes,
        limits: Limits | None = None,
        advertised: Address | None = None,
        record: RecordChange | None = None,
    ) -> None:
        self._store, self._listener = store, listener
        self._clock, self._limits, self._advertised = clock, limits, advertised
        self._record = record
        self._member_key = member_key
        self._standby = Standby(
            store, owner, clock, listener.keys, member_key=member_key, encrypted=listener.is_encrypted
        )
        self._serving = contextlib.AsyncExitStack()
        self._supervisor: BrokerSupervisor | None = None
        self._changing = asyncio.Lock()

    @property
    def supervisor(self) -> BrokerSupervisor | None:
        """The broker itself; None on standby."""
        return self._supervisor

    @property
    def places(self) -> Sequence[Address]:
        """Its addresses."""
        return self._listener.places

    @property
    def routes(self) -> RouteEndpoints:
        """The address of this process in routes."""
        return route_endpoints(self._listener.places, self._advertised, as_asked=False)

    def writer_of(self, topic: str) -> Writer | None:
        """The writer of the log *topic* where this process has it open as a topic. From any thread."""
        supervisor = self._supervisor
        return None if supervisor is None else supervisor.writer_of(topic)

    async def begin(self) -> None:
        """Become the broker. Raises the log's ``WriterBusyError`` where another process still is, and stays on
        standby then."""
        async with self._changing, contextlib.AsyncExitStack() as stack:
            running = running_broker(self._store, self._clock, self._limits, self.routes)
            supervisor = await stack.enter_async_context(running)
            await self._serving.aclose()  # not before: until then clients are led to the former one
            try:
                auth = CallAuthorizer(supervisor, self._listener.keys, self._member_key)
                await self._listen(stack, broker_handlers(auth, self._record))
            except BaseException:
                await self._stand_by()
                raise
            self._supervisor = supervisor
            self._serving = stack.pop_all()
        _log.info("this process has the topics of the node now: clients are led to %s", self.routes.address)

    async def end(self) -> None:
        """Be on standby again: another process can begin.

        Raises the log's ``LogError`` where what the broker had open could not be closed in order; it is on standby
        then, too.
        """
        async with self._changing:
            if self._supervisor is not None:
                self._supervisor = None
                try:
                    await self._serving.aclose()
                finally:  # what another process has taken over cannot be closed in order
                    await self._stand_by()

    async def _stand_by(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(self._standby.forwarding())
            await self._listen(stack, self._standby.handlers())
            self._serving = stack.pop_all()

    async def _listen(self, stack: contextlib.AsyncExitStack, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        serve = await stack.enter_async_context(self._listener.listening())
        await stack.enter_async_context(serve(handlers))

    async def __aenter__(self) -> Self:
        await self._stand_by()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async with self._changing:
            self._supervisor = None
            await self._serving.aclose()
