"""Checks of the machine: Python, SQLite, folders, clock, limits, forks."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from millstream.core.amounts import size_text
from millstream.core.clock import MICROSECONDS, Clock, SystemClock
from millstream.core.durable import nearest_existing
from millstream.settings import Settings, SettingsError

NEEDED_BYTES = 2_000_000_000
"""Free space that the demo needs at most, its copies included."""

OPEN_FILES = 4096
"""Files and connections that a node with a few thousand clients has open."""

_UNSYNCHRONISED = 5  # TIME_ERROR of adjtimex(2)
_AHEAD_SECONDS = 60
_TIMEX_BYTES = 512  # more than a struct timex has on any architecture


class Check(msgspec.Struct, frozen=True):
    """The result of one check. ``needed_for`` names what does not work without it; ``fix`` is a command.

    What is ``optional`` is not needed by the node's settings.
    """

    name: str
    ok: bool
    found: str
    needed_for: str
    fix: str = ""
    optional: bool = False


def check_machine(settings: Settings, clock: Clock | None = None) -> Iterator[Check]:
    """Python, SQLite, the folders of *settings*, the clock, and the limits of the process."""
    version = ".".join(map(str, sys.version_info[:3]))
    yield Check("Python", sys.version_info >= (3, 11), version, "everything", "apt-get install python3 python3-venv")
    yield _sqlite()
    yield _folder("data folder", settings.folder, "the node", NEEDED_BYTES)
    yield from _policies(settings)
    yield _folder("temporary files", Path(tempfile.gettempdir()), "Spark, and uploads to S3")
    yield _clock(settings.folder, clock or SystemClock())
    yield _synchronised()
    yield _open_files()
    yield _forks()


def _policies(settings: Settings) -> Iterator[Check]:
    """Whether policies can be saved in their folder; of those in a space, whether the store is configured."""
    try:
        if settings.policy_space is None:
            yield _folder("policies", settings.policy_folder, "policies of duplication")
    except SettingsError as error:
        yield Check("policies", False, settings.mill.policies, "policies of duplication", str(error))


def _sqlite() -> Check:
    version, ok = sqlite3.sqlite_version, sqlite3.sqlite_version_info >= (3, 35)
    return Check("SQLite", ok, version, "the log (3.35 or newer)", "apt-get install libsqlite3-0, or a newer Python")


def _folder(name: str, folder: Path, needed_for: str, least: int = 0) -> Check:
    """Whether *folder*, or its nearest existing parent, is writable and has *least* bytes free."""
    place = folder
    try:
        place = nearest_existing(folder)
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"millstream")
            file.flush()
    except OSError as error:
        fix = f"chown $USER {place}, or choose another folder with --data DIR"
        return Check(name, False, f"{place} cannot be written to: {error.strerror}", needed_for, fix)
    free = shutil.disk_usage(place).free
    fix = (
        f"free {size_text(least - free)} on its disk, or choose another folder with --data DIR" if free < least else ""
    )
    return Check(name, free >= least, f"{folder}: {size_text(free)} free", needed_for, fix)


def _clock(folder: Path, clock: Clock) -> Check:
    """Whether the clock is later than the last write: otherwise ids that contain a time would go back."""
    now = clock.now() / MICROSECONDS
    last = max((path.stat().st_mtime for path in folder.glob("*.db")), default=0.0)
    text = f"{datetime.fromtimestamp(now, UTC):%Y-%m-%d %H:%M:%SZ}"
    if last > now + _AHEAD_SECONDS:
        text += f", but the node wrote at {datetime.fromtimestamp(last, UTC):%Y-%m-%d %H:%M:%SZ}"
    needed_for = "receive times, leases and certificates"
    return Check("clock", last <= now + _AHEAD_SECONDS, text, needed_for, "timedatectl set-ntp true")


def _synchronised(read: Callable[[], int] | None = None) -> Check:
    """Whether the kernel reports that the clock is synchronized; *read* is adjtimex(2), -1 if it may not be called."""
    name, needed_for = "clock synchronization", "several hosts that share work"
    state = (read or _adjtimex)()
    if state < 0:
        return Check(name, True, "not readable on this system", needed_for)
    found = "not synchronised" if state == _UNSYNCHRONISED else "synchronised"
    return Check(name, state != _UNSYNCHRONISED, found, needed_for, "timedatectl set-ntp true", optional=True)


def _adjtimex() -> int:
    try:
        return int(ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES)))
    except (AttributeError, OSError):
        return -1


def _open_files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    fix = f"ulimit -n {min(hard, 65_536) if hard > 0 else 65_536} (systemd: LimitNOFILE=65536)"
    needed_for = "thousands of clients of one node"
    return Check("open files", not 0 < soft < OPEN_FILES, f"{soft:,} allowed", needed_for, fix, optional=True)


def _forks(environment: Any = os.environ) -> Check:
    """gRPC's own fork handlers sometimes crash child processes; our clients disable them."""
    on = environment.get("GRPC_ENABLE_FORK_SUPPORT", "0").lower() in ("1", "true", "yes")
    found = "GRPC_ENABLE_FORK_SUPPORT is on" if on else "clients of a broker are started after a fork, or with spawn"
    return Check(
        "gRPC and forks",
        not on,
        found,
        "programs that fork after they created a client",
        "unset GRPC_ENABLE_FORK_SUPPORT",
        optional=True,
    )
