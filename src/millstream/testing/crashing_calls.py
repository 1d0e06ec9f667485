"""A broker that dies in the middle of a call: before it does anything, or with the answer in its hand."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Literal

import grpc
import msgspec

from millstream.messaging.protocol.batch_calls import ACK, RECEIVE, SEND

_OF_BATCHES = {SEND.name: "SendMessage", RECEIVE.name: "ReceiveMessage", ACK.name: "AckMessage"}


class CrashPoint(msgspec.Struct, frozen=True):
    """The process dies as by ``kill -9`` at call number ``number`` of ``method``, *before* or *after* its work.

    ``method`` is the last part of a method's path, such as ``SendMessage``; the call of our clients that does the same
    with a batch counts as well.
    """

    method: str
    when: Literal["before", "after"]
    number: int = 1


class CrashInterceptor(grpc.aio.ServerInterceptor):
    """Has the process die at *death*."""

    def __init__(self, death: CrashPoint) -> None:
        self._death = death
        self._left = death.number

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        name = handler_call_details.method.rpartition("/")[2]
        if _OF_BATCHES.get(name, name) != self._death.method:
            return handler
        codec = (handler.request_deserializer, handler.response_serializer)
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(self._once(handler.unary_unary), *codec)
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(self._many(handler.unary_stream), *codec)
        return grpc.stream_stream_rpc_method_handler(self._both(handler.stream_stream), *codec)

    def _once(self, inner: Any) -> Any:
        async def behaviour(request: Any, context: Any) -> Any:
            is_last = self._is_last()
            self._die(is_last, "before")
            answer = await inner(request, context)
            self._die(is_last, "after")
            return answer

        return behaviour

    def _many(self, inner: Any) -> Any:
        async def behaviour(request: Any, context: Any) -> AsyncIterator[Any]:
            is_last = self._is_last()
            self._die(is_last, "before")
            async for answer in inner(request, context):
                self._die(is_last, "after")
                yield answer

        return behaviour

    def _both(self, inner: Any) -> Any:
        async def behaviour(requests: Any, context: Any) -> None:
            is_last = self._is_last()
            self._die(is_last, "before")
            await inner(requests, _CrashContext(context, lambda: self._die(is_last, "after")))

        return behaviour

    def _is_last(self) -> bool:
        self._left -= 1
        return self._left == 0

    def _die(self, is_last: bool, when: str) -> None:
        if is_last and self._death.when == when:
            os.kill(os.getpid(), signal.SIGKILL)


class _CrashContext:
    """A context that tells before it writes."""

    def __init__(self, context: Any, about_to_write: Callable[[], None]) -> None:
        self._context = context
        self._about_to_write = about_to_write

    async def write(self, message: Any) -> None:
        self._about_to_write()
        await self._context.write(message)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)
