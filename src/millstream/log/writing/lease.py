"""The fencing lease: one writer at a time, and a replaced writer cannot write (promise P10)."""

from __future__ import annotations

import msgspec

from millstream.core.clock import MICROSECONDS, Clock
from millstream.log.backend import Backend, Head
from millstream.log.errors import WriterBusyError
from millstream.log.runtime.lease_holder import decode_holder, encode_holder, this_holder


class WriterLease:
    """The right to write to *log*, under an epoch that every commit states.

    It holds for *seconds* after the last :meth:`renew`; after that another writer may take over.
    """

    def __init__(self, backend: Backend, log: str, epoch: int, seconds: float) -> None:
        self._backend = backend
        self._log = log
        self.epoch = epoch
        self.seconds = seconds

    @classmethod
    def take(cls, backend: Backend, log: str, clock: Clock, seconds: float) -> WriterLease:
        """Take the lease of *log* if no process holds it, or its holder is dead or has let it run out.

        Raises :class:`WriterBusyError`, which names the holder.
        """
        head, now = backend.head(log), backend.lease_time()
        _refuse_while_held(log, head, backend.one_host, now)
        holder = encode_holder(this_holder(clock.now()))
        until = now + round(seconds * MICROSECONDS)
        if not backend.take_lease(log, epoch=head.epoch, holder=holder, until=until):
            other = current_writer(backend, log) or "it has ended since"
            raise WriterBusyError(f"another writer took log {log!r} at the same time ({other}): try again later")
        return cls(backend, log, head.epoch + 1, seconds)

    def renew(self) -> bool:
        """Hold the lease for another full term; False where another writer has taken over."""
        until = self._backend.lease_time() + round(self.seconds * MICROSECONDS)
        return self._backend.renew_lease(self._log, epoch=self.epoch, until=until)

    def release(self) -> None:
        """Let the next writer in at once."""
        self._backend.release_lease(self._log, epoch=self.epoch)


def current_writer(backend: Backend, log: str) -> str | None:
    """The present writer of *log*, in words; None if there is none."""
    return writer_in_force(backend, backend.head(log))


def writer_in_force(backend: Backend, head: Head) -> str | None:
    """The writer that *head* names, in words; None where its lease was released or has run out."""
    return _holder_in_force(head, backend.one_host, backend.lease_time()) if head.lease_until else None


def _refuse_while_held(log: str, head: Head, one_host: bool, now: int) -> None:
    holder = _holder_in_force(head, one_host, now)
    if holder is not None:
        left = (head.lease_until - now) / MICROSECONDS
        raise WriterBusyError(
            f"log {log!r} is being written by {holder}, and a log can have only one writer. Write through that "
            f"process, or stop it; if it hangs, the log is free in {left:.1f} seconds"
        )


def _holder_in_force(head: Head, one_host: bool, now: int) -> str | None:
    if head.lease_until <= now:
        return None
    try:
        holder = decode_holder(head.holder)
    except msgspec.DecodeError:
        return "an unknown process"
    return None if holder is None or holder.is_gone(one_host=one_host) else str(holder)
