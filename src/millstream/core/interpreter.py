"""Python's collector of cycles and its turns of threads, set for our kinds of processes."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator

_NEW_OBJECTS = 50_000

_SWITCH_SECONDS = 0.0005


def collect_for_requests() -> None:
    """Let the collector of cycles disturb a server of many requests as little as it can; all that stays is loaded.

    It looks after a hundred thousand new objects instead of 700, and never again at what is loaded now: a look at all
    objects of a node stops every thread for a tenth of a second.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


def switch_threads_often() -> None:
    """Let threads take turns ten times as often as CPython has it, for a server of small requests and little else.

    Its loop waits for a turn after every call to the system, and so does a thread that comes back from the database.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)


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
