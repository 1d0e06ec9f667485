"""Reading the entries of a signed tree, a part at a time, each part proven to be in it before anything is concluded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from millstream.anchoring.cas import CasReader
from millstream.anchoring.cut_manifest import parse_anchor_string
from millstream.anchoring.errors import BatchFormatError, EntriesMismatchError, LedgerError, MonitorStateError
from millstream.anchoring.index import AnchorIndex
from millstream.anchoring.ledger import LedgerEntry, decode_entry, follows
from millstream.anchoring.merkle import leaf_hash
from millstream.anchoring.monitor.findings import FindingKind, MonitorFinding, finding
from millstream.anchoring.monitor.published_tree import PublishedTree
from millstream.anchoring.monitor.state import EntriesPosition, MonitorState
from millstream.anchoring.observer import observe_entry
from millstream.anchoring.transparency.tiles import tile_path
from millstream.anchoring.transparency.tree import TILE_WIDTH
from millstream.core.amounts import counted
from millstream.core.clock import Clock
from millstream.core.timestamps import format_timestamp

CHUNK = 16 * TILE_WIDTH
"""Maximum number of entries in memory at a time; fewer if they are long."""

CHUNK_BYTES = 8 << 20
"""No other bundle of entries is read where those before it have more bytes; a bundle has at most 16 MiB."""


class VerifiedEntries(msgspec.Struct, frozen=True):
    """Entries that are in the signed tree: their bytes (``lines``), and the position after them."""

    lines: Sequence[bytes]
    after: EntriesPosition


def read_entries(tree: PublishedTree, size: int, position: EntriesPosition) -> Iterator[VerifiedEntries]:
    """The entries of *tree*, which has *size* of them, after *position*, in parts of at most :data:`CHUNK`.

    Raises :class:`EntriesMismatchError` where they do not hash to the signed root, :class:`PublishedFileError` where a
    file is missing, :class:`LedgerUnavailableError`.
    """
    frontier = position.frontier()
    while (first := frontier.size) < size:
        end = min(size, first - first % CHUNK + CHUNK)
        lines, held = list[bytes](), 0
        for number in range(first // TILE_WIDTH, -(-end // TILE_WIDTH)):
            lines += tree.entries(number)[max(0, first - number * TILE_WIDTH) :]
            held += sum(map(len, lines[-TILE_WIDTH:]))
            if held > CHUNK_BYTES:
                break
        leaves = list(map(leaf_hash, lines))
        frontier.extend(leaves)
        if frontier.root() != tree.prefix_root(frontier.size):
            raise _mismatch(tree, first, leaves)
        yield VerifiedEntries(lines, EntriesPosition.after(frontier))


def _mismatch(tree: PublishedTree, first: int, leaves: Sequence[bytes]) -> EntriesMismatchError:
    at = next((at for at, leaf in enumerate(leaves) if tree.leaf(first + at) != leaf), None)
    if at is None:
        return EntriesMismatchError(
            f"the published entries {first + 1:,} to {first + len(leaves):,} and their tiles do not hash to the signed "
            "root"
        )
    number = (first + at) // TILE_WIDTH
    return EntriesMismatchError(
        f"entry {first + at + 1:,} in {tile_path('entries', number)} is not the entry that was signed: its hash is not "
        "in the signed tree"
    )


class EntryAudit:
    """Checks the entries of a ledger of ours: their form, their chain and their times."""

    def __init__(self, clock: Clock, tolerance: int) -> None:
        self._clock = clock
        self._tolerance = tolerance

    def check(self, state: MonitorState, part: VerifiedEntries) -> tuple[MonitorState, Sequence[MonitorFinding]]:
        """*state* after the entries of *part*, which come after those that it has audited, and what is wrong."""
        findings, before = list[MonitorFinding](), state.audited
        last: LedgerEntry | None = None
        if before.size and before.last:
            last = LedgerEntry("", before.last, before.size, "", before.time or 0)
        is_known = last is not None or before.size == 0
        for number, line in enumerate(part.lines, before.size + 1):
            entry: LedgerEntry | None = None
            try:
                entry = decode_entry(line)
                if is_known:
                    follows(entry, last)
                elif entry.number != number:
                    raise LedgerError(f"the entry has the number {entry.number:,}")
                parse_anchor_string(entry.anchor_string)
            except (LedgerError, BatchFormatError) as error:
                findings.append(self._finding("entry", number, f"entry {number:,} of the signed tree: {error}"))
            if entry is not None and (text := self._wrong_time(state, number, entry.time)):
                findings.append(self._finding("time", number, text))
            last, is_known = entry, entry is not None
        after = msgspec.structs.replace(part.after, last=last.hash if last else "", time=last.time if last else None)
        return msgspec.structs.replace(state, audited=after), findings

    def _wrong_time(self, state: MonitorState, number: int, time: int) -> str:
        """The fault of the *time* of entry *number*; empty if there is none."""
        floor, now = state.unpublished_until(number), self._clock.now()
        if floor is not None and time < floor - self._tolerance:
            return (
                f"entry {number:,} is backdated: it has the time {format_timestamp(time)}, but was not yet published "
                f"at {format_timestamp(floor)}"
            )
        if time > now + self._tolerance:
            return f"entry {number:,} has a time in the future: {format_timestamp(time)}"
        return ""

    def _finding(self, kind: FindingKind, number: int, text: str) -> MonitorFinding:
        return finding(kind, text, self._clock.now(), number=number)


class FileReplay:
    """Reads the files of anchors from *cas*, and checks them as the observer of a node does, in a separate index."""

    def __init__(self, index: AnchorIndex, cas: CasReader, clock: Clock) -> None:
        self._index = index
        self._cas = cas
        self._clock = clock

    def start(self, position: EntriesPosition) -> EntriesPosition:
        """The entry to begin at, after *position*: the first entry if the index was lost, or is older."""
        indexed, _ = self._index.position() or (0, "")
        return position if indexed >= position.size else EntriesPosition()

    def check(self, number: int, line: bytes) -> MonitorFinding | None:
        """The fault of the files of entry *number*, the next one, if there is one.

        Raises :class:`ObservationBlockedError` where they cannot be read, :class:`MonitorStateError`.
        """
        try:
            entry = decode_entry(line)
        except LedgerError:
            return None  # which the audit has found, as what follows
        if entry.number != number:
            return None
        if (self._index.position() or (0, ""))[0] < number:
            observe_entry(self._index, self._cas, entry)
        status = self._index.anchor(number)
        if status is None or status.hash != entry.hash:
            raise MonitorStateError(
                f"entry {number:,} in the monitor's index is not that of the ledger: the index belongs to another "
                "ledger. Delete the index, the file beside the state whose name ends with .index; the next run reads "
                "all files again"
            )
        refused = self._index.refused(number)
        reasons = [status.reason] if status.reason else [f"batch {name}: {reason}" for name, reason in refused.items()]
        if not reasons:
            return None
        more = f" (and {counted(len(reasons) - 1, 'more batch', 'more batches')})" if len(reasons) > 1 else ""
        text = f"the files of entry {number:,} are not what the entry claims: {reasons[0]}{more}"
        return finding("anchor", text, self._clock.now(), number=number)
