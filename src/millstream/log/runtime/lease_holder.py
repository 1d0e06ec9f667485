"""The holder of a writer lease, and whether that process still runs."""

from __future__ import annotations

import datetime
import os
import socket

import msgspec

from millstream.core.decoding import prepared
from millstream.core.processes import boot_id, find_process, has_ended, pid_namespace


class LeaseHolder(msgspec.Struct, frozen=True, kw_only=True):
    """One process. ``boot`` and ``namespace`` tell on which machine its ``pid`` means something, since when it runs
    is ``started`` (clock ticks since boot), and ``since`` is when it took the lease (microseconds since the epoch).
    """

    host: str
    boot: str
    namespace: str
    pid: int
    started: int
    since: int

    def __str__(self) -> str:
        since = datetime.datetime.fromtimestamp(self.since / 1e6, datetime.UTC)
        return f"process {self.pid} on {self.host} since {since:%Y-%m-%d %H:%M:%S} UTC"

    def is_gone(self, *, one_host: bool) -> bool:
        """Whether this process certainly runs no more.

        With *one_host* a holder of another boot is gone, since only this machine can use the store. One that does not
        know since when it runs (``started`` is 0) is never gone.
        """
        if self.boot != boot_id():
            return one_host and bool(self.boot) and bool(boot_id())
        return self.namespace == pid_namespace() and self.started > 0 and has_ended(self.pid, self.started)


def this_holder(now: int) -> LeaseHolder:
    """The holder that this process is; *now* in microseconds since the epoch."""
    own = find_process(os.getpid())
    return LeaseHolder(
        host=socket.gethostname(),
        boot=boot_id(),
        namespace=pid_namespace(),
        pid=os.getpid(),
        started=0 if own is None else own.started,
        since=now,
    )


def encode_holder(holder: LeaseHolder) -> bytes:
    """*holder* as JSON, for a lease."""
    return msgspec.json.encode(holder)


def decode_holder(data: bytes) -> LeaseHolder | None:
    """The holder in a lease; None where no process holds it."""
    return msgspec.json.decode(data, type=prepared(LeaseHolder)) if data else None
