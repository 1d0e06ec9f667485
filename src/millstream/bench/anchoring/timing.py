"""What a piece of work took: seconds, and processor time of this process or of a server."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from millstream.bench.runner import Measurement
from millstream.core.clock import SystemClock

_clock = SystemClock()


def timed(count: int, work: Callable[[], object], *, server: int | None = None) -> Measurement:
    """*work* on *count* operations, as operations a second; with the processor time of each.

    That is the time of this process, or of the process *server*, which is told in hundredths of a second.
    """
    cpu = time.process_time if server is None else lambda: _cpu_of(server)
    begin, used = _clock.monotonic(), cpu()
    work()
    seconds, used = _clock.monotonic() - begin, cpu() - used
    name = "CPU µs/operation" if server is None else "server CPU µs/operation"
    return Measurement(count / seconds, {name: used / count * 1e6})


def _cpu_of(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
