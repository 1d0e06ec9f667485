"""Ctrl-C at any call of an append: the writer can be closed, and what was confirmed is there.

The interpreter takes a signal where a Python function begins and where a call of a C function has ended, and a profile
function sees just these.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from millstream.log import LogError, LogSpec, open_store

HERE = {
    "backend.py", "commit_turn.py", "durability_notifier.py", "group_commit.py", "pending_requests.py", "waiters.py",
    "writer.py",
}  # fmt: skip


class Interrupts:
    """Raises ``KeyboardInterrupt`` at the *number*-th place of the modules that commit where a signal may be taken."""

    def __init__(self, number: int) -> None:
        self.left, self.place = number, ""

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event not in ("call", "c_return") or Path(frame.f_code.co_filename).name not in HERE:
            return
        self.left -= 1
        if self.left == 0:
            sys.setprofile(None)
            self.place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {event}"
            raise KeyboardInterrupt


def append_interrupted(url: str, number: int) -> bool:
    """Append three packs, interrupted at a place by its number; False where that came to its end before."""
    confirmed: list[int] = []
    with open_store(url) as store:
        log = store.log(LogSpec(f"log-{number}"))
        writer, interrupts = log.writer(), Interrupts(number)

        def append() -> None:
            sys.setprofile(interrupts)
            try:
                for _ in range(3):
                    ids = writer.append([b"x", b"y"])
                    assert ids is not None
                    confirmed.append(ids.last)
            finally:
                sys.setprofile(None)

        def interrupted() -> None:
            with contextlib.suppress(KeyboardInterrupt):
                append()
            with contextlib.suppress(LogError):
                writer.close()

        thread = threading.Thread(target=interrupted, daemon=True)
        thread.start()
        thread.join(30)
        assert not thread.is_alive(), f"it waits for ever after an interrupt at {interrupts.place}"
        assert log.last_id >= max(confirmed, default=0)
        log.writer().close()
    return interrupts.left <= 0


def test_a_writer_interrupted_anywhere_can_be_closed_and_followed(tmp_path: Path) -> None:
    for number in itertools.count(1):
        if not append_interrupted(f"sqlite:///{tmp_path / 'log.db'}", number):
            break
    assert number > 50  # so many places there are
