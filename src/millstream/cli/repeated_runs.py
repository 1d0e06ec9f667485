"""Runs that a command repeats until it is stopped."""

from __future__ import annotations

from collections.abc import Callable

from millstream.cli.common import echo_line
from millstream.core.amounts import format_duration
from millstream.core.clock import MICROSECONDS, Clock
from millstream.node.members.role_scheduler import may_pass


def run_repeatedly(run: Callable[[], int], every: int, clock: Clock, stopping: Callable[[], bool]) -> int:
    """Call *run*, which returns an exit code, with pauses of *every* microseconds until *stopping*; the last code.

    An error after which a later run may succeed is printed: a server that does not answer for a minute, or another
    process that is at work, does not end the command.
    """
    while True:
        try:
            code = run()
        except Exception as error:
            if not may_pass(error):
                raise
            echo_line(f"{getattr(error, 'orig', error)}; the next run is in {format_duration(every)}", err=True)
            code = getattr(error, "exit_code", 1)
        if not _pause(every, clock, stopping):
            return code


def _pause(microseconds: int, clock: Clock, stopping: Callable[[], bool]) -> bool:
    """Wait until the next run; False after a request to stop."""
    end = clock.monotonic() + microseconds / MICROSECONDS
    while not stopping():
        left = end - clock.monotonic()
        if left <= 0:
            return True
        clock.sleep(min(left, 1.0))
    return False
