"""Moves blocks, or trims, and kills itself at a step: arguments are the URLs of the log store and of the objects.

Each line of standard input is ``move STEP`` or ``trim ID STEP``. It is done in a process of its own, which gets SIGKILL
before or after the STEP-th call to the object store or change of the log store; ``killed`` or ``done`` is printed.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from millstream.log import LogSpec, Tiering, open_store
from millstream.stores.tiers import open_tier

CALLS = {"put", "read", "size", "delete", "names", "put_state", "reclaim"}


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


def work(url: str, objects: str, what: str, *numbers: int) -> None:
    """Do what one line asks for."""
    steps = [0]
    with open_store(url, create=False, open_objects=lambda found: Deadly(open_tier(found), steps)) as store:
        store._backend.hot = Deadly(store._backend.hot, steps)
        log = store.log(LogSpec("weather"))
        if log.tiering is None:
            log.set_tiering(Tiering(objects, segment_bytes=6000))
        steps[0] = numbers[-1]
        if what == "move":
            log.move_blocks()
        else:
            log.trim(numbers[0])


def main(url: str, objects: str) -> None:
    """Do every line in a process of its own."""
    for line in sys.stdin:
        what, *numbers = line.split()
        child = os.fork()
        if not child:
            work(url, objects, what, *map(int, numbers))
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        print("killed" if killed else "done" if status == 0 else f"failed {status}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
