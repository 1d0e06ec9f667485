"""Python's collector of cycles and its turns of threads, set for our kinds of processes."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator

_NEW_OBJECTS = 50_000

_SWITCH_SECONDS = 0.0005


def tune_for_requests() -> None:
    """Make this process a server of many requests, once all that stays for its length is loaded.

    Threads take turns ten times as often as CPython has it: the loop waits for its turn after every call to the system,
    and so does a thread that comes back from the database. The collector of cycles looks after a hundred thousand new
    objects instead of 700, and never again at what is loaded now: a look at all objects of a node stops every thread
    for a tenth of a second.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


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
