"""A wire between clients and a broker that can be cut: it passes bytes on until it is told to end its connections."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import TracebackType
from typing import Self

from millstream.core.address import Address


class Wire:
    """Listens at ``place`` and passes everything on to *target*; in a thread of its own while its block is open."""

    def __init__(self, target: Address) -> None:
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._left: int | None = None
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.cuts = 0

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._listening.wait(10)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def place(self) -> Address:
        return Address("127.0.0.1", self._port)

    def cut_after(self, answered: int) -> None:
        """Cut all connections when *answered* more bytes have come from the broker, in the middle of an answer."""
        self._loop.call_soon_threadsafe(setattr, self, "_left", answered)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self._port = server.sockets[0].getsockname()[1]
        self._listening.set()
        self._loop.run_forever()
        server.close()
        self._cut()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection(self._target.host, self._target.port)
            self._writers.add(far_writer)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pass(reader, far_writer, counts=False))
                tasks.create_task(self._pass(far_reader, writer, counts=True))
        writer.transport.abort()

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, counts: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65_536):
                if counts and self._left is not None:
                    passed = data[: self._left]
                    self._left -= len(passed)
                    sink.write(passed)
                    if not self._left:
                        self._left = None
                        self._cut()
                        return
                else:
                    sink.write(data)
                await sink.drain()
        sink.transport.abort()

    def _cut(self) -> None:
        self.cuts += 1
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()
