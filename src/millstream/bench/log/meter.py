"""What a run costs: CPU, bytes handed to the disk, memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from resource import RUSAGE_SELF, getrusage

import msgspec

from millstream.bench.processes import cpu_seconds_of


class ResourceUsage(msgspec.Struct, frozen=True):
    """The CPU seconds of this process and of its server, and the bytes that both have written to storage, so far."""

    cpu: float
    written: int | None
    server_cpu: float = 0.0

    def figures(self, before: ResourceUsage, messages: int, *, has_server: bool) -> dict[str, float]:
        """What was used since *before*, for each of *messages*."""
        figures = {"CPU µs/message": (self.cpu - before.cpu) / messages * 1e6}
        if has_server:
            figures["server CPU µs/message"] = (self.server_cpu - before.server_cpu) / messages * 1e6
        if self.written is not None and before.written is not None:
            figures["bytes written/message"] = (self.written - before.written) / messages
        return figures


def read_meter(servers: Sequence[int]) -> ResourceUsage:
    """The meter as it stands; *servers* are the process ids of the contender's servers."""
    usage = getrusage(RUSAGE_SELF)
    written = [_written(process) for process in ("self", *map(str, servers))]
    known = [size for size in written if size is not None]
    total = sum(known) if len(known) == len(written) else None
    return ResourceUsage(usage.ru_utime + usage.ru_stime, total, cpu_seconds_of(servers))


def memory_mib() -> float:
    """The memory that this process holds, in MiB."""
    fields = Path("/proc/self/status").read_text("ascii").splitlines()
    line = next(line for line in fields if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def _written(process: str) -> int | None:
    """The bytes that a process has caused to be written to storage; None where the system does not say."""
    try:
        lines = Path(f"/proc/{process}/io").read_text("ascii").splitlines()
    except OSError:
        return None
    fields = dict(line.split(": ") for line in lines)
    return int(fields["write_bytes"]) - int(fields["cancelled_write_bytes"])
