"""The full outer join of sorted streams, listings and manifest rows, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Generic, NamedTuple, Protocol, TypeVar


class Keyed(Protocol):
    """Anything of one content item."""

    @property
    def content_id(self) -> str: ...


Value = TypeVar("Value")
Left = TypeVar("Left", bound=Keyed)
Right = TypeVar("Right", bound=Keyed)


class Joined(NamedTuple, Generic[Left, Right]):
    """What each side has of one content item; None where it has nothing. Joined pairs can be joined again."""

    content_id: str
    left: Left | None
    right: Right | None


def outer_join(left: Iterable[Left], right: Iterable[Right]) -> Iterator[Joined[Left, Right]]:
    """Each content id of either side once, in order.

    Both sides come in strictly ascending order of their ids (code points, which is the order of the UTF-8 bytes).
    """
    lefts, rights = iter(left), iter(right)
    a, b = next(lefts, None), next(rights, None)
    while a is not None or b is not None:
        if b is None or (a is not None and a.content_id < b.content_id):
            assert a is not None
            yield Joined(a.content_id, a, None)
            a = next(lefts, None)
        elif a is None or b.content_id < a.content_id:
            yield Joined(b.content_id, None, b)
            b = next(rights, None)
        else:
            yield Joined(a.content_id, a, b)
            a, b = next(lefts, None), next(rights, None)


def groups(values: Iterable[Value], size: int) -> Iterator[list[Value]]:
    """*values* in lists of at most *size*."""
    iterator = iter(values)
    return iter(lambda: list(islice(iterator, size)), [])
