"""What a row can hold: large messages, packets of the document, and what there is no place for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.log import IdRange, Log, LogInputError, Message, WriterFailedError
from millstream.log.backends.nerve import writing as writing_module
from millstream.log.encoding.nerve_packet import decode_packet, encode_packet
from millstream.log.sourced import Sourced
from support.altered import altered
from support.nerve_original import NAME, OpenOriginal, OriginalQueue, bodies

# Values


def test_large_messages_fill_packets_and_one_that_fits_into_none_is_told(
    log: Log, open_original: OpenOriginal, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = writing_module._packets
    monkeypatch.setattr(writing_module, "_packets", lambda share, _: packed(share, 10_000))
    large = [bytes([n]) * 3000 for n in range(10)] + [b"'" * 2900, b"small"]
    with log.writer() as writer:
        assert writer.append(large) == IdRange(1, 12)
        with pytest.raises(WriterFailedError, match="increase max_allowed_packet of the server"):
            writer.append([b"x" * 10_000])
    with (
        log.writer() as writer,
        pytest.raises(
            WriterFailedError,
            match=r"of 3,000 bytes takes 6,032 bytes in a statement, but .* \(10,000 bytes\) leaves 5,904 bytes for it",
        ),
    ):
        writer.append([b"'" * 3000])
    assert bodies(log) == large
    assert [data for _, data in open_original().packets(1, 20)] == large


def test_answers_are_bounded_by_bytes_however_large_the_messages_are(original: OriginalQueue, log: Log) -> None:
    with log.writer() as writer:
        writer.append([b"x" * 100_000] * 30)
    found = log._backend.read(NAME, 1, 130, max_bytes=500_000)
    assert sum(len(block.data) for block in found) < 600_000
    assert found[0].first_id == 1
    (one,) = log._backend.read(NAME, 110, 130, max_bytes=10)
    assert (one.first_id, one.last_id) == (110, 110)
    assert len(bodies(log)) == 130


@pytest.mark.parametrize("more", [{"key": "k"}, {"source": "s"}, {"headers": (("a", b""),)}, {"event_time": 1}])
def test_what_the_layout_has_no_place_for_is_refused_and_nothing_is_stored(log: Log, more: dict[str, Any]) -> None:
    with log.writer() as writer:
        with pytest.raises(LogInputError, match="only message bodies"):
            writer.append([Message(b"x", **more)])
        assert writer.append([Message(b"fine")]) == IdRange(1, 1)


def test_times_are_not_there_to_be_asked_for(original: OriginalQueue, log: Log) -> None:
    with pytest.raises(LogInputError, match="stores no times"):
        log.first_id_since(5)


def test_consumers_that_the_database_takes_for_one_are_refused(original: OriginalQueue, log: Log) -> None:
    log.set_pointer("worker", 5)
    with pytest.raises(LogInputError, match=r"consumer 'WORKER' of queue '.*' would share a pointer with 'worker'"):
        log.reader("WORKER")
    with pytest.raises(LogInputError, match="shorter consumer name"):
        log.reader("x" * 250)


# Packets


@pytest.fixture(scope="module")
def packet_class() -> Any:
    """The document's packet as Google's library knows it."""
    descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2", reason="pip install protobuf")
    from google.protobuf import descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="packet.proto", syntax="proto3")
    file.enum_type.add(name="NerveSourceType").value.add(name="NST_TEST", number=0)
    packet = file.message_type.add(name="NerveSourcedPacket")
    packet.field.add(name="source", number=1, type=field.TYPE_ENUM, type_name=".NerveSourceType", label=1)
    packet.field.add(name="sourceId", number=2, type=field.TYPE_UINT64, label=1)
    packet.field.add(name="sourceName", number=3, type=field.TYPE_STRING, label=1)
    packet.field.add(name="packet", number=10, type=field.TYPE_BYTES, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("NerveSourcedPacket"))


@given(
    number=st.integers(0, 2**31 - 1),
    source_id=st.integers(0, 2**64 - 1),
    payload=st.binary(max_size=300),
    name=st.text(max_size=200),
)
def test_sourced_packets_are_those_of_the_document(
    packet_class: Any, number: int, source_id: int, payload: bytes, name: str
) -> None:
    theirs = packet_class(source=number, sourceId=source_id, packet=payload, sourceName=name).SerializeToString()
    ours = Sourced("NST_TEST" if number == 0 else str(number), source_id, payload, name)
    assert encode_packet(ours) == theirs
    assert decode_packet(theirs) == ours


PACKETS = st.builds(Sourced, st.just("7"), st.integers(0, 2**64 - 1), st.binary(max_size=9), st.text(max_size=9))


@given(data=altered(PACKETS.map(encode_packet)))
def test_bytes_that_are_no_packet_are_refused_or_read_as_the_library_reads_them(packet_class: Any, data: bytes) -> None:
    try:
        found = decode_packet(data)
    except LogInputError:
        return
    try:
        expected = packet_class.FromString(data)
    except Exception:
        return  # it is stricter about groups and about text
    assert found.payload == expected.packet
    assert found.source_id == expected.sourceId
    assert found.source_name == expected.sourceName


@pytest.mark.parametrize(("kind", "number"), [("3000000000", 1), ("JFK", 1), ("NST_TEST", -1), ("1", 2**64)])
def test_a_source_that_does_not_fit_is_told_with_the_limits(kind: str, number: int) -> None:
    with pytest.raises(LogInputError, match=r"NST_TEST or a number of 0 to 2\^31 - 1, and the id 0 to 2\^64 - 1"):
        encode_packet(Sourced(kind, number, b""))


def test_sourced_and_protobuf_messages_go_both_ways(log: Log, open_original: OpenOriginal, packet_class: Any) -> None:
    with log.writer() as writer:
        writer.append_sourced([Sourced("NST_TEST", 7, b"payload", "Nordwand ↑"), Sourced("3", 2**64 - 1, b"")])
        writer.append_proto([packet_class(sourceId=9)])
        for wrong in (Sourced("JFK", 1, b""), Sourced("3000000000", 1, b""), Sourced("NST_TEST", -1, b"")):
            with pytest.raises(
                LogInputError, match=r"the type must be NST_TEST or a number of 0 to 2\^31 - 1, and the id"
            ):
                writer.append_sourced([wrong])
        with pytest.raises(LogInputError, match="remove character 2, which is not text"):
            writer.append_sourced([Sourced("NST_TEST", 1, b"", "x\ud800")])
    theirs = open_original()
    assert [packet_class.FromString(data).sourceName for _, data in theirs.packets(1, 3)] == ["Nordwand ↑", "", ""]
    assert [packet_class.FromString(data).sourceId for _, data in theirs.packets(1, 3)] == [7, 2**64 - 1, 9]
    theirs.send([packet_class(source=2, sourceId=5, packet=b"x").SerializeToString()])
    named = Sourced("NST_TEST", 7, b"payload", "Nordwand ↑")
    assert list(log.read_sourced(1, 2)) == [(1, named), (2, Sourced("3", 2**64 - 1, b""))]
    assert list(log.read_sourced(4)) == [(4, Sourced("2", 5, b"x"))]
    assert [(number, message.sourceId) for number, message in log.read_proto(packet_class, 3)] == [(3, 9), (4, 5)]
