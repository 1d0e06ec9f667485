"""Checking a whole log: every checksum, that no id is missing, and what lies around the blocks."""

from __future__ import annotations

import msgspec
import pyarrow as pa

from millstream.log.backend import Backend, StoredBlock
from millstream.log.block import BlockError
from millstream.log.errors import CorruptBlockError
from millstream.log.scan import FETCH_BYTES, open_block

MAX_PROBLEMS = 1000


class Verification(msgspec.Struct, frozen=True):
    """What was checked, in blocks, messages and stored bytes, and what is wrong (the first 1,000 findings)."""

    log: str
    blocks: int
    messages: int
    bytes: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def verify_log(backend: Backend, log: str) -> Verification:
    """Read every block of *log*, decode it, and compare ids, checksums and the writer pointer."""
    head = backend.head(log)
    end, expected = head.last_id, head.hot_id
    blocks, messages, size = 0, 0, 0
    problems = list(backend.check(log))
    while expected <= end and len(problems) < MAX_PROBLEMS:
        stored = backend.read(log, expected, end, max_bytes=FETCH_BYTES)
        for found in stored:
            if found.first_id > expected:
                problems.append(f"ids {expected} to {found.first_id - 1} are missing")
            problem = _problem(log, found)
            if problem:
                problems.append(problem)
            else:
                messages += found.last_id - max(found.first_id, head.first_id) + 1
            blocks, size, expected = blocks + 1, size + len(found.data), found.last_id + 1
        if not stored:
            problems.append(f"ids {expected} to {end} are missing")
            break
    if expected > end + 1:
        problems.append(f"the writer pointer is {end}, but the last block ends at {expected - 1}")
    if problems and backend.head(log).hot_id > head.hot_id:
        return verify_log(backend, log)  # it was trimmed meanwhile, and what is gone looked like damage
    return Verification(log, blocks, messages, size, tuple(problems))


def _problem(log: str, stored: StoredBlock) -> str | None:
    try:
        open_block(log, stored).decode().validate(full=True)
    except (CorruptBlockError, BlockError, pa.ArrowInvalid) as error:
        return f"the block of ids {stored.first_id} to {stored.last_id} is damaged: {error}"
    return None
