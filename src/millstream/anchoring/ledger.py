"""The ledger of anchors: an append-only chain of entries, each sealed by the hash of all before it.

Every implementation passes :class:`millstream.testing.ledgers.LedgerConformance`. The format of an entry is laid down
in ``docs/formats/ledger.md``.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Protocol

import msgspec

from millstream.anchoring.cut_manifest import parse_anchor_string
from millstream.anchoring.errors import LedgerError, LedgerReplacedError
from millstream.core.canonical import MAX_SAFE_INTEGER, canonical_json
from millstream.core.clock import Clock
from millstream.core.decoding import prepared
from millstream.core.retry import RetryPolicy
from millstream.core.timestamps import time_text

GENESIS = "0" * 64
"""The previous hash in the first entry."""

_WHILE_BUSY = RetryPolicy(attempts=40, first=0.02, longest=0.5, within=20.0)
"""How often an append is repeated while another process writes. The limit of time is for errors that come slowly: a
store that does not answer has been waited for already."""


class LedgerEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One anchor in the ledger; ``number`` counts 1, 2, 3 …, ``time`` is in microseconds since the epoch, UTC.

    ``hash`` seals the other four members, and through ``previous`` (the hash of the entry before) all that came
    before. Members stand in the order of their names, so what msgspec writes is canonical.
    """

    anchor_string: str
    hash: str
    number: int
    previous: str
    time: int


class Ledger(Protocol):
    """The append-only list of anchors. Thread-safe."""

    def append(self, anchor_string: str, *, after: int = 0) -> LedgerEntry:
        """Write *anchor_string* down durably; where an entry above number *after* has it, return that one instead.

        Looking and writing are one step: whatever the writers do, a string is written once (promise P7). Raises
        :class:`BatchFormatError` for what is not an anchor string, and a ``BusyError`` while another process writes.
        """
        ...

    def entries(self, first: int = 1, last: int | None = None) -> Iterator[LedgerEntry]:
        """The entries from number *first* on, or to *last*; each one's own hash is checked.

        Raises :class:`LedgerError`.
        """
        ...

    def entry(self, number: int) -> LedgerEntry | None:
        """Entry *number*, None where there is none; no other is read. Raises :class:`LedgerError`."""
        ...

    def head(self) -> LedgerEntry | None:
        """The last entry, None while there is none."""
        ...

    def find(self, anchor_string: str, *, after: int = 0) -> LedgerEntry | None:
        """The first entry above number *after* with *anchor_string*."""
        ...

    def verify(self) -> LedgerEntry | None:
        """Check the whole chain and return its head. Raises :class:`LedgerError` that names the broken entry."""
        ...


def append_when_free(ledger: Ledger, anchor_string: str, clock: Clock, *, after: int = 0) -> LedgerEntry:
    """:meth:`Ledger.append`, repeated for up to 20 s while another process writes; then its error is raised."""
    return _WHILE_BUSY.call(functools.partial(ledger.append, anchor_string, after=after), clock)


def entries_after(
    ledger: Ledger, number: int, seal: str, last: int | None = None, *, name: str, remedy: str
) -> Iterator[LedgerEntry]:
    """The entries of *ledger* after entry *number*, or to number *last*, each checked to follow the one before.

    Entry *number*, which was observed before (0: none was), must still be there with the hash *seal*. Otherwise the
    ledger was restored from a backup or replaced, and its next entries would get numbers that were observed already.
    This raises :class:`LedgerReplacedError`, which calls the ledger *name* and gives the *remedy*.
    """
    entries = ledger.entries(max(1, number), None if last is None else max(number, last))
    if number:
        known = next(entries, None)
        if known is None:
            head = ledger.head()
            raise LedgerReplacedError(
                f"{name} ends at entry {head.number if head else 0:,}, but entry {number:,} was observed before: the "
                f"ledger was restored from an older backup, or replaced. {remedy}"
            )
        if known.hash != seal:
            raise LedgerReplacedError(
                f"entry {number:,} of {name} is not the one that was observed before: the ledger was rewritten or "
                f"replaced. {remedy}"
            )
    for entry in entries:
        if check_seal(entry).number != number + 1 or entry.previous != seal:
            raise LedgerReplacedError(
                f"entry {entry.number:,} of {name} does not follow entry {number:,}, the last one that was observed: "
                f"the ledger was rewritten or replaced. {remedy}"
            )
        yield entry
        number, seal = entry.number, entry.hash


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(prepared(LedgerEntry))


def entry_hash(anchor_string: str, number: int, previous: str, time: int) -> str:
    """The hash (hex) that seals an entry: SHA-256 of the canonical JSON of its other four members."""
    sealed = {"anchor_string": anchor_string, "number": number, "previous": previous, "time": time}
    return sha256(canonical_json(sealed)).hexdigest()


def next_entry(head: LedgerEntry | None, anchor_string: str, now: int) -> LedgerEntry:
    """The entry after *head* for *anchor_string*; its time is *now* (microseconds), or the head's where that is later.

    Raises :class:`BatchFormatError` for what is not an anchor string.
    """
    parse_anchor_string(anchor_string)
    number, previous, time = (head.number + 1, head.hash, max(now, head.time)) if head else (1, GENESIS, now)
    return LedgerEntry(anchor_string, entry_hash(anchor_string, number, previous, time), number, previous, time)


def encode_entry(entry: LedgerEntry) -> bytes:
    """The canonical JSON of *entry*."""
    return _encoder.encode(entry)


def decode_entry(data: bytes) -> LedgerEntry:
    """The entry in *data*, its form and its own hash checked. Raises :class:`LedgerError`."""
    try:
        entry = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LedgerError(f"invalid ledger entry: {error}") from error
    if encode_entry(entry) != data:
        raise LedgerError(f"ledger entry {entry.number} was changed: it is not canonical JSON")
    return check_seal(entry)


def is_entry(data: bytes) -> bool:
    """Whether *data* has the form of an entry, whatever it says."""
    try:
        _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True


def check_seal(entry: LedgerEntry) -> LedgerEntry:
    """*entry*, whose hash must be that of its other members. Raises :class:`LedgerError`."""
    if not 0 < entry.number <= MAX_SAFE_INTEGER or abs(entry.time) > MAX_SAFE_INTEGER:
        raise LedgerError(
            f"ledger entry {entry.number} has a number outside 1 to 2^53 - 1, or a time outside -(2^53 - 1) to 2^53 - 1"
        )
    if entry_hash(entry.anchor_string, entry.number, entry.previous, entry.time) != entry.hash:
        raise LedgerError(f"ledger entry {entry.number} was changed: its hash does not match its content")
    return entry


def follows(entry: LedgerEntry, head: LedgerEntry | None) -> LedgerEntry:
    """*entry*, which must name *head* (None: nothing) as the one before it. Raises :class:`LedgerError`."""
    number, previous, time = (head.number, head.hash, head.time) if head else (0, GENESIS, -MAX_SAFE_INTEGER)
    if entry.number != number + 1 or entry.previous != previous:
        raise LedgerError(f"the chain of the ledger is broken: entry {entry.number} does not follow entry {number}")
    if entry.time < time:
        raise LedgerError(
            f"ledger entry {entry.number} is dated {time_text(entry.time)}, earlier than entry {number} "
            f"({time_text(time)}): do not trust this ledger from entry {entry.number} on"
        )
    return entry


def checked_chain(entries: Iterable[LedgerEntry], head: LedgerEntry | None = None) -> Iterator[LedgerEntry]:
    """*entries*, each checked to follow the one before it, the first to follow *head*. Raises :class:`LedgerError`."""
    before = head
    for entry in entries:
        before = check_seal(follows(entry, before))
        yield before


def check_tail(entries: Sequence[LedgerEntry]) -> None:
    """Check that *entries*, a part of a ledger from any number on, form a chain. Raises :class:`LedgerError`."""
    if not entries:
        raise LedgerError("no ledger entries to check: the list is empty")
    first = entries[0]
    before = LedgerEntry("", first.previous, first.number - 1, "", first.time) if first.number > 1 else None
    for _ in checked_chain(entries, before):
        pass


def verified_head(entries: Iterable[LedgerEntry]) -> LedgerEntry | None:
    """The last of *entries*, a whole ledger, after a check of the chain. Raises :class:`LedgerError`."""
    head = None
    for entry in checked_chain(entries):
        head = entry
    return head


class MemoryLedger:
    """A ledger that ends with the process, for tests."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: list[LedgerEntry] = []
        self._writing = threading.Lock()

    def append(self, anchor_string: str, *, after: int = 0) -> LedgerEntry:
        with self._writing:
            entry = self.find(anchor_string, after=after)
            if entry is None:
                entry = next_entry(self.head(), anchor_string, self._clock.now())
                self._entries.append(entry)
            return entry

    def entries(self, first: int = 1, last: int | None = None) -> Iterator[LedgerEntry]:
        return map(check_seal, self._entries[max(0, first - 1) : last])

    def entry(self, number: int) -> LedgerEntry | None:
        return next(self.entries(number, number), None) if number > 0 else None

    def head(self) -> LedgerEntry | None:
        return self._entries[-1] if self._entries else None

    def find(self, anchor_string: str, *, after: int = 0) -> LedgerEntry | None:
        return next((entry for entry in self.entries(after + 1) if entry.anchor_string == anchor_string), None)

    def verify(self) -> LedgerEntry | None:
        return verified_head(self.entries())
