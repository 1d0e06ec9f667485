"""The answers of a process while another one owns the broker of its node: routes name the owner, other calls are
forwarded."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from millstream.core.address import Address
from millstream.core.clock import Clock
from millstream.core.errors import MillstreamError
from millstream.log import LogStore
from millstream.messaging.broker.address import RouteEndpoints
from millstream.messaging.broker.admin import ADMIN_SERVICE, AdminResponse
from millstream.messaging.broker.clients.client_quirks import follows_routes
from millstream.messaging.broker.handlers.call_context import is_encrypted
from millstream.messaging.broker.handlers.method_table import BATCH_CALLS, UNARY_CALLS
from millstream.messaging.broker.handlers.routes import assigned_queues, route_response
from millstream.messaging.broker.handlers.validation import check_group_name, check_topic_name
from millstream.messaging.broker.names import full_name
from millstream.messaging.broker.security.access_keys import Keyring
from millstream.messaging.broker.security.required_permissions import RequiredPermission
from millstream.messaging.broker.server.forwarder import Forwarder
from millstream.messaging.broker.server.rpc import (
    accepted,
    admitted_administration,
    admitted_batches,
    admitted_service,
    call_headers,
    check_caller,
    refused_response,
    request_reader,
)
from millstream.messaging.broker.storage.topic import TopicSpec, no_topic
from millstream.messaging.broker.storage.topic_specs import TopicSpecs
from millstream.messaging.errors import MessagingError, StatusError, UnreachableError
from millstream.messaging.protocol import v2
from millstream.messaging.protocol.batch_calls import BATCH_SERVICE
from millstream.messaging.protocol.descriptor_methods import SERVICE, Method, methods

if TYPE_CHECKING:
    import grpc

_FRESH_SECONDS = 1.0
"""For how long is used what is known of the owner."""

_SWEEP_SECONDS = 10.0

_PATIENCE_SECONDS = 1.0
"""For how long a call waits for the database; then it is answered by what is known."""

_Read = TypeVar("_Read")

_log = logging.getLogger(__name__)


class NoOwnerError(UnreachableError):
    """No process runs the broker of this node now: try again in a moment."""


class _SharedReading(Generic[_Read]):
    """Calls *read*, which may wait for a database, in one thread for all that ask meanwhile."""

    def __init__(self, read: Callable[[], _Read]) -> None:
        self._read = read
        self._running: asyncio.Future[_Read] | None = None
        self.last: _Read | None = None
        """The last read value."""

    async def newest(self) -> _Read:
        """The present value, or that of the read in progress. Raises the errors of reading, and
        :class:`UnreachableError` where it takes longer than :data:`_PATIENCE_SECONDS`.
        """
        if self._running is None or self._running.done():
            self._running = asyncio.ensure_future(asyncio.to_thread(self._read))
            self._running.add_done_callback(self._keep)
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                return await asyncio.shield(self._running)
        except TimeoutError as error:
            raise UnreachableError("the database of this node does not answer: try again in a moment") from error

    def _keep(self, running: asyncio.Future[_Read]) -> None:
        if not running.cancelled() and running.exception() is None:
            self.last = running.result()


class Standby:
    """Tells clients where the broker of the node is whose logs are in *store*, and passes their other calls on.

    Where the broker is *encrypted*, it takes calls of its clients alone: others end as UNAVAILABLE here.

    *member_key* is a secret of all members: by it they recognize the calls that one of them passed on. *owner* returns
    where its routes lead, None while no process has it; it may wait, and is called in a thread. While
    the database of the node does not answer, clients are led by what it said last.
    """

    def __init__(
        self,
        store: LogStore,
        owner: Callable[[], RouteEndpoints | None],
        clock: Clock,
        keys: Keyring,
        *,
        member_key: bytes,
        encrypted: bool = False,
    ) -> None:
        self._topics = _SharedReading(TopicSpecs(store).read)
        self._owner = _SharedReading(owner)
        self._clock, self._keys = clock, keys
        self._owner_read: float | None = None
        self._encrypted = encrypted
        self._forwarder = Forwarder(self._owner_address, clock, member_key)

    async def owner(self) -> RouteEndpoints:
        """The address of the broker. Raises :class:`NoOwnerError`, and what the database of the node does."""
        now = self._clock.monotonic()
        if self._owner_read is None or now - self._owner_read > _FRESH_SECONDS:
            try:
                await self._owner.newest()
                self._owner_read = now
            except MillstreamError:
                if self._owner.last is None:
                    raise
        if self._owner.last is None:
            raise NoOwnerError
        return self._owner.last

    async def topic(self, resource: v2.Resource, namespace: str) -> TopicSpec:
        """The topic that *resource* names. Raises TOPIC_NOT_FOUND, ILLEGAL_TOPIC, and what the log of topics does."""
        name = full_name(resource, namespace)
        check_topic_name(name)
        for _ in range(2):  # a reading that was under way may have begun before the topic was created
            try:
                topics = await self._topics.newest()
            except MillstreamError:
                topics = self._topics.last or {}
                if name not in topics:
                    raise
            if name in topics:
                return topics[name]
        raise no_topic(name)

    def handlers(self) -> Sequence[grpc.GenericRpcHandler]:
        """Answers for all calls of a broker."""
        import grpc

        routes: dict[str, Any] = {
            name: grpc.unary_unary_rpc_method_handler(
                _route(self, self._keys, methods()[name], UNARY_CALLS[name].needs, answer),
                request_reader(methods()[name]),
                methods()[name].response.SerializeToString,
            )
            for name, answer in (("QueryRoute", _query_route), ("QueryAssignment", _query_assignment))
        }

        def forwarded(behaviour: Any, method: str) -> grpc.RpcMethodHandler[Any, Any]:
            return grpc.stream_stream_rpc_method_handler(functools.partial(behaviour, method))

        pass_on, keys = functools.partial(forwarded, self._forwarder.pass_on), self._keys
        passed = {name: pass_on(f"/{SERVICE}/{name}") for name in methods()} | routes
        batches = {name: pass_on(f"/{BATCH_SERVICE}/{name}") for name in BATCH_CALLS}

        class Others(grpc.GenericRpcHandler):
            """The calls of a later version; without a known key they are unknown methods."""

            def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
                try:
                    keys.access(dict(handler_call_details.invocation_metadata or ()))
                except MessagingError:
                    return None
                return pass_on(handler_call_details.method)

        return [
            admitted_service(self._keys, passed.get),
            admitted_batches(self._keys, batches.get),
            admitted_administration(
                self._keys, lambda name: forwarded(self._administration, f"/{ADMIN_SERVICE}/{name}")
            ),
            Others(),
        ]

    @contextlib.asynccontextmanager
    async def forwarding(self) -> AsyncIterator[None]:
        """Keeps connections to the broker for calls that are passed on, for the length of the block."""
        sweeping = asyncio.ensure_future(self._sweep())
        try:
            yield
        finally:
            sweeping.cancel()
            await asyncio.gather(sweeping, return_exceptions=True)
            await self._forwarder.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            try:
                await self._forwarder.close_idle()
                if self._forwarder.has_connections:
                    await self._forwarder.close_former((await self.owner()).address)
            except MillstreamError:  # without an owner there is nowhere else to go
                pass
            except Exception:  # the next round may succeed
                _log.exception("connections to former brokers were not looked through")

    async def _administration(self, method: str, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """Passes on what people ask; they are told in an answer why that cannot be done."""
        try:
            await self._owner_address()
        except MillstreamError as error:
            yield msgspec.json.encode(AdminResponse(error=str(error), exit_code=UnreachableError.exit_code))
            return
        async for answer in self._forwarder.pass_on(method, requests, context):
            yield answer

    async def _owner_address(self) -> Address:
        """The address to which calls are forwarded. Raises :class:`UnreachableError`."""
        try:
            routes = await self.owner()
        except Exception as error:
            raise UnreachableError(_told(error)) from error
        if self._encrypted:
            raise UnreachableError(f"the broker of this node runs in another process: connect to {routes.address}")
        return routes.address


def _route(standby: Standby, keys: Keyring, method: Method, need: RequiredPermission, answer: Any) -> Any:
    async def behaviour(received: Any, context: Any) -> Any:
        try:
            request = accepted(received)
            _, namespace, _ = check_caller(keys, need, request, call_headers(context))
            spec = await standby.topic(request.topic, namespace)
            routes = await standby.owner()
            endpoints = routes.choose(
                request.endpoints,
                is_encrypted=is_encrypted(context.auth_context()),
                follows=follows_routes(str(call_headers(context).get("x-mq-language", ""))),
            )
            return answer(request, namespace, spec, endpoints)
        except StatusError as error:
            return refused_response(method, error)
        except Exception as error:
            await _abort(context, _told(error))

    return behaviour


def _query_route(
    request: v2.QueryRouteRequest, _namespace: str, spec: TopicSpec, endpoints: v2.Endpoints
) -> v2.QueryRouteResponse:
    return route_response(request.topic, spec, endpoints)


def _query_assignment(
    request: v2.QueryAssignmentRequest, namespace: str, spec: TopicSpec, endpoints: v2.Endpoints
) -> v2.QueryAssignmentResponse:
    check_group_name(full_name(request.group, namespace))
    return assigned_queues(request.topic, spec, endpoints)


def _told(error: Exception) -> str:
    """The status of a client's call for *error*."""
    if isinstance(error, MillstreamError):
        return str(error)
    _log.error("a call on standby failed", exc_info=error)
    return "the standby of this broker failed; its log says why"


async def _abort(context: Any, text: str) -> None:
    """End a call as if no server had been there: clients look for another one then."""
    import grpc

    await context.abort(grpc.StatusCode.UNAVAILABLE, text)
