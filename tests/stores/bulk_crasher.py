"""Puts items together into an audited store, and is killed at a step: ``python bulk_crasher.py HOW FOLDER STEP…``.

HOW is ``whole`` where one sync brings all drafts onto the disk, ``named`` where they have names all the same, ``each``
where every file is synced, ``halves`` where half of the items comes after the other.

A step is every call that brings something onto the disk, or is about to: in the folder of the store and in the outbox.
Every step is tried in a child of its own and in a folder of its own.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import signal
import sys
from pathlib import Path

import sqlalchemy as sa

from millstream.core.clock import VirtualClock
from millstream.stores import LocalStore
from millstream.stores.audit import AuditedStore, AuditOutbox
from millstream.stores.bulk import NewItem
from millstream.stores.local import atomic_files, bulk
from millstream.testing.killed_programs import stepping

BODIES = {f"folder {n % 2}/item {n}": b"%d " % n * 50 for n in range(6)}


def items() -> list[NewItem]:
    """What is put."""
    return [
        NewItem(name, body, hashlib.sha256(body).hexdigest(), "text/plain", {"name": name})
        for name, body in BODIES.items()
    ]


def open_audited(folder: Path) -> tuple[sa.Engine, AuditedStore]:
    """The audited store in *folder*."""
    folder.mkdir(exist_ok=True)
    engine = sa.create_engine(f"sqlite:///{folder / 'audit.db'}")
    return engine, AuditedStore(LocalStore(folder / "store"), AuditOutbox(engine, VirtualClock()), "1")


def put(folder: Path, last: int) -> None:
    """Put all items, and die at step *last*."""
    _, audited = open_audited(folder)
    audited.create_space("s")
    left = itertools.count(last, -1)

    def step() -> None:
        if next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    for name in ("rename", "link", "fsync", "write"):
        setattr(os, name, stepping(getattr(os, name), step))
    atomic_files.sync_filesystem = stepping(atomic_files.sync_filesystem, step)  # type: ignore[assignment]
    for name in ("begin_group", "done_all"):
        setattr(audited.outbox, name, stepping(getattr(audited.outbox, name), step))
    assert audited.bulk is not None
    audited.bulk.put("s", items())


def main(how: str, folder: Path, wanted: list[int]) -> None:
    atomic_files.can_sync_filesystem = lambda _folder: how != "each"  # type: ignore[assignment]
    if how == "halves":
        bulk.HALVED = 2
    if how == "named":
        atomic_files.UNNAMED = False
    for last in wanted:
        child = os.fork()
        if child == 0:
            put(folder / str(last), last)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(last, os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), [int(text) for text in sys.argv[3:]])
