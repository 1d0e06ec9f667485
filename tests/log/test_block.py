"""The block format: what goes in comes out, and no damage goes unseen."""

from __future__ import annotations

import contextlib
import random
import re
from pathlib import Path

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st

from millstream.core.message import MESSAGE_SCHEMA, Message, decode_line, from_arrow, to_arrow
from millstream.log import LogInputError, LogSpec, MessageTooLargeError
from millstream.log.block import BODY, Block, encode_block
from millstream.log.block_header import HEADER, BlockError, BlockOrigin, name_hash, read_header
from millstream.log.encoding.columns import MESSAGE_BYTES, Columns, concat, from_messages, from_record_batch
from millstream.log.encoding.compression import LZ4, ZSTD, compress, decompress
from millstream.log.encoding.sections import BYTES, ENTRY, MAX_ITEMS
from millstream.log.writing.append_request import encode_requests, make_request

DOCUMENT = Path(__file__).parents[2] / "docs/formats/block.md"

times = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.integers(1_700_000_000_000_000, 1_700_000_000_100_000), st.integers(0, 3)
)
texts = st.one_of(st.sampled_from(["", "JFK", "temp", "kéy"]), st.text(max_size=20))
headers = st.lists(st.tuples(texts, st.binary(max_size=20)), max_size=3).map(tuple)
messages = st.builds(
    Message,
    body=st.one_of(st.just(b"test"), st.binary(max_size=40)),
    key=texts,
    source=texts,
    event_time=times,
    received_at=times,
    headers=st.one_of(st.just(()), headers),
)
compressions = st.sampled_from(["auto", "plain", "lz4", "zstd"])

SAMPLE = [
    Message(b"21.5", "temp", "JFK", 1_357_016_400_000_000, 1_357_016_400_000_900, (("unit", b"C"),)),
    Message(b"", "wind", "EWR", 1_357_016_400_000_000, 1_357_016_400_000_901),
    Message(b"x" * 300, "temp", "JFK", 1_357_020_000_000_000, 1_357_016_400_000_902),
]


def encoded(found: list[Message], compression: str = "lz4", first_id: int = 7) -> bytes:
    columns = from_messages(found).stamped(0)
    return encode_block(columns, first_id, BlockOrigin("weather", 3, "importer", 9), compression=compression).data  # type: ignore[arg-type]


@given(st.lists(messages, min_size=1, max_size=60), compressions, st.integers(1, 2**62))
@example([Message(b"a", event_time=-(2**63), received_at=2**63 - 1), Message(b"", "", "", 5, -(2**63))], "lz4", 1)
def test_a_block_holds_exactly_the_messages_put_in(found: list[Message], compression: str, first_id: int) -> None:
    batch = Block(encoded(found, compression, first_id)).decode()
    batch.validate(full=True)
    assert batch.schema == MESSAGE_SCHEMA
    expected = [
        Message(m.body, m.key, m.source, m.event_time, m.received_at, m.headers, first_id + n)
        for n, m in enumerate(found)
    ]
    assert list(from_arrow(batch)) == expected


@given(st.lists(messages, min_size=1, max_size=20))
def test_the_header_tells_times_and_ids_without_decoding(found: list[Message]) -> None:
    head = read_header(encoded(found))
    assert (head.first_id, head.last_id, head.count) == (7, 6 + len(found), len(found))
    assert head.min_event_time == min(m.event_time for m in found if m.event_time is not None)
    assert head.max_received_at == max(m.received_at for m in found if m.received_at is not None)
    assert (head.log, head.producer) == (name_hash("weather"), name_hash("importer"))
    assert (head.epoch, head.sequence) == (3, 9)


@given(st.lists(messages, min_size=1, max_size=30), st.integers(0, 29), st.integers(0, 29))
def test_slices_of_columns_and_their_concatenation_are_the_same_messages(
    found: list[Message], one: int, two: int
) -> None:
    start, stop = sorted((one % (len(found) + 1), two % (len(found) + 1)))
    columns = from_record_batch(to_arrow(found)).stamped(0)
    parts = [columns.slice(a, b) for a, b in ((0, start), (start, stop), (stop, len(found))) if b > a]
    whole = encode_block(concat(parts), 1, BlockOrigin("weather")).data
    decoded = Block(encode_block(columns, 1, BlockOrigin("weather")).data).decode()
    assert Block(whole).decode() == decoded
    blocks = [Block(encode_block(part, 1, BlockOrigin("weather")).data).decode() for part in parts]
    assert pa.concat_batches([block.drop_columns("id") for block in blocks]) == decoded.drop_columns("id")


def test_a_request_is_cut_between_messages_with_and_without_headers() -> None:
    found = [Message(b"a", headers=(("h", b"1"),)), Message(b"b"), Message(b"c", headers=(("h", b"2"),))]
    request = make_request(found)
    blocks = encode_requests([request], 1, 5, LogSpec("weather", block_messages=1), BlockOrigin("weather"))
    got = [message for block in blocks for message in from_arrow(Block(block.data).decode())]
    assert [(message.body, message.headers) for message in got] == [(one.body, one.headers) for one in found]


@pytest.mark.parametrize("compression", ["plain", "lz4", "zstd"])
def test_every_flipped_bit_is_noticed(compression: str) -> None:
    data = encoded(SAMPLE, compression)
    for position in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            with pytest.raises(BlockError):
                Block(bytes(damaged))


def test_every_truncation_and_every_added_byte_is_noticed() -> None:
    data = encoded(SAMPLE)
    for size in range(len(data)):
        with pytest.raises(BlockError):
            Block(data[:size])
    with pytest.raises(BlockError):
        Block(data + b"\0")


@given(st.lists(messages, min_size=1, max_size=10), st.data())
def test_a_forged_section_with_a_right_checksum_is_refused_or_harmless(
    found: list[Message], data: st.DataObject
) -> None:
    """Someone who can compute a CRC must not be able to make a reader crash or read beyond the block."""
    forged = bytearray(encoded(found))
    sections = forged[6]
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(HEADER.size, HEADER.size + sections * ENTRY.size - 1))
        forged[position] = data.draw(st.integers(0, 255))
    with contextlib.suppress(BlockError):
        batch = Block(resealed(bytes(forged))).decode()
        batch.validate()
        assert batch.num_rows == len(found)


def test_a_forged_length_is_refused_before_anything_is_allocated() -> None:
    forged = bytearray(encoded([Message(b"x" * 1000)]))
    raw_bytes_at = HEADER.size - 8
    forged[raw_bytes_at : raw_bytes_at + 4] = (2**32 - 1).to_bytes(4, "little")
    with pytest.raises(BlockError, match="the limits are 65,536 messages"):
        Block(resealed(bytes(forged)))


def test_a_forged_number_of_values_is_refused_before_they_are_unpacked() -> None:
    data = encoded(SAMPLE, "plain")
    for number in range(data[6]):
        at = HEADER.size + number * ENTRY.size
        column, part, *rest = ENTRY.unpack_from(data, at)
        if part != BYTES:
            forged = bytearray(data)
            ENTRY.pack_into(forged, at, column, part, *rest[:2], MAX_ITEMS + 1, *rest[3:])
            with pytest.raises(BlockError, match=f"{MAX_ITEMS + 1:,} items, more than the limit"):
                Block(resealed(bytes(forged))).decode()


def test_a_newer_format_is_refused_by_name() -> None:
    newer = bytearray(encoded(SAMPLE))
    newer[4] = 2
    with pytest.raises(BlockError, match=r"format 2 with flags 0, .*, upgrade Millstream"):
        Block(bytes(newer))


def test_columns_can_be_decoded_alone() -> None:
    batch = Block(encoded(SAMPLE)).decode(["key", "id"])
    assert batch.to_pydict() == {"key": ["temp", "wind", "temp"], "id": [7, 8, 9]}


def test_what_all_messages_share_takes_no_room() -> None:
    few, many = (encoded([Message(b"test", received_at=5)] * n, "plain") for n in (1, 60_000))
    assert len(many) == len(few) - len(b"test") - 4 + 4 * 60_000


@pytest.mark.parametrize("count", [1, 65_536, 65_537, 200_000])
def test_packs_are_cut_at_the_most_messages_of_a_block(count: int) -> None:
    blocks = encode_requests([make_request([b""] * count)], 1, 0, LogSpec("w", block_bytes=64 << 20), BlockOrigin("w"))
    counts = [block.header.count for block in blocks]
    assert sum(counts) == count
    assert counts[:-1] == [65_536] * ((count - 1) // 65_536)


@given(st.lists(st.lists(st.binary(max_size=50), min_size=1, max_size=9), min_size=1, max_size=9), st.integers(1, 200))
def test_packs_are_joined_and_cut_without_losing_or_moving_a_message(packs: list[list[bytes]], size: int) -> None:
    spec = LogSpec("w", block_bytes=size, block_messages=7)
    blocks = encode_requests([make_request(pack) for pack in packs], 1, 0, spec, BlockOrigin("w"))
    found = [body for block in blocks for body in Block(block.data).decode(["body"]).column(0).to_pylist()]
    assert found == [body for pack in packs for body in pack]
    assert [block.header.first_id for block in blocks][1:] == [block.header.last_id + 1 for block in blocks][:-1]
    assert max(block.header.count for block in blocks) <= 7


def test_a_message_that_is_too_large_is_refused_with_advice() -> None:
    with pytest.raises(MessageTooLargeError, match="put the content into a store"):
        make_request([bytes((64 << 20) + 1)])


def test_the_key_counts_for_the_largest_size_of_a_message() -> None:
    largest = bytes((64 << 20) - MESSAGE_BYTES - 3)
    assert make_request([Message(largest, "key")]).count == 1
    with pytest.raises(MessageTooLargeError, match="put the content into a store"):
        make_request([Message(b"small"), Message(largest + b"x", "key")])


def test_a_list_that_its_owner_changes_later_is_stored_as_it_was() -> None:
    bodies = [b"a", b"b"]
    pack = make_request(bodies)
    bodies.clear()
    (block,) = encode_requests([pack], 1, 0, LogSpec("w"), BlockOrigin("w"))
    assert Block(block.data).decode(["body"]).column(0).to_pylist() == [b"a", b"b"]


def test_the_largest_message_fits_into_a_block() -> None:
    (block,) = encode_requests([make_request([bytes(64 << 20)])], 1, 0, LogSpec("w"), BlockOrigin("w"))
    assert Block(block.data).decode(["body"]).column(0)[0].as_buffer().size == 64 << 20


@pytest.mark.parametrize(
    "batch",
    [
        pa.RecordBatch.from_pydict({"key": ["k"]}),
        pa.RecordBatch.from_pydict({"body": [b"x"], "colour": ["red"]}),
        pa.RecordBatch.from_pydict({"body": [b"x"], "event_time": ["yesterday"]}),
        pa.RecordBatch.from_pydict({"body": [b"x", None]}),
        pa.RecordBatch.from_arrays([pa.array([b"\xff"]).view(pa.string()), pa.array([b"x"])], names=["key", "body"]),
    ],
    ids=["no body", "unknown column", "wrong type", "null body", "key not UTF-8"],
)
def test_a_record_batch_of_another_shape_is_refused(batch: pa.RecordBatch) -> None:
    with pytest.raises(LogInputError):
        from_record_batch(batch)


def test_a_record_batch_may_leave_out_what_has_a_default() -> None:
    batch = pa.RecordBatch.from_pydict({"body": [b"a", b"b"], "event_time": [None, 5], "key": pa.array([None, "k"])})
    columns: Columns = from_record_batch(batch).stamped(9)
    found = list(from_arrow(Block(encode_block(columns, 1, BlockOrigin("w")).data).decode()))
    assert found == [Message(b"a", "", "", 9, 9, (), 1), Message(b"b", "k", "", 5, 9, (), 2)]


def test_the_vectors_of_the_format_document_hold() -> None:
    vectors = re.findall(r"```json\n(.*?)```\n\n```text\n(.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)
    assert len(vectors) == 4
    for lines, hexadecimal in vectors:
        wanted = [decode_line(line.encode()) for line in lines.splitlines()]
        data = bytes.fromhex(hexadecimal)
        assert list(from_arrow(Block(data).decode())) == wanted
        head = read_header(data)
        assert (head.log, head.producer) == (name_hash("weather"), name_hash("importer"))
    for lines, hexadecimal in vectors[:2]:  # the plain ones: libraries are free to compress otherwise
        head = read_header(bytes.fromhex(hexadecimal))
        columns = from_messages([decode_line(line.encode()) for line in lines.splitlines()]).stamped(0)
        origin = BlockOrigin("weather", head.epoch, "importer", head.sequence)
        assert encode_block(columns, head.first_id, origin).data == bytes.fromhex(hexadecimal)


def resealed(data: bytes) -> bytes:
    """*data* with the checksum that belongs to it."""
    checksum = crc32c(data[12:], crc32c(data[:8]))
    return data[:8] + checksum.to_bytes(4, "little") + data[12:]


def test_what_has_large_values_is_stored_in_the_way_that_is_quick_and_the_rest_in_the_way_that_is_small() -> None:
    draw = random.Random(1)

    def codec(size: int) -> int:
        bodies = [(b'{"from": "JFK", "delay": %d}' % draw.getrandbits(20) * 40)[:size] for _ in range(200)]
        data = encode_block(from_messages([Message(body) for body in bodies]).stamped(0), 1, BlockOrigin("w")).data
        places = range(HEADER.size, HEADER.size + read_header(data).sections * ENTRY.size, ENTRY.size)
        entries = [ENTRY.unpack_from(data, place) for place in places]
        return next(entry[3] for entry in entries if entry[:2] == (BODY, BYTES))

    assert (codec(1000), codec(100)) == (LZ4, ZSTD)


def test_what_compresses_to_next_to_nothing_is_stored_for_reading() -> None:
    codec, packed = compress(b"test" * 65_536, "zstd")
    assert codec == LZ4
    assert len(packed) < 2048
    assert decompress(packed, codec, 4 * 65_536).to_pybytes() == b"test" * 65_536


def test_bytes_that_cannot_be_decompressed_are_counted_with_their_unit() -> None:
    with pytest.raises(ValueError, match="cannot decompress 1,200 bytes to 5,000 bytes: "):
        decompress(b"x" * 1200, ZSTD, 5000)
