"""The broker that runs in the same process as the REST interface."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from millstream.core.errors import BusyError, NotFoundError
from millstream.log import Message
from millstream.messaging.errors import StatusError

if TYPE_CHECKING:
    from millstream.messaging.broker.admin import AdminCall
    from millstream.messaging.broker.server.supervisor import BrokerSupervisor

Request = TypeVar("Request")
Result = TypeVar("Result")

_ANSWER_SECONDS = 15.0
"""More than the broker waits for a client."""


class NoBrokerError(NotFoundError):
    """No broker runs in this node: start it with `millstream serve --broker HOST:PORT`."""


class BrokerBusyError(BusyError):
    """The broker of this node did not answer in time; try again."""


class BrokerLink:
    """The broker that runs in this process, asked from other threads than that of its event *loop*."""

    def __init__(self, supervisor: Callable[[], BrokerSupervisor], loop: asyncio.AbstractEventLoop) -> None:
        self._supervisor, self._loop = supervisor, loop

    def ask(self, call: AdminCall[Request, Result], request: Request) -> Result:
        """What *call* returns for *request*."""

        async def asked() -> Result:
            return await self._supervisor().admin.ask(call, request)

        return self._wait(asked())

    def publish(self, topic: str, message: Message) -> int:
        """Append *message* to a topic, as the broker does; its id."""

        async def published() -> int:
            (number,) = await self._supervisor().core.publish(topic, [message])
            return number

        return self._wait(published())

    def _wait(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        answer = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return answer.result(_ANSWER_SECONDS)
        except TimeoutError as error:
            if answer.cancel():
                raise BrokerBusyError from error
            raise
        except StatusError as error:
            raise BrokerBusyError(str(error)) from error
