"""Calls about many messages, in parts, to a server that takes no columns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from millstream.messaging.client.errors import ClientError

Result = TypeVar("Result")

MAX_MESSAGES: Final = 5_000
"""The messages of a call of the protocol, which has an object for each of them and of its fields."""

MAX_SINGLE_CALLS: Final = 16
"""How many calls with one message each are under way at the same time, where the order does not matter."""


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


async def call_one_by_one(
    count: int,
    call: Callable[[slice], Awaitable[Sequence[Result | ClientError]]],
    at_once: int,
    error_to_stop: Callable[[Sequence[Result | ClientError]], ClientError | None],
) -> Sequence[Result | ClientError]:
    """The results of *call* for *count* messages, each time for the slice of one message; *at_once* calls at a time.

    After an error that *error_to_stop* finds in the result of a call no further one begins: the error is also the
    result of the messages that were not in a call.
    """
    results: list[Result | ClientError | None] = [None] * count
    rows = iter(range(count))
    errors: list[ClientError] = []

    async def work() -> None:
        for row in rows:
            try:
                (results[row],) = found = await call(slice(row, row + 1))
            except ClientError as error:
                results[row] = error
                found = [error]
            if (last := error_to_stop(found)) is not None:
                errors.append(last)
            if errors:
                return

    working = [asyncio.ensure_future(work()) for _ in range(min(at_once, count))]
    try:
        await asyncio.gather(*working)
    finally:
        for task in working:
            task.cancel()
    return [errors[0] if result is None else result for result in results]
