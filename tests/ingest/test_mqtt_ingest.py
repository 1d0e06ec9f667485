"""Ingest from a real broker: what is acknowledged is in the log, and what is not a record is put aside."""

from __future__ import annotations

import json

import pytest

from millstream.core.message import Message
from millstream.ingest import BrokerUnavailableError, IngestInputError, payload_parser
from millstream.ingest.broker_url import parse_broker
from millstream.ingest.connection import MqttConnection
from millstream.ingest.options import SubscribeOptions
from millstream.ingest.receipts import PACKET_HEADER
from support.mqtt import publish

VERSIONS = pytest.mark.parametrize("protocol", ["5", "3.1.1"])


def values(messages):
    return [json.loads(message.body)["n"] for message in messages]


def numbered(topic, count, first=0):
    return [(topic, b'{"time":%d,"n":%d}' % (1_700_000_000 + n, n)) for n in range(first, first + count)]


@pytest.mark.smoke
@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_every_quality_of_service_brings_each_message_once_and_in_order(harness, root, qos, protocol):
    sent = numbered(f"{root}/pump/level", 300)
    harness.during(
        lambda: publish(harness.url, sent, qos), lambda: harness.taken >= 300, f"{root}/#", qos=qos, protocol=protocol
    )
    found = harness.records()
    assert values(found) == list(range(300))
    assert {(message.source, message.key) for message in found} == {(f"{root}/pump", "level")}
    assert [message.event_time for message in found] == [(1_700_000_000 + n) * 1_000_000 for n in range(300)]
    assert all(any(name == PACKET_HEADER for name, _ in message.headers) is (qos == 2) for message in found)
    assert harness.aside() == []


@VERSIONS
@pytest.mark.parametrize("qos", [1, 2])
def test_the_broker_keeps_for_the_session_what_comes_while_nobody_listens(harness, root, qos, protocol):
    harness.subscribe(f"{root}/#", qos=qos, protocol=protocol)
    for part in range(3):
        publish(harness.url, numbered(f"{root}/pump/level", 50, 50 * part), qos)
        harness.take(50, f"{root}/#", qos=qos, protocol=protocol)
    assert values(harness.records()) == list(range(150))
    assert harness.said[0].endswith("in a new session")
    assert all(said.endswith("in the previous session") for said in harness.said[1:])


def test_thousands_of_messages_share_commits(harness, root):
    harness.subscribe(f"{root}/#", qos=1)
    publish(harness.url, numbered(f"{root}/pump/level", 20_000), 1)
    harness.take(20_000, f"{root}/#", qos=1)
    assert values(harness.records()) == list(range(20_000))
    assert harness.log.info().blocks < 200


def test_wildcards_choose_topics(harness, root):
    wanted = (f"{root}/+/level", f"{root}/deep/#")
    harness.subscribe(*wanted)
    topics = ["a/level", "b/level", "a/flow", "a/b/level", "deep", "deep/x", "deep/x/level"]
    publish(harness.url, [(f"{root}/{topic}", b"%d" % n) for n, topic in enumerate(topics)])
    harness.take(5, *wanted)
    assert [message.body for message in harness.records()] == [b"0", b"1", b"4", b"5", b"6"]


def test_topics_that_are_no_longer_wanted_are_left_and_new_ones_joined(harness, root):
    harness.subscribe(f"{root}/a/x", f"{root}/b/x")
    harness.run(lambda: len(harness.said) == 2, f"{root}/b/x", f"{root}/c/x")
    publish(harness.url, [(f"{root}/{topic}/x", topic.encode()) for topic in "abc"])
    harness.take(2, f"{root}/b/x", f"{root}/c/x", shape=payload_parser("raw"))
    assert [message.body for message in harness.records()] == [b"b", b"c"]


@VERSIONS
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("wanted", [True, False])
def test_retained_messages_come_once_a_session_if_they_are_wanted(harness, root, qos, wanted, protocol):
    options = {"qos": qos, "protocol": protocol, "retained": wanted}
    publish(harness.url, [(f"{root}/pump/kept", b"1")], qos, retain=True)
    harness.during(
        lambda: publish(harness.url, [(f"{root}/pump/fresh", b"2")], qos),
        lambda: any(message.body == b"2" for message in harness.records()),
        f"{root}/#",
        **options,
    )
    publish(harness.url, [(f"{root}/pump/fresh", b"3")], qos)
    harness.take(1, f"{root}/#", **options)
    found = harness.records()
    assert [message.body for message in found] == [b"1", b"2", b"3"][0 if wanted else 1 :]
    kept = [message.body for message in found if ("mqtt-retained", b"1") in message.headers]
    assert kept == ([b"1"] if wanted else [])
    publish(harness.url, [(f"{root}/pump/kept", b"")], qos, retain=True)


MALFORMED = {
    b"": "json",
    b"{": "json",
    b"\xff": "json",
    b'{"n":1} ,': "json",
    b'{"n":' + b"[" * 5000 + b"]" * 5000 + b"}": "json",
    b'{"time":"yesterday"}': "time",
    b'{"time":"2026-01-01T00:00:00"}': "time",
    b'{"time":[]}': "time",
    b'{"time":1e300}': "time",
}


@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_no_record_is_put_aside_with_the_reason_and_holds_nothing_up(harness, root, qos):
    harness.subscribe(f"{root}/#", qos=qos)
    sent = [(f"{root}/pump/level", payload) for bad in MALFORMED for payload in (bad, b"7")]
    publish(harness.url, sent, qos)
    harness.take(len(sent), f"{root}/#", qos=qos)
    assert [message.body for message in harness.records()] == [b"7"] * len(MALFORMED)
    aside = harness.aside()
    assert [(message.body, message.key) for message in aside] == list(MALFORMED.items())
    assert {message.source for message in aside} == {f"{root}/pump/level"}
    assert all(dict(message.headers)["why"] for message in aside)
    assert harness.figures.figures().by_label("ingest_rejects_total", "reason") == {"json": 5, "time": 4}


def test_a_payload_that_is_too_large_is_put_aside_in_part_where_the_broker_does_not_hold_it_back(harness, root):
    options = {"protocol": "3.1.1", "max_payload": 100_000}
    harness.subscribe(f"{root}/#", **options)
    publish(harness.url, [(f"{root}/pump/level", b"1" * size) for size in (100_000, 100_001)])
    harness.take(2, f"{root}/#", shape=payload_parser("raw"), **options)
    assert [len(message.body) for message in harness.records()] == [100_000]
    ((key, size),) = [(message.key, len(message.body)) for message in harness.aside()]
    assert (key, size) == ("size", 65_536)


def test_mqtt_5_properties_of_messages_are_passed_over(harness, root):
    import paho.mqtt.client as paho
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    properties = Properties(PacketTypes.PUBLISH)
    properties.UserProperty = [("name", "v" * 200), ("other", "x")]
    properties.ContentType, properties.MessageExpiryInterval = "application/json", 3600
    harness.subscribe(f"{root}/#")
    place = parse_broker(harness.url)
    publisher = paho.Client(paho.CallbackAPIVersion.VERSION2, f"p-{root}", protocol=paho.MQTTv5)
    publisher.connect(place.host, place.port)
    publisher.loop_start()
    publisher.publish(f"{root}/pump/level", b"5", 1, properties=properties).wait_for_publish(30)
    publisher.disconnect()
    publisher.loop_stop()
    harness.take(1, f"{root}/#")
    assert harness.records()[0].body == b"5"


def test_thin_edge_messages_become_a_record_a_measurement(harness, root):
    topic = f"te/device/{root}//"
    harness.subscribe(f"{topic}/+/+", qos=1)
    body = b'{"time":"2026-01-01T00:00:00.5Z","temperature": 21.50,"place":{"lat":1,"lon":-2.5e0}}'
    publish(harness.url, [(f"{topic}/m/env", body), (f"{topic}/e/login", b'{"text":"hi","time":1767225600.25}')])
    harness.take(2, f"{topic}/+/+")
    at = 1_767_225_600_000_000
    assert [(m.source, m.key, m.body, m.event_time) for m in harness.records()] == [
        (f"device/{root}//", "env/temperature", b"21.50", at + 500_000),
        (f"device/{root}//", "env/place", b'{"lat":1,"lon":-2.5e0}', at + 500_000),
        (f"device/{root}//", "e/login", b'{"text":"hi","time":1767225600.25}', at + 250_000),
    ]


def test_two_clients_of_one_name_are_told_and_fight_ever_more_slowly(harness, root):
    options = SubscribeOptions(topics=(f"{root}/#",))
    rival = MqttConnection(parse_broker(harness.url), f"rival-{root}", options, harness.clock)
    lost = 0

    def until():
        nonlocal lost
        if len(harness.said) > 2 * lost:  # connected again
            rival.open()
            lost += 1
        return lost == 4

    harness.run(until, f"{root}/#", client=f"rival-{root}")
    rival.close()
    told = [said for said in harness.said if "was lost" in said]
    assert all(f"another client has the same client id, rival-{root}" in said for said in told)
    pauses = [float(said.partition("again in ")[2].split()[0]) for said in told]
    assert pauses == sorted(pauses) and pauses[-1] >= 2 * pauses[0]


def test_a_broker_that_is_not_there_is_called_again_and_again(harness, root):
    harness.url = "mqtt://127.0.0.1:1"
    harness.run(lambda: len(harness.said) >= 2, f"{root}/#")
    assert all("cannot reach" in said and "trying again in" in said for said in harness.said)
    place = parse_broker(harness.url)
    with pytest.raises(BrokerUnavailableError):
        MqttConnection(place, "x", SubscribeOptions(topics=("a",)), harness.clock).open()


@pytest.mark.parametrize("topic", ["", "a/#/b", "a#", "+a/b", "a\0b", "x" * 65_536])
def test_a_topic_filter_that_no_broker_would_take_is_refused(topic):
    with pytest.raises(IngestInputError, match="invalid topic filter"):
        SubscribeOptions(topics=(topic,))


def test_what_is_put_aside_under_exactly_once_bears_its_packet_too(harness, root):
    harness.subscribe(f"{root}/#", qos=2)
    publish(harness.url, [(f"{root}/pump/level", b"{")], 2)
    receipts = harness.take(1, f"{root}/#", qos=2)
    (message,) = harness.aside()
    assert isinstance(message, Message)
    assert dict(message.headers)[PACKET_HEADER].isdigit()
    harness.run(lambda: not receipts.held or len(harness.said) > 2, f"{root}/#", qos=2)
