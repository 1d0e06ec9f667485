"""The bulk of a local store whose work is done by children, as far as there are any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec

from millstream.core.decoding import prepared
from millstream.stores.bulk import NewItem, Reading
from millstream.stores.hashing import Digests
from millstream.stores.local.bulk import LocalBulk
from millstream.stores.processes.child_pool import BulkProcesses
from millstream.stores.processes.frames import BulkReply, BulkRequest
from millstream.stores.protocol import ItemInfo, StoreError, StoreUnavailableError

Answer = TypeVar("Answer")
Answers: TypeAlias = Sequence[Answer | StoreError]
Decoder: TypeAlias = msgspec.msgpack.Decoder[Any]

_encoder = msgspec.msgpack.Encoder()
_infos = msgspec.msgpack.Decoder(prepared(BulkReply[ItemInfo]))
_ids = msgspec.msgpack.Decoder(prepared(BulkReply[str]))
_bytes = msgspec.msgpack.Decoder(prepared(BulkReply[bytes]))
_readings = msgspec.msgpack.Decoder(prepared(BulkReply[int | Reading]))
_digests = msgspec.msgpack.Decoder(prepared(BulkReply[Digests]))


class ProcessBulk:
    """The :class:`~millstream.stores.bulk.Bulk` of the local store in the folder *root*, done in *processes*, or by
    *own* where there is none.

    What a child was to look at or to read when it was killed is done by *own*; where it was to put something, that is a
    :class:`StoreUnavailableError`: any part of it may be there.
    """

    takes_files = True

    def __init__(self, root: str, own: LocalBulk, processes: BulkProcesses) -> None:
        self._root, self._own, self._processes = root, own, processes

    @property
    def folder(self) -> str:
        """See :func:`millstream.stores.bulk.folder_of`."""
        return self._root

    def infos(self, space: str, content_ids: Sequence[str]) -> Answers[ItemInfo]:
        request = BulkRequest("infos", self._root, space, ids=content_ids)
        return self._ask(request, _infos, lambda: self._own.infos(space, content_ids), again=True)

    def absent(self, space: str, content_ids: Sequence[str]) -> Sequence[str]:
        """See :func:`millstream.stores.bulk.find_absent`."""
        request = BulkRequest("absent", self._root, space, ids=content_ids)
        answers = self._ask(request, _ids, lambda: self._own.absent(space, content_ids), again=True)
        return [one for one in answers if isinstance(one, str)]

    def read(self, space: str, content_ids: Sequence[str]) -> Answers[bytes]:
        request = BulkRequest("read", self._root, space, ids=content_ids)
        return self._ask(request, _bytes, lambda: self._own.read(space, content_ids), again=True)

    def hashes(self, space: str, content_ids: Sequence[str]) -> Answers[Digests]:
        request = BulkRequest("hashes", self._root, space, ids=content_ids)
        return self._ask(request, _digests, lambda: self._own.hashes(space, content_ids), again=True)

    def readings(
        self, space: str, content_ids: Sequence[str], expected: Sequence[str | None] = ()
    ) -> Answers[int | Reading]:
        request = BulkRequest("readings", self._root, space, ids=content_ids, expected=expected)
        return self._ask(request, _readings, lambda: self._own.readings(space, content_ids, expected), again=True)

    def put(self, space: str, items: Sequence[NewItem]) -> Answers[ItemInfo]:
        request = BulkRequest("put", self._root, space, items=items)
        return self._ask(request, _infos, lambda: self._own.put(space, items))

    def _ask(
        self, request: BulkRequest, decoder: Decoder, alone: Callable[[], Answers[Answer]], *, again: bool = False
    ) -> Answers[Answer]:
        items = len(request.ids) + len(request.items)
        try:
            found = self._processes.ask(_encoder.encode(request), items) if items else None
        except UnicodeEncodeError:  # an id that is none is said to be so by the store itself
            return alone()
        except StoreUnavailableError:
            if not again:
                raise
            return alone()
        if found is None:
            return alone()
        reply: BulkReply[Answer] = decoder.decode(found)
        return reply.answers()
