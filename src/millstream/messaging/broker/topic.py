"""A topic: a log with a type, shared out over queues."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from millstream.log import LogError, LogSpec, LogStore, Message, Writer, WriterFailedError
from millstream.messaging.broker.pages import Pages
from millstream.messaging.broker.stored import ID
from millstream.messaging.errors import TopicError
from millstream.messaging.protocol import v2
from millstream.messaging.protocol.siphash import group_queue

TYPES: Final = ("NORMAL", "FIFO", "DELAY", "TRANSACTION")
MOST_QUEUES: Final = 256
REMEMBERED: Final = 131_072
"""How many of a topic's last messages are remembered by id, so that one that is sent again is not stored again."""

_KINDS: Final[dict[str, int]] = {name: v2.MessageType.Value(name) for name in TYPES}
_NAME: Final = re.compile(r"[%a-zA-Z0-9_][%a-zA-Z0-9_-]{0,126}")


class TopicSpec(msgspec.Struct, frozen=True):
    """What a topic is. ``name`` is 1 to 127 letters, digits and ``_ % -``; ``type`` one of :data:`TYPES`."""

    name: str
    type: str = "NORMAL"
    queues: int = 4

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise TopicError(
                f"{self.name[:80]!r} is no name for a topic: use 1 to 127 letters, digits, '_', '%' and '-', and do "
                "not begin with '-'"
            )
        if self.type not in TYPES:
            raise TopicError(f"a topic is of the type {', '.join(TYPES)}, not {self.type!r}")
        if not 1 <= self.queues <= MOST_QUEUES:
            raise TopicError(f"topic {self.name!r} can have 1 to {MOST_QUEUES} queues, not {self.queues}")

    @property
    def kind(self) -> int:
        """The protocol's number of its type."""
        return _KINDS[self.type]


class Topic:
    """The log of *spec* in *store*, open for writing. For one event loop."""

    def __init__(self, spec: TopicSpec, store: LogStore) -> None:
        self.spec = spec
        self._log = store.log(LogSpec(spec.name))
        self._writer: Writer = self._log.writer("broker")
        self._turns = itertools.count()
        self._known: OrderedDict[str, int] = OrderedDict()
        self.pages = Pages(self._log)
        self._remember_tail()

    @property
    def last_id(self) -> int:
        """The last durable message (0 in an empty topic)."""
        return self._writer.last_id

    @property
    def first_id(self) -> int:
        """The first message that its log still has; what lay before was trimmed."""
        return self._log.first_id

    def first_id_since(self, time: int) -> int:
        """The first message that was stored at *time* (microseconds) or later; one past the end without."""
        return self._log.first_id_since(time)

    def place(self, group: str) -> int | None:
        """The queue of the next message, of the message group *group* if it has one; None where there is but one."""
        queues = self.spec.queues
        if queues == 1:
            return None
        return group_queue(group, queues) if group else next(self._turns) % queues

    async def publish(self, messages: Sequence[Message]) -> list[int]:
        """Append *messages* and return their ids once they are durable.

        One whose id of the protocol is remembered is not appended again: its first id is returned. Raises the log's
        errors; after a commit that failed the same messages may be published again.
        """
        writer = self._writer
        try:
            ids = self._append_new(messages)
            await writer.durable_async(max(ids))
        except WriterFailedError:
            self._replace(writer)
            raise
        return ids

    def close(self) -> None:
        """Let the next writer in."""
        self._writer.close()

    def _append_new(self, messages: Sequence[Message]) -> list[int]:
        names = [_name(message) for message in messages]
        fresh: list[Message] = []
        places: list[int] = []
        first_of: dict[str, int] = {}
        for name, message in zip(names, messages, strict=True):
            known = self._known.get(name) if name else None
            if known is None and name in first_of:
                known = -1 - first_of[name]
            if known is None:
                first_of[name] = len(fresh)
                known = -1 - len(fresh)
                fresh.append(message)
            places.append(known)
        begin = self._append(fresh)
        ids = [place if place > 0 else begin - 1 - place for place in places]
        self._known.update((name, number) for name, number in zip(names, ids, strict=True) if name)
        self._forget()
        return ids

    def _append(self, messages: Sequence[Message]) -> int:
        if not messages:
            return 0
        ids = self._writer.append_nowait(messages)
        assert ids is not None
        return ids.first

    def _replace(self, failed: Writer) -> None:
        """Take a new writer in the place of the one that *failed*, and forget what that one did not confirm."""
        if self._writer is failed:
            with contextlib.suppress(LogError):
                failed.close()
            self._writer = self._log.writer("broker")
            last = failed.last_id
            self._known = OrderedDict((name, number) for name, number in self._known.items() if number <= last)

    def _remember_tail(self) -> None:
        if not self.last_id:
            return
        first = max(self.last_id - REMEMBERED + 1, self.first_id)
        for batch in self._log.read(first, columns=["headers"]):
            for row, name in _ids_of_clients(batch.arrow.column("headers")):
                self._known.setdefault(name, batch.first_id + row)

    def _forget(self) -> None:
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)


def _ids_of_clients(headers: Any) -> Iterator[tuple[int, str]]:
    """The rows of a column of headers whose first header is an id of the protocol, and those ids."""

    pairs, offsets = headers.flatten(), np.asarray(headers.offsets)
    begins = offsets - offsets[0]
    rows = np.flatnonzero(begins[1:] > begins[:-1])  # those with headers
    firsts = pairs.take(begins[rows])
    ids = np.asarray(firsts.field("name").to_pylist(), dtype=object) == ID
    for row, value in zip(rows[ids].tolist(), firsts.field("value").filter(ids).to_pylist(), strict=True):
        yield row, value.decode()


def _name(message: Message) -> str:
    """The id of the protocol, which :func:`~millstream.messaging.broker.stored.to_log` puts first."""
    if message.headers and message.headers[0][0] == ID:
        return message.headers[0][1].decode()
    return ""
