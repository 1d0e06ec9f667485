"""Python's collector of cycles, for work that makes many objects and hardly a cycle."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

_NEW_OBJECTS = 50_000


@contextlib.contextmanager
def collecting_seldom() -> Iterator[None]:
    """In the block the collector looks after 50,000 new objects, which are some 10 MB, instead of 700.

    Rows and columns of small files are thousands of objects at once: a twentieth of the time of a first copy was spent
    looking for cycles among them.
    """
    before = gc.get_threshold()
    gc.set_threshold(max(_NEW_OBJECTS, before[0]), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
