"""The broker that runs in the same process as what asks it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from millstream.log import Message

if TYPE_CHECKING:
    from millstream.messaging.broker.admin import AdminCall
    from millstream.messaging.broker.server.supervisor import BrokerSupervisor

Request = TypeVar("Request")
Result = TypeVar("Result")

_ANSWER_SECONDS = 10.0


class BrokerLink:
    """The broker that runs in this process, asked from other threads than that of its event *loop*."""

    def __init__(self, supervisor: Callable[[], BrokerSupervisor], loop: asyncio.AbstractEventLoop) -> None:
        self._supervisor, self._loop = supervisor, loop

    def ask(self, call: AdminCall[Request, Result], request: Request) -> Result:
        """What *call* returns for *request*."""

        async def asked() -> bytes:
            return await self._supervisor().admin.calls[call.name](msgspec.json.encode(request))

        return call.result_of(self._wait(asked()))

    def publish(self, topic: str, message: Message) -> int:
        """Append *message* to a topic, as the broker does; its id."""

        async def published() -> int:
            (number,) = await self._supervisor().core.publish(topic, [message])
            return number

        return int(self._wait(published()))

    def _wait(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_ANSWER_SECONDS)
