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
from millstream.messaging.broker.address import RouteEndpoints
from millstream.messaging.broker.admin import AdminService
from millstream.messaging.broker.core import BrokerCore
from millstream.messaging.broker.handlers.broker_service import BrokerService
from millstream.messaging.broker.handlers.delayed_message_scheduler import DelayedMessageScheduler
from millstream.messaging.broker.handlers.telemetry import TelemetryHandler
from millstream.messaging.broker.limits import Limits
from millstream.messaging.errors import BrokerError, StatusError
from millstream.messaging.protocol import v2

_RETRY_SECONDS = 1.0
_SWEEP_SECONDS = 10.0

_log = logging.getLogger(__name__)


class BrokerSupervisor:
    """Keeps a core on *store* for as long as :meth:`run` runs. For one event loop.

    Raises the log's ``WriterBusyError`` where another broker has the store.
    """

    def __init__(self, store: LogStore, clock: Clock, limits: Limits | None, routes: RouteEndpoints) -> None:
        self._store = store
        self._clock = clock
        self._limits = limits
        self._routes = routes
        self._failure_reported = asyncio.Event()
        self._is_open = True
        self._saving: asyncio.Future[None] | None = None
        self._install(BrokerCore(store, clock, limits))

    def _install(self, core: BrokerCore) -> None:
        self._core = core
        self._delayed_messages = DelayedMessageScheduler(core)
        self._service = BrokerService(core, self._delayed_messages, self._routes)
        self._admin = AdminService(core)
        self._delayed_task = asyncio.ensure_future(self._delayed_messages.run())

    @property
    def core(self) -> BrokerCore:
        """The present core. Raises INTERNAL_SERVER_ERROR while there is none."""
        self._require_open()
        return self._core

    @property
    def service(self) -> BrokerService:
        """The protocol on the present core. Raises like :attr:`core`."""
        self._require_open()
        return self._service

    @property
    def telemetry(self) -> TelemetryHandler:
        """The streams on the present core, or on the last one while there is none."""
        return self._service.telemetry

    @property
    def admin(self) -> AdminService:
        """The administrative calls of the present core. Raises like :attr:`core`."""
        self._require_open()
        return self._admin

    def writer_of(self, name: str) -> Writer | None:
        """The writer of the log *name* where a topic of the present core has it open. From any thread."""
        return self._core.writer_of(name) if self._is_open else None

    def report_failure(self, error: Exception) -> None:
        """A call failed with *error*: perhaps the core has to be replaced."""
        if isinstance(error, WriterFailedError | FencedError):
            self._failure_reported.set()

    async def run(self) -> None:
        """Replace a core whose journal has failed, and writers of topics; renew what clients have, forget those that
        are gone, and store the positions of groups; for ever, whatever fails."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SWEEP_SECONDS):
                    await self._failure_reported.wait()
            self._failure_reported.clear()
            try:
                await self._look_after_core()
            except Exception:
                _log.exception("the supervision of the broker failed; trying again")
                await asyncio.sleep(_RETRY_SECONDS)

    async def _look_after_core(self) -> None:
        if not self._core.journal.is_usable:
            await self._replace()
        self._core.sessions.sweep(self._clock.now())
        self._core.renew()
        self._core.replace_failed_writers()
        if self._saving is None or self._saving.done():  # a slow store does not hold up the rest
            self._saving = asyncio.ensure_future(self._core.journal.save_positions())

    async def close(self) -> None:
        """Let the next broker in."""
        tasks = [self._delayed_task] if self._saving is None else [self._delayed_task, self._saving]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._core.close()

    async def _replace(self) -> None:
        _log.error("cannot write the broker's journal; the broker restarts as soon as the journal can be read")
        self._is_open = False
        with contextlib.suppress(Exception):  # it failed before
            await self.close()
        while True:
            try:
                self._install(BrokerCore(self._store, self._clock, self._limits, before=self._core))
            except (LogError, BrokerError) as error:
                _log.warning("the broker cannot continue yet: %s", error)
                is_damaged = isinstance(error, BrokerError)  # reading the whole journal again blocks the event loop
                await asyncio.sleep(_SWEEP_SECONDS if is_damaged else _RETRY_SECONDS)
            except Exception:  # clients are told that the broker restarts: it has to, in the end
                _log.exception("the broker cannot continue yet")
                await asyncio.sleep(_SWEEP_SECONDS)
            else:
                self._is_open = True
                return

    def _require_open(self) -> None:
        if not self._is_open:
            raise StatusError(
                v2.INTERNAL_SERVER_ERROR, "the broker cannot write its journal and is restarting: try again in a moment"
            )
