"""The telemetry stream to one server: settings up, settings and commands down, opened again when it breaks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from millstream.messaging.client.errors import ClientError, TransportError, status_error
from millstream.messaging.client.transport import Transport
from millstream.messaging.protocol import v2

_log = logging.getLogger(__name__)

_GOODBYE = 0.5  # seconds that a server has to end the stream in its turn

Handle = Callable[["v2.TelemetryCommand"], Awaitable["v2.TelemetryCommand | None"]]


class TelemetryStream:
    """Keeps the stream over *transport* until it is closed.

    *settings* makes what is declared; *handle* takes every command and may return one to be sent back. Settings are
    handled one after another; other commands may take their time, and hold nothing up.
    """

    def __init__(
        self, transport: Transport, settings: Callable[[], v2.Settings], handle: Handle, *, reopen: float
    ) -> None:
        self._transport = transport
        self._settings = settings
        self._handle = handle
        self._reopen = reopen
        self._call: Any = None
        self._is_ending = False
        self._told = ""
        self._writing = asyncio.Lock()
        self._commands: set[asyncio.Future[None]] = set()
        self._settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.ensure_future(self._run())

    async def settled(self) -> None:
        """Return once the server has answered with its settings. Raises :class:`ClientError` where it refused."""
        await asyncio.shield(self._settled)

    async def sync(self) -> None:
        """Declare the settings again, unless the stream is just being opened, which declares them."""
        if self._call is not None:
            await self._send(self._call, v2.TelemetryCommand(settings=self._settings()))

    def restart(self) -> None:
        """Drop the stream; it is opened again."""
        if self._call is not None:
            self._call.cancel()

    async def close(self) -> None:
        """End the stream: with the server where it answers, else without."""
        self._is_ending = True
        if self._call is not None:  # a call that is cut off is not over for gRPC when the event loop may be
            await asyncio.wait([asyncio.ensure_future(self._finish(self._call))], timeout=_GOODBYE)
        ending = [self._task, *self._commands]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        if self._call is not None:
            self._call.cancel()
        self._settle(TransportError("the telemetry stream was closed"))

    async def _run(self) -> None:
        while not self._is_ending:
            try:
                await self._serve()
            except ClientError as error:
                self._tell(error)
                self._settle(error)
            except Exception as error:
                _log.info("a telemetry stream broke: %s", error)
                self._settle(TransportError(f"the telemetry stream was interrupted: {error}"))
            except asyncio.CancelledError:
                if asyncio.current_task().cancelling():  # type: ignore[union-attr]
                    raise
            if self._call is not None:
                self._call.cancel()  # where the server refused the settings, it is still open
                self._call = None
            if not self._is_ending:
                await asyncio.sleep(self._reopen)

    async def _serve(self) -> None:
        import grpc

        call = self._call = self._transport.telemetry()
        async with self._writing:
            await call.write(v2.TelemetryCommand(settings=self._settings()))
        while (command := await call.read()) is not grpc.aio.EOF:
            if command.HasField("status") and (error := status_error(command.status)) is not None:
                raise error
            if command.HasField("settings"):
                await self._handle(command)
                self._settle(None)
            else:
                task = asyncio.ensure_future(self._answer(call, command))
                self._commands.add(task)
                task.add_done_callback(self._commands.discard)

    async def _finish(self, call: Any) -> None:
        """Tell the server that nothing more comes, and wait for its end of the stream."""
        with contextlib.suppress(Exception):
            async with self._writing:
                await call.done_writing()
        await asyncio.wait([self._task])

    async def _answer(self, call: Any, command: v2.TelemetryCommand) -> None:
        try:
            answer = await self._handle(command)
        except Exception:
            _log.exception("the command %s failed", command.WhichOneof("command"))
            return
        if answer is not None:
            await self._send(call, answer)

    async def _send(self, call: Any, command: v2.TelemetryCommand) -> None:
        try:
            async with self._writing:  # gRPC takes one message at a time
                await call.write(command)
        except Exception as error:  # the reader of the stream notices as well, and opens it again
            _log.info("%s could not be sent: %s", command.WhichOneof("command"), error)

    def _tell(self, error: ClientError) -> None:
        """Log why the server refused settings that nobody waits for; again if it says something else."""
        if self._settled.done() and not isinstance(error, TransportError) and str(error) != self._told:
            self._told = str(error)
            _log.warning("the server refused the settings of this client, which tries again: %s", error)

    def _settle(self, error: ClientError | None) -> None:
        if self._settled.done():
            return
        if error is None:
            self._settled.set_result(None)
        else:
            self._settled.set_exception(error)
            self._settled.exception()  # a waiting caller gets it; there may be none
