"""Calls to one server over gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from millstream.messaging.client.errors import ThrottledError, TransportError, status_error
from millstream.messaging.client.signing import Headers, Signer
from millstream.messaging.errors import MissingExtraError
from millstream.messaging.protocol import v2
from millstream.messaging.protocol.batches import RECEIVE, ReceivedBatch, decode_batch
from millstream.messaging.protocol.methods import Method, methods

if TYPE_CHECKING:
    import grpc


class Transport:
    """A channel to *target* (``ipv4:127.0.0.1:8081``, ``dns:host:port``) for one client. For one event loop."""

    def __init__(self, target: str, signer: Signer, *, credentials: grpc.ChannelCredentials | None = None) -> None:
        try:
            import grpc
        except ImportError as error:
            raise MissingExtraError from error
        self._target = target
        self._signer = signer
        self._failure: type[Exception] = grpc.aio.AioRpcError
        self._exhausted = grpc.StatusCode.RESOURCE_EXHAUSTED
        options = [
            ("grpc.enable_retries", 0),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.keepalive_time_ms", 300_000),
            ("grpc.keepalive_timeout_ms", 30_000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.initial_reconnect_backoff_ms", 200),
            ("grpc.min_reconnect_backoff_ms", 1_000),
            ("grpc.max_reconnect_backoff_ms", 3_000),
        ]
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(target, options)
        else:
            self._channel = grpc.aio.secure_channel(target, credentials, options)
        self._calls = {name: self._bind(method) for name, method in methods().items()}
        self._receive: Any = self._channel.unary_unary(
            RECEIVE, v2.ReceiveMessageRequest.SerializeToString, decode_batch
        )

    async def call(self, name: str, request: Any, seconds: float) -> Any:
        """The response of the method *name*, which answers once, whatever its status.

        Raises :class:`TransportError`, :class:`ThrottledError`.
        """
        return await self._call(name, request, seconds, self._signer.headers())

    async def call_checked(self, name: str, request: Any, seconds: float) -> Any:
        """Like :meth:`call`; raises the :class:`ClientError` of a status that is not OK."""
        headers = self._signer.headers()
        response = await self._call(name, request, seconds, headers)
        error = status_error(response.status, headers[-1][1])
        if error is not None:
            raise error
        return response

    async def stream(self, name: str, request: Any, seconds: float) -> AsyncIterator[Any]:
        """The responses of the method *name*, which answers many times. Raises like :meth:`call`."""
        headers = self._signer.headers()
        try:
            async for response in self._calls[name](request, timeout=seconds, metadata=headers):
                yield response
        except self._failure as error:
            raise self._translated(name, error, headers) from error

    async def receive_batch(self, request: v2.ReceiveMessageRequest, seconds: float) -> ReceivedBatch:
        """All that a receive brings, from a broker that offers it. Raises like :meth:`call`."""
        headers = self._signer.headers()
        try:
            found: ReceivedBatch = await self._receive(request, timeout=seconds, metadata=headers)
        except self._failure as error:
            raise self._translated("Receive", error, headers) from error
        return found

    def telemetry(self) -> Any:
        """A stream of commands, both ways; raises gRPC's own errors."""
        return self._calls["Telemetry"](metadata=self._signer.headers())

    async def close(self) -> None:
        """End all calls."""
        await self._channel.close()

    async def _call(self, name: str, request: Any, seconds: float, headers: Headers) -> Any:
        try:
            return await self._calls[name](request, timeout=seconds, metadata=headers)
        except self._failure as error:
            raise self._translated(name, error, headers) from error

    def _translated(self, name: str, error: Any, headers: Headers) -> TransportError | ThrottledError:
        request_id = headers[-1][1]
        if error.code() is self._exhausted:
            return ThrottledError(f"{self._target} is busy", code=v2.TOO_MANY_REQUESTS, request_id=request_id)
        text = f"{name} at {self._target}: {error.code().name.lower().replace('_', ' ')}: {error.details()}"
        return TransportError(text, request_id=request_id)

    def _bind(self, method: Method) -> Any:
        make: Any = {
            (False, False): self._channel.unary_unary,
            (False, True): self._channel.unary_stream,
            (True, True): self._channel.stream_stream,
        }[method.streams_requests, method.streams_responses]
        return make(method.path, method.request.SerializeToString, method.response.FromString)
