"""The ledger on a message log: one entry is the body of one message, and its number is the message's id."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from millstream.anchoring.errors import LedgerError
from millstream.anchoring.ledger import LedgerEntry, decode_entry, encode_entry, next_entry, verified_head
from millstream.core.clock import Clock
from millstream.log import DamagedLogError, LogSpec, LogStore, Message, Retention, TrimmedError

LEDGER_LOG = "ledger"
"""The log that the ledger lies in."""


class LogLedger:
    """The ledger on the log *name* of *store*, which is made where it is absent.

    Only an append takes the log's writing lease, and only while it lasts, so several processes may share a ledger.
    """

    def __init__(self, store: LogStore, clock: Clock, *, name: str = LEDGER_LOG) -> None:
        self._log = store.log(LogSpec(name))
        self._clock = clock
        self._writing = threading.Lock()

    def append(self, anchor_string: str, *, after: int = 0) -> LedgerEntry:
        with self._writing, self._log.writer(producer="ledger") as writer:
            entry = self.find(anchor_string, after=after)
            if entry is None:
                if self._log.retention is None:
                    self._log.set_retention(Retention(keep_all=True))  # a chain without its beginning proves nothing
                entry = next_entry(self.head(), anchor_string, self._clock.now())
                writer.append([Message(encode_entry(entry), source="ledger", event_time=entry.time)])
            return entry

    def entries(self, first: int = 1) -> Iterator[LedgerEntry]:
        if first > self._log.last_id:
            return
        with _damage_is_ours(self._log.name):
            for batch in self._log.read(max(1, first), columns=["body"], gaps="none"):
                for number, body in enumerate(batch.arrow.column("body").to_pylist(), batch.first_id):
                    yield self._checked(number, body)

    def head(self) -> LedgerEntry | None:
        last = self._log.last_id
        return next(self.entries(last)) if last else None

    def find(self, anchor_string: str, *, after: int = 0) -> LedgerEntry | None:
        return next((entry for entry in self.entries(after + 1) if entry.anchor_string == anchor_string), None)

    def verify(self) -> LedgerEntry | None:
        return verified_head(self.entries())

    def _checked(self, number: int, body: bytes) -> LedgerEntry:
        entry = decode_entry(body)
        if entry.number != number:
            raise LedgerError(f"message {number} of log {self._log.name!r} holds ledger entry {entry.number}")
        return entry


@contextlib.contextmanager
def _damage_is_ours(log: str) -> Iterator[None]:
    try:
        yield
    except (DamagedLogError, TrimmedError) as error:
        raise LedgerError(f"the ledger cannot be read from log {log!r}: {error}") from error
