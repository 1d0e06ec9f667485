"""Handing messages to a listener, without a server: how it ends."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, cast

from millstream.core.clock import SystemClock
from millstream.messaging.client import Received
from millstream.messaging.client.consume_service import ConsumeService

NOW = datetime.now(UTC)


class FakeConsumer:
    """A consumer whose server answers at once."""

    clock = SystemClock()
    metrics = None
    group = "g"

    def __init__(self) -> None:
        self.acknowledged: list[str] = []

    async def acknowledge(self, messages: list[Received]) -> None:
        self.acknowledged += [message.message_id for message in messages]


async def accept(_message: Received) -> None:
    """A listener that succeeds."""


def received(name: str) -> Received:
    nowhere: Any = None
    return Received(
        topic="t",
        body=b"x",
        message_id=name,
        receipt_handle="handle",
        attempt=1,
        tag="",
        keys=(),
        properties={},
        message_group="",
        born_at=NOW,
        born_host="host",
        stored_at=NOW,
        deliver_at=None,
        queue_id=0,
        offset=0,
        endpoints=nowhere,
        is_corrupted=False,
    )


def test_it_ends_while_messages_are_settled_in_the_same_turn_of_the_loop() -> None:
    """From Python 3.12 on ``gather`` returns at once where all is done, so that no callback of a task runs before."""

    async def test() -> list[str]:
        consumer, done = FakeConsumer(), list[str]()
        consumption = ConsumeService(cast(Any, consumer), accept, 2)
        consumption.consume([received("a"), received("b")], lambda message: done.append(message.message_id))
        await asyncio.ensure_future(consumption.end())  # which begins when the messages are settled
        assert done == consumer.acknowledged
        return done

    assert asyncio.run(test()) == ["a", "b"]
