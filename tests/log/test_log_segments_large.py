"""A segment may be larger than four GiB. This one is a sparse file: its large blocks are heads without bodies."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from millstream.core.message import Message
from millstream.log import Gap, IdRange
from millstream.log.backend import Commit
from millstream.log.backends.segments.format import decode_end, encode_commit, encode_end, head_of
from millstream.log.block import encode_block
from millstream.log.block_header import HEADER, MAGIC, VERSION, BlockOrigin, EncodedBlock
from millstream.log.encoding.columns import from_messages
from support.segment_folders import SPEC, opened, place, segments

HOLLOW, HOLE = 20, 240 << 20
"""Blocks of one message, and the bytes that each says it has."""


def stretch(folder: Path) -> None:
    """Let *HOLLOW* commits have followed, of one block of *HOLE* bytes each."""
    path, end_file = segments(folder)[-1], place(folder) / "end"
    end = decode_end(end_file.read_bytes())
    with path.open("r+b") as file:
        for _ in range(HOLLOW):
            first_id = end.last_id + 1
            block = encode_block(from_messages([Message(b"x", received_at=1)]), first_id, BlockOrigin(SPEC.name))
            header = msgspec.structs.replace(block.header, raw_bytes=HOLE, stored_bytes=HOLE - HEADER.size)
            sections, *rest = msgspec.structs.astuple(header)
            head = encode_commit(
                head_of(
                    Commit(
                        epoch=1,
                        previous_id=end.last_id,
                        last_id=first_id,
                        received_at=1,
                        blocks=[EncodedBlock(header, bytes(HOLE))],
                    )
                )
            )
            file.seek(end.offset)
            file.write(head + HEADER.pack(MAGIC, VERSION, sections, 0, 0, *rest))
            end = msgspec.structs.replace(end, offset=end.offset + len(head) + HOLE, last_id=first_id)
        file.truncate(end.offset)
    end_file.write_bytes(encode_end(end))


@pytest.mark.parametrize("sealed", [False, True], ids=["being-written", "sealed"])
def test_messages_beyond_four_gib_of_a_segment_are_written_and_found(tmp_path: Path, sealed: bool) -> None:
    room = 8 << 30
    with opened(tmp_path, segment_bytes=room) as store, store.log(SPEC).writer() as writer:
        writer.append([b"first"])
    stretch(tmp_path)
    last = HOLLOW + 11
    with opened(tmp_path, segment_bytes=room) as store, store.log(SPEC).writer() as writer:
        assert writer.append([b"%d" % number for number in range(HOLLOW + 2, last + 1)]) == IdRange(HOLLOW + 2, last)
    (path,) = segments(tmp_path)
    assert path.stat().st_size > 4 << 30
    assert path.stat().st_blocks * 512 < 1 << 20
    if sealed:
        with opened(tmp_path, segment_bytes=1) as store, store.log(SPEC).writer() as writer:
            writer.append([b"in the next one"])
        assert len(segments(tmp_path)) == 2
    with opened(tmp_path, segment_bytes=room, read_only=True) as store:
        log = store.log(SPEC, create=False)
        found = [pair for batch in log.read(HOLLOW + 2, last) for pair in batch.bodies()]
        assert found == [(number, b"%d" % number) for number in range(HOLLOW + 2, last + 1)]
        assert [block.first_id for block in log.block_ranges(1, last)] == list(range(1, HOLLOW + 3))
        assert log.info().bytes > 4 << 30
        assert not log._backend.check(SPEC.name)
        (gap,) = log.read(2, 2, gaps="all")
        assert isinstance(gap, Gap)
        assert gap.reason == "corrupt"
