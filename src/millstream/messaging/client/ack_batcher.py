"""Acknowledgements that meet on their way to our broker: a call costs about the same for one message or a thousand."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence

from millstream.messaging.client.errors import ClientError
from millstream.messaging.client.message import Received

Errors = Sequence[ClientError | None]
"""What came of each message: None where all is well."""

Settle = Callable[[Sequence[Received]], Awaitable[Errors]]

MAX_CALLS_IN_FLIGHT = 2
"""How many calls about one topic are made at the same time; what comes meanwhile goes with the next."""

MAX_MESSAGES = 1000
"""About how many messages one call takes."""


class AckBatcher:
    """Hands messages to *settle*, those of one topic and server together where they come while others are under way."""

    def __init__(self, acknowledge: Settle) -> None:
        self._settle = acknowledge
        self._waiting: dict[Hashable, deque[tuple[Sequence[Received], asyncio.Future[Errors]]]] = {}
        self._calls: dict[Hashable, int] = {}
        self._tasks: set[asyncio.Future[None]] = set()

    async def acknowledge(self, messages: Sequence[Received]) -> Errors:
        """What came of *messages*, all of one topic and server. Raises :class:`ClientError` where the call failed.

        Whoever is cancelled while it waits does not learn of it; the messages go all the same.
        """
        key = (messages[0].topic, messages[0].endpoints)
        if self._calls.get(key, 0) >= MAX_CALLS_IN_FLIGHT:
            result: asyncio.Future[Errors] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(key, deque()).append((messages, result))
            return await result
        self._calls[key] = self._calls.get(key, 0) + 1
        try:
            return await self._settle(messages)
        finally:
            self._done(key)

    def _done(self, key: Hashable) -> None:
        """A call has ended: whoever waits may go."""
        batch = self._take(key)
        if batch:
            task = asyncio.ensure_future(self._deliver(key, batch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        self._calls[key] -= 1
        if not self._calls[key]:
            del self._calls[key]

    def _take(self, key: Hashable) -> list[tuple[Sequence[Received], asyncio.Future[Errors]]]:
        waiting = self._waiting.get(key)
        batch: list[tuple[Sequence[Received], asyncio.Future[Errors]]] = []
        count = 0
        while waiting and count < MAX_MESSAGES:
            batch.append(waiting.popleft())
            count += len(batch[-1][0])
        if not waiting:
            self._waiting.pop(key, None)
        return batch

    async def _deliver(self, key: Hashable, batch: Sequence[tuple[Sequence[Received], asyncio.Future[Errors]]]) -> None:
        try:
            errors = await self._settle([message for messages, _ in batch for message in messages])
        except BaseException as error:
            failure = error if isinstance(error, ClientError) else ClientError(f"the call was given up: {error!r}")
            for _, result in batch:
                if not result.done():
                    result.set_exception(failure)
            if not isinstance(error, ClientError):
                raise
        else:
            begin = 0
            for messages, result in batch:
                if not result.done():
                    result.set_result(errors[begin : begin + len(messages)])
                begin += len(messages)
        finally:
            self._done(key)
