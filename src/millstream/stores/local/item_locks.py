"""Locks on content ids that hold across threads, store objects and processes, and die with their holder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import weakref
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager

from millstream.stores.folders import make_folder

_COUNT = 64


class ItemLocks:
    """Advisory locks, kept as empty files in the folder *names* below *root*. Thread-safe."""

    def __init__(self, root: str, names: tuple[str, ...]) -> None:
        self._folder = make_folder(root, names)
        weakref.finalize(self, os.close, self._folder)

    def hold_every(self) -> AbstractContextManager[None]:
        """Hold all locks."""
        return self.hold_all(bytes((number,)) for number in range(_COUNT))

    @contextlib.contextmanager
    def hold_all(self, digests: Iterable[bytes]) -> Iterator[None]:
        """Hold the locks that *digests* fall on (a few digests share one), taken in the one order that all take them
        in."""
        with contextlib.ExitStack() as held:
            for number in _numbers(digests):
                held.enter_context(self._hold(number))
            yield

    def try_all(self, digests: Iterable[bytes]) -> AbstractContextManager[object] | None:
        """The locks of all *digests*, held until the block that is entered with them is left; None where another has
        one of them."""
        with contextlib.ExitStack() as held:
            for number in _numbers(digests):
                try:
                    held.enter_context(self._hold(number, fcntl.LOCK_NB))
                except BlockingIOError:
                    return None
            return held.pop_all()

    @contextlib.contextmanager
    def _hold(self, number: int, how: int = 0) -> Iterator[None]:
        name = f"{number:02d}"
        handle = os.open(name, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=self._folder)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | how)
            yield
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)  # a child forked meanwhile shares the file: closing is not enough
            os.close(handle)


def half_of(digest: bytes) -> int:
    """Which half of the locks *digest* falls on, and of the folders of sidecars: 0 or 1."""
    return digest[0] >> 5 & 1


def _numbers(digests: Iterable[bytes]) -> list[int]:
    return sorted({digest[0] % _COUNT for digest in digests})
