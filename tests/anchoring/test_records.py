from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.anchoring.batch_records import decode_header, decode_message, encode_batch, encode_header
from millstream.anchoring.errors import BatchFormatError
from millstream.anchoring.merkle import leaf_hash, merkle_root
from millstream.core.canonical import MAX_SAFE_INTEGER, canonical_json
from millstream.core.message import Message

NUMBERS = st.integers(-MAX_SAFE_INTEGER, MAX_SAFE_INTEGER)
TEXT = st.text(max_size=12)
HEADERS = st.lists(st.tuples(TEXT, st.binary(max_size=6)), max_size=2).map(tuple)
MESSAGES = st.lists(
    st.builds(
        Message,
        body=st.binary(max_size=20) | TEXT.map(str.encode),
        key=TEXT,
        source=TEXT,
        event_time=NUMBERS,
        received_at=NUMBERS,
        headers=HEADERS,
        id=st.integers(1, MAX_SAFE_INTEGER),
    ),
    min_size=1,
    max_size=9,
    unique_by=lambda message: message.id,
)


def batch_of(messages: list[Message], **changes: Any) -> Any:
    fields = {
        "batch": "ab" * 32,
        "source": "JFK",
        "start": 1,
        "end": 9,
        "closed_at": None,
        "cut": "window",
        "kind": "batch",
        "events": tuple(message.id for message in messages),
    }
    return SimpleNamespace(**(fields | changes))


def message(number: int = 1, **changes: Any) -> Message:
    fields: dict[str, Any] = {"body": b"1.5", "key": "temp", "source": "JFK", "event_time": 5, "received_at": 7}
    return Message(**(fields | {"id": number} | changes))


@given(MESSAGES)
def test_every_line_is_canonical_and_under_the_root(messages: list[Message]) -> None:
    encoded = encode_batch(batch_of(messages), messages)
    lines = encoded.lines.removesuffix(b"\n").split(b"\n")
    assert [decode_message(line) for line in lines] == messages
    assert all(canonical_json(json.loads(line)) == line for line in [encoded.header_line, *lines])
    assert encoded.root == merkle_root([leaf_hash(line) for line in lines]).hex()
    assert decode_header(encoded.header_line) == encoded.header
    assert encoded.header.count == len(lines)


@given(MESSAGES, st.randoms())
def test_p5_the_bytes_do_not_depend_on_the_order_messages_are_handed_over(messages: list[Message], random: Any) -> None:
    shuffled = random.sample(messages, len(messages))
    assert encode_batch(batch_of(messages), shuffled) == encode_batch(batch_of(messages), messages)


def test_the_header_reads_as_documented() -> None:
    encoded = encode_batch(batch_of([message(3)], closed_at=12), [message(3)])
    assert encoded.header_line == (
        b'{"batch":"%s","closed_at":12,"count":1,"cut":"window","end":9,"root":"%s","source":"JFK","start":1}'
        % (b"ab" * 32, encoded.root.encode())
    )
    assert encoded.lines == b'{"body":"1.5","event_time":5,"id":3,"key":"temp","received_at":7,"source":"JFK"}\n'
    assert encoded.root == leaf_hash(encoded.lines[:-1]).hex()


@pytest.mark.parametrize(
    "handed",
    [
        [message(1)],
        [message(1), message(2), message(3)],
        [message(1), message(3)],
        [message(1), message(1)],
        [],
    ],
)
def test_messages_that_are_not_those_of_the_batch_are_refused(handed: list[Message]) -> None:
    with pytest.raises(BatchFormatError, match="are not the 2 messages that batch"):
        encode_batch(batch_of([message(1), message(2)]), handed)


@pytest.mark.parametrize(
    "bad",
    [
        {"event_time": None},
        {"received_at": None},
        {"event_time": 2**53},
        {"received_at": -(2**53)},
        {"number": 0},
        {"number": 2**53},
    ],
)
def test_a_message_that_json_cannot_keep_exactly_is_refused(bad: dict[str, Any]) -> None:
    wrong = message(**bad)
    with pytest.raises(BatchFormatError, match=f"message {wrong.id}"):
        encode_batch(batch_of([wrong]), [wrong])


def test_a_batch_of_no_messages_is_refused() -> None:
    with pytest.raises(BatchFormatError, match="at least one"):
        encode_batch(batch_of([]), [])


LINE = encode_batch(batch_of([message(3)]), [message(3)])


@pytest.mark.parametrize(
    "line",
    [
        LINE.lines,
        b" " + LINE.lines[:-1],
        LINE.lines[:-1].replace(b'"id":3,', b""),
        LINE.lines[:-1].replace(b"3", b"3.0"),
        LINE.lines[:-1].replace(b'"key":"temp",', b"")[:-1] + b',"key":"temp"}',
        LINE.lines[:-1].replace(b"temp", b"t\\u0065mp"),
        LINE.lines[:-1].replace(b"temp", b"t\xffmp"),
        LINE.lines[:-1][:-1] + b',"x":1}',
        b"[]",
        b"",
    ],
)
def test_message_lines_in_any_other_form_are_refused(line: bytes) -> None:
    with pytest.raises(BatchFormatError):
        decode_message(line)


@pytest.mark.parametrize(
    "line",
    [
        LINE.header_line + b"\n",
        LINE.header_line.replace(b":", b": ", 1),
        LINE.header_line.replace(b'"count":1', b'"count":0'),
        LINE.header_line.replace(b'"start":1', b'"start":9007199254740992'),
        LINE.header_line.replace(b'"start":1', b'"start":"1"'),
        LINE.header_line[:-1] + b',"x":1}',
        LINE.header_line.replace(b'"root"', b'"kind":"batch","root"'),
        LINE.header_line.replace(b'"root"', b'"kind":"late","root"'),
        b"null",
        b"\xff",
    ],
)
def test_headers_in_any_other_form_are_refused(line: bytes) -> None:
    with pytest.raises(BatchFormatError):
        decode_header(line)


def test_an_encoded_header_is_what_was_decoded() -> None:
    assert encode_header(decode_header(LINE.header_line)) == LINE.header_line


def test_a_kind_that_only_equals_the_plain_one_is_left_out_too() -> None:
    kind = "".join(["bat", "ch"])
    assert encode_batch(batch_of([message(3)], kind=kind), [message(3)]).header_line == LINE.header_line


def test_batches_of_late_messages_say_so_in_their_header() -> None:
    line = encode_batch(batch_of([message(3)], kind="side"), [message(3)]).header_line
    assert line == LINE.header_line.replace(b'"root"', b'"kind":"side","root"')
    assert decode_header(line).kind == "side"
