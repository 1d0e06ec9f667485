"""The ledger on a message log: one entry is the body of one message, in the order of their numbers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from millstream.anchoring.errors import LedgerError
from millstream.anchoring.ledger import LedgerEntry, decode_entry, encode_entry, is_entry, next_entry, verified_head
from millstream.core.clock import Clock
from millstream.core.decoding import prepared
from millstream.log import DamagedLogError, IdRange, Log, LogStore, Message, Retention, TrimmedError, system_log

LEDGER_LOG = "ledger"
"""The name of the ledger of anchors and of its system log."""


_ASIDE = "ledger/aside"
"""The note with the ids of messages that are no entries: pairs of the first and the last of a run."""


class LedgerRepair(msgspec.Struct, frozen=True):
    """A ledger after a repair: ``entries`` form its chain, ``put_aside`` are the ids of messages that are none."""

    entries: int
    put_aside: Sequence[int]


class LogLedger:
    """The ledger *name* of *store*, in the system log of this name. That is made where it is absent: now, or without
    *create* by the first append.

    Only an append takes the log's writing lease, and only while it lasts, so several processes may share a ledger.
    """

    def __init__(self, store: LogStore, clock: Clock, *, name: str = LEDGER_LOG, create: bool = True) -> None:
        self._store, self._spec = store, system_log(name, "ledger")
        self._opened: Log | None = store.log(self._spec) if create else None
        self._clock = clock
        self._writing = threading.Lock()
        self._appended: Callable[[LedgerEntry | None], object] = lambda _: None

    @property
    def _log(self) -> Log:
        """The log, made where it is absent."""
        if self._opened is None:
            self._opened = self._store.log(self._spec)
        return self._opened

    @property
    def _existing_log(self) -> Log | None:
        """The log; None where it is absent."""
        if self._opened is None and self._store.has(self._spec.name):
            self._opened = self._store.log(self._spec, create=False)
        return self._opened

    def on_append(self, call: Callable[[LedgerEntry | None], object]) -> None:
        """Call *call* at the end of each append, while the lease is held; what it raises is the append's error.

        It gets the entry, which is durable and the last one; None where the anchor was in the ledger already.
        """
        self._appended = call

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep all other writers, also those of other processes, from the ledger while the block runs.

        Raises a ``BusyError`` while another process writes.
        """
        with self._writing, self._log.writer(producer="ledger"):
            yield

    def append(self, anchor_string: str, *, after: int = 0) -> LedgerEntry:
        with self._writing, self._log.writer(producer="ledger") as writer:
            entry = self.find(anchor_string, after=after)
            if entry is not None:
                self._appended(None)
                return entry
            if self._log.retention is None:
                self._log.set_retention(Retention(keep_all=True))  # a chain without its beginning proves nothing
            entry = next_entry(self.head(), anchor_string, self._clock.now())
            writer.append([Message(encode_entry(entry), source="ledger", event_time=entry.time)])
            self._appended(entry)
            return entry

    def entries(self, first: int = 1, last: int | None = None) -> Iterator[LedgerEntry]:
        return self._entries(max(1, first), self._aside(), last)

    def entry(self, number: int) -> LedgerEntry | None:
        return next(self.entries(number, number), None) if number > 0 else None

    @property
    def last_number(self) -> int:
        """The number of the last entry, 0 while there is none; no entry is read."""
        log = self._existing_log
        return 0 if log is None else log.last_id - sum(map(len, self._aside()))

    def head(self) -> LedgerEntry | None:
        last = self.last_number
        return self.entry(last)

    def find(self, anchor_string: str, *, after: int = 0) -> LedgerEntry | None:
        return next((entry for entry in self.entries(after + 1) if entry.anchor_string == anchor_string), None)

    def verify(self) -> LedgerEntry | None:
        return verified_head(self.entries())

    def repair(self, *, known: int = 0) -> LedgerRepair:
        """Put aside, durably, messages that are no entries: they stay where they are, and count no more.

        One of them ended a ledger in the releases in which everybody could write to it. Raises :class:`LedgerError`
        where the others are no whole chain, or fewer than the *known* entries, or where a message looks like an entry
        that was changed: then only a copy helps.
        """
        with self.exclusive():
            foreign = [message_id for message_id, body in self._bodies(1) if not is_entry(body)]
            self._refuse_entries(foreign)
            aside = _runs(foreign)
            head = verified_head(self._entries(1, aside))
            if (head.number if head else 0) < known:
                raise LedgerError(
                    f"log {self._log.name!r} has fewer ledger entries than the {known:,} that were read before: the "
                    "log was changed. Restore the log from a backup"
                )
            if aside != self._aside():
                self._log.put_metadata(_ASIDE, msgspec.json.encode([[ids.first, ids.last] for ids in aside]))
            return LedgerRepair(head.number if head else 0, foreign)

    def _refuse_entries(self, foreign: Sequence[int]) -> None:
        """Raise :class:`LedgerError` where one of the messages *foreign* is an entry that was changed."""
        for ids in _runs(foreign):
            for batch in self._log.read(ids.first, ids.last, gaps="none"):
                for message in batch:
                    if message.source == "ledger" or b"anchor_string" in message.body:
                        raise LedgerError(
                            f"the ledger entry in message {message.id} of log {self._log.name!r} was changed: "
                            "restore the log from a backup"
                        )

    def _entries(self, first: int, aside: Sequence[IdRange], last: int | None = None) -> Iterator[LedgerEntry]:
        number, last_id = first, None if last is None else _id_of(last, aside)
        for message_id, body in self._bodies(_id_of(first, aside), last_id):
            if not any(message_id in ids for ids in aside):
                yield self._checked(number, message_id, body)
                number += 1

    def _bodies(self, first_id: int, last_id: int | None = None) -> Iterator[tuple[int, bytes]]:
        """The id and the body of every message from *first_id* on, or to *last_id*."""
        log = self._existing_log
        if log is None:
            return
        end = log.last_id if last_id is None else min(last_id, log.last_id)
        if first_id > end:
            return
        with _damage_is_ours(log.name):
            for batch in log.read(first_id, end, columns=["body"], gaps="none"):
                yield from enumerate(batch.arrow.column("body").to_pylist(), batch.first_id)

    def _aside(self) -> Sequence[IdRange]:
        log = self._existing_log
        note = None if log is None else log.metadata(_ASIDE)
        return (
            [IdRange(first, last) for first, last in msgspec.json.decode(note, type=prepared(list[tuple[int, int]]))]
            if note
            else []
        )

    def _checked(self, number: int, message_id: int, body: bytes) -> LedgerEntry:
        try:
            entry = decode_entry(body)
        except LedgerError as error:
            if is_entry(body):
                raise LedgerError(
                    f"message {message_id} of log {self._log.name!r}: {error}; restore the log from a backup"
                ) from error
            raise LedgerError(
                f"message {message_id} of log {self._log.name!r} is not a ledger entry: exclude messages of other "
                "writers with `millstream anchor ledger --repair` (for the other ledgers, add --ledger registry or "
                "--ledger reports)"
            ) from error
        if entry.number != number:
            raise LedgerError(
                f"message {message_id} of log {self._log.name!r} contains ledger entry {entry.number}, expected entry "
                f"{number}: restore the log from a backup"
            )
        return entry


def _id_of(number: int, aside: Sequence[IdRange]) -> int:
    """The id of the message with entry *number*, where the messages *aside* do not count."""
    for ids in aside:
        number += len(ids) if ids.first <= number else 0
    return number


def _runs(ids: Iterable[int]) -> list[IdRange]:
    """*ids*, in order, as runs."""
    found: list[IdRange] = []
    for each in ids:
        if found and found[-1].last + 1 == each:
            found[-1] = IdRange(found[-1].first, each)
        else:
            found.append(IdRange(each, each))
    return found


@contextlib.contextmanager
def _damage_is_ours(log: str) -> Iterator[None]:
    try:
        yield
    except (DamagedLogError, TrimmedError) as error:
        raise LedgerError(f"cannot read the ledger from log {log!r}: {error}") from error
