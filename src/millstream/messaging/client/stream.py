"""The telemetry stream to one server: settings up, settings and commands down, opened again when it breaks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from millstream.messaging.client.errors import ClientError, TransportError, status_error
from millstream.messaging.client.transport import Transport
from millstream.messaging.protocol import v2

_log = logging.getLogger(__name__)

Handle = Callable[["v2.TelemetryCommand"], Awaitable["v2.TelemetryCommand | None"]]


class Stream:
    """Keeps the stream over *transport* until it is closed.

    *settings* makes what is declared; *handle* takes every command and may return one to be sent back.
    """

    def __init__(
        self, transport: Transport, settings: Callable[[], v2.Settings], handle: Handle, *, reopen: float
    ) -> None:
        self._transport = transport
        self._settings = settings
        self._handle = handle
        self._reopen = reopen
        self._call: Any = None
        self._settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.ensure_future(self._run())

    async def settled(self) -> None:
        """Return once the server has answered with its settings. Raises :class:`ClientError` where it refused."""
        await asyncio.shield(self._settled)

    async def sync(self) -> None:
        """Declare the settings anew; where the stream is just being opened, that will do it."""
        call = self._call
        if call is not None:
            try:
                await call.write(v2.TelemetryCommand(settings=self._settings()))
            except Exception as error:  # the reader of the stream notices as well, and opens it again
                _log.info("settings could not be sent: %s", error)

    def restart(self) -> None:
        """Drop the stream; it is opened again."""
        if self._call is not None:
            self._call.cancel()

    async def close(self) -> None:
        """End the stream."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._call is not None:
            self._call.cancel()
        self._settled.cancel()

    async def _run(self) -> None:
        while True:
            try:
                await self._serve()
            except ClientError as error:
                self._settle(error)
            except Exception as error:
                _log.info("a telemetry stream broke: %s", error)
                self._settle(TransportError(f"the telemetry stream broke: {error}"))
            except asyncio.CancelledError:
                if asyncio.current_task().cancelling():  # type: ignore[union-attr]
                    raise
            self._call = None
            await asyncio.sleep(self._reopen)

    async def _serve(self) -> None:
        import grpc

        call = self._call = self._transport.telemetry()
        await call.write(v2.TelemetryCommand(settings=self._settings()))
        while (command := await call.read()) is not grpc.aio.EOF:
            if command.HasField("status") and (error := status_error(command.status)) is not None:
                raise error
            answer = await self._handle(command)
            if command.HasField("settings"):
                self._settle(None)
            if answer is not None:
                await call.write(answer)

    def _settle(self, error: ClientError | None) -> None:
        if self._settled.done():
            return
        if error is None:
            self._settled.set_result(None)
        else:
            self._settled.set_exception(error)
            self._settled.exception()  # whoever waits is told; nobody may be waiting
