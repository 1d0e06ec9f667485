"""The core behind a running server, and a new one in its place when its journal has failed.

What a core holds in memory runs ahead of its journal. Once a commit failed (the disk was full, say) that cannot be
trusted any more: the journal is read again, as after a restart, as soon as it can be written to.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from millstream.core.clock import Clock
from millstream.log import FencedError, LogError, LogStore, Writer, WriterFailedError
from millstream.messaging.broker.admin import Admin
from millstream.messaging.broker.checks import Limits
from millstream.messaging.broker.core import Core
from millstream.messaging.broker.holding import Holding
from millstream.messaging.broker.service import Service
from millstream.messaging.broker.telemetry import Telemetry
from millstream.messaging.errors import RefusedError
from millstream.messaging.protocol import v2

_RETRY_SECONDS = 1.0
_SWEEP_SECONDS = 10.0

_log = logging.getLogger(__name__)


class Room:
    """Keeps a core on *store* for as long as :meth:`run` runs. For one event loop.

    Raises the log's ``WriterBusyError`` where another broker has the store.
    """

    def __init__(self, store: LogStore, clock: Clock, limits: Limits | None, endpoints: v2.Endpoints) -> None:
        self._store = store
        self._clock = clock
        self._limits = limits
        self._endpoints = endpoints
        self._suspected = asyncio.Event()
        self._is_open = True
        self._move_in(Core(store, clock, limits))

    def _move_in(self, core: Core) -> None:
        self._core = core
        self._holding = Holding(core)
        self._service = Service(core, self._holding, self._endpoints)
        self._admin = Admin(core)
        self._keeper = asyncio.ensure_future(self._holding.run())

    @property
    def core(self) -> Core:
        """The present core. Raises INTERNAL_SERVER_ERROR while there is none."""
        self._require_open()
        return self._core

    @property
    def service(self) -> Service:
        """The protocol on the present core. Raises like :attr:`core`."""
        self._require_open()
        return self._service

    @property
    def telemetry(self) -> Telemetry:
        """The streams on the present core, or on the last one while there is none."""
        return self._service.telemetry

    @property
    def admin(self) -> Admin:
        """What people ask, on the present core. Raises like :attr:`core`."""
        self._require_open()
        return self._admin

    def writer_of(self, name: str) -> Writer | None:
        """The writer of the log *name* where a topic of the present core has it open. From any thread."""
        return self._core.writer_of(name) if self._is_open else None

    def suspect(self, error: Exception) -> None:
        """A call failed with *error*: perhaps the core has to be replaced."""
        if isinstance(error, WriterFailedError | FencedError):
            self._suspected.set()

    async def run(self) -> None:
        """Replace a core whose journal has failed, renew what clients have, forget those that are gone; for ever."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SWEEP_SECONDS):
                    await self._suspected.wait()
            self._suspected.clear()
            self._core.sessions.sweep(self._clock.now())
            self._core.renew()
            if not self._core.journal.is_usable:
                await self._replace()

    async def close(self) -> None:
        """Let the next broker in."""
        self._keeper.cancel()
        await asyncio.gather(self._keeper, return_exceptions=True)
        self._core.close()

    async def _replace(self) -> None:
        _log.error("the broker's journal could not be written to; it is read again as soon as it can be")
        self._is_open = False
        with contextlib.suppress(LogError):
            await self.close()
        while True:
            try:
                self._move_in(Core(self._store, self._clock, self._limits, before=self._core))
            except LogError as error:
                _log.warning("the broker cannot go on yet: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                self._is_open = True
                return

    def _require_open(self) -> None:
        if not self._is_open:
            raise RefusedError(v2.INTERNAL_SERVER_ERROR, "the broker's store has failed; try again in a moment")
