"""Calls to one server over gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NoReturn

from millstream.messaging.client.errors import ForkedError, ThrottledError, TransportError, status_error
from millstream.messaging.client.options import Tls
from millstream.messaging.client.signing import Headers, Signer
from millstream.messaging.errors import MissingExtraError
from millstream.messaging.protocol import v2
from millstream.messaging.protocol.batch_calls import ACK, RECEIVE, SEND, BatchMethod
from millstream.messaging.protocol.descriptor_methods import Method, methods

_OPTIONS = (
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
)

_CONNECT_SECONDS = 3.0

_processes: set[int] = set()
"""The processes, this one and those it was forked from, that have used gRPC."""


class Transport:
    """A channel to one of *targets* (``ipv4:127.0.0.1:8081``, ``dns:host:port``) for one client. For one event loop.

    Calls go to the first target; where there are several and the connection is lost, to the next that can be reached.
    *unavailable* is called when a call could not reach the server, or was told to ask another one. Raises
    :class:`ForkedError` in a child of a process that had one.
    """

    def __init__(
        self,
        targets: Sequence[str],
        signer: Signer,
        *,
        tls: Tls | None = None,
        unavailable: Callable[[], object] = bool,
    ) -> None:
        # gRPC's own handlers of a fork crash the child now and then while its threads run; no client runs there anyway.
        os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
        try:
            import grpc
        except ImportError as error:
            raise MissingExtraError from error
        _processes.add(os.getpid())
        if len(_processes) > 1:
            raise ForkedError
        self._targets, self._turn = targets, 0
        self._signer = signer
        self._tls = tls
        self._unavailable = unavailable
        self._failure: type[Exception] = grpc.aio.AioRpcError
        self._exhausted = grpc.StatusCode.RESOURCE_EXHAUSTED
        self._ready = grpc.ChannelConnectivity.READY
        self._failed = grpc.ChannelConnectivity.TRANSIENT_FAILURE
        self._closing: set[asyncio.Future[None]] = set()
        self._choosing = asyncio.Lock()
        self._connect()

    @property
    def _target(self) -> str:
        return self._targets[self._turn]

    @property
    def is_ready(self) -> bool:
        """Whether the connection says that it is there."""
        return bool(self._channel.get_state() is self._ready)

    def reconnect(self) -> None:
        """Use a new connection from now on. What is under way on the old one fails as if that had broken."""
        closing = asyncio.ensure_future(self._channel.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        self._connect()

    async def call(self, name: str, request: Any, seconds: float) -> Any:
        """The response of the method *name*, which answers once, whatever its status.

        Raises :class:`TransportError`, :class:`ThrottledError`.
        """
        response, _ = await self.exchange(name, request, seconds)
        return response

    async def exchange(self, name: str, request: Any, seconds: float) -> tuple[Any, str]:
        """Like :meth:`call`; the response and the id of the request."""
        await self._choose()
        headers = self._signer.headers()
        call = self._calls[name](request, timeout=seconds, metadata=headers)
        return await self._answer(name, call, headers), headers[-1][1]

    async def call_checked(self, name: str, request: Any, seconds: float) -> Any:
        """Like :meth:`call`; raises the :class:`ClientError` of a status that is not OK."""
        response, request_id = await self.exchange(name, request, seconds)
        error = status_error(response.status, request_id)
        if error is not None:
            raise error
        return response

    async def stream(self, name: str, request: Any, seconds: float) -> AsyncIterator[Any]:
        """The responses of the method *name*, which answers many times. Raises like :meth:`call`."""
        await self._choose()
        headers = self._signer.headers()
        try:
            async for response in self._calls[name](request, timeout=seconds, metadata=headers):
                yield response
        except self._failure as error:
            raise self._translated(name, error, headers) from error
        except asyncio.CancelledError as error:
            self._raise_given_up(name, error)

    async def batch(self, method: BatchMethod, request: Any, seconds: float) -> tuple[Any, str]:
        """The answer of a broker that offers batches, and the id of the request. Raises like :meth:`call`."""
        await self._choose()
        headers = self._signer.headers()
        call = self._batches[method.name](request, timeout=seconds, metadata=headers)
        return await self._answer(method.name, call, headers), headers[-1][1]

    def telemetry(self) -> Any:
        """A stream of commands, both ways; raises gRPC's own errors."""
        return self._calls["Telemetry"](metadata=self._signer.headers())

    async def close(self) -> None:
        """End all calls."""
        await self._channel.close()
        await asyncio.gather(*self._closing)

    async def _choose(self) -> None:
        """Where there are several targets: connect to the first that answers, from the present one on."""
        if len(self._targets) == 1 or self.is_ready:
            return
        async with self._choosing:
            for _ in self._targets:
                if await self._is_reached():
                    return
                self._turn = (self._turn + 1) % len(self._targets)
                self.reconnect()

    async def _is_reached(self) -> bool:
        """Whether the channel connects to its target, in :data:`_CONNECT_SECONDS`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CONNECT_SECONDS):
                while (state := self._channel.get_state(try_to_connect=True)) not in (self._ready, self._failed):
                    await self._channel.wait_for_state_change(state)
        return self.is_ready

    def _connect(self) -> None:
        import grpc

        if self._tls is None:
            self._channel = grpc.aio.insecure_channel(self._target, _OPTIONS)
        else:
            tls, options = self._tls, list(_OPTIONS)
            if tls.server_name:
                options.append(("grpc.ssl_target_name_override", tls.server_name))  # type: ignore[arg-type]
            self._channel = grpc.aio.secure_channel(self._target, tls.credentials(), options)
        self._calls = {name: self._bind(method) for name, method in methods().items()}
        self._batches: dict[str, Any] = {
            each.name: self._channel.unary_unary(each.path, each.write_request, each.read_answer)
            for each in (SEND, RECEIVE, ACK)
        }

    async def _answer(self, name: str, call: Awaitable[Any], headers: Headers) -> Any:
        try:
            answer = await call
        except self._failure as error:
            raise self._translated(name, error, headers) from error
        except asyncio.CancelledError as error:
            self._raise_given_up(name, error)
        if answer is None:  # gRPC's sign that the answer could not be decoded
            text = f"{name} at {self._target}: the answer cannot be read: check the version of the server"
            raise TransportError(text, request_id=headers[-1][1], reason="INTERNAL")
        return answer

    def _raise_given_up(self, name: str, error: asyncio.CancelledError) -> NoReturn:
        """A call ends as cancelled also where its connection was closed; that is not a cancellation of the caller."""
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise error
        raise TransportError(f"{name} at {self._target}: the connection was closed", reason="CANCELLED") from error

    def _translated(self, name: str, error: Any, headers: Headers) -> TransportError | ThrottledError:
        request_id = headers[-1][1]
        if error.code() is self._exhausted:
            return ThrottledError(
                f"{self._target} is busy: try again later", code=v2.TOO_MANY_REQUESTS, request_id=request_id
            )
        reason: str = error.code().name
        if reason == "UNAVAILABLE":
            self._unavailable()
        text = f"{name} at {self._target}: {reason.lower().replace('_', ' ')}: {error.details()}"
        return TransportError(text, request_id=request_id, reason=reason)

    def _bind(self, method: Method) -> Any:
        make: Any = {
            (False, False): self._channel.unary_unary,
            (False, True): self._channel.unary_stream,
            (True, True): self._channel.stream_stream,
        }[method.streams_requests, method.streams_responses]
        return make(method.path, method.request.SerializeToString, method.response.FromString)
