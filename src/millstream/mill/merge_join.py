"""Streams of listings and manifest rows in bounded memory: their full outer join, in groups, one ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Generic, NamedTuple, Protocol, TypeVar


class Keyed(Protocol):
    """Anything of one content item."""

    @property
    def content_id(self) -> str: ...


Value = TypeVar("Value")
Answer = TypeVar("Answer")
Left = TypeVar("Left", bound=Keyed)
Right = TypeVar("Right", bound=Keyed)


class Joined(NamedTuple, Generic[Left, Right]):
    """The records of one content item on each side; None if a side has none. Joined pairs can be joined again."""

    content_id: str
    left: Left | None
    right: Right | None


def outer_join(left: Iterable[Left], right: Iterable[Right]) -> Iterator[Joined[Left, Right]]:
    """Each content id of either side once, in order.

    Both sides come in strictly ascending order of their ids (code points, which is the order of the UTF-8 bytes).
    """
    lefts, rights = iter(left), iter(right)
    a, b = next(lefts, None), next(rights, None)
    while a is not None and b is not None:
        name, other = a.content_id, b.content_id
        if name == other:  # first: of two ends that are alike it is nearly always so
            yield Joined(name, a, b)
            a, b = next(lefts, None), next(rights, None)
        elif name < other:
            yield Joined(name, a, None)
            a = next(lefts, None)
        else:
            yield Joined(other, None, b)
            b = next(rights, None)
    while a is not None:
        yield Joined(a.content_id, a, None)
        a = next(lefts, None)
    while b is not None:
        yield Joined(b.content_id, None, b)
        b = next(rights, None)


def groups(values: Iterable[Value], size: int) -> Iterator[list[Value]]:
    """*values* in lists of at most *size*."""
    iterator = iter(values)
    return iter(lambda: list(islice(iterator, size)), [])


def map_ahead(function: Callable[[Value], Answer], values: Iterable[Value], count: int) -> Iterator[Answer]:
    """*function* of each of *values*, in order; up to *count* run at a time."""
    if not count:
        yield from map(function, values)
        return
    with ThreadPoolExecutor(count) as pool:
        running: deque[Future[Answer]] = deque()
        for value in values:
            if len(running) == count:
                yield running.popleft().result()
            running.append(pool.submit(function, value))
        while running:
            yield running.popleft().result()


def one_behind(values: Iterable[Value]) -> Iterator[Value]:
    """*values*, each of them when the next has been made; an error comes after all that was made before it."""
    waiting: list[Value] = []
    broken: Exception | None = None
    try:
        for value in values:
            yield from waiting
            waiting = [value]
    except Exception as error:
        broken = error
    yield from waiting
    if broken is not None:
        raise broken
