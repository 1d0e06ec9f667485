"""The state of a monitor of a ledger, in one file: without it a rewrite of the ledger would go unnoticed."""

from __future__ import annotations

import contextlib
import fcntl
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from millstream.anchoring.errors import MonitorBusyError, MonitorStateError
from millstream.anchoring.ledger import GENESIS
from millstream.anchoring.monitor.findings import MAX_KEPT, MonitorFinding
from millstream.anchoring.transparency.tree import TreeFrontier
from millstream.core.decoding import prepared
from millstream.core.durable import replacing
from millstream.core.lock_holders import describe_lock_holders

STATE_VERSION = 1
MAX_STATE_BYTES = 256 << 20
_MAX_FLOORS = 64


class EntriesPosition(msgspec.Struct, frozen=True):
    """How far entries were read: ``size`` of them, the complete subtrees over them (``peaks``, in hex), and hash and
    time (microseconds) of the last one. ``last`` is empty after an entry that could not be read.
    """

    size: int = 0
    peaks: tuple[str, ...] = ()
    last: str = GENESIS
    time: int | None = None

    def frontier(self) -> TreeFrontier:
        """The tree of these entries."""
        return TreeFrontier(self.size, list(map(bytes.fromhex, self.peaks)))

    @classmethod
    def after(cls, frontier: TreeFrontier, last: str = "", time: int | None = None) -> EntriesPosition:
        """The position after the entries of *frontier*."""
        return cls(frontier.size, tuple(peak.hex() for peak in frontier.peaks), last, time)


class PublishedSize(msgspec.Struct, frozen=True):
    """At ``at`` (microseconds) the ledger had published ``size`` entries, and no more."""

    size: int
    at: int


class MonitorState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The state of the ledger ``origin``; times are microseconds since the epoch, UTC.

    ``head`` is the newest checkpoint (a signed note) whose tree continues all earlier ones, first seen at ``head_at``;
    ``cosigned`` the newest one with the quorum, first seen at ``cosigned_at`` (before the first one: when this monitor
    began). ``entries`` is what was checked of the audited ones. ``published`` says since when entries could have been
    seen, in ascending order.
    """

    version: int = STATE_VERSION
    origin: str
    head: str
    head_at: int
    cosigned: str | None = None
    cosigned_at: int
    published: tuple[PublishedSize, ...] = ()
    entries: str = "ledger"
    audited: EntriesPosition = EntriesPosition()
    replayed: EntriesPosition = EntriesPosition()
    findings: tuple[MonitorFinding, ...] = ()
    more_findings: int = 0

    def with_findings(self, new: Sequence[MonitorFinding]) -> MonitorState:
        """This state with *new* findings; of more than :data:`MAX_KEPT` of a kind only the number is kept."""
        known = {(each.kind, each.number) for each in self.findings}
        fresh = [each for each in new if (each.kind, each.number) not in known]
        kept, counts = list(self.findings), Counter(each.kind for each in self.findings)
        for each in fresh:
            if counts[each.kind] < MAX_KEPT:
                counts[each.kind] += 1
                kept.append(each)
        left = len(self.findings) + len(fresh) - len(kept)
        return msgspec.structs.replace(self, findings=tuple(kept), more_findings=self.more_findings + left)

    def with_published(self, size: int, at: int) -> MonitorState:
        """This state after the ledger had published *size* entries at *at*; what only audited entries need is left.

        Of very many sizes those in between become fewer: the first ones are what backdated entries are found by.
        """
        kept = [each for each in self.published if each.size != size]
        needed = [each for each in kept if each.size > self.audited.size]
        newest = [each for each in kept if each.size <= self.audited.size][-1:]
        rows = [*newest, *needed]
        if len(rows) > _MAX_FLOORS:
            rows = [*rows[:2], *rows[2:-1:2], rows[-1]]
        return msgspec.structs.replace(self, published=(*rows, PublishedSize(size, at)))

    def unpublished_until(self, number: int) -> int | None:
        """When entry *number* was last seen to be missing; None if the monitor did not look before it existed."""
        return max((each.at for each in self.published if each.size < number), default=None)


class MonitorStateFile:
    """The state in the file *path*, which is made at the first look. Safe between threads and processes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep other monitors from this file while the block runs.

        Raises :class:`MonitorBusyError` while one uses it, :class:`MonitorStateError` where it cannot be used.
        """
        lock = self.path.with_name(f"{self.path.name}.lock")
        try:
            with lock.open("ab") as file:
                self._lock(file, lock)
                try:
                    yield
                finally:
                    fcntl.flock(file, fcntl.LOCK_UN)  # a child forked meanwhile shares the file: closing is not enough
        except OSError as error:
            raise MonitorStateError(
                f"cannot use the state {self.path} or its lock file {lock.name}: {error.strerror or error}"
            ) from error

    def _lock(self, file: BinaryIO, lock: Path) -> None:
        """Lock *file*. A first look may take hours: another one must not wait for it."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise MonitorBusyError(
                f"another monitor uses the state {self.path}: {describe_lock_holders(lock)}"
            ) from error

    def read(self) -> MonitorState | None:
        """The state, None before the first look. Raises :class:`MonitorStateError` where it cannot be read."""
        try:
            with self.path.open("rb") as file:
                data = file.read(MAX_STATE_BYTES)
        except FileNotFoundError:
            return None
        try:
            state = msgspec.json.decode(data, type=prepared(MonitorState))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise MonitorStateError(
                f"the state {self.path} is damaged ({error}): restore the file from its newest backup. Without a "
                "backup, give another file, and compare the checkpoint of the ledger with one that another reader "
                "has kept"
            ) from error
        if state.version != STATE_VERSION:
            raise MonitorStateError(
                f"the state {self.path} has version {state.version}, but this release reads version {STATE_VERSION}: "
                "use the release that wrote the state"
            )
        return state

    def write(self, state: MonitorState) -> None:
        """Put *state* in place of the one before, whole and synced."""
        with replacing(self.path, mode=0o600) as file:
            file.write(msgspec.json.format(msgspec.json.encode(state), indent=1) + b"\n")
