"""The protocol of the pipes between a process and its children: frames of MessagePack, each after its length."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import BinaryIO, Generic, Literal, TypeVar

import msgspec

from millstream.stores.bulk import NewItem
from millstream.stores.protocol import (
    AlreadyExistsError,
    ChecksumMismatchError,
    DamagedRecordError,
    ItemNotFoundError,
    SpaceNotFoundError,
    StoreError,
    StoreInputError,
    StoreUnavailableError,
)

Answer = TypeVar("Answer")

READY = b""
"""The frame that a child sends once it can be asked."""

_LENGTH = 8


class BulkRequest(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A call of the method *act* of the bulk of the local store in the folder *root*; with ``versions``, of
    :func:`~millstream.stores.folder.versions.hash_versions` for that folder."""

    act: Literal["infos", "absent", "read", "hashes", "readings", "put", "versions"]
    root: str
    space: str
    ids: Sequence[str] = ()
    items: Sequence[NewItem] = ()
    versions: Sequence[tuple[str, int, str]] = ()
    expected: Sequence[str | None] = ()


class ErrorReply(msgspec.Struct, frozen=True, gc=False):
    """An error: the name of its class, and its text."""

    kind: str
    text: str

    def error(self) -> StoreError:
        """The error as it was raised there."""
        return _ERRORS.get(self.kind, StoreError)(self.text)


class BulkReply(msgspec.Struct, Generic[Answer], frozen=True, gc=False, omit_defaults=True):
    """What was answered of each item, None where it is the error in *failed* under its place in the row; or the error
    of the call as a whole."""

    found: Sequence[Answer | None] = ()
    failed: Mapping[int, ErrorReply] = {}
    error: ErrorReply | None = None

    def answers(self) -> Sequence[Answer | StoreError]:
        """The result of the method of the bulk, or its error raised."""
        if self.error is not None:
            raise self.error.error()
        return [self.failed[place].error() if one is None else one for place, one in enumerate(self.found)]


_ERRORS = {
    kind.__name__: kind
    for kind in (
        StoreError, StoreUnavailableError, StoreInputError, SpaceNotFoundError, ItemNotFoundError, AlreadyExistsError,
        ChecksumMismatchError, DamagedRecordError,
    )
}  # fmt: skip


def failure(error: Exception) -> ErrorReply:
    """*error*, to be told to the other side."""
    kind = next((base.__name__ for base in type(error).__mro__ if base.__name__ in _ERRORS), "")
    return ErrorReply(kind, str(error) if kind else f"{type(error).__name__}: {error}")


def reply(answers: Iterable[Answer | StoreError]) -> BulkReply[Answer]:
    """*answers*, to be told to the other side."""
    found: list[Answer | None] = []
    failed: dict[int, ErrorReply] = {}
    for place, one in enumerate(answers):
        if isinstance(one, StoreError):
            failed[place] = failure(one)
            found.append(None)
        else:
            found.append(one)
    return BulkReply(found, failed)


def write_frame(stream: BinaryIO, data: bytes) -> None:
    """Send *data*."""
    stream.write(len(data).to_bytes(_LENGTH, "big"))
    stream.write(data)
    stream.flush()


def read_frame(stream: BinaryIO) -> bytes | None:
    """The next frame; None where the other side is gone."""
    head = stream.read(_LENGTH)
    if len(head) < _LENGTH:
        return None
    length = int.from_bytes(head, "big")
    data = stream.read(length)
    return data if len(data) == length else None
