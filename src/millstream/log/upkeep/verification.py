"""Checking a whole log: every checksum, that no id is missing, and what lies around the blocks."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa

from millstream.log.backend import Backend, Head, StoredBlock
from millstream.log.block_header import BlockError, read_header
from millstream.log.errors import CorruptBlockError, DamagedLogError
from millstream.log.ids import IdRange, IndexEntry
from millstream.log.reading.scan import FETCH_BYTES, open_block
from millstream.log.tiering.backend import TieredBackend
from millstream.log.tiering.checking import check_objects
from millstream.log.tiering.reading import TierReader
from millstream.log.tiering.sealed_objects import SealedObject

MAX_PROBLEMS = 1000


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a verification: checked blocks, messages and stored bytes, and the first 1,000 findings.

    ``objects`` are the sealed ones that were examined. What is in them counts only where it was read.
    """

    log: str
    blocks: int
    messages: int
    bytes: int
    problems: tuple[str, ...]
    objects: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


class _Tally:
    """Adds up what was checked."""

    def __init__(self) -> None:
        self.blocks = self.messages = self.bytes = self.objects = 0
        self.problems: list[str] = []

    def add(self, blocks: int, messages: int, size: int) -> None:
        self.blocks, self.messages, self.bytes = self.blocks + blocks, self.messages + messages, self.bytes + size


def verify_log(backend: TieredBackend, log: str, *, deep: bool = False) -> Verification:
    """Read every block in the store of *log*, decode it, and compare ids, checksums and the writer pointer.

    Look at every sealed object, and with *deep* read it all.
    """
    try:
        head, tally = backend.head(log), _Tally()
    except DamagedLogError as error:  # where the log ends is not known
        return Verification(log=log, blocks=0, messages=0, bytes=0, problems=(str(error),))
    backend.forget_blocks()  # what this process wrote is checked where it is stored
    tier = backend.tier(log, since=head.first_id)
    if tier is not None:
        tier.look_again()
    rows = [] if tier is None else tier.rows(head.first_id, tier.last_id)
    begin = head.first_id if tier is None else max(head.first_id, tier.last_id + 1)
    if tier is not None:
        _verify_objects(tier, log, head, tally, deep=deep)
    _verify_blocks(backend.hot, log, IdRange(begin, head.last_id), head.first_id, tally)
    now = backend.head(log)
    is_changed = (now.first_id, now.hot_id) != (head.first_id, head.hot_id)
    if tally.problems and (is_changed or _are_replaced(tier, rows)):
        return verify_log(backend, log, deep=deep)  # what was trimmed or moved meanwhile looked like damage
    return Verification(
        log=log,
        blocks=tally.blocks,
        messages=tally.messages,
        bytes=tally.bytes,
        problems=tuple(tally.problems),
        objects=tally.objects,
    )


def _are_replaced(tier: TierReader | None, rows: Sequence[SealedObject]) -> bool:
    """Whether one of *rows*, which were checked, is no row of the log any more."""
    if tier is None:
        return False
    tier.look_again()
    return not set(rows) <= set(tier.rows(0, tier.last_id))


def _verify_objects(tier: TierReader, log: str, head: Head, tally: _Tally, *, deep: bool) -> None:
    for found in check_objects(tier, log, head, deep=deep):
        tally.objects += 1
        if found.problem is not None:
            tally.problems.append(found.problem)
        elif deep:
            sums = found.row.sums
            tally.add(sums.blocks, sums.last_id - max(sums.first_id, head.first_id) + 1, sums.bytes)
        if len(tally.problems) >= MAX_PROBLEMS:
            return


def _verify_blocks(backend: Backend, log: str, ids: IdRange, low: int, tally: _Tally) -> None:
    """Check the blocks that hold *ids*, of which those from *low* on count as messages."""
    expected, end = ids.first, ids.last
    tally.problems += backend.check(log)
    while expected <= end and len(tally.problems) < MAX_PROBLEMS:
        stored = backend.read(log, expected, end, max_bytes=FETCH_BYTES)
        index = backend.index(log, stored[0].first_id, stored[-1].last_id) if stored else ()
        entries = {entry.first_id: entry for entry in index}
        for found in stored:
            if found.first_id > expected:
                tally.problems.append(f"ids {expected} to {found.first_id - 1} are missing")
            problem = _problem(log, found) or _index_problem(found, entries.get(found.first_id))
            if problem:
                tally.problems.append(problem)
            messages = 0 if problem else found.last_id - max(found.first_id, low) + 1
            tally.add(1, messages, len(found.data))
            expected = found.last_id + 1
        if not stored:
            tally.problems.append(f"ids {expected} to {end} are missing")
            break
    if expected > end + 1:
        tally.problems.append(f"the writer pointer is {end}, but the last block ends at {expected - 1}")


def _index_problem(stored: StoredBlock, entry: IndexEntry | None) -> str | None:
    """The differences between a block's index entry and its header; None if there are none."""
    if entry is None:
        return None
    head = read_header(stored.data)
    said = {**msgspec.structs.asdict(head), "last_id": head.last_id, "bytes": len(stored.data)}
    kept = {name: value for name, value in msgspec.structs.asdict(entry).items() if value is not None}
    wrong = [f"{name} is {value}, but {said[name]} in the block" for name, value in kept.items() if value != said[name]]
    if not wrong:
        return None
    return (
        f"the index entry of the block with ids {stored.first_id} to {stored.last_id} is wrong: {'; '.join(wrong)}. "
        "Seeks by time and statistics may be wrong; the messages are intact. `millstream log copy` makes a log with a "
        "correct index"
    )


def _problem(log: str, stored: StoredBlock) -> str | None:
    try:
        open_block(log, stored).decode().validate(full=True)
    except (CorruptBlockError, BlockError, pa.ArrowInvalid) as error:
        return f"the block with ids {stored.first_id} to {stored.last_id} is damaged: {error}"
    return None
