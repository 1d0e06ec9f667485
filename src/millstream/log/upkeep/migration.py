"""Stores of format 1, in which system logs bore names that users' logs may have: ``ledger``, ``queue.repair`` …

Each gets its kind, and then its name with ``system:`` before it, under its writer lease: a log that is being written
stays until that is over. Another process can continue after either step. A store that is only read is not changed; a
system log is found under its former name.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from millstream.core.clock import Clock
from millstream.core.retry import RetryPolicy
from millstream.log.backend import Backend, Head
from millstream.log.block_header import name_hash
from millstream.log.consumer_positions import CONSUMERS
from millstream.log.errors import (
    DamagedLogError,
    LogError,
    LogNotFoundError,
    StorageBusyError,
    StorageFullError,
    StorageReadOnlyError,
    WriterBusyError,
)
from millstream.log.ids import IdRange
from millstream.log.kinds import KIND, SYSTEM, SYSTEM_KINDS, SystemKind, is_system
from millstream.log.writing.lease import WriterLease

if TYPE_CHECKING:
    from millstream.core.message import Message

_LEDGERS = ("ledger", "mill.ledger", "registry.ledger")
_MAY_WAIT = (StorageBusyError, StorageFullError, StorageReadOnlyError)
_WHILE_ANOTHER_MIGRATES = RetryPolicy(attempts=6, first=0.02, longest=0.3)


class _LegacyLog(msgspec.Struct, frozen=True):
    """The mark of a system log of format 1 besides its name: the messages of its first block.

    ``wrote`` is told these, and whether the producer ``producer`` wrote them; copies were not.
    """

    kind: SystemKind
    producer: str
    wrote: Callable[[Sequence[Message], bool], bool]
    may_be_empty: bool = False


def _is_event(message: Message) -> bool:
    return message.body.startswith(b'{"did":"%s"' % message.key.encode())


def _of_a_ledger(messages: Sequence[Message], _: bool) -> bool:
    return messages[0].body.startswith(b'{"anchor_string":"')


def _of_a_journal(messages: Sequence[Message], _: bool) -> bool:
    return _is_event(messages[0])


def _of_held_messages(messages: Sequence[Message], _: bool) -> bool:
    return any(name == "mq:held-topic" for name, _ in messages[0].headers)


def _of_a_queue(messages: Sequence[Message], by_keeper: bool) -> bool:
    """A task may be any body, so that it is one only by the keeper's word, or with an event of a task beside it."""
    return _is_event(messages[0]) or (messages[0].key == "put" and (by_keeper or any(map(_is_event, messages))))


def _former(name: str) -> _LegacyLog | None:
    if name in _LEDGERS:
        return _LegacyLog("ledger", "ledger", _of_a_ledger)
    if name == "broker.journal":
        return _LegacyLog("journal", "broker", _of_a_journal)
    if name == "broker.held":
        return _LegacyLog("journal", "broker", _of_held_messages, may_be_empty=True)
    if name.startswith("queue."):
        return _LegacyLog("queue", "queue", _of_a_queue)
    return None


_OF_LOGS = {name for name, member in vars(Backend).items() if "log" in getattr(member, "__annotations__", ())}
"""The methods of a backend that are told which log."""


class _RenamingBackend:
    """*backend*, with its system logs called by their present names."""

    def __init__(self, backend: Backend, names: LegacyLogNames) -> None:
        self._backend, self._names = backend, names

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(self._backend, attribute)
        if attribute not in _OF_LOGS:
            return found

        def call(log: str, *arguments: Any, **options: Any) -> Any:
            filed = self._names.filed(log)
            try:
                return found(filed, *arguments, **options)
            except LogError:
                self._names.refresh(log)  # another process may have given it its present name
                if self._names.filed(log) == filed:
                    raise
                return found(log, *arguments, **options)

        return call


class LegacyLogNames:
    """The system logs of *backend* that still bear the names they had in format 1. Thread-safe."""

    def __init__(self, backend: Backend, clock: Clock, lease_seconds: float, *, bodies_only: bool) -> None:
        self._backend, self._clock, self._lease_seconds = backend, clock, lease_seconds
        self._bodies_only = bodies_only
        self._settling = threading.Lock()
        self._filed: dict[str, str] = {}
        self._fixed: set[str] = set()

    def find(self, *, migrate: bool) -> Backend:
        """Find them; with *migrate* each gets its present name, unless it is being written or nothing can be written.

        Returns the backend, with those that are left called by their present names. Raises what the backend raises.
        """
        names = set(self._backend.logs())
        for name in sorted(names):
            former = None if is_system(name) or SYSTEM + name in names else _former(name)
            if former is None:
                continue
            try:
                self._look_at(name, former, migrate=migrate)
            except LogError:
                if name in self._backend.logs():
                    raise  # else another process has just given it its present name
        return cast("Backend", _RenamingBackend(self._backend, self)) if self._filed else self._backend

    def filed(self, name: str) -> str:
        """The name by which the backend knows the log *name*."""
        return self._filed.get(name, name)

    def logs(self) -> Sequence[str]:
        """The present names of all logs, sorted."""
        return sorted(map(self._present, self._backend.logs()))

    def kinds(self) -> Mapping[str, str]:
        """The present names of all logs, sorted, and their kinds."""
        found = self._backend.kinds()
        present = {self._present(name): kind for name, kind in found.items()}
        return {name: present[name] or self.kind(name) or "application" for name in sorted(present)}

    def is_taken(self, name: str) -> bool:
        """Whether a system log still bears the *name*, so that no other log can."""
        return SYSTEM + name in self._filed

    def kind(self, name: str) -> SystemKind | None:
        """The kind of the system log *name*, where it bears its former name."""
        former = _former(self._filed[name]) if name in self._filed else None
        return former.kind if former is not None else None

    def settle(self, name: str) -> None:
        """Give the system log *name* its present name, if it still bears its former one.

        Raises :class:`WriterBusyError` where it is being written, and what the backend raises.
        """
        with self._settling:
            self.refresh(name)
            filed = self._filed.get(name)
            if filed is None or name in self._fixed:
                return
            try:
                is_renamed = self._migrate(name, filed)
            except LogNotFoundError:  # another process was quicker
                self.refresh(name)
                return
            if is_renamed:
                del self._filed[name]
            else:
                self._fixed.add(name)

    def refresh(self, name: str) -> None:
        """Forget the former name of *name* where another process has given it its present one."""
        if name in self._filed and name in self._backend.logs():
            del self._filed[name]

    def _present(self, filed: str) -> str:
        return SYSTEM + filed if self.is_taken(filed) else filed

    def _look_at(self, name: str, former: _LegacyLog, *, migrate: bool) -> None:
        kind = self._backend.get_state(name, KIND).value.decode()
        if kind in SYSTEM_KINDS or (not kind and self._is_ours(name, former)):
            self._filed[SYSTEM + name] = name
            if migrate:
                self._settle_soon(SYSTEM + name)
        elif migrate and not kind:
            with contextlib.suppress(*_MAY_WAIT):  # no process will look at it again
                self._backend.put_state(name, KIND, b"application", version=0)

    def _settle_soon(self, name: str) -> None:
        """Settle *name* unless something is in the way for longer than another process takes for the same."""
        for pause in _WHILE_ANOTHER_MIGRATES.pauses():
            try:
                self.settle(name)
                return
            except WriterBusyError:
                self._clock.sleep(pause)
            except _MAY_WAIT:
                return

    def _migrate(self, name: str, filed: str) -> bool:
        """Do both steps; False where names cannot change in this backend."""
        former = _former(filed)
        assert former is not None
        lease = WriterLease.take(self._backend, filed, self._clock, self._lease_seconds)
        try:
            state = self._backend.get_state(filed, KIND)
            if not state.value:
                self._backend.put_state(filed, KIND, former.kind.encode(), version=state.version)
            if self._backend.rename(filed, name, epoch=lease.epoch):
                return True
        except BaseException:
            lease.release()
            raise
        lease.release()
        return False

    def _is_ours(self, name: str, former: _LegacyLog) -> bool:
        """Whether the log is what its name says, by its first block.

        One that was never used is, and so is one that cannot be read: otherwise a second ledger would be started.
        """
        from millstream.log.reading.scan import cut_batches, open_block

        head = self._backend.head(name)
        first_id = max(head.first_id, head.hot_id)
        if head.last_id < first_id:
            return former.may_be_empty or self._was_never_used(name, head)
        try:
            blocks = [open_block(name, stored) for stored in self._backend.read(name, first_id, first_id, max_bytes=1)]
        except DamagedLogError:
            return True
        if not blocks:
            return True
        header = blocks[0].header
        ids = IdRange(first_id, header.last_id)
        messages = [message for batch in cut_batches(blocks, ids, log=name, max_messages=65_536) for message in batch]
        return former.wrote(messages, header.producer == name_hash(former.producer))

    def _was_never_used(self, name: str, head: Head) -> bool:
        return head.last_id == 0 and not self._bodies_only and not self._backend.states(name, CONSUMERS)
