"""Folders of segment files as tests have them: filled, looked into, damaged, and seen after a reboot."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from millstream.core.clock import SystemClock
from millstream.log import Log, LogSpec, LogStore
from millstream.log.backends.segments.backend import SegmentsBackend
from millstream.log.backends.segments.format import CommittedEnd, decode_end, encode_end

SPEC = LogSpec("weather", block_messages=10)
SEGMENT_BYTES = 1000


def opened(folder: Path, *, segment_bytes: int = SEGMENT_BYTES, read_only: bool = False) -> LogStore:
    """The store in *folder* as another process would see it."""
    clock = SystemClock()
    return LogStore(SegmentsBackend(folder, clock, segment_bytes=segment_bytes, read_only=read_only), clock)


@contextlib.contextmanager
def filled(folder: Path) -> Iterator[Log]:
    """A log of the messages 1 to 100 in ten blocks, each a commit of its own, in several segments."""
    with opened(folder) as store:
        log = store.log(SPEC)
        with log.writer("importer") as writer:
            for turn in range(10):
                writer.append([b"%d" % n for n in range(10 * turn + 1, 10 * turn + 11)], sequence=turn + 1)
        yield log


def place(folder: Path) -> Path:
    """The folder of the log."""
    return folder / "logs" / SPEC.name


def segments(folder: Path) -> list[Path]:
    """The segments of the log, in order."""
    return sorted(place(folder).glob("*.seg"))


def bodies(log: Log, first_id: int = 1) -> list[bytes]:
    """The bodies of the messages from *first_id* on."""
    return [m.body for batch in log.read(first_id) for m in batch]


def flip(path: Path, position: int) -> None:
    """Flip a bit of the byte at *position*."""
    data = bytearray(path.read_bytes())
    data[position] ^= 4
    path.write_bytes(data)


def reboot(folder: Path) -> None:
    """Let the machine have been started anew since the end was announced."""
    end = decode_end((place(folder) / "end").read_bytes())
    (place(folder) / "end").write_bytes(
        encode_end(
            CommittedEnd(
                boot=1, segment=end.segment, offset=end.offset, last_id=end.last_id, received_at=end.received_at
            )
        )
    )
