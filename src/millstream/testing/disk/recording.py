"""What a process did to its files, and what of that is on the disk when the power is lost at some moment."""

from __future__ import annotations

import random
import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

SECTOR = 512
"""A disk writes this many bytes wholly or not at all."""

_HEAD = struct.Struct("<cQQI")


class Change(msgspec.Struct, frozen=True):
    """One step: ``kind`` is ``w`` (write), ``t`` (cut to a size), ``u`` (delete), ``s`` or ``e`` (a sync begins, ends).

    ``offset`` is where a write begins, the size after a cut, or the number of a sync.
    """

    kind: str
    path: Path
    offset: int
    data: bytes = b""


class Recording:
    """The steps of a process, in order."""

    def __init__(self, journal: Path) -> None:
        self.changes: Sequence[Change] = list(_read(journal.read_bytes()))

    def image(self, folder: Path, original: Path, moment: int, draw: random.Random) -> None:
        """Make in *folder* what lies on the disk of *original* when the power is lost after step *moment*.

        What a sync that has ended covers is there. Of all else each write is there, or is not, or only some of its
        sectors, as *draw* decides. What a sync that failed was to write is gone for good, as the kernel has it, unless
        it is written again. A file that was ever written has its name.
        """
        for path, all_steps in self._by_file(moment).items():
            steps = list(_kept(all_steps))
            synced = _synced(steps)
            content = bytearray()
            exists = False
            for number, change in enumerate(steps):
                exists = _apply(content, change, number < synced, draw) or (exists and change.kind != "u")
            if exists:
                target = folder / path.relative_to(original)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)

    def _by_file(self, moment: int) -> dict[Path, list[Change]]:
        found: dict[Path, list[Change]] = defaultdict(list)
        for change in self.changes[:moment]:
            found[change.path].append(change)
        return found


def _kept(steps: Sequence[Change]) -> Iterator[Change]:
    """*steps* without the writes that a sync has failed to write: one that did not end before the next one began."""
    waiting: list[Change] = []
    ended = {step.offset for step in steps if step.kind == "e"}
    last = max((step.offset for step in steps if step.kind == "s"), default=0)
    for step in steps:
        waiting.append(step)
        if step.kind == "s":
            failed = step.offset not in ended and step.offset != last
            yield from (one for one in waiting if not (failed and one.kind == "w"))
            waiting.clear()
    yield from waiting


def _synced(steps: Sequence[Change]) -> int:
    """How many of *steps* the last sync that has ended covers."""
    ended = [step.offset for step in steps if step.kind == "e"]
    begins = [number for number, step in enumerate(steps) if step.kind == "s" and step.offset in ended]
    return max(begins, default=0)


def _apply(content: bytearray, change: Change, is_synced: bool, draw: random.Random) -> bool:
    """Do *change* to *content* as far as it reached the disk; whether the file is there because of it."""
    if change.kind == "u":
        content.clear()
    elif change.kind == "t" and (is_synced or draw.random() < 0.5):
        del content[change.offset :]
        content.extend(bytes(change.offset - len(content)))
    elif change.kind == "w":
        for start, part in _sectors(change):
            if is_synced or draw.random() < 0.5:
                content.extend(bytes(max(start - len(content), 0)))
                content[start : start + len(part)] = part
    return change.kind in {"w", "t"}


def _sectors(change: Change) -> Iterator[tuple[int, bytes]]:
    """The parts of a write that the disk writes each for itself."""
    start, end = change.offset, change.offset + len(change.data)
    while start < end:
        stop = min((start // SECTOR + 1) * SECTOR, end)
        yield start, change.data[start - change.offset : stop - change.offset]
        start = stop


def _read(data: bytes) -> Iterator[Change]:
    position = 0
    while position < len(data):
        kind, offset, size, length = _HEAD.unpack_from(data, position)
        start = position + _HEAD.size
        path = Path(data[start : start + length].decode())
        body = data[start + length : start + length + size]
        yield Change(kind.decode(), path, offset, body)
        position = start + length + len(body)
