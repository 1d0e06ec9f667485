"""Protobuf messages as messages of a log: the serialized bytes are the body, a header names the type.

Any class that serializes itself as Google's do will serve; nothing here depends on protobuf.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol, TypeVar

from millstream.core.message import Message
from millstream.log.errors import LogInputError

TYPE_HEADER = "proto-type"
"""The header that names the type of a body, as in ``package.Name``."""


class Encodable(Protocol):
    """A protobuf message."""

    def SerializeToString(self) -> bytes:  # noqa: N802
        """The message as bytes."""
        ...


class Decodable(Protocol):
    """A protobuf message whose class makes it from bytes."""

    @staticmethod
    def FromString(s: bytes, /) -> Any:  # noqa: N802
        """The message of some bytes."""
        ...


Proto = TypeVar("Proto", bound=Decodable)


def encode_proto(messages: Iterable[Encodable], key: str = "", source: str = "") -> list[Message]:
    """*messages* for :meth:`millstream.log.Writer.append`, all with the same *key* and *source*."""
    return [Message(m.SerializeToString(), key, source, headers=_headers(type(m))) for m in messages]


def decode_proto(messages: Iterable[Message], kind: type[Proto], log: str) -> Iterator[tuple[int, Proto]]:
    """The ids of *messages* of the log *log*, and what their bodies are as *kind*.

    Raises :class:`LogInputError` where a body is of another type, or is none that *kind* can read.
    """
    wanted = _type_name(kind)
    for message in messages:
        stated = dict(message.headers).get(TYPE_HEADER, wanted)
        if stated != wanted:
            raise LogInputError(
                f"message {message.id} of log {log!r} is a {stated.decode()}, not a {wanted.decode()}: read the "
                "message as its type"
            )
        try:
            decoded = kind.FromString(message.body)
        except Exception as error:  # each library has an error of its own
            raise LogInputError(
                f"message {message.id} of log {log!r} is not a valid {wanted.decode()}: {error}; read the message as "
                "bytes with `Log.read()`"
            ) from error
        yield message.id, decoded


def _headers(kind: type[Any]) -> tuple[tuple[str, bytes], ...]:
    return ((TYPE_HEADER, _type_name(kind)),)


def _type_name(kind: type[Any]) -> bytes:
    descriptor = getattr(kind, "DESCRIPTOR", None)
    name: str = getattr(descriptor, "full_name", kind.__qualname__)
    return name.encode()
