"""Values that threads ask for at the same time are made once, object by object."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from millstream.core.cached import locked_cached_property

THREADS = 12
SECONDS = 30.0


class Owner:
    """Makes ``part`` when ``ready`` is set; ``whole`` asks for it."""

    def __init__(self) -> None:
        self.begun, self.ready = threading.Event(), threading.Event()
        self.made: list[str] = []

    @locked_cached_property
    def part(self) -> object:
        """A part."""
        self.begun.set()
        assert self.ready.wait(SECONDS)
        self.made.append("part")
        return object()

    @locked_cached_property
    def whole(self) -> list[object]:
        """It, and what it is made of."""
        return [self.part]

    @locked_cached_property
    def fragile(self) -> str:
        """Fails when it is first asked for."""
        self.made.append("fragile")
        if len(self.made) == 1:
            raise OSError("not yet")
        return "there"


def test_threads_that_ask_at_the_same_time_get_the_same_object() -> None:
    owner, barrier = Owner(), threading.Barrier(THREADS)

    def ask(number: int) -> object:
        barrier.wait(SECONDS)
        return owner.part if number % 2 else owner.whole[0]

    with ThreadPoolExecutor(THREADS) as pool:
        asked = [pool.submit(ask, number) for number in range(THREADS)]
        assert owner.begun.wait(SECONDS)
        owner.ready.set()
        found = {id(future.result(SECONDS)) for future in asked}
    assert (len(found), owner.made) == (1, ["part"])


def test_an_object_does_not_wait_for_another_one() -> None:
    slow, quick = Owner(), Owner()
    quick.ready.set()
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(lambda: slow.part)
        assert slow.begun.wait(SECONDS)
        assert pool.submit(lambda: quick.part).result(SECONDS)
        slow.ready.set()
        assert waiting.result(SECONDS) is slow.part


def test_an_error_is_not_kept_and_a_value_can_be_forgotten() -> None:
    owner = Owner()
    with pytest.raises(OSError, match="not yet"):
        _ = owner.fragile
    assert (owner.fragile, owner.fragile, len(owner.made)) == ("there", "there", 2)
    del owner.fragile
    assert (owner.fragile, len(owner.made)) == ("there", 3)


def test_it_is_documented_as_a_property() -> None:
    assert Owner.part.__doc__ == "A part."
