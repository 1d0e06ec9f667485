"""A server of the RocketMQ 5 protocol that does what a test says: for tests of clients, ours and yours.

It stores nothing. What is not scripted is answered as a healthy server would, and every call is written down.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from millstream.messaging.protocol import v2
from millstream.messaging.protocol.descriptor_methods import SERVICE, Method, methods

if TYPE_CHECKING:
    import grpc

KINDS = (v2.NORMAL, v2.FIFO, v2.DELAY, v2.TRANSACTION)


class RecordedCall(msgspec.Struct, frozen=True):
    """A call: of which method, with what, the headers that came with it, and how many seconds were left for it."""

    method: str
    request: Any
    headers: dict[str, str]
    seconds: float | None


class ScriptedServer:
    """Listens on a free port of loopback, with *credentials* by TLS; use it in an ``async with`` block.

    ``script["SendMessage"]`` has what the next sends are answered with: a response, a :class:`grpc.StatusCode` to fail
    with, a function of the request that returns one of these (or does so after a while), or None for what a healthy
    server would say. ``inbox`` has the messages that the next receives bring. ``settings`` is called with the
    settings that a client is answered with, to change them. They repeat what the client states of itself, as Apache's
    do, or name the *platform*, as a broker of Millstream does.
    """

    def __init__(self, *, credentials: grpc.ServerCredentials | None = None, platform: str = "") -> None:
        self.port = 0
        self.calls: list[RecordedCall] = []
        self.script: defaultdict[str, deque[Any]] = defaultdict(deque)
        self.inbox: deque[v2.Message] = deque()
        self.queues: Sequence[v2.MessageQueue] | None = None
        self.settings: Callable[[v2.Settings], object] = lambda _settings: None
        self.said: asyncio.Queue[v2.TelemetryCommand] = asyncio.Queue()
        """What clients said on telemetry streams besides their settings."""

        self._credentials = credentials
        self._platform = platform
        self._streams: set[_TelemetryStream] = set()
        self._server: Any = None

    @property
    def place(self) -> str:
        """``host:port`` for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def streams(self) -> int:
        """How many telemetry streams are open."""
        return len(self._streams)

    async def __aenter__(self) -> Self:
        import grpc

        self._server = grpc.aio.server()
        if self._credentials is None:
            self.port = self._server.add_insecure_port("127.0.0.1:0")
        else:
            self.port = self._server.add_secure_port("127.0.0.1:0", self._credentials)
        handlers = {name: self._handler(method) for name, method in methods().items()}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        await self._server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.stop(None)

    def queue(self, number: int, broker: str = "scripted", port: int = 0, broker_id: int = 0) -> v2.MessageQueue:
        """A queue of this server, or of one on *port*."""
        queue = v2.MessageQueue(id=number, permission=v2.READ_WRITE, accept_message_types=KINDS)
        queue.broker.name, queue.broker.id = broker, broker_id
        queue.broker.endpoints.scheme = v2.IPv4
        queue.broker.endpoints.addresses.add(host="127.0.0.1", port=port or self.port)
        return queue

    def message(self, topic: str, body: bytes, *, attempt: int = 1, **system: Any) -> v2.Message:
        """A message as it would be received."""
        wire = v2.Message(body=body)
        wire.topic.name = topic
        found = wire.system_properties
        found.message_id = hashlib.sha256(body).hexdigest()[:34]
        found.receipt_handle, found.delivery_attempt = f"handle-{body.decode()}", attempt
        found.body_digest.type = v2.MD5
        found.body_digest.checksum = hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
        for name, value in system.items():
            setattr(found, name, value)
        return wire

    def called(self, method: str) -> list[Any]:
        """The requests of all calls of *method*."""
        return [call.request for call in self.calls if call.method == method]

    async def command(self, command: v2.TelemetryCommand) -> None:
        """Send *command* on every telemetry stream."""
        for stream in list(self._streams):
            await stream.write(command)

    async def break_streams(self) -> None:
        """End every telemetry stream."""
        for stream in list(self._streams):
            async with stream.writing:  # gRPC cannot end a call in the middle of a message
                stream.reading.cancel()

    def _handler(self, method: Method) -> Any:
        import grpc

        codec = (method.request.FromString, method.response.SerializeToString)
        if method.streams_requests:
            return grpc.stream_stream_rpc_method_handler(self._telemetry, *codec)
        if method.streams_responses:
            return grpc.unary_stream_rpc_method_handler(self._receive, *codec)

        async def answer(request: Any, context: Any) -> Any:
            found = await self._scripted(method.name, request, context)
            return self._healthy(method, request) if found is None else found

        return grpc.unary_unary_rpc_method_handler(answer, *codec)

    async def _scripted(self, name: str, request: Any, context: Any) -> Any:
        import grpc

        self.calls.append(
            RecordedCall(
                name,
                request,
                {key: str(value) for key, value in context.invocation_metadata()},
                context.time_remaining(),
            )
        )
        found = self.script[name].popleft() if self.script[name] else None
        if callable(found):
            found = found(request)
            if asyncio.iscoroutine(found):
                found = await found
        if isinstance(found, grpc.StatusCode):
            await context.abort(found, "as the test says")
        return found

    def _healthy(self, method: Method, request: Any) -> Any:
        response = method.response()
        response.status.code = v2.OK
        if method.name == "QueryRoute":
            queues = [self.queue(number) for number in range(4)] if self.queues is None else self.queues
            for queue in queues:
                response.message_queues.add().CopyFrom(queue)
                response.message_queues[-1].topic.CopyFrom(request.topic)
        elif method.name == "QueryAssignment":
            response.assignments.add().message_queue.CopyFrom(self.queue(-1))
        elif method.name == "SendMessage":
            for number, message in enumerate(request.messages):
                found = response.entries.add(message_id=message.system_properties.message_id, offset=number)
                found.status.code, found.transaction_id = v2.OK, "transaction"
        elif method.name == "AckMessage":
            for entry in request.entries:
                response.entries.add(receipt_handle=entry.receipt_handle).status.code = v2.OK
        elif method.name == "ChangeInvisibleDuration":
            response.receipt_handle = request.receipt_handle + "+"
        return response

    async def _receive(self, request: Any, context: Any) -> AsyncIterator[Any]:
        name = "ReceiveMessage" if hasattr(request, "long_polling_timeout") else "PullMessage"
        found = await self._scripted(name, request, context)
        if found is not None:
            yield found
            return
        if not self.inbox:
            await asyncio.sleep(0.02)
        messages = [self.inbox.popleft() for _ in range(min(request.batch_size, len(self.inbox)))]
        code: Any = v2.OK if messages else v2.MESSAGE_NOT_FOUND
        yield v2.ReceiveMessageResponse(status=v2.Status(code=code))
        for message in messages:
            yield v2.ReceiveMessageResponse(message=message)
        if messages:
            end = v2.ReceiveMessageResponse()
            end.delivery_timestamp.GetCurrentTime()
            yield end

    async def _telemetry(self, requests: AsyncIterator[Any], context: Any) -> None:
        stream = _TelemetryStream(context, asyncio.ensure_future(self._listen(requests, context)))
        self._streams.add(stream)
        try:
            await asyncio.wait([stream.reading])
        finally:
            stream.reading.cancel()
            self._streams.discard(stream)

    async def _listen(self, requests: AsyncIterator[Any], context: Any) -> None:
        async for command in requests:
            if not command.HasField("settings"):
                self.said.put_nowait(command)
                continue
            found = await self._scripted("Telemetry", command, context)
            (stream,) = (each for each in self._streams if each.context is context)
            await stream.write(self._settled(command.settings) if found is None else found)

    def _settled(self, settings: v2.Settings) -> v2.TelemetryCommand:
        answer = v2.TelemetryCommand(status=v2.Status(code=v2.OK), settings=settings)
        found = answer.settings
        found.user_agent.platform = self._platform or found.user_agent.platform
        policy = found.backoff_policy
        policy.max_attempts = 3
        policy.exponential_backoff.initial.FromMilliseconds(10)
        policy.exponential_backoff.max.FromMilliseconds(100)
        policy.exponential_backoff.multiplier = 2
        if found.WhichOneof("pub_sub") == "publishing":
            found.publishing.max_body_size, found.publishing.validate_message_type = 4 << 20, True
        else:
            found.subscription.receive_batch_size = 32
            found.subscription.long_polling_timeout.FromMilliseconds(500)
        self.settings(found)
        return answer


class _TelemetryStream:
    """A stream to one client; *reading* is the task that listens to it, *writing* is held while it is told things."""

    def __init__(self, context: Any, reading: asyncio.Future[None]) -> None:
        self.context = context
        self.reading = reading
        self.writing = asyncio.Lock()

    async def write(self, command: v2.TelemetryCommand) -> None:
        """Send *command*."""
        async with self.writing:  # gRPC takes one message at a time
            await self.context.write(command)
