"""Writes to the log ``weather`` of the store that is named, and stops itself in the middle of its second commit."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from millstream.log import FencedError, LogSpec, open_store
from millstream.log.backends.segments import stream
from millstream.log.backends.sqlite import backend
from millstream.log.writing.lease import WriterLease

FENCED = 7


class Stopping:
    """Calls *act*, and stops the process in front of the first call after it was armed."""

    def __init__(self, act: Any) -> None:
        self._act, self.armed = act, False

    def __call__(self, *arguments: Any) -> Any:
        if self.armed:
            self.armed = False
            os.kill(os.getpid(), signal.SIGSTOP)
        return self._act(*arguments)


def main(url: str) -> int:
    """Append three times; the code says whether the last one was refused."""
    if url.startswith("sqlite:"):
        step = backend._row = Stopping(backend._row)
    else:
        step = stream.write_all = Stopping(stream.write_all)  # type: ignore[attr-defined]
    with open_store(url, lease_seconds=1.0) as store, store.log(LogSpec("weather")).writer() as writer:
        writer.append([b"first"])
        print("written", flush=True)
        step.armed = True
        writer.append([b"in the middle"])
        WriterLease.renew = lambda _: True  # type: ignore[method-assign]  # as where it was stopped once more, and for longer
        print("written", flush=True)
        sys.stdin.readline()
        try:
            writer.append([b"too late"])
        except FencedError:
            return FENCED
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1])
    sys.stdout.flush()
    os._exit(code)
