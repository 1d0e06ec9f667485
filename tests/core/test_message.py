"""The message in its three forms: Python, Arrow, JSON line."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.canonical import parse_canonical
from millstream.core.message import (
    MESSAGE_SCHEMA,
    Message,
    MessageError,
    decode_line,
    encode_line,
    from_arrow,
    to_arrow,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
TIME = st.integers(-(2**53) + 1, 2**53 - 1)
MESSAGES = st.builds(
    Message,
    body=st.binary(max_size=40),
    key=TEXT,
    source=TEXT,
    event_time=TIME,
    received_at=TIME,
    headers=st.lists(st.tuples(TEXT, st.binary(max_size=8)), max_size=3).map(tuple),
    id=st.integers(0, 2**53 - 1),
)


@given(MESSAGES)
def test_a_message_survives_its_json_line(message: Message) -> None:
    assert decode_line(encode_line(message)) == message


@given(MESSAGES)
def test_the_json_line_is_canonical(message: Message) -> None:
    parse_canonical(encode_line(message))


@given(st.lists(MESSAGES, max_size=5))
def test_messages_survive_arrow(messages: list[Message]) -> None:
    batch = to_arrow(messages)
    assert batch.schema == MESSAGE_SCHEMA
    assert list(from_arrow(batch)) == messages


def test_absent_members_take_their_defaults() -> None:
    assert decode_line(b'{"body":"x"}') == Message(b"x")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "invalid message"),
        (b"{}", "body needs exactly one of the members body"),
        (b'{"body":"a","body_base64":"YQ=="}', "body needs exactly one of the members body"),
        (b'{"body_base64":"?"}', "invalid message"),
        ('{"body_base64":"é"}'.encode(), "body_base64 of body is not base64"),
        (b'{"body":"a","key":1}', "key: must be a string, not an integer"),
        (b'{"body":"a","color":1}', "color"),
        (b'{"body":"a","headers":[{"name":"h"}]}', "header 'h'"),
        (b"\xff", "invalid message"),
        (b'{"body":"a","event_time":9223372036854775808}', "event_time 9223372036854775808 does not fit"),
        (b'{"body":"a","received_at":-9223372036854775809}', "received_at"),
    ],
)
def test_a_bad_line_is_refused_with_the_member_that_is_wrong(line: bytes, reason: str) -> None:
    with pytest.raises(MessageError, match=reason):
        decode_line(line)


@pytest.mark.parametrize(
    ("written", "microseconds"),
    [
        ("2013-01-31T12:00:00.25Z", 1_359_633_600_250_000),
        ("2013-01-31T12:00+02:00", 1_359_626_400_000_000),
        ("1969-12-31T23:59:59.999999Z", -1),
        (17, 17),
    ],
)
def test_written_times_are_numbers_or_iso_8601(written: object, microseconds: int) -> None:
    line = json.dumps({"body": "", "event_time": written, "received_at": written}).encode()
    message = decode_line(line, written=True)
    assert (message.event_time, message.received_at) == (microseconds, microseconds)


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("yesterday", "event_time: invalid time 'yesterday': write 2013-01-31T12:00Z"),
        ("2013-01-31T12:00", "has no time zone: write it with Z or an offset"),
        (2**63, "does not fit into a signed 64-bit"),
        ("1359633600000000", "event_time '1359633600000000' is a number in quotes: remove the quotes"),
    ],
)
def test_a_written_time_that_is_none_is_named(written: object, why: str) -> None:
    with pytest.raises(MessageError, match=re.escape(why)):
        decode_line(json.dumps({"body": "", "event_time": written}).encode(), written=True)


def test_records_have_numbers_only() -> None:
    with pytest.raises(MessageError, match="event_time"):
        decode_line(b'{"body":"","event_time":"2013-01-31T12:00Z"}')
