"""What a process answers while another one has the broker of its node: routes lead there, and nothing else is done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from millstream.core.clock import Clock
from millstream.core.errors import MillstreamError
from millstream.log import LogStore
from millstream.messaging.broker.address import RouteEndpoints
from millstream.messaging.broker.admin import ADMIN_SERVICE, AdminResponse
from millstream.messaging.broker.handlers.call_context import is_encrypted
from millstream.messaging.broker.handlers.routes import assigned_queues, route_response
from millstream.messaging.broker.handlers.validation import check_group_name, check_topic_name
from millstream.messaging.broker.names import full_name
from millstream.messaging.broker.security.access_keys import Keyring
from millstream.messaging.broker.server.rpc import call_headers, check_caller, refused_response
from millstream.messaging.broker.storage.topic import TopicSpec, no_topic
from millstream.messaging.broker.storage.topic_specs import TopicSpecs
from millstream.messaging.errors import StatusError, UnreachableError
from millstream.messaging.protocol import v2
from millstream.messaging.protocol.descriptor_methods import SERVICE, Method, methods

if TYPE_CHECKING:
    import grpc

_FRESH_SECONDS = 1.0
"""For how long is used what is known of topics and of the owner."""


class NoOwnerError(UnreachableError):
    """No process has the broker of this node at present: try again in a moment."""


class Standby:
    """Tells clients where the broker of the node is whose logs are in *store*.

    *owner* returns where its routes lead, None while no process has it; it may wait, and is called in a thread.
    """

    def __init__(
        self, store: LogStore, owner: Callable[[], RouteEndpoints | None], clock: Clock, keys: Keyring
    ) -> None:
        self._topics = TopicSpecs(store)
        self._find_owner = owner
        self._clock, self._keys = clock, keys
        self._known: tuple[float, RouteEndpoints | None] | None = None
        self._reading = asyncio.Lock()

    async def owner(self) -> RouteEndpoints:
        """Where the broker is. Raises :class:`NoOwnerError`, and what the database of the node does."""
        async with self._reading:
            now = self._clock.monotonic()
            if self._known is None or now - self._known[0] > _FRESH_SECONDS:
                self._known = now, await asyncio.to_thread(self._find_owner)
            found = self._known[1]
        if found is None:
            raise NoOwnerError
        return found

    async def topic(self, resource: v2.Resource, namespace: str) -> TopicSpec:
        """The topic that *resource* names. Raises TOPIC_NOT_FOUND, ILLEGAL_TOPIC."""
        name = full_name(resource, namespace)
        check_topic_name(name)
        async with self._reading:
            found = await asyncio.to_thread(self._topics.find, name)
        if found is None:
            raise no_topic(name)
        return found

    def handlers(self) -> Sequence[grpc.GenericRpcHandler]:
        """Answers for all calls of a broker."""
        import grpc

        found: dict[str, Any] = {
            f"/{SERVICE}/{name}": grpc.unary_unary_rpc_method_handler(
                _route(self, self._keys, methods()[name], answer),
                methods()[name].request.FromString,
                methods()[name].response.SerializeToString,
            )
            for name, answer in (("QueryRoute", _query_route), ("QueryAssignment", _query_assignment))
        }
        elsewhere: Any = grpc.stream_stream_rpc_method_handler(_elsewhere(self))
        administration: Any = grpc.unary_unary_rpc_method_handler(_administration(self))

        class Handlers(grpc.GenericRpcHandler):
            def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
                method = handler_call_details.method
                if method.startswith(f"/{ADMIN_SERVICE}/"):
                    return administration
                return found.get(method, elsewhere)

        return [Handlers()]


def _route(standby: Standby, keys: Keyring, method: Method, answer: Any) -> Any:
    async def behaviour(request: Any, context: Any) -> Any:
        try:
            _, namespace, _ = check_caller(keys, method.name, request, call_headers(context))
            spec = await standby.topic(request.topic, namespace)
            routes = await standby.owner()
            endpoints = routes.choose(request.endpoints, is_encrypted=is_encrypted(context.auth_context()))
            return answer(request, namespace, spec, endpoints)
        except StatusError as error:
            return refused_response(method, error)
        except MillstreamError as error:
            await _abort(context, str(error))

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


def _elsewhere(standby: Standby) -> Any:
    async def behaviour(_requests: AsyncIterator[bytes], context: Any) -> None:
        await _abort(context, await _place(standby))

    return behaviour


def _administration(standby: Standby) -> Any:
    async def behaviour(_request: bytes, _context: Any) -> bytes:
        return msgspec.json.encode(AdminResponse(error=await _place(standby), exit_code=UnreachableError.exit_code))

    return behaviour


async def _place(standby: Standby) -> str:
    """Where the broker is, in words."""
    try:
        routes = await standby.owner()
    except MillstreamError as error:
        return str(error)
    return f"the broker of this node runs in another process: connect to {routes.address}"


async def _abort(context: Any, text: str) -> None:
    """End a call as if no server had been there: clients look for another one then."""
    import grpc

    await context.abort(grpc.StatusCode.UNAVAILABLE, text)
