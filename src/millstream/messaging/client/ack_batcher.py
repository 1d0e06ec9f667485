"""Acknowledgements that share calls to our broker: a call costs about the same for one message or a thousand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from millstream.messaging.async_batcher import KeyedBatchers
from millstream.messaging.batch_accumulator import BatchingLimits
from millstream.messaging.client.errors import ClientError, call_failure
from millstream.messaging.client.message import Received

Errors = Sequence[ClientError | None]
"""The error of each message; None where it was acknowledged."""

Acknowledge = Callable[[Sequence[Received]], Awaitable[Errors]]

MAX_CALLS_IN_FLIGHT = 2
"""How many calls about one topic are made at the same time; what comes meanwhile goes with the next."""

MAX_MESSAGES = 1000
"""About how many messages one call takes."""

_LIMITS: Final = BatchingLimits(max_in_flight=MAX_CALLS_IN_FLIGHT, max_items=MAX_MESSAGES)


class AckBatcher:
    """Hands messages to *acknowledge*; those of one topic and server go together while other calls are in flight."""

    def __init__(self, acknowledge: Acknowledge) -> None:
        self._acknowledge = acknowledge
        self._batchers: KeyedBatchers[Sequence[Received], Errors] = KeyedBatchers(self._run, failure=call_failure)

    async def acknowledge(self, messages: Sequence[Received]) -> Errors:
        """The errors of *messages*, all of one topic and server. Raises :class:`ClientError` where the call failed.

        A caller that is cancelled while it waits does not get the result; the acknowledgements are still sent.
        """
        batcher = self._batchers.batcher((messages[0].topic, messages[0].endpoints), _LIMITS)
        if self._batchers.had_company:
            return await batcher.submit(messages, count=len(messages))
        return await batcher.submit_at_once(messages, count=len(messages))

    async def _run(self, groups: Sequence[Sequence[Received]]) -> Sequence[Errors]:
        if len(groups) == 1:
            return [await self._acknowledge(groups[0])]
        errors = await self._acknowledge([message for group in groups for message in group])
        found: list[Errors] = []
        begin = 0
        for group in groups:
            found.append(errors[begin : begin + len(group)])
            begin += len(group)
        return found
