"""A transaction: a message that no consumer gets before it is committed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from millstream.messaging.client.errors import BadRequestError, ClientError, may_be_done, unknown_result
from millstream.messaging.client.message import Receipt
from millstream.messaging.protocol import v2

End = Callable[[str, Receipt, int], Awaitable[None]]


class Transaction:
    """Made by :meth:`millstream.messaging.client.Producer.begin`; end it, or leave it as an ``async with`` block.

    The block commits where it ends well and rolls back where it raises. One that is never ended is asked about.
    Where a call to end it had no known result, an error of a later one says that the transaction may have ended.
    """

    def __init__(self, topic: str, receipt: Receipt, end: End) -> None:
        self._topic = topic
        self._end_call = end
        self._ended = False
        self._unknown: tuple[ClientError, int] | None = None
        self.receipt = receipt

    async def commit(self) -> None:
        """Let consumers have the message. After a failure it may be retried. Raises :class:`ClientError`."""
        await self._end(v2.COMMIT)

    async def rollback(self) -> None:
        """Drop the message. After a failure it may be retried. Raises :class:`ClientError`."""
        await self._end(v2.ROLLBACK)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._ended:
            await (self.commit() if error is None else self.rollback())

    async def _end(self, resolution: int) -> None:
        if self._ended:
            raise BadRequestError("the transaction has already ended: begin a new one")
        try:
            await self._end_call(self._topic, self.receipt, resolution)
        except ClientError as error:
            if may_be_done(error):
                self._unknown = self._unknown or (error, resolution)
            elif self._unknown is not None:
                earlier, former = self._unknown
                done = "committed" if former == v2.COMMIT else "rolled back"
                advice = "if the broker did not learn the result, it asks the checker of the producer"
                raise unknown_result(earlier, error, f"the transaction may have been {done}", advice) from error
            raise
        self._ended = True
