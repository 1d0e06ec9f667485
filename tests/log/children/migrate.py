"""Opens the store that is named, and dies at its Nth change, just before it or just after it.

Prints each change that it comes to; N = 0 dies nowhere.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from millstream.log import LogStore, open_store, store
from millstream.log.backend import Backend

CHANGES = ("upgrade", "take_lease", "put_state", "rename", "release_lease")


def main(url: str, number: int, where: str) -> None:
    """Open it, or die on the way."""
    made, count = LogStore, 0

    def stepping(name: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            print(name, *arguments, flush=True)
            if (count, where) == (number, "before"):
                os.kill(os.getpid(), signal.SIGKILL)
            done = act(*arguments, **options)
            if (count, where) == (number, "after"):
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        return step

    def watched(backend: Backend, *arguments: Any, **options: Any) -> LogStore:
        for name in CHANGES:
            setattr(backend, name, stepping(name, getattr(backend, name)))
        return made(backend, *arguments, **options)

    store.LogStore = watched  # type: ignore[misc, assignment]
    open_store(url).close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
