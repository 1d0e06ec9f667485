"""Moves blocks, trims or copies, and kills itself at a step: arguments are URLs of the log store and of the objects.

Without a tier the second is ``-``. Each line of standard input is ``move STEP``, ``trim ID STEP`` or ``copy URL STEP``.
It is done in a process of its own, which gets SIGKILL before or after the STEP-th call to the object store or change of
the log store, that of the copy for ``copy``; ``killed`` or ``done`` is printed.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from millstream.log import LogSpec, Tiering, copy_log, open_store
from millstream.stores.tiers import open_tier

CALLS = {
    "put",
    "read",
    "size",
    "delete",
    "names",
    "put_state",
    "reclaim",
    "create",
    "commit",
    "take_lease",
    "release_lease",
}


class Deadly:
    """Passes calls on to *real* until the steps are used up, which two or more of these share."""

    def __init__(self, real: Any, steps: list[int]) -> None:
        self._real, self._steps = real, steps

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if name not in CALLS:
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            self._step()
            result = found(*arguments, **options)
            self._step()
            return result

        return call

    def _step(self) -> None:
        self._steps[0] -= 1
        if self._steps[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def work(url: str, objects: str, what: str, *words: str) -> None:
    """Do what one line asks for."""
    if what == "copy":
        copy(url, words[0], int(words[1]))
        return
    numbers = [int(word) for word in words]
    steps = [0]
    with open_store(url, create=False, open_objects=lambda found: Deadly(open_tier(found), steps)) as store:
        store._backend.hot = Deadly(store._backend.hot, steps)
        log = store.log(LogSpec("weather"))
        if log.tiering is None and objects != "-":
            log.set_tiering(Tiering(objects, segment_bytes=6000))
        steps[0] = numbers[-1]
        if what == "move":
            log.move_blocks()
        else:
            log.trim(numbers[0])


def copy(url: str, target: str, step: int) -> None:
    """Copy the log to the store at *target*."""
    with open_store(url, read_only=True) as old, open_store(target) as new:
        new._backend.hot = Deadly(new._backend.hot, [step])
        spec = LogSpec("weather")
        copy_log(old.log(spec, create=False), new.log(spec))


def main(url: str, objects: str) -> None:
    """Do every line in a process of its own."""
    for line in sys.stdin:
        what, *words = line.split()
        child = os.fork()
        if not child:
            work(url, objects, what, *words)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        print("killed" if killed else "done" if status == 0 else f"failed {status}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
