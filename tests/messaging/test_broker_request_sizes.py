"""Requests that would take a multiple of their bytes in memory are refused before they are decoded."""

from __future__ import annotations

import asyncio
import struct
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import msgspec
import pytest

from millstream.core.address import Address
from millstream.core.clock import SystemClock
from millstream.log import open_store
from millstream.messaging.broker.admin import ADMIN_SERVICE, AdminResponse
from millstream.messaging.broker.handlers.request_decoder import (
    MAX_ACKS,
    MAX_METADATA,
    MAX_PLAIN,
    MAX_SENDS,
    MAX_TELEMETRY,
    read_request,
)
from millstream.messaging.broker.security.access_keys import AccessKey, CallerPermissions, Keyring
from millstream.messaging.broker.server.broker_server import BrokerServer
from millstream.messaging.client import Credentials
from millstream.messaging.client.batch_codec import from_batch, read_stored, refusals, to_batch
from millstream.messaging.client.endpoints import parse_endpoints
from millstream.messaging.client.errors import ServerFailedError
from millstream.messaging.client.message import Message, MessageStamp
from millstream.messaging.client.route import Queue
from millstream.messaging.client.signing import Signer
from millstream.messaging.errors import StatusError
from millstream.messaging.protocol import v2
from millstream.messaging.protocol.batch_calls import (
    ACK,
    MAX_BATCH,
    RECEIVE,
    SEND,
    AckBatchRequest,
    AckBatchResponse,
    BatchMethod,
    ByteColumn,
    ReceiveBatchResponse,
    SendBatchResponse,
    byte_column,
    text_column,
    write_answer,
)
from millstream.messaging.protocol.descriptor_methods import methods

HERE = parse_endpoints("127.0.0.1:8081")
MANY = MAX_BATCH + 1
SENDS = methods()["SendMessage"]
EMPTY_LIST, EMPTY_MAP, ZERO, EMPTY_TEXT = b"\x90", b"\x80", b"\x00", b"\xa0"


def many(entry: bytes) -> msgspec.Raw:
    """A column of more entries than a call may have, each encoded as *entry*."""
    return msgspec.Raw(b"\xdd" + struct.pack(">I", MANY) + entry * MANY)


def lengths(count: int) -> list[Any]:
    """A column that states *count* byte strings, with too many lengths, none of which has a byte."""
    return [count, many(ZERO), b""]


def batch(**columns: Any) -> bytes:
    """The encoded request of a batch of one message, with other *columns*."""
    stamp = MessageStamp(message_id="", kind=v2.NORMAL, namespace="", born=1, host="host")
    request = msgspec.structs.asdict(to_batch([Message("plain", b"x")], ["id-1"], stamp)) | columns
    return msgspec.msgpack.encode(list(request.values()))


TOO_MANY = [
    (SEND, batch(ids=lengths(MANY)), "1,048,577 messages; the limit is 1,048,576"),
    (SEND, batch(ids=lengths(1)), r"of length <= 1048576 - at `\$\[6\]\[1\]`"),
    (SEND, batch(bodies=lengths(1)), r"of length <= 1048576 - at `\$\[7\]\[1\]`"),
    (SEND, batch(tags=many(EMPTY_TEXT)), r"of length <= 1048576 - at `\$\[8\]`"),
    (SEND, batch(keys=many(EMPTY_LIST)), r"of length <= 1048576 - at `\$\[9\]`"),
    (SEND, batch(properties=many(EMPTY_MAP)), r"of length <= 1048576 - at `\$\[10\]`"),
    (ACK, msgspec.msgpack.encode(["", "g", "plain", lengths(MANY)]), "1,048,577 messages; the limit is 1,048,576"),
    (ACK, msgspec.msgpack.encode(["", "g", "plain", lengths(1)]), r"of length <= 1048576 - at `\$\[3\]\[1\]`"),
]


@pytest.mark.parametrize(("method", "data", "error"), TOO_MANY)
def test_too_many_entries_of_a_column_are_refused_without_an_object_for_each(
    method: BatchMethod, data: bytes, error: str
) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(StatusError, match=error) as refused:
            read_request(method, data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused.value.code in (v2.PAYLOAD_TOO_LARGE, v2.BAD_REQUEST)
    assert peak < 1 << 20


def test_a_batch_with_too_many_bytes_besides_its_bodies_is_refused() -> None:
    keys = ["k"] * (MAX_METADATA // 2)
    with pytest.raises(StatusError, match="bytes besides the bodies of its messages; the limit is 16,777,216") as error:
        read_request(SEND, batch(keys=[keys]))
    assert error.value.code == v2.PAYLOAD_TOO_LARGE
    assert read_request(SEND, batch(keys=[keys[:1000]])).keys == [("k",) * 1000]
    body = bytes(MAX_METADATA + 1)
    assert read_request(SEND, batch(bodies=byte_column([body]))).bodies.data == body
    ids = ["i" * 200] * (MAX_METADATA // 200)
    assert read_request(SEND, batch(ids=text_column(ids))).ids.count == len(ids)
    handles = text_column(ids)
    assert read_request(ACK, write_answer(AckBatchRequest("", "g", "plain", handles))).handles == handles


def test_a_call_with_messages_of_the_protocol_may_have_many_bytes_of_bodies_but_not_of_other_fields() -> None:
    request = v2.SendMessageRequest()
    for number in range(5):
        message = request.messages.add(body=bytes(MAX_PLAIN))
        message.topic.name, message.system_properties.message_id = "plain", str(number)
        message.system_properties.keys.extend(["key"] * 10)
        message.user_properties["name"] = "value"
    assert read_request(SENDS, request.SerializeToString()) == request
    request.messages[3].system_properties.keys.append("k" * MAX_METADATA)
    with pytest.raises(StatusError, match="bytes besides the bodies of its messages") as error:
        read_request(SENDS, request.SerializeToString())
    assert error.value.code == v2.PAYLOAD_TOO_LARGE


def test_a_call_with_too_many_messages_and_properties_of_the_protocol_is_refused() -> None:
    empty_message, empty_property = b"\x0a\x00", b"\x12\x00"
    padding = v2.SendMessageRequest(messages=[v2.Message(body=bytes(MAX_PLAIN))]).SerializeToString()
    one_message = b"\x0a\x80\x80\x80\x01" + empty_property * MAX_BATCH  # of 2 MiB
    assert len(read_request(SENDS, empty_message * MAX_SENDS).messages) == MAX_SENDS
    for data in (empty_message * (MAX_SENDS + 1), padding + empty_message * MAX_SENDS):
        with pytest.raises(StatusError, match="the call has too many messages; the limit is 65,536") as error:
            read_request(SENDS, data)
        assert error.value.code == v2.PAYLOAD_TOO_LARGE
    for data in (padding + one_message, padding + one_message[:5] + empty_property * MAX_BATCH):
        with pytest.raises(StatusError, match="too many messages, properties and other fields; the limit is") as error:
            read_request(SENDS, data)
        assert error.value.code == v2.PAYLOAD_TOO_LARGE


@pytest.mark.parametrize("name", sorted(set(methods()) - {"SendMessage", "Telemetry"}))
def test_a_call_without_bodies_has_at_most_4_mib(name: str) -> None:
    unknown_field = b"\x82\x7d\x80\x80\x80\x02" + bytes(MAX_PLAIN)
    with pytest.raises(StatusError, match=f"the {name} request has 4,194,310 bytes; the limit is 4,194,304") as error:
        read_request(methods()[name], unknown_field)
    assert error.value.code == v2.PAYLOAD_TOO_LARGE


def test_a_client_may_report_the_stacks_of_many_threads() -> None:
    report = v2.TelemetryCommand(thread_stack_trace=v2.ThreadStackTrace(thread_stack_trace="x" * 2 * MAX_PLAIN))
    assert read_request(methods()["Telemetry"], report.SerializeToString()) == report
    with pytest.raises(StatusError, match="the Telemetry request has 33,554,433 bytes; the limit is 33,554,432 bytes"):
        read_request(methods()["Telemetry"], bytes(MAX_TELEMETRY + 1))


def test_the_settings_of_a_client_name_a_limited_number_of_topics() -> None:
    def command(topics: int) -> bytes:
        settings = v2.Settings(publishing=v2.Publishing(topics=[v2.Resource()] * topics))
        return v2.TelemetryCommand(settings=settings).SerializeToString()

    telemetry = methods()["Telemetry"]
    assert len(read_request(telemetry, command(100_000)).settings.publishing.topics) == 100_000
    many_fields = b"\x22\x00" * MAX_PLAIN
    for data in (command(200_000), many_fields):
        with pytest.raises(StatusError, match="settings of the client are too large; the limit is 262,144") as error:
            read_request(telemetry, data)
        assert error.value.code == v2.PAYLOAD_TOO_LARGE


def test_acknowledgements_of_two_bytes_each_are_limited() -> None:
    empty = b"\x1a\x00"
    names = b"\x0a\x00\x12\x00"
    assert len(read_request(methods()["AckMessage"], names + empty * MAX_ACKS).entries) == MAX_ACKS
    with pytest.raises(StatusError, match="too many acknowledgements; the limit is 65,536") as error:
        read_request(methods()["AckMessage"], names + empty * (MAX_ACKS + 1))
    assert error.value.code == v2.PAYLOAD_TOO_LARGE


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x0a", "number at byte .* has no end"),
        (b"\x0a\x05ab", "field extends past the end of its message"),
        (b"\x0b\x00", "unknown wire type 3"),
        (b"\xff" * 11, "number at byte .* has no end"),
        (b"\x09\x00", "field extends past the end of its message"),
        (b"\x0a\x02\x0a\x05", "field extends past the end of its message"),
    ],
)
def test_a_large_request_that_is_none_is_refused(data: bytes, reason: str) -> None:
    padding = v2.SendMessageRequest(messages=[v2.Message(body=bytes(MAX_PLAIN))]).SerializeToString()
    for method, request in ((SENDS, padding + data), (SENDS, data), (SEND, data), (RECEIVE, data)):
        with pytest.raises(StatusError, match="request cannot be decoded") as error:
            read_request(method, request)
        assert error.value.code == v2.BAD_REQUEST
    with pytest.raises(StatusError, match=reason):
        read_request(SENDS, padding + data)


def test_fields_of_a_newer_protocol_count_as_other_fields() -> None:
    later = b"\xf8\x07\x96\x01" + b"\xf9\x07" + bytes(8) + b"\xfd\x07" + bytes(4) + b"\xfa\x07\x01x"
    padding = v2.SendMessageRequest(messages=[v2.Message(body=bytes(MAX_PLAIN))]).SerializeToString()
    assert len(read_request(SENDS, padding + later).messages) == 1


def with_server(step: Callable[[grpc.aio.Channel], Awaitable[None]], keys: Keyring | None = None) -> None:
    async def run() -> None:
        with open_store("memory://") as store:
            async with (
                BrokerServer(store, Address("127.0.0.1", 0), keys=keys) as server,
                grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
            ):
                await step(channel)

    asyncio.run(run())


HEADERS = (("x-mq-client-id", "client-1"),)


def test_the_server_answers_a_refused_request_with_its_status() -> None:
    async def step(channel: grpc.aio.Channel) -> None:
        for method, data, _ in TOO_MANY:
            answer = method.read_answer(await channel.unary_unary(method.path)(data, metadata=HEADERS))
            assert answer.code in (v2.PAYLOAD_TOO_LARGE, v2.BAD_REQUEST)
        large = bytes(MAX_PLAIN + 1)
        for name in ("AckMessage", "QueryRoute"):
            call = channel.unary_unary(methods()[name].path, None, methods()[name].response.FromString)
            assert (await call(large, metadata=HEADERS)).status.code == v2.PAYLOAD_TOO_LARGE
        stream = channel.unary_stream(methods()["ReceiveMessage"].path, None, v2.ReceiveMessageResponse.FromString)
        assert [each.status.code async for each in stream(large, metadata=HEADERS)] == [v2.PAYLOAD_TOO_LARGE]
        telemetry = channel.stream_stream(methods()["Telemetry"].path, None, v2.TelemetryCommand.FromString)
        commands = telemetry(iter([large + bytes(MAX_TELEMETRY)]), metadata=HEADERS)
        assert [each.status.code async for each in commands] == [v2.PAYLOAD_TOO_LARGE]

    with_server(step)


COOK = Keyring({"cook": AccessKey("sesame", CallerPermissions("cook"))})


def signed(secret: str) -> tuple[tuple[str, str], ...]:
    return Signer("client-1", SystemClock(), credentials=Credentials("cook", secret)).headers()


def test_a_call_without_a_known_key_is_answered_before_its_request_is_read() -> None:
    batches = (SEND, RECEIVE, ACK)
    paths: dict[str, Callable[[bytes], int]] = {
        **{method.path: lambda data, method=method: method.read_answer(data).code for method in batches},
        **{
            each.path: lambda data, each=each: each.response.FromString(data).status.code for each in methods().values()
        },
    }

    async def step(channel: grpc.aio.Channel) -> None:
        for headers in (HEADERS, signed("wrong")):
            for path, code in paths.items():
                call = channel.stream_stream(path)(metadata=headers)
                assert code(await call.read()) == v2.UNAUTHORIZED, path
                large = channel.unary_unary(path)
                assert code(await large(bytes(8 << 20), metadata=headers)) == v2.UNAUTHORIZED, path
            asked = await channel.stream_stream(f"/{ADMIN_SERVICE}/Topics")(metadata=headers).read()
            assert "not signed" in msgspec.json.decode(asked, type=AdminResponse).error
        route = channel.unary_unary(methods()["QueryRoute"].path, None, v2.QueryRouteResponse.FromString)
        assert (await route(b"\x0b", metadata=signed("sesame"))).status.code == v2.BAD_REQUEST
        asked = await channel.stream_stream(f"/{ADMIN_SERVICE}/Topics")(metadata=signed("sesame")).read()
        assert "administer" in msgspec.json.decode(asked, type=AdminResponse).error

    async def limited(channel: grpc.aio.Channel) -> None:
        async with asyncio.timeout(30):
            await step(channel)

    with_server(limited, COOK)


def received(**columns: Any) -> ReceiveBatchResponse:
    """The answer to a receive that has one message, with other *columns*."""
    answer = ReceiveBatchResponse(
        code=v2.OK,
        text="OK",
        ids=text_column(["i"]),
        handles=text_column(["h"]),
        bodies=byte_column([b"x"]),
        offsets=[0],
        born=[1],
        stored=[1],
    )
    return msgspec.structs.replace(answer, **columns)


def test_a_client_does_not_decode_too_many_entries_of_an_answer() -> None:
    columns = msgspec.structs.asdict(received())
    for name in ("attempts", "queues", "offsets", "born", "stored", "due", "zipped"):
        with pytest.raises(msgspec.ValidationError, match="of length <= 1048576"):
            RECEIVE.read_answer(msgspec.msgpack.encode(list((columns | {name: many(ZERO)}).values())))
    for name in ("ids", "handles", "bodies"):
        with pytest.raises(msgspec.ValidationError, match="of length <= 1048576"):
            RECEIVE.read_answer(msgspec.msgpack.encode(list((columns | {name: lengths(1)}).values())))
    with pytest.raises(msgspec.ValidationError, match="of length <= 1048576"):
        SEND.read_answer(msgspec.msgpack.encode([v2.OK, "OK", many(ZERO)]))


@pytest.mark.parametrize(
    "columns",
    [
        {"bodies": ByteColumn(10**12, [0], b"")},
        {"bodies": ByteColumn(2, [1], b"x")},
        {"ids": ByteColumn(2, [1], b"ab")},
        {"handles": ByteColumn(1, [2], b"a")},
        {"bodies": ByteColumn(MANY, [1], bytes(MANY))},
        {"zipped": [1]},
        {"zipped": [-1]},
    ],
)
def test_a_client_refuses_an_answer_that_contradicts_itself(columns: dict[str, Any]) -> None:
    assert len(from_batch(received(), "plain", HERE)) == 1
    with pytest.raises(ServerFailedError, match="the server stated"):
        from_batch(received(**columns), "plain", HERE)


@pytest.mark.parametrize("row", [1, -1])
def test_a_client_refuses_results_of_messages_that_it_has_not_sent(row: int) -> None:
    refused = {row: (v2.BAD_REQUEST, "bad")}
    queue = Queue(0, "broker", 0, HERE, v2.READ_WRITE, (v2.NORMAL,))
    with pytest.raises(ServerFailedError, match=f"row {row} of 1 messages"):
        read_stored(SendBatchResponse(v2.BAD_REQUEST, "bad", [0], refused), ["i"], queue, "")
    with pytest.raises(ServerFailedError, match=f"row {row} of 1 messages"):
        list(refusals(AckBatchResponse(v2.BAD_REQUEST, "bad", refused), 1, ""))


def test_a_compressed_request_is_refused_as_its_size_is_not_known() -> None:
    async def step(channel: grpc.aio.Channel) -> None:
        call = channel.unary_unary(methods()["QueryRoute"].path, None, v2.QueryRouteResponse.FromString)
        request = v2.QueryRouteRequest(topic=v2.Resource(name="t" * 10_000)).SerializeToString()
        assert (await call(request, metadata=HEADERS)).status.code == v2.ILLEGAL_TOPIC
        for compression in (grpc.Compression.Gzip, grpc.Compression.Deflate):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(request, metadata=HEADERS, compression=compression)
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED

    with_server(step)
