"""Programs that a test kills by ``kill -9`` at a moment, or a step, of its choice."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from millstream.testing.waiting import until


@contextlib.contextmanager
def killable_program(command: Sequence[str | Path]) -> Iterator[subprocess.Popen[bytes]]:
    """*command* as a running program, which is killed when the block is left. What it prints is thrown away."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def kill_at(
    command: Sequence[str | Path], reached: Callable[[], object], what: str, *, seconds: float = 300
) -> int | None:
    """Run *command*, and kill it as soon as *reached* holds; its exit code where it ended before, else None.

    Raises :class:`TimeoutError`: *what* did not come in *seconds*.
    """
    with killable_program(command) as child:
        until(lambda: child.poll() is not None or reached(), what, seconds=seconds)
        return child.poll()


def stepping(act: Callable[..., Any], step: Callable[[], None]) -> Callable[..., Any]:
    """*act* with a *step*, which may be the last, before and after it."""

    def stepped(*args: Any, **named: Any) -> Any:
        step()
        answer = act(*args, **named)
        step()
        return answer

    return stepped
