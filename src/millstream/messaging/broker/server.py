"""The broker on the network: gRPC around the service."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from millstream.core.clock import Clock, SystemClock
from millstream.log import LogError, LogStore
from millstream.messaging.broker.admin import ADMIN_SERVICE, Admin
from millstream.messaging.broker.checks import Limits
from millstream.messaging.broker.core import Core
from millstream.messaging.broker.endpoints import Place, wire_endpoints
from millstream.messaging.broker.holding import Holding
from millstream.messaging.broker.service import Call, Service
from millstream.messaging.errors import BrokerError, MissingExtraError, RefusedError
from millstream.messaging.protocol import v2
from millstream.messaging.protocol.methods import SERVICE, Method, methods

if TYPE_CHECKING:
    import grpc

MAX_REQUEST = 130 << 20
_SWEEP_SECONDS = 10.0

_log = logging.getLogger(__name__)


class BrokerServer:
    """A broker on *store* at *place*, as an asynchronous context: it accepts calls inside.

    Raises :class:`MissingExtraError` without grpcio, :class:`BrokerError` where the place is taken, and the log's
    ``WriterBusyError`` where another broker has the store.
    """

    def __init__(self, store: LogStore, place: Place, *, clock: Clock | None = None, limits: Limits | None = None):
        self._store = store
        self._place = place
        self._clock = clock or SystemClock()
        self._limits = limits
        self._resources = contextlib.AsyncExitStack()
        self.port = 0

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            core = Core(self._store, self._clock, self._limits)
            stack.callback(core.close)
            server = _make()
            self.port = _listen(server, self._place)
            holding = Holding(core)
            service = Service(core, holding, wire_endpoints(Place(self._place.host, self.port)))
            server.add_generic_rpc_handlers((_handlers(service, core), _admin_handlers(Admin(core))))
            await server.start()
            stack.push_async_callback(server.stop, 1.0)
            for work in (holding.run(), _sweep(core)):
                stack.push_async_callback(_cancel, asyncio.ensure_future(work))
            self._resources = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._resources.aclose()


def _make() -> grpc.aio.Server:
    try:
        import grpc
    except ImportError as error:
        raise MissingExtraError from error
    return grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", MAX_REQUEST),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
            ("grpc.keepalive_permit_without_calls", 1),
        ]
    )


def _listen(server: grpc.aio.Server, place: Place) -> int:
    try:
        return server.add_insecure_port(str(place))
    except RuntimeError as error:
        raise BrokerError(f"{place} cannot be listened on: is another broker there? Name another port") from error


def _handlers(service: Service, core: Core) -> grpc.GenericRpcHandler:
    import grpc

    handlers: dict[str, Any] = {}
    for name, method in methods().items():
        handle = getattr(service, re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower(), None)
        if name == "Telemetry":
            make, behaviour = grpc.stream_stream_rpc_method_handler, _telemetry(service, core)
        elif method.streams_responses:
            make, behaviour = grpc.unary_stream_rpc_method_handler, _stream(method, handle, core)
        else:
            make, behaviour = grpc.unary_unary_rpc_method_handler, _unary(method, handle, core)
        handlers[name] = make(behaviour, method.request.FromString, method.response.SerializeToString)
    return grpc.method_handlers_generic_handler(SERVICE, handlers)


def _unary(method: Method, handle: Callable[[Any, Call], Awaitable[Any]] | None, core: Core) -> Any:
    async def behaviour(request: Any, context: Any) -> Any:
        try:
            if handle is None:
                raise RefusedError(v2.UNSUPPORTED, f"{method.name} is not supported by this broker")
            return await handle(request, _call(context, core))
        except Exception as error:
            return method.response(status=_status(method, error))

    return behaviour


def _stream(method: Method, handle: Any, core: Core) -> Any:
    async def behaviour(request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            async for response in handle(request, _call(context, core)):
                yield response
        except Exception as error:
            yield method.response(status=_status(method, error))

    return behaviour


def _telemetry(service: Service, core: Core) -> Any:
    async def behaviour(requests: Any, context: Any) -> None:
        try:
            call = _call(context, core)
        except RefusedError as refused:
            command = v2.TelemetryCommand()
            command.status.code, command.status.message = refused.code, str(refused)  # type: ignore[assignment]
            await context.write(command)
            return
        session = core.sessions.see(call.client_id, core.clock.now())
        await service.telemetry.serve(session, call.namespace, requests, context.write)

    return behaviour


def _admin_handlers(admin: Admin) -> grpc.GenericRpcHandler:
    import grpc

    handlers: dict[str, Any] = {
        name: grpc.unary_unary_rpc_method_handler(_bare(call)) for name, call in admin.calls().items()
    }
    return grpc.method_handlers_generic_handler(ADMIN_SERVICE, handlers)


def _bare(call: Callable[[bytes], Awaitable[bytes]]) -> Any:
    async def behaviour(request: bytes, _context: Any) -> bytes:
        return await call(request)

    return behaviour


def _call(context: Any, core: Core) -> Call:
    """Who calls. Raises CLIENT_ID_REQUIRED."""
    metadata = dict(context.invocation_metadata() or ())
    client_id = str(metadata.get("x-mq-client-id", ""))
    if not client_id:
        raise RefusedError(v2.CLIENT_ID_REQUIRED, "a call needs the header x-mq-client-id")
    core.sessions.see(client_id, core.clock.now())
    return Call(client_id, str(metadata.get("x-mq-namespace", "")), context.time_remaining)


def _status(method: Method, error: Exception) -> v2.Status:
    if isinstance(error, RefusedError):
        code: Any = error.code
        return v2.Status(code=code, message=str(error))
    if isinstance(error, LogError):
        _log.error("%s failed: %s", method.name, error)
        return v2.Status(code=v2.INTERNAL_SERVER_ERROR, message=f"the message store failed: {type(error).__name__}")
    _log.error("%s failed", method.name, exc_info=error)
    return v2.Status(code=v2.INTERNAL_SERVER_ERROR, message="the broker failed; its log says why")


async def _sweep(core: Core) -> None:
    while True:
        await asyncio.sleep(_SWEEP_SECONDS)
        core.sessions.sweep(core.clock.now())


async def _cancel(task: asyncio.Future[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
