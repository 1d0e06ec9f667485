"""Calls to one endpoint over gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from millstream.messaging.client.signing import Signer
from millstream.messaging.errors import MissingExtraError
from millstream.messaging.protocol import v2
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
        self._signer = signer
        options = [
            ("grpc.enable_retries", 0),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.keepalive_time_ms", 300_000),
            ("grpc.keepalive_timeout_ms", 30_000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.initial_reconnect_backoff_ms", 200),
            ("grpc.max_reconnect_backoff_ms", 3_000),
        ]
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(target, options)
        else:
            self._channel = grpc.aio.secure_channel(target, credentials, options)
        self._calls = {name: self._bind(method) for name, method in methods().items()}

    async def call(self, name: str, request: Any, seconds: float) -> Any:
        """The response of the method *name*, which answers once. Raises gRPC's ``AioRpcError``."""
        return await self._calls[name](request, timeout=seconds, metadata=self._signer.headers())

    def stream(self, name: str, request: Any, seconds: float) -> AsyncIterator[Any]:
        """The responses of the method *name*, which answers many times."""
        found: AsyncIterator[Any] = self._calls[name](request, timeout=seconds, metadata=self._signer.headers())
        return found

    def telemetry(self) -> grpc.aio.StreamStreamCall[v2.TelemetryCommand, v2.TelemetryCommand]:
        """A stream of commands, both ways."""
        found: Any = self._calls["Telemetry"](metadata=self._signer.headers())
        return found  # type: ignore[no-any-return]

    async def close(self) -> None:
        """End all calls."""
        await self._channel.close()

    def _bind(self, method: Method) -> Any:
        make: Any = {
            (False, False): self._channel.unary_unary,
            (False, True): self._channel.unary_stream,
            (True, True): self._channel.stream_stream,
        }[method.streams_requests, method.streams_responses]
        return make(method.path, method.request.SerializeToString, method.response.FromString)
