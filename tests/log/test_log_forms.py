"""Messages of other forms: protobuf, and messages that say which object they come from."""

from __future__ import annotations

import pytest
from google.protobuf import duration_pb2, wrappers_pb2
from hypothesis import given
from hypothesis import strategies as st

from millstream.log import Log, LogInputError, LogSpec, Message, Sourced, as_sourced, open_store
from millstream.log.sourced import NAME_HEADER


@pytest.fixture
def log() -> Log:
    return open_store("memory://").log(LogSpec("weather"))


def test_protobuf_messages_come_back_as_they_were(log: Log) -> None:
    sent = [wrappers_pb2.StringValue(value=f"n{number}") for number in range(5)]
    with log.writer() as writer:
        ids = writer.append_proto(sent, key="k", source="JFK")
    assert ids is not None
    assert list(log.read_proto(wrappers_pb2.StringValue)) == list(zip(ids, sent, strict=True))
    (batch,) = log.read()
    assert {(m.key, m.source, m.headers) for m in batch} == {
        ("k", "JFK", (("proto-type", b"google.protobuf.StringValue"),))
    }


def test_a_protobuf_message_of_another_type_is_not_taken_for_it(log: Log) -> None:
    with log.writer() as writer:
        writer.append_proto([wrappers_pb2.StringValue(value="a")])
    with pytest.raises(LogInputError, match=r"message 1 of log 'weather' is a google\.protobuf\.StringValue, not"):
        list(log.read_proto(duration_pb2.Duration))


def test_bytes_that_are_no_protobuf_are_refused_and_others_need_no_header(log: Log) -> None:
    with log.writer() as writer:
        writer.append([wrappers_pb2.StringValue(value="a").SerializeToString(), b"\xff"])
    found = log.read_proto(wrappers_pb2.StringValue)
    assert next(found)[1].value == "a"
    with pytest.raises(LogInputError, match=r"message 2 of log 'weather' is not a valid google\.protobuf\.StringValue"):
        next(found)


def test_a_sourced_message_has_its_source_in_the_message(log: Log) -> None:
    sent = [Sourced("SENSOR", 7, b"21.5"), Sourced("a:b", 2**64 - 1, b"", "north wall")]
    with log.writer() as writer:
        writer.append_sourced(sent)
    found = [message for batch in log.read() for message in batch]
    assert [message.source for message in found] == ["SENSOR:7", "a:b:18446744073709551615"]
    assert [as_sourced(message) for message in found] == sent
    assert list(log.read_sourced()) == list(enumerate(sent, 1))
    with log.writer() as writer:
        writer.append([Message(b"", source="JFK")])
    with pytest.raises(LogInputError, match="message 3 of log 'weather': invalid source 'JFK'"):
        list(log.read_sourced(3))


@given(st.text(min_size=1), st.integers(0, 2**64 - 1), st.text(), st.binary())
def test_every_source_comes_back(kind: str, number: int, name: str, payload: bytes) -> None:
    made = Sourced(kind, number, payload, name)
    assert as_sourced(made.message()) == made


@pytest.mark.parametrize("source", ["", "JFK", ":7", "a:", "a:07", "a:-1", "a:18446744073709551616", "a:٣"])
def test_a_message_of_another_source_is_not_taken_for_a_sourced_one(source: str) -> None:
    with pytest.raises(LogInputError, match="must be TYPE:ID"):
        as_sourced(Message(b"", source=source))


def test_a_name_that_is_no_text_is_refused_when_written_and_when_read() -> None:
    with pytest.raises(LogInputError, match=r"remove character 1, which is not text \(surrogates not allowed\)"):
        Sourced("a", 1, b"", "\ud800").message()
    with pytest.raises(LogInputError, match="is not UTF-8: invalid start byte at byte 2"):
        as_sourced(Message(b"", source="a:1", headers=((NAME_HEADER, b"ab\xff"),)))


@pytest.mark.parametrize(("kind", "number"), [("", 1), ("a", -1), ("a", 2**64)])
def test_a_source_that_is_none_is_refused(kind: str, number: int) -> None:
    with pytest.raises(LogInputError, match="a source needs a type and an id"):
        Sourced(kind, number, b"").message()
