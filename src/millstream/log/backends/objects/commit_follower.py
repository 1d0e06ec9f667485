"""Following the commits of one log from a number on: more and more of them side by side, as long as there are more."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.log.backends.objects.commit_object import CommitObject
from millstream.log.backends.objects.commit_reader import FAR_BYTES, NEAR_BYTES, CommitReader, DamagedHead

_MOST = 64
"""How many commits are asked for together that may not be there."""

_LISTED = 256
"""How many that a listing has shown are asked for together, and kept in memory until they are accepted."""


class CommitFollower:
    """Reads the commits of *reader* in parts."""

    def __init__(self, reader: CommitReader) -> None:
        self._reader = reader
        self._size = 1
        self._listed = 0
        self._is_listed = False

    def follow(self, number: int, *, is_cold: bool) -> tuple[Sequence[CommitObject | DamagedHead], bool]:
        """The next commits from *number* on, and whether the one after them is missing.

        When it *is_cold*, listings tell how many there may be; they are hints, and what is read decides.
        """
        if not self._is_listed and is_cold:
            self._listed = number + self._reader.count_listed(number)
        self._is_listed = True
        expected = self._listed - number
        if expected > 1:
            return self._read(number, min(expected, _LISTED), FAR_BYTES)
        found, is_end = self._read(number, self._size, NEAR_BYTES if self._size < _MOST else FAR_BYTES)
        self._size = min(2 * self._size, _MOST)
        return found, is_end

    def _read(self, number: int, count: int, size: int) -> tuple[Sequence[CommitObject | DamagedHead], bool]:
        found = self._reader.read_side_by_side(range(number, number + count), size)
        return found, len(found) < count
