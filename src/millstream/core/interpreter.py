"""Python's collector of cycles, its turns of threads, and the memory of its libraries, set for our kinds of
processes."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from collections.abc import Iterator

_NEW_OBJECTS = 50_000

_SWITCH_SECONDS = 0.0005

_ARENA_MAX = -8  # M_ARENA_MAX in malloc.h


def collect_for_requests() -> None:
    """Let the collector of cycles disturb a server of many requests as little as it can; all that stays is loaded.

    It looks after ten thousand new objects instead of 700, which stops every thread for at most some 30 ms, and never
    again at what is loaded now: a look at all objects of a node takes a tenth of a second. Arrow imports pandas, where
    that is installed, at its first array of Python values: here, as it would hold up a request for up to a second.
    """
    arrow = sys.modules.get("pyarrow")
    if arrow is not None:
        arrow.array([None])
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


def switch_threads_often() -> None:
    """Let threads take turns ten times as often as CPython has it, for a server of small requests and little else.

    Its loop waits for a turn after every call to the system, and so does a thread that comes back from the database.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)


def share_heaps() -> None:
    """Let all threads share two heaps of the C library; to be called before there are threads.

    By default the GNU C library has up to eight heaps a processor, and each of them keeps what was freed in it. Other
    libraries have no such setting.
    """
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 2)


def release_freed_memory() -> None:
    """Return freed memory that Arrow and the GNU C library keep to the system, in some milliseconds."""
    arrow = sys.modules.get("pyarrow")
    if arrow is not None:
        arrow.default_memory_pool().release_unused()
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


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
