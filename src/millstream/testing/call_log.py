"""What clients and a broker say to each other, written down call by call: for tests, and to show whose fault it was."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import text_format

from millstream.core.clock import MICROSECONDS, SystemClock
from millstream.messaging.errors import StatusError

_LONGEST = 240


class CallLog(grpc.aio.ServerInterceptor):
    """Appends to the file *path* a line a message: seconds, ``>`` to the broker or ``<`` from it, method, content.

    Bodies are left out, and what is long is cut.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8", buffering=1)
        self._clock = SystemClock()
        self._began = self._clock.now()
        self._lock = threading.Lock()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        path = handler_call_details.method
        if not path.startswith("/apache.rocketmq"):
            return handler
        name, codec = path.rpartition("/")[2], (handler.request_deserializer, handler.response_serializer)
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(self._once(name, handler.unary_unary), *codec)
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(self._many(name, handler.unary_stream), *codec)
        return grpc.stream_stream_rpc_method_handler(self._both(name, handler.stream_stream), *codec)

    def _once(self, name: str, inner: Any) -> Any:
        async def behaviour(request: Any, context: Any) -> Any:
            self._write(">", name, request)
            answer = await inner(request, context)
            self._write("<", name, answer)
            return answer

        return behaviour

    def _many(self, name: str, inner: Any) -> Any:
        async def behaviour(request: Any, context: Any) -> AsyncIterator[Any]:
            self._write(">", name, request)
            async for answer in inner(request, context):
                self._write("<", name, answer)
                yield answer

        return behaviour

    def _both(self, name: str, inner: Any) -> Any:
        async def behaviour(requests: Any, context: Any) -> None:
            self._write(">", name, "the stream begins")
            try:
                await inner(
                    self._seen(name, requests), _LoggedContext(context, lambda answer: self._write("<", name, answer))
                )
            finally:
                self._write(">", name, "the stream has ended")

        return behaviour

    async def _seen(self, name: str, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for request in requests:
            self._write(">", name, request)
            yield request

    def _write(self, way: str, name: str, said: Any) -> None:
        text = str(said) if isinstance(said, str | StatusError) else _brief(said)
        seconds = (self._clock.now() - self._began) / MICROSECONDS
        with self._lock:
            self._file.write(f"{seconds:8.3f} {way} {name} {text}\n")


class _LoggedContext:
    """A context that shows what is written."""

    def __init__(self, context: Any, show: Callable[[Any], None]) -> None:
        self._context, self._show = context, show

    async def write(self, message: Any) -> None:
        self._show(message)
        await self._context.write(message)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def _brief(message: Any) -> str:
    """*message* in one line, its bodies by their lengths."""
    shown = type(message)()
    shown.CopyFrom(message)
    for each in [*getattr(shown, "messages", ()), *([shown.message] if _has_message(shown) else ())]:
        each.body = b"%d bytes" % len(each.body)
    text = text_format.MessageToString(shown, as_one_line=True)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + " …"


def _has_message(message: Any) -> bool:
    field = message.DESCRIPTOR.fields_by_name.get("message")
    return field is not None and field.message_type is not None and message.HasField("message")
