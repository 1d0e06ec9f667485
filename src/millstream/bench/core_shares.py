"""Processes that get a share of a core each, by control groups: hosts of a cluster that a small machine can hold."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from millstream.core.errors import InputError

_ROOT = Path("/sys/fs/cgroup")
_PERIOD = 20_000
"""Microseconds after which a share begins anew: short, so that a process does not wait long in one piece."""


@contextlib.contextmanager
def core_shares(processes: Sequence[int], share: float) -> Iterator[None]:
    """Let each of *processes*, with all that it starts from now on, have at most *share* of a core in the block.

    Raises :class:`InputError` where the system has no control groups for processors, or does not allow them.
    """
    groups = list[Path]()
    try:
        for process in processes:
            groups.append(_group(f"millstream-{os.getpid()}-{process}", share))
            (groups[-1] / "cgroup.procs").write_text(str(process), "ascii")
        yield
    except OSError as error:
        raise InputError(
            f"cannot limit processes to {share:g} of a core: {error}; run the benchmark as root, on a system with the "
            "cgroup controller cpu, or without --share"
        ) from error
    finally:
        for group in groups:
            _leave(group)


def _group(name: str, share: float) -> Path:
    quota = max(1_000, int(share * _PERIOD))
    if (_ROOT / "cgroup.controllers").exists():
        (_ROOT / "cgroup.subtree_control").write_text("+cpu", "ascii")
        group, limits = _ROOT / name, {"cpu.max": f"{quota} {_PERIOD}"}
    else:
        group, limits = _ROOT / "cpu" / name, {"cpu.cfs_period_us": f"{_PERIOD}", "cpu.cfs_quota_us": f"{quota}"}
    group.mkdir()
    for file, value in limits.items():
        (group / file).write_text(value, "ascii")
    return group


def _leave(group: Path) -> None:
    """Give the processes of *group* back, and remove it; those that end meanwhile need nothing."""
    for process in _read(group / "cgroup.procs").split():
        with contextlib.suppress(OSError):
            (group.parent / "cgroup.procs").write_text(process, "ascii")
    with contextlib.suppress(OSError):
        group.rmdir()


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text("ascii")
    return ""
