"""The role of the member that has the broker of its node."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from millstream.node.messaging import member_addresses

if TYPE_CHECKING:
    from millstream.cli.role_run import RoleRun
    from millstream.log import Writer
    from millstream.messaging.broker.server.shared_broker import SharedBroker


class BrokerRole:
    """Gives *broker*, which runs in the event loop *loop*, the topics while the role runs in this process."""

    def __init__(self, broker: SharedBroker, loop: asyncio.AbstractEventLoop) -> None:
        self._broker, self._loop = broker, loop

    @property
    def addresses(self) -> Mapping[str, str]:
        """The address to which other members direct the broker's clients."""
        return member_addresses(self._broker.routes)

    def writer_of(self, topic: str) -> Writer | None:
        """The writer of the log *topic* where this process has it open as a topic."""
        return self._broker.writer_of(topic)

    @contextlib.contextmanager
    def __call__(self, _run: RoleRun) -> Iterator[None]:
        self._wait(self._broker.begin())
        try:
            yield
        finally:
            self._wait(self._broker.end())

    def _wait(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()
