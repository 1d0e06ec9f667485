"""The least that keeps a promise of durability: one file, one sync for all who wait at the moment."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

SIZE: Final = 4
"""The bytes in front of a record that say how long it is."""


def join_records(records: Iterable[bytes]) -> bytes:
    """*records*, each after its length."""
    return b"".join([len(record).to_bytes(SIZE, "little") + record for record in records])


def split_records(data: bytes) -> list[bytes]:
    """The records in *data*."""
    records, begin = list[bytes](), 0
    while begin < len(data):
        end = begin + SIZE + int.from_bytes(data[begin : begin + SIZE], "little")
        records.append(data[begin + SIZE : end])
        begin = end
    return records


class DurableFile:
    """Appends records to a file; an append returns when its bytes are synced. For one event loop."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._waiting: list[tuple[bytes, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def append(self, record: bytes) -> None:
        """Append *record*, durably, with all others that wait."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((record, future))
        if self._task is None:
            self._task = asyncio.create_task(self._drain())
        await future

    async def _drain(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting, []
            data = join_records([record for record, _ in group])
            await asyncio.to_thread(self._write, data)
            for _, future in group:
                future.set_result(None)
        self._task = None

    def _write(self, data: bytes) -> None:
        if os.write(self._file, data) != len(data):
            raise OSError("the disk is full")
        os.fdatasync(self._file)
