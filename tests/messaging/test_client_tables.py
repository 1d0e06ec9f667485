"""The client's decisions as tables: statuses, queues, pauses, places, ids, messages."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import lz4.frame
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.clock import VirtualClock
from millstream.messaging.client import errors, message
from millstream.messaging.client.backoff import Backoff, read_backoff
from millstream.messaging.client.endpoints import Endpoints, parse_endpoints
from millstream.messaging.client.message import Message, from_wire, is_sound
from millstream.messaging.client.message_ids import MessageIds, client_id
from millstream.messaging.client.producer import _read_results
from millstream.messaging.client.route import Queue, Route, candidates, check_kind, group_candidate
from millstream.messaging.client.signing import Credentials, Signer, authorization
from millstream.messaging.protocol import v2
from millstream.messaging.protocol.siphash import group_queue


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (v2.BAD_REQUEST, errors.BadRequestError),
        (v2.ILLEGAL_TOPIC, errors.BadRequestError),
        (v2.INVALID_RECEIPT_HANDLE, errors.InvalidHandleError),
        (v2.UNAUTHORIZED, errors.UnauthorizedError),
        (v2.PAYMENT_REQUIRED, errors.UnauthorizedError),
        (v2.FORBIDDEN, errors.ForbiddenError),
        (v2.TOPIC_NOT_FOUND, errors.ResourceNotFoundError),
        (v2.MESSAGE_NOT_FOUND, errors.ResourceNotFoundError),
        (v2.MESSAGE_BODY_TOO_LARGE, errors.PayloadError),
        (v2.MESSAGE_BODY_EMPTY, errors.PayloadError),
        (v2.TOO_MANY_REQUESTS, errors.ThrottledError),
        (v2.LITE_TOPIC_QUOTA_EXCEEDED, errors.ThrottledError),
        (v2.MESSAGE_PROPERTIES_TOO_LARGE, errors.PayloadError),
        (v2.INTERNAL_SERVER_ERROR, errors.ServerFailedError),
        (v2.HA_NOT_AVAILABLE, errors.ServerFailedError),
        (v2.MASTER_PERSISTENCE_TIMEOUT, errors.ServerFailedError),
        (v2.NOT_IMPLEMENTED, errors.UnsupportedError),
        (v2.VERSION_UNSUPPORTED, errors.UnsupportedError),
        (12_345, errors.UnsupportedError),
    ],
)
def test_every_status_has_its_error(code: int, kind: type[errors.ClientError]) -> None:
    status: Any = code
    found = errors.status_error(v2.Status(code=status, message="why"), "request-7")
    assert type(found) is kind
    assert (found.code, found.request_id, str(found)) == (code, "request-7", "why")
    assert errors.status_error(v2.Status(code=v2.OK)) is None


@pytest.mark.parametrize(
    ("error", "definite"),
    [
        (errors.BadRequestError(code=v2.ILLEGAL_MESSAGE_KEY), True),
        (errors.ResourceNotFoundError(code=v2.TOPIC_NOT_FOUND), True),
        (errors.ThrottledError(code=v2.TOO_MANY_REQUESTS), False),
        (errors.ServerFailedError(code=v2.INTERNAL_SERVER_ERROR), False),
        (errors.TransportError(), False),
        (ValueError(), False),
    ],
)
def test_what_would_fail_again_is_not_repeated(error: Exception, definite: bool) -> None:
    assert errors.is_definite(error) is definite


def place(port: int) -> Endpoints:
    return Endpoints(v2.IPv4, (("127.0.0.1", port),))


def queue(number: int, broker: str, permission: int = v2.READ_WRITE, broker_id: int = 0) -> Queue:
    return Queue(number, broker, broker_id, place(ord(broker)), permission, (v2.NORMAL,))


ROUTE = Route(
    "t",
    (queue(0, "a"), queue(1, "a"), queue(0, "b"), queue(1, "b"), queue(0, "c", v2.READ), queue(0, "d", broker_id=1)),
)


@pytest.mark.parametrize(
    ("turn", "isolated", "count", "expected"),
    [
        (0, "", 3, ["a0", "b0"]),
        (1, "", 3, ["a1", "b0"]),
        (2, "", 3, ["b0", "a0"]),
        (3, "", 1, ["b1"]),
        (0, "a", 3, ["b0"]),
        (3, "b", 3, ["a0"]),
        (1, "ab", 3, ["a1", "b0"]),
        (0, "", 0, ["a0"]),
    ],
)
def test_candidates_are_one_a_broker_and_none_isolated_while_others_are_there(
    turn: int, isolated: str, count: int, expected: list[str]
) -> None:
    found = candidates(ROUTE, turn, {place(ord(each)) for each in isolated}, count)
    assert [f"{each.broker}{each.id}" for each in found] == expected


def test_a_message_group_has_one_queue_whatever_is_isolated() -> None:
    for group in ("order-0", "order-1", "x"):
        assert group_candidate(ROUTE, group) == ROUTE.writable[group_queue(group, 4)]


def test_only_queues_that_may_be_used_are_used() -> None:
    assert len(ROUTE.writable) == 4
    assert len(ROUTE.readable) == 5
    with pytest.raises(errors.ResourceNotFoundError, match="has no writable queue: give the topic write permission"):
        _ = Route("t", (queue(0, "c", v2.READ),)).writable
    check_kind(ROUTE.queues[0], v2.NORMAL, "t")
    with pytest.raises(errors.BadRequestError):
        check_kind(ROUTE.queues[0], v2.FIFO, "t")


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        (Backoff(), [0.0, 0.0, 0.0]),
        (Backoff(3, 0.01, 0.05, 2), [0.01, 0.02, 0.04, 0.05]),
        (Backoff(3, pauses=(1, 5, 10)), [1, 5, 10, 10]),
    ],
)
def test_pauses_grow_as_the_policy_says(backoff: Backoff, delays: list[float]) -> None:
    assert [backoff.delay(number) for number in range(1, len(delays) + 1)] == delays
    with pytest.raises(ValueError, match="attempt must be at least 1, not 0"):
        backoff.delay(0)


def test_policies_are_read_from_the_wire() -> None:
    policy = v2.RetryPolicy(max_attempts=17)
    policy.exponential_backoff.initial.FromMilliseconds(10)
    policy.exponential_backoff.max.FromSeconds(1)
    policy.exponential_backoff.multiplier = 2
    assert read_backoff(policy) == Backoff(17, 0.01, 1.0, 2)
    assert read_backoff(policy, attempts=3).attempts == 3
    assert Backoff(17, 0.01, 1.0, 2).delay(100_000) == 1.0
    listed = v2.RetryPolicy(max_attempts=5)
    listed.customized_backoff.next.add().FromMilliseconds(1500)
    assert read_backoff(listed) == Backoff(5, pauses=(1.5,))


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("127.0.0.1:8081", "ipv4:127.0.0.1:8081"),
        ("127.0.0.2:1;127.0.0.1:2", "ipv4:127.0.0.1:2,127.0.0.2:1"),
        ("127.0.0.1", "ipv4:127.0.0.1:80"),
        ("http://example.org:81/", "dns:example.org:81"),
        ("https://example.org", "dns:example.org:80"),
        ("[::1]:8081", "ipv6:[::1]:8081"),
        ("::1", "ipv6:[::1]:80"),
        ("[::1]", "ipv6:[::1]:80"),
    ],
)
def test_places_are_read_as_every_client_writes_them(text: str, target: str) -> None:
    endpoints = parse_endpoints(text)
    assert endpoints.targets(encrypted=False) == [target]
    scheme, _, addresses = target.partition(":")
    assert endpoints.targets(encrypted=True) == [f"{scheme}:{one}" for one in addresses.split(",")]


@pytest.mark.parametrize("text", ["", ";", "a:1;b:2", "127.0.0.1:1;[::1]:2", "host:port", "host:0", "host:99999", ":1"])
def test_places_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(errors.BadRequestError):
        parse_endpoints(text)


def test_message_ids_are_of_version_one_and_never_the_same() -> None:
    ids = MessageIds(VirtualClock())
    found = [*ids.take(500), *ids.take(499), *ids.take(1)]
    assert len(set(found)) == 1000
    assert all(len(each) == 34 and each.startswith("01") and each == each.upper() for each in found)
    assert client_id(3, VirtualClock()).count("@") == 3


def test_producers_that_begin_in_the_same_second_share_no_message_id() -> None:
    clock = VirtualClock()
    one, two = MessageIds(clock), MessageIds(clock)
    assert not {*one.take(100), *one.take(1)} & {*two.take(100), *two.take(1)}


@pytest.mark.parametrize(
    "wrong",
    [
        {"topic": "a b"}, {"topic": ""}, {"body": b""}, {"tag": " "}, {"tag": "a|b"}, {"keys": (" ",)},
        {"properties": {"": "x"}}, {"properties": {"x": " "}}, {"deliver_at": datetime(2030, 1, 1)},
        {"message_group": "g", "deliver_at": datetime(2030, 1, 1, tzinfo=UTC)},
    ],
)  # fmt: skip
def test_messages_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(errors.BadRequestError):
        Message(**{"topic": "t", "body": b"x", **wrong})


@given(body=st.binary(max_size=50), other=st.binary(max_size=50))
def test_digests_are_checked_in_all_their_spellings(body: bytes, other: bytes) -> None:
    sums = [
        (v2.MD5, hashlib.md5(body).hexdigest().upper()),
        (v2.MD5, hashlib.md5(body).hexdigest()),
        (v2.SHA1, hashlib.sha1(body).hexdigest().upper()),
        (v2.CRC32, f"{zlib.crc32(body):08X}"),
        (v2.CRC32, f"{zlib.crc32(body):X}"),
        (v2.CRC32, str(zlib.crc32(body))),
    ]
    for kind, checksum in sums:
        digest = v2.Digest(type=kind, checksum=checksum)
        assert is_sound(body, digest)
        assert is_sound(other, digest) == (other == body)


@pytest.mark.parametrize(
    "compress",
    [
        gzip.compress,
        zlib.compress,  # clients of RocketMQ 4, and the C++ client
        lz4.frame.compress,
        lambda body: pa.compress(body, "zstd", asbytes=True),
        lambda body: gzip.compress(body[:300]) + gzip.compress(body[300:]),
    ],
)
def test_bodies_are_unpacked_by_each_method_of_clients(
    compress: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    body = b"packed" * 100
    wire = v2.Message(body=compress(body))
    wire.system_properties.body_encoding = v2.GZIP
    assert from_wire(wire, place(1)).body == body
    assert not from_wire(wire, place(1)).is_corrupted
    wire.body = compress(body)[:-3]
    assert from_wire(wire, place(1)).is_corrupted
    monkeypatch.setattr(message, "MAX_UNPACKED", 599)
    assert message.unpack(compress(body)) is None


def test_bodies_that_are_not_what_they_should_be_are_told() -> None:
    wire = v2.Message(body=b"not gzip")
    wire.system_properties.body_encoding = v2.GZIP
    assert from_wire(wire, place(1)).is_corrupted
    wire.body, wire.system_properties.body_encoding = b"plain", v2.IDENTITY
    wire.system_properties.body_digest.type, wire.system_properties.body_digest.checksum = v2.MD5, "00"
    assert from_wire(wire, place(1)).is_corrupted


def test_an_answer_that_does_not_match_the_request_is_an_error() -> None:
    response = v2.SendMessageResponse(status=v2.Status(code=v2.OK))
    (result,) = _read_results(response, queue(0, "a"), ["1"], "r")
    assert isinstance(result, errors.ServerFailedError)
    response.status.code = v2.FORBIDDEN
    assert [type(each) for each in _read_results(response, queue(0, "a"), ["1", "2"], "r")] == [
        errors.ForbiddenError
    ] * 2


def test_calls_are_signed_as_the_protocol_has_it() -> None:
    credentials = Credentials("key", "secret", "token")
    signer = Signer("client", VirtualClock(), namespace="space", credentials=credentials)
    headers = dict(signer.headers())
    assert headers["x-mq-date-time"] == "20231114T221320Z"
    assert headers["authorization"] == authorization(credentials, "20231114T221320Z")
    assert headers["authorization"].startswith(
        "MQv2-HMAC-SHA1 Credential=key, SignedHeaders=x-mq-date-time, Signature="
    )
    assert (headers["x-mq-namespace"], headers["x-mq-session-token"]) == ("space", "token")
    assert "secret" not in repr(credentials)
    assert dict(signer.headers())["x-mq-request-id"] != headers["x-mq-request-id"]
    assert "authorization" not in dict(Signer("c", VirtualClock()).headers())
