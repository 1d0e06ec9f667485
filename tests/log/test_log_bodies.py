"""Bodies go into the log, and come out of it, without an object for each message."""

from __future__ import annotations

import asyncio
import sys
from array import array
from collections import Counter
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.message import Message
from millstream.log import Log, LogInputError, LogSpec, Writer, open_store
from millstream.log.block import Block, encode_block, encode_bodies
from millstream.log.block_header import BlockOrigin
from millstream.log.encoding.bodies import join_bodies, merge_bodies
from millstream.log.encoding.columns import Columns
from millstream.log.spec import Compression
from millstream.log.writing.append_request import make_request

packs = st.lists(st.lists(st.binary(max_size=6)), min_size=1)


@pytest.fixture
def log() -> Log:
    return open_store("memory://").log(LogSpec("weather", block_messages=4))


@given(packs)
def test_packs_of_any_lengths_are_merged_in_order(packs: list[list[bytes]]) -> None:
    parts = [join_bodies(pack, list(map(len, pack))) for pack in packs]
    assert merge_bodies(parts).array().to_pylist() == [body for pack in packs for body in pack]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5), st.booleans()), min_size=1), st.booleans())
def test_packs_each_of_one_length_are_merged_in_order(shapes: list[tuple[int, int, bool]], alike: bool) -> None:
    parts, bodies = [], list[bytes]()
    for number, (count, length, listed) in enumerate(shapes):
        size = shapes[0][1] if alike else length
        pack = [bytes([number % 256]) * size] * count
        parts.append(join_bodies(pack, [size] * count if listed and not alike else size))
        bodies += pack
    merged = merge_bodies(parts).array()
    merged.validate(full=True)
    assert merged.to_pylist() == bodies


@given(packs, st.booleans(), st.sampled_from(["auto", "plain", "lz4", "zstd"]))
def test_bodies_alone_make_the_block_that_their_columns_make(
    packs: list[list[bytes]], large: bool, compression: Compression
) -> None:
    bodies = [body * (200 if large else 1) for pack in packs for body in pack] or [b""]
    pack, origin = join_bodies(bodies, list(map(len, bodies))), BlockOrigin("weather", 3, "station", 7)
    block = encode_bodies(pack, 1_700_000_000_000_000, 41, origin, compression=compression)
    columns = Columns(pack.array(), received_at=1_700_000_000_000_000)
    assert block == encode_block(columns, 41, origin, compression=compression)
    assert Block(block.data).decode(["body"]).column("body").to_pylist() == bodies


@pytest.mark.parametrize("bodies", [[b"sunny"], [b"sunny", b"dry"], [b"sunny" * 100] * 4], ids=["one", "two", "large"])
def test_an_append_of_bodies_builds_no_columns(log: Log, bodies: list[bytes]) -> None:
    called = set[str]()
    with log.writer() as writer:
        sys.setprofile(lambda frame, event, _: called.add(frame.f_globals["__name__"]))
        try:
            writer.append(bodies)
        finally:
            sys.setprofile(None)
    assert "millstream.log.block" in called
    assert not called & {"millstream.log.encoding.columns", "millstream.log.encoding.offsets"}


def test_an_append_of_a_coroutine_takes_few_calls(log: Log) -> None:
    called = list[str]()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_globals["__name__"].startswith("millstream.log."):
            called.append(frame.f_code.co_name)

    async def append(writer: Writer) -> None:
        await writer.append_async([b"sunny"])
        sys.setprofile(note)
        try:
            await asyncio.gather(*(writer.append_async([b"sunny"]) for _ in range(100)))
        finally:
            sys.setprofile(None)

    with log.writer() as writer:
        asyncio.run(append(writer))
    assert len(called) < 12 * 100, Counter(called).most_common(20)


@given(packs)
def test_the_size_of_a_pack_is_that_of_its_bodies(packs: list[list[bytes]]) -> None:
    for bodies in packs:
        pack = make_request(bodies)
        assert (pack.count, pack.size) == (len(bodies), sum(len(body) + 8 for body in bodies))


@pytest.mark.parametrize(
    "messages",
    [["text"], [b"bytes", "text"], [b"bytes", Message(b"message")], [b"1", 2], [None], [array("i", [1, 2])]],
    ids=repr,
)
def test_what_is_no_bytes_is_refused_by_name(log: Log, messages: list[Any]) -> None:
    with log.writer() as writer:
        with pytest.raises(
            LogInputError,
            match=r"cannot append a list of [^:]*(str|Message|int|None|array)[^:]*: a log takes a list of Message, ",
        ):
            writer.append(messages)
        assert log.last_id == 0


@pytest.mark.parametrize(
    ("messages", "what"),
    [
        (pa.array([b"x"]), "BinaryArray"),
        (pa.chunked_array([[b"x"]]), "ChunkedArray"),
        (pa.table({"body": [b"x"]}), "Table"),
        ("text", "str"),
        (b"bytes", "bytes"),
        (None, "NoneType"),
        (5, "int"),
    ],
)
def test_what_is_no_list_and_no_record_batch_is_refused_by_name(log: Log, messages: Any, what: str) -> None:
    with log.writer() as writer:
        with pytest.raises(LogInputError, match=f"cannot append {what}: a log takes a list of Message"):
            writer.append(messages)
        assert log.last_id == 0


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (Message(b"", event_time=2**63), "its event_time is 9223372036854775808, not a whole number"),
        (
            Message(b"", received_at=-(2**63) - 1),
            "its received_at is -9223372036854775809, not a whole number of microseconds since 1970",
        ),
        (Message(b"", event_time=1.5), "its event_time is 1.5, not a whole number of microseconds since 1970"),  # type: ignore[arg-type]
        (Message("text"), "its body is str, not bytes"),  # type: ignore[arg-type]
        (Message(b"", key="a\ud800"), r"its key is 'a.ud800', which is not valid Unicode: replace .* index 1"),
        (Message(b"", source="\ud800"), r"its source is '.ud800', which is not valid Unicode"),
        (Message(b"", source=b"s"), "its source is bytes, not text"),  # type: ignore[arg-type]
        (Message(b"", headers=(("\ud800", b""),)), r"the name of a header is '.ud800', which is not valid Unicode"),
        (Message(b"", headers=(("a", 1),)), "its header 'a' is int, not bytes"),  # type: ignore[arg-type]
        (Message(b"", headers=(("a",),)), "its headers are not pairs of text and bytes"),  # type: ignore[arg-type]
    ],
)
def test_the_message_that_cannot_be_stored_is_named_with_what_is_wrong(log: Log, wrong: Message, what: str) -> None:
    with log.writer() as writer:
        with pytest.raises(LogInputError, match=f"message 2 of 3 is invalid, so none was stored: {what}"):
            writer.append([Message(b"fine"), wrong, Message(b"fine", "k")])
        assert log.last_id == 0


def test_a_body_may_be_a_buffer_and_is_copied(log: Log) -> None:
    buffer = bytearray(b"before")
    with log.writer() as writer:
        writer.append_nowait([buffer, memoryview(b"view"), b"bytes"])
        buffer[:] = b"after!"
    assert [message.body for batch in log.read() for message in batch] == [b"before", b"view", b"bytes"]


def test_a_batch_gives_ids_and_bodies_alone(log: Log) -> None:
    with log.writer() as writer:
        writer.append([Message(b"%d" % number, key="k", headers=(("h", b"v"),)) for number in range(1, 11)])
    expected = [(number, b"%d" % number) for number in range(1, 11)]
    assert [pair for batch in log.read() for pair in batch.bodies()] == expected
    assert [pair for batch in log.read(3, 9) for pair in batch.bodies()] == expected[2:9]
    with log.reader("some") as reader:
        found = [pair for batch in reader.batches(max_messages=3, columns=["key"]) for pair in batch.bodies()]
    assert found == expected
    log.trim(4)
    assert [list(batch.bodies()) for batch in log.read(1, 4)] == [[], expected[3:4]]
