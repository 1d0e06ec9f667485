"""Programs that a test kills by ``kill -9`` at a moment, or a step, of its choice."""

from __future__ import annotations

import contextlib
import signal
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


def kill_at(command: Sequence[str | Path], reached: Callable[[], object], what: str, *, seconds: float = 300) -> None:
    """Run *command*, and kill it as soon as *reached* holds.

    Raises :class:`TimeoutError` if *what* does not come in *seconds*, and :class:`AssertionError` if the program ends
    before it is killed.
    """
    with killable_program(command) as child:
        until(lambda: child.poll() is not None or reached(), what, seconds=seconds)
        child.kill()
        _expect_killed(child.wait(), what)


def kill_after(command: Sequence[str | Path], lines: int) -> list[bytes]:
    """Run *command*, and kill it as soon as it has printed so many *lines*; all lines that it had printed by then.

    Raises :class:`AssertionError` if it ended before it was killed.
    """
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        try:
            printed = [child.stdout.readline() for _ in range(lines)]
        finally:
            child.kill()
        printed += child.stdout.readlines()
    _expect_killed(child.returncode, f"{lines} lines")
    return [line[:-1] for line in printed if line.endswith(b"\n")]


def _expect_killed(code: int, what: str) -> None:
    if code != -signal.SIGKILL:
        raise AssertionError(f"the program was to be killed at {what}, and ended by itself with exit code {code}")


def stepping(act: Callable[..., Any], step: Callable[[], None]) -> Callable[..., Any]:
    """*act* with a *step*, which may be the last, before and after it."""

    def stepped(*args: Any, **named: Any) -> Any:
        step()
        answer = act(*args, **named)
        step()
        return answer

    return stepped
