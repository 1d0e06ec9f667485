"""Calls about many messages, in parts, to a server that takes no columns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from millstream.messaging.client.errors import ClientError

Result = TypeVar("Result")

MAX_MESSAGES: Final = 5_000
"""The messages of a call of the protocol, which has an object for each of them and of its fields."""


async def call_in_parts(
    count: int,
    call: Callable[[slice], Awaitable[Sequence[Result | ClientError]]],
    error_to_stop: Callable[[Sequence[Result | ClientError]], ClientError | None] | None = None,
) -> Sequence[Result | ClientError]:
    """The results of *call* for *count* messages, each time for the messages of a slice, one call after another.

    A failed call is the last one: its error is also the result of the messages that were not in a call. So is an error
    that *error_to_stop* finds in the results of a call. Raises the error of the first call.
    """
    results: list[Result | ClientError] = []
    for first in range(0, count, MAX_MESSAGES):
        try:
            found = await call(slice(first, first + MAX_MESSAGES))
        except ClientError as failure:
            if not results:
                raise
            error: ClientError | None = failure
        else:
            results += found
            error = None if error_to_stop is None else error_to_stop(found)
        if error is not None:
            return [*results, *[error] * (count - len(results))]
    return results
