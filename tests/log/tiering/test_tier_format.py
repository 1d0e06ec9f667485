"""A sealed object is what the document of its format says, and nothing that was changed passes for one."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from millstream.core.message import encode_line, from_arrow
from millstream.log.backend import StoredBlock
from millstream.log.block import Block
from millstream.log.block_header import name_hash
from millstream.log.errors import DamagedLogError
from millstream.log.tiering.format import (
    HEAD_SIZE,
    MOST_INDEX_BYTES,
    TAIL_SIZE,
    SealError,
    decode_head,
    decode_index,
    index_size,
)
from millstream.log.tiering.seal import seal
from millstream.testing.log_backends import NAME, block

DOCUMENT = Path(__file__).parents[3] / "docs" / "formats" / "tier.md"


def test_the_vector_of_the_format_document_holds() -> None:
    ((lines, text),) = re.findall(r"```json\n(.*?)```\n\n```text\n(.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)
    data = bytes.fromhex(text)
    assert decode_head(data[:HEAD_SIZE]) == (name_hash("weather"), 1)
    size = index_size(data[-TAIL_SIZE:])
    rows = decode_index(data[-size:])
    blocks = [data[offset : offset + length] for offset, length in rows[["offset", "bytes"]].tolist()]
    found = [message for each in blocks for message in from_arrow(Block(each).decode())]
    assert [encode_line(message).decode() for message in found] == lines.splitlines()
    again = io.BytesIO()
    stored = [StoredBlock(number, number, each) for number, each in enumerate(blocks, 1)]
    row = seal("weather", "weather/0123456789abcdef", stored, again)
    assert again.getvalue() == data
    assert row.name == f"weather/0123456789abcdef/{1:020d}-{2:020d}-{row.sha256[:32]}.tier"
    assert row.size == len(data)


def sealed() -> tuple[bytes, int]:
    """A sealed object and how many bytes its index has."""
    made = [block(first, [b"a", b"bc"]) for first in (5, 7, 9)]
    file = io.BytesIO()
    row = seal(NAME, "f", [StoredBlock(b.header.first_id, b.header.last_id, b.data) for b in made], file)
    assert (row.first_id, row.last_id, row.sums.blocks) == (5, 10, 3)
    data = file.getvalue()
    return data, index_size(data[-TAIL_SIZE:])


def test_every_flipped_bit_of_head_and_index_is_noticed() -> None:
    data, size = sealed()
    for position in [*range(HEAD_SIZE), *range(len(data) - size, len(data) - TAIL_SIZE)]:
        for bit in range(8):
            changed = bytearray(data)
            changed[position] ^= 1 << bit
            with pytest.raises(SealError):
                decode_head(bytes(changed[:HEAD_SIZE]))
                decode_index(bytes(changed[-size:]))


def test_a_tail_that_is_none_or_asks_for_too_much_is_refused() -> None:
    data, size = sealed()
    for tail in (b"", data[-TAIL_SIZE + 1 :], data[-TAIL_SIZE:-8] + bytes(8), data[-TAIL_SIZE:-8] + b"\xff" * 8):
        with pytest.raises(SealError):
            index_size(tail)
    for cut in (b"", data[-size + 8 :], data[-size - 8 :]):
        with pytest.raises(SealError):
            decode_index(cut)


def test_a_newer_format_is_refused_by_name() -> None:
    data, _ = sealed()
    with pytest.raises(SealError, match="version 2, but this release reads version 1: upgrade Millstream"):
        decode_head(data[:4] + b"\x02" + data[5:HEAD_SIZE])


def test_blocks_with_a_hole_between_them_are_not_sealed() -> None:
    made = [block(first, [b"a", b"bc"]) for first in (5, 9)]
    stored = [StoredBlock(b.header.first_id, b.header.last_id, b.data) for b in made]
    with pytest.raises(DamagedLogError, match="ids 7 to 8"):
        seal(NAME, "f", stored, io.BytesIO())


def test_an_index_of_an_impossible_size_is_told_with_the_possible_ones() -> None:
    data, _ = sealed()
    for size in (1, MOST_INDEX_BYTES + 1):
        with pytest.raises(
            SealError, match=rf"states an index of {size:,} bytes; an index has 152 to 67,108,864 bytes"
        ):
            index_size(data[-TAIL_SIZE:-8] + size.to_bytes(8, "little"))


def test_only_a_newer_version_asks_for_an_upgrade() -> None:
    data, _ = sealed()
    with pytest.raises(SealError, match=r"version 0, but this release reads version 1$"):
        decode_head(data[:4] + b"\0" + data[5:HEAD_SIZE])
