"""The base of the blocking clients: an event loop in a thread, for as long as a client runs."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent import futures
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from millstream.core.closing import ClosesOnExit
from millstream.messaging.client.client import Client
from millstream.messaging.client.errors import ForkedError, NotRunningError
from millstream.messaging.client.transaction import Transaction

Result = TypeVar("Result")
Argument = TypeVar("Argument")
AnyClient = TypeVar("AnyClient", bound=Client)

_LAST_SECONDS = 2.0


class LoopThread:
    """An event loop in a separate thread, from :meth:`start` to :meth:`stop`. Thread-safe."""

    def __init__(self) -> None:
        self._process = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # in a forked process it may be held for ever

    def start(self) -> None:
        """Begin; to begin again does nothing."""
        if self._loop is not None:
            return
        with self._lock:
            if self._loop is None:
                self._process = os.getpid()
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="millstream-client", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """End; to end again does nothing. Work that has not ended in two seconds is cancelled."""
        if self._process != os.getpid():
            self._loop = self._thread = None  # the parent's: to close them here would break them there
            self._lock = threading.Lock()
            return
        with self._lock:  # from now on nobody submits work, which would never run
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            asyncio.run_coroutine_threadsafe(_last_tasks(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of *work*. Interrupting the wait cancels the work.

        Raises :class:`NotRunningError`, also where the loop ends meanwhile, and :class:`ForkedError` in a process that
        was forked since the start.
        """
        if self._process != os.getpid():
            work.close()
            raise NotRunningError if self._loop is None else ForkedError
        with self._lock:
            loop = self._loop
            future = None if loop is None else asyncio.run_coroutine_threadsafe(work, loop)
        if future is None:
            work.close()
            raise NotRunningError
        try:
            return future.result()
        except futures.CancelledError as error:
            if self._loop is not loop:
                raise NotRunningError from error
            raise
        except BaseException:
            future.cancel()
            raise


async def _last_tasks() -> None:
    """Return when all tasks of this loop have ended; after two seconds those that are left are cancelled.

    gRPC hears the end of a call that was cut off a moment later, and complains where the loop is gone by then.
    """
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    if rest:
        _, rest = await asyncio.wait(rest, timeout=_LAST_SECONDS)
    for task in rest:
        task.cancel()
    if rest:
        await asyncio.wait(rest, timeout=_LAST_SECONDS)


class Blocking(ClosesOnExit, Generic[AnyClient]):
    """A client whose methods block; use it in a ``with`` block, from any number of threads."""

    def __init__(self, client: AnyClient) -> None:
        self._client = client
        self._loop = LoopThread()

    def start(self) -> None:
        """Start the client and its thread; see the same method of the asynchronous client."""
        self._loop.start()
        try:
            self._loop.run(self._client.start())
        except BaseException:
            self._loop.stop()
            raise

    def close(self) -> None:
        """Close the client and end its thread. Closing again does nothing."""
        try:
            self._loop.run(self._client.close())
        except NotRunningError:
            return
        finally:
            self._loop.stop()

    def __enter__(self) -> Self:
        self.start()
        return self


class BlockingTransaction:
    """A transaction whose methods block; its ``with`` block commits, or rolls back where it raises."""

    def __init__(self, loop: LoopThread, transaction: Transaction) -> None:
        self._loop = loop
        self._transaction = transaction
        self.receipt = transaction.receipt

    def commit(self) -> None:
        """See :meth:`Transaction.commit`."""
        self._loop.run(self._transaction.commit())

    def rollback(self) -> None:
        """See :meth:`Transaction.rollback`."""
        self._loop.run(self._transaction.rollback())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(self._transaction.__aexit__(kind, error, trace))


def in_threads(function: Callable[[Argument], Result]) -> Callable[[Argument], Awaitable[Result]]:
    """*function*, which may block, for an event loop: every call runs in a thread."""

    async def call(argument: Argument) -> Result:
        return await asyncio.to_thread(function, argument)

    return call
