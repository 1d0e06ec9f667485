"""A reader in a process of its own."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection

from millstream.bench.log.contenders import open_receiver
from millstream.bench.log.protocol import QueueLocation
from millstream.bench.log.read_check import ReadCheck


class ReaderProcess:
    """Follows the queue at *place* up to *total* messages in a child process, from :meth:`start` on."""

    def __init__(self, place: QueueLocation, payload: int, total: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_follow, args=(theirs, place, payload, total))
        self._process.start()
        theirs.close()
        self._pipe.recv()

    def start(self) -> None:
        """Let it begin."""
        self._pipe.send("go")

    def result(self) -> ReadCheck:
        """What it has seen, once it has seen all."""
        seen = self._pipe.recv()
        self._process.join()
        if isinstance(seen, BaseException):
            raise seen
        found: ReadCheck = seen
        return found


def _follow(pipe: Connection, place: QueueLocation, payload: int, total: int) -> None:
    try:
        receiver, seen = open_receiver(place), ReadCheck(payload)
        pipe.send("ready")
        pipe.recv()
        seen.add_all(receiver.follow(total))
        receiver.close()
        pipe.send(seen)
    except BaseException as error:
        pipe.send(error)
        raise
