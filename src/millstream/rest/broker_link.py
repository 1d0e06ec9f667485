"""The broker that runs in the same process as the HTTP interface."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from millstream.core.errors import BusyError, NotFoundError
from millstream.log import Message
from millstream.messaging.errors import BrokerElsewhereError, StatusError

if TYPE_CHECKING:
    from millstream.messaging.admin_client import AskBroker
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
    """The broker that runs in this process, asked from other threads than that of its event *loop*.

    While another process of the node has the broker, *supervisor* returns None, and *elsewhere* makes calls.
    """

    def __init__(
        self,
        supervisor: Callable[[], BrokerSupervisor | None],
        loop: asyncio.AbstractEventLoop,
        elsewhere: AskBroker | None = None,
    ) -> None:
        self._supervisor, self._loop, self._elsewhere = supervisor, loop, elsewhere

    def ask(self, call: AdminCall[Request, Result], request: Request) -> Result:
        """The result of *call* for *request*."""
        supervisor = self._active()
        if supervisor is None:
            return self._ask_elsewhere(call, request)

        async def asked() -> Result:
            return await supervisor.admin.ask(call, request)

        return self._wait(asked())

    def publish(self, topic: str, message: Message) -> int:
        """Append *message* to a topic, as the broker does; its id. Raises :class:`BrokerElsewhereError`."""
        supervisor = self._active()
        if supervisor is None:
            raise BrokerElsewhereError

        async def published() -> int:
            (number,) = await supervisor.core.publish(topic, [message])
            return number

        return self._wait(published())

    def _active(self) -> BrokerSupervisor | None:
        try:
            return self._supervisor()
        except StatusError as error:
            raise BrokerBusyError(str(error)) from error

    def _ask_elsewhere(self, call: AdminCall[Request, Result], request: Request) -> Result:
        if self._elsewhere is None:
            raise NoBrokerError
        return self._elsewhere(call, request)

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
