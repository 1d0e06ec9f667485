"""The identity of a writing process, by which others can check whether it still runs."""

from __future__ import annotations

import contextlib
import enum
import fcntl
import os
import secrets
import socket
import struct
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa

from millstream.core.processes import boot_id, find_process, has_ended, machine_id, pid_namespace

_FLOCK = "@hhqqi0q"
"""``struct flock`` of Linux: type, whence, start, length, and a process id that is 0 for locks of open files."""


class HolderState(enum.StrEnum):
    """The process that a holder names."""

    RUNNING = "running"
    ENDED = "ended"
    UNKNOWN = "unknown"  # it ran on another machine, or in a container that cannot be seen from here


FindState = Callable[[str], HolderState]
"""The known state of the process of a holder."""

_elsewhere: weakref.WeakKeyDictionary[sa.Engine, FindState] = weakref.WeakKeyDictionary()


class _Holder(NamedTuple):
    """The parts of a holder's name. Earlier releases have written the first four alone."""

    host: str
    pid: str
    started: str
    token: str
    boot: str = ""
    namespace: str = ""
    machine: str = ""


class Holders:
    """The holders that share the database beside which the lock file *path* lies.

    Each holds a lock on one byte of that file for as long as its process runs, by which processes in other containers
    of the same machine can tell that it does. Without *path* only processes of the same container can. *elsewhere* is
    asked about processes that cannot be seen from here.
    """

    def __init__(self, path: Path | None = None, elsewhere: FindState | None = None) -> None:
        self._path, self._elsewhere = path, elsewhere

    @classmethod
    def beside(cls, engine: sa.Engine) -> Holders:
        """The holders that share the database of *engine*: the lock file of a SQLite database lies beside it."""
        database = engine.url.database
        is_file = engine.dialect.name == "sqlite" and database not in (None, "", ":memory:")
        return cls(Path(f"{database}-holders") if is_file else None, _elsewhere.get(engine))

    def new(self) -> str:
        """A name for a holder in this process: host, process id, when the process began, a random part, and of which
        start of which machine and of which container they are."""
        token, pid = secrets.token_hex(4), os.getpid()
        self._lock(token)
        parts = _Holder(socket.gethostname(), str(pid), _begun(pid), token, boot_id(), pid_namespace(), machine_id())
        return "/".join(parts)

    def state(self, holder: str) -> HolderState:
        """Whether the process of *holder* runs."""
        seen = self._seen_from_here(holder)
        return seen if seen != HolderState.UNKNOWN or self._elsewhere is None else self._elsewhere(holder)

    def _seen_from_here(self, holder: str) -> HolderState:
        parts = holder.split("/")
        if len(parts) not in (4, len(_Holder._fields)) or not parts[1].isdigit():
            return HolderState.UNKNOWN
        named = _Holder(*parts)
        if not named.boot:
            return self._by_pid(named) if named.host == socket.gethostname() else HolderState.UNKNOWN
        if named.boot != boot_id():
            same_machine = (named.host, named.machine) == (socket.gethostname(), machine_id())
            if not (same_machine and boot_id()):
                return HolderState.UNKNOWN
            return HolderState.ENDED if named.machine else self._by_lock(named)  # containers often have no id
        return self._by_pid(named) if named.namespace == pid_namespace() else self._by_lock(named)

    def _by_pid(self, named: _Holder) -> HolderState:
        started = int(named.started) if named.started.isdigit() else 0
        return HolderState.ENDED if has_ended(int(named.pid), started) else HolderState.RUNNING

    def _by_lock(self, named: _Holder) -> HolderState:
        """Whether a process runs that shares the lock file; unknown where there is none."""
        if self._path is None:
            return HolderState.UNKNOWN
        try:
            with self._path.open("rb") as file:
                answer = fcntl.fcntl(file, fcntl.F_OFD_GETLK, _lock_of(named.token))
        except (OSError, ValueError):
            return HolderState.UNKNOWN
        return HolderState.ENDED if struct.unpack(_FLOCK, answer)[0] == fcntl.F_UNLCK else HolderState.RUNNING

    def _lock(self, token: str) -> None:
        if self._path is None or not hasattr(fcntl, "F_OFD_SETLK"):
            return
        with contextlib.suppress(OSError):  # a folder that can only be read: nothing is begun in it either
            handle = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
            weakref.finalize(self, os.close, handle)
            fcntl.fcntl(handle, fcntl.F_OFD_SETLK, _lock_of(token))


def find_elsewhere(engine: sa.Engine, find: FindState) -> None:
    """From now on the method *find* tells those who share the database of *engine* of processes that cannot be seen
    from here, for as long as its object lives."""
    method = weakref.WeakMethod(find)

    def find_if_there(holder: str) -> HolderState:
        there = method()
        return HolderState.UNKNOWN if there is None else there(holder)

    _elsewhere[engine] = find_if_there


def process_of(holder: str) -> str:
    """The common prefix of the names of all holders of one process."""
    host, pid, started, _token, *rest = [*holder.split("/"), "", "", "", ""][:7]
    return "/".join([host, pid, started, *rest])


def describe_holder(holder: str) -> str:
    """*holder* for people."""
    host, pid, *_ = [*holder.split("/"), "?"]
    return f"process {pid} on {host}"


def _lock_of(token: str) -> bytes:
    return struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, int(token, 16), 1, 0)


def _begun(pid: int) -> str:
    """When the process began, in ticks since the machine did; empty where there is none."""
    found = find_process(pid)
    return "" if found is None else str(found.started)
