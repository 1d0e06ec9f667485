"""Questions that a broker puts to a client over its telemetry stream, and the answers that come back by nonce."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import Final

from millstream.messaging.broker.clients.sessions import ClientSession
from millstream.messaging.errors import ClientNotRespondingError
from millstream.messaging.protocol import v2

ANSWER_TIMEOUT_SECONDS: Final = 10.0


class ClientCommands:
    """The commands that are not answered yet. For one event loop."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[ClientSession, asyncio.Future[v2.TelemetryCommand]]] = {}

    async def stack_trace(self, session: ClientSession) -> v2.TelemetryCommand:
        """The thread stacks of a client. Raises :class:`ClientNotRespondingError`."""
        command = v2.TelemetryCommand()
        command.print_thread_stack_trace_command.nonce = nonce = secrets.token_hex(8)
        return await self._ask(session, nonce, command)

    async def verify(self, session: ClientSession, message: v2.Message) -> v2.TelemetryCommand:
        """The result of a client's listener for *message*. Raises :class:`ClientNotRespondingError`."""
        command = v2.TelemetryCommand()
        command.verify_message_command.nonce = nonce = secrets.token_hex(8)
        command.verify_message_command.message.CopyFrom(message)
        return await self._ask(session, nonce, command)

    def answer(self, session: ClientSession, command: v2.TelemetryCommand) -> None:
        """A client has sent *command*; nothing happens unless that client was asked."""
        if command.HasField("thread_stack_trace"):
            nonce = command.thread_stack_trace.nonce
        elif command.HasField("verify_message_result"):
            nonce = command.verify_message_result.nonce
        else:
            return
        asked, answer = self._open.get(nonce, (None, None))
        if asked is session and answer is not None and not answer.done():
            answer.set_result(command)

    async def _ask(self, session: ClientSession, nonce: str, command: v2.TelemetryCommand) -> v2.TelemetryCommand:
        if not session.streams:
            raise ClientNotRespondingError(
                f"client {session.client_id} has no open telemetry stream, so the broker cannot send it commands: try "
                "again when the client has reconnected"
            )
        answer: asyncio.Future[v2.TelemetryCommand] = asyncio.get_running_loop().create_future()
        if not session.command(command):
            raise ClientNotRespondingError(
                f"client {session.client_id} does not read the commands that the broker has sent: it may hang"
            )
        self._open[nonce] = session, answer
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ANSWER_TIMEOUT_SECONDS):
                    return await answer
            raise ClientNotRespondingError(
                f"client {session.client_id} did not answer within {ANSWER_TIMEOUT_SECONDS:g} seconds: it may "
                "hang, or not support the command"
            )
        finally:
            del self._open[nonce]
