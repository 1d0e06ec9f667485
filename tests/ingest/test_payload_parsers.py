"""Payloads become records: thin-edge's, plain JSON, and anything raw."""

from __future__ import annotations

import datetime as dt
import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millstream.ingest import IngestInputError, MalformedError, PlainJson, ReceivedMessage, payload_parser
from millstream.ingest.selectors import parse_selector
from millstream.ingest.timestamps import read_timestamp

NEW_YEAR = 1_767_225_600_000_000


def records(shape, topic, payload):
    shape = payload_parser(shape) if isinstance(shape, str) else shape
    return [(m.source, m.key, m.body, m.event_time) for m in shape(ReceivedMessage(topic, payload, 1))]


@pytest.mark.parametrize(
    ("topic", "payload", "expected"),
    [
        ("te/device/main///m/", b'{"temperature": 25}', [("device/main//", "temperature", b"25", None)]),
        ("te/device/p//svc/m/x", b'{"a":-0.10}', [("device/p//svc", "x/a", b"-0.10", None)]),
        ("te/a/b/c/d/m/t", b'{"g":{"x":1,"y":2E3}}', [("a/b/c/d", "t/g", b'{"x":1,"y":2E3}', None)]),
        ("tedge/measurements", b'{"v":1,"type":"env"}', [("device/main//", "env/v", b"1", None)]),
        ("tedge/measurements/c1", b'{"v":1}', [("device/c1//", "v", b"1", None)]),
        ("te/device/main///m/e", b'{"v":1,"type":"other"}', [("device/main//", "e/v", b"1", None)]),
        ("te/device/main///e/door", b'{"text":"open"}', [("device/main//", "e/door", b'{"text":"open"}', None)]),
        ("te/device/main///a/hot", b"", [("device/main//", "a/hot", b"", None)]),
        (
            "te/device/main///m/e",
            b'{"time":"2026-01-01T01:00:00.000001+01:00","v":1,"w":2}',
            [("device/main//", "e/v", b"1", NEW_YEAR + 1), ("device/main//", "e/w", b"2", NEW_YEAR + 1)],
        ),
    ],
)
def test_thin_edge_messages(topic, payload, expected):
    assert records("thin-edge", topic, payload) == expected == records("auto", topic, payload)


@pytest.mark.parametrize(
    ("topic", "payload", "reason"),
    [
        ("te/device/main///m/e", b'{"v":"warm"}', "value"),
        ("te/device/main///m/e", b'{"v":true}', "value"),
        ("te/device/main///m/e", b'{"v":{}}', "value"),
        ("te/device/main///m/e", b'{"v":{"x":{"y":1}}}', "value"),
        ("te/device/main///m/e", b'{"v":[1]}', "value"),
        ("te/device/main///m/e", b"{}", "empty"),
        ("te/device/main///m/e", b'{"":1}', "member"),
        ("te/device/main///m/e", b'{"time":1}', "empty"),
        ("te/device/main///m/e", b"21", "json"),
        ("tedge/measurements", b'{"v":1,"type":[]}', "json"),
        ("te/device/main///m/e", b'{"v":1,"time":null}', "time"),
        ("te/device/main///m/e/meta", b"{}", "topic"),
        ("te/device/main///cmd/restart", b"{}", "topic"),
        ("te/device/main", b"{}", "topic"),
        ("tedge/measurements/a/b", b'{"v":1}', "topic"),
        ("tedge/measurements/", b'{"v":1}', "topic"),
    ],
)
def test_what_thin_edge_would_not_take_is_malformed(topic, payload, reason):
    with pytest.raises(MalformedError) as malformed:
        payload_parser("thin-edge")(ReceivedMessage(topic, payload, 1))
    assert malformed.value.reason == reason
    assert str(malformed.value)


def test_plain_json_takes_source_and_key_from_the_topic_and_keeps_the_payload():
    payload = b' {"time": "2026-01-01T00:00:00Z", "value": 2.50 }'
    assert records("json", "fleet/p7/flow", payload) == [("fleet/p7", "flow", payload, NEW_YEAR)]
    assert records("json", "fleet/p7/flow", b"2.50") == [("fleet/p7", "flow", b"2.50", None)]


def test_plain_json_finds_everything_where_it_is_told_to():
    plain = PlainJson(
        parse_selector("$.device.id"), parse_selector("topic/2"), parse_selector("$.meta.at"),
        parse_selector("$.value"), "ms",
    )  # fmt: skip
    payload = b'{"device":{"id":7},"meta":{"at":1767225600000.5},"value":{"x": 1.0}}'
    assert records(plain, "a/flow/c", payload) == [("7", "flow", b'{"x": 1.0}', NEW_YEAR + 500)]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("topic", "a/b/c/d"),
        ("topic/1", "a"),
        ("topic/4", "d"),
        ("topic/-1", "d"),
        ("topic/-2", "c"),
        ("topic/:-1", "a/b/c"),
        ("topic/2:3", "b/c"),
        ("topic/2:", "b/c/d"),
        ("topic/-2:", "c/d"),
        ("topic/:2", "a/b"),
        ("$.x", "v"),
        ("$.y.z", "-12"),
    ],
)
def test_selectors_name_levels_of_the_topic_and_members_of_the_payload(selector, expected):
    assert parse_selector(selector).name(ReceivedMessage("a/b/c/d", b'{"x":"v","y":{"z":-12}}', 1)) == expected


@pytest.mark.parametrize("selector", ["topic/7", "$.absent", "$.empty", "$.list", "$.real", "$", "$.text.deeper"])
def test_what_a_selector_does_not_find_is_malformed(selector):
    payload = b'{"empty":"","list":[1],"real":1.5,"text":"t"}'
    with pytest.raises(MalformedError):
        parse_selector(selector).name(ReceivedMessage("a/b", payload, 1))


@pytest.mark.parametrize(
    "text", ["", "x", "topic/", "topic/0", "topic/-0", "topic/:", "topic/1:2:3", "topic/x", "$.", "$.a..b", "$a", "a.b"]
)
def test_a_selector_that_names_nothing_is_refused(text):
    with pytest.raises(IngestInputError, match=f"invalid (selector|topic level) {re.escape(repr(text))}: "):
        parse_selector(text)


def test_time_and_value_are_looked_for_in_the_payload_only():
    for wrong in (
        {"time": parse_selector("topic/1")},
        {"time": parse_selector("$")},
        {"value": parse_selector("topic")},
    ):
        with pytest.raises(IngestInputError, match="payload"):
            PlainJson(**wrong)


def test_raw_takes_any_bytes():
    assert records("raw", "a/b/c", b"\xff\x00") == [("a/b", "c", b"\xff\x00", None)]
    assert records("raw", "c", b"") == [("", "c", b"", None)]
    with pytest.raises(MalformedError):
        records("raw", "a/b/", b"1")


def test_a_shape_that_does_not_exist_is_refused():
    with pytest.raises(IngestInputError, match="choose one of auto, thin-edge, json, raw"):
        payload_parser("xml")


@given(st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2250, 1, 1)), st.integers(-840, 840))
def test_a_moment_is_read_to_the_microsecond_however_it_is_written(moment, minutes):
    aware = moment.replace(tzinfo=dt.UTC)
    expected = (aware - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
    local = aware.astimezone(dt.timezone(dt.timedelta(minutes=minutes)))
    assert read_timestamp(json.dumps(local.isoformat()).encode()) == expected
    sign, (whole, rest) = "-" * (expected < 0), divmod(abs(expected), 1_000_000)
    assert read_timestamp(f"{sign}{whole}.{rest:06}".encode()) == expected
    assert read_timestamp(b"%d" % expected, "us") == expected
    assert read_timestamp(b"%d999" % expected if expected >= 0 else b"%d000" % expected, "ns") == expected


@example(b"1634000987.138", 1_634_000_987_138_000)
@given(st.just(b"0"), st.just(0))
def test_a_decimal_fraction_is_not_bent(text, expected):
    assert read_timestamp(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        b'"2026-01-01T00:00:00"',
        b'"soon"',
        b'"0001-01-01T00:00:00+23:00"',
        b"1e300",
        b"-1e20",
        b"1767225600000",
        b"[]",
        b"null",
        b"true",
    ],
)
def test_what_is_no_moment_is_malformed(text):
    with pytest.raises(MalformedError) as malformed:
        read_timestamp(text)
    assert malformed.value.reason == "time"


@pytest.mark.parametrize("text", [b"1767225600000", b"-1e20", b"1e21", b'"0001-01-01T00:00:00+00:00"'])
def test_a_time_out_of_range_is_told_with_the_range(text):
    with pytest.raises(MalformedError, match=r"out of range.*; times must be from July 1684 to June 2255"):
        read_timestamp(text)


@given(st.binary(max_size=60), st.sampled_from(["te/device/main///m/x", "te/a", "a/b", "tedge/measurements", "x"]))
def test_no_payload_whatever_does_more_harm_than_to_be_put_aside(payload, topic):
    for shape in ("auto", "thin-edge", "json", "raw"):
        try:
            for message in payload_parser(shape)(ReceivedMessage(topic, payload, 1)):
                assert message.key
        except MalformedError as malformed:
            assert malformed.reason in ("json", "time", "topic", "empty", "value", "member")


@pytest.mark.parametrize("shape", ["raw", "json"])
def test_a_record_is_not_of_the_source_of_ticks_which_no_consumer_gets(shape):
    with pytest.raises(MalformedError, match=r"the source 'millstream\.tick' is reserved for ticks") as refused:
        records(shape, "millstream.tick/key", b'{"value": 1}')
    assert refused.value.reason == "source"


@pytest.mark.parametrize(
    ("type_", "count"), [("t", 10_001), ("t" * 60_000, 18), ("", 10_001)], ids=["many", "long type", "no type"]
)
def test_a_message_of_many_measurements_is_put_aside_before_it_grows(type_, count):
    payload = json.dumps({f"m{n}": n for n in range(count)}).encode()
    with pytest.raises(MalformedError, match=r"measurements, .* publish several messages") as caught:
        records("auto", f"te/device/main///m/{type_}", payload)
    assert caught.value.reason == "size"


def test_a_type_in_the_payload_is_limited_as_one_in_the_topic():
    payload = json.dumps({"type": "t" * 600_000, "a": 1, "b": 2}).encode()
    with pytest.raises(MalformedError, match="600,000 characters"):
        records("auto", "tedge/measurements", payload)


def test_ten_thousand_measurements_of_an_ordinary_entity_are_records():
    payload = json.dumps({f"m{n}": n for n in range(10_000)}).encode()
    assert len(records("auto", "te/device/pump-17/service/collector/m/environment", payload)) == 10_000
