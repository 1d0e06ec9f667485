"""Changes an audited store, and is killed at a given step: ``python audit_crasher.py FOLDER STEP…``.

Every step is tried in a child of its own (forked, so that they start at once) and in a folder of its own.
"""

from __future__ import annotations

import io
import itertools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from millstream.core.clock import VirtualClock
from millstream.stores import LocalStore
from millstream.stores.audit import AuditedStore, AuditOutbox
from millstream.stores.wrapper import StoreCall
from millstream.testing.faulty_store import FaultyStore


class Steps:
    """Kills the process at step *last*."""

    def __init__(self, last: int) -> None:
        self._left = itertools.count(last, -1)

    def step(self) -> None:
        if next(self._left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class SteppingStore(FaultyStore):
    """A step before and after every call."""

    def __init__(self, store: LocalStore, steps: Steps) -> None:
        super().__init__(store)
        self._steps = steps

    def before(self, call: StoreCall) -> None:
        self._steps.step()

    def after(self, call: StoreCall) -> None:
        self._steps.step()


class SteppingOutbox(AuditOutbox):
    """A step before and after every write."""

    steps: Steps

    def begin(self, *args: Any, **named: Any) -> Any:
        return self._stepping(super().begin, *args, **named)

    def note(self, *args: Any) -> None:
        self._stepping(super().note, *args)

    def done(self, *args: Any) -> None:
        self._stepping(super().done, *args)

    def _stepping(self, act: Callable[..., Any], *args: Any, **named: Any) -> Any:
        self.steps.step()
        answer = act(*args, **named)
        self.steps.step()
        return answer


class Pipe(io.RawIOBase):
    """A source that can be read once only."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self._data = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        return self._data.read(size)


SCRIPT: list[tuple[Any, ...]] = [
    ("create_space", "s"),
    ("put", "s", "a", b"first"),
    ("pipe", "s", "b", b"second"),
    ("set_properties", "s", "a", {"p": "1"}),
    ("copy", "s", "a", "s", "c"),
    ("put", "s", "a", b"third"),
    ("delete", "s", "b"),
    ("pipe", "s", "c", b"fourth"),
    ("create_space", "t"),
    ("set_space_acls", "t", {"ann": "write"}),
    ("delete_space", "t"),
    ("delete", "s", "a"),
]
"""Changes, each of which can be told from the state of the store."""


def change(store: Any, step: tuple[Any, ...]) -> None:
    """Do one change of the script."""
    kind, *rest = step
    if kind == "put":
        store.put(rest[0], rest[1], io.BytesIO(rest[2]), properties={"by": "put"})
    elif kind == "pipe":
        store.put(rest[0], rest[1], Pipe(rest[2]))
    else:
        getattr(store, kind)(*rest)


def open_audited(folder: Path, steps: Steps | None = None) -> tuple[sa.Engine, AuditedStore]:
    """The audited store in *folder*, with steps or without."""
    folder.mkdir(exist_ok=True)
    engine = sa.create_engine(f"sqlite:///{folder / 'audit.db'}")
    sa.event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=OFF"))
    store = LocalStore(folder / "store", create=True)
    if steps is None:
        return engine, AuditedStore(store, AuditOutbox(engine, VirtualClock()), "1")
    outbox = SteppingOutbox(engine, VirtualClock())
    outbox.steps = steps
    return engine, AuditedStore(SteppingStore(store, steps), outbox, "1")


def main(folder: Path, wanted: list[int]) -> None:
    for last in wanted:
        child = os.fork()
        if child == 0:
            _, audited = open_audited(folder / str(last), Steps(last))
            for step in SCRIPT:
                change(audited, step)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(last, os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(text) for text in sys.argv[2:]])
