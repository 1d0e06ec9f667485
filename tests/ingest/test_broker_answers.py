"""A broker that answers late or not at all: what a lost connection delivered is stored once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest

pytest.importorskip("paho.mqtt", reason="needs the extra mqtt")

from millstream.core.clock import SystemClock
from millstream.ingest import BrokerRefusedError, BrokerUnavailableError, parse_broker
from millstream.ingest.connection import MqttConnection
from millstream.ingest.options import Protocol, SubscribeOptions
from support.scripted_mqtt_broker import (
    CONNECT,
    SUBSCRIBE,
    UNSUBSCRIBE,
    Answer,
    ScriptedBroker,
    ended,
    granted,
    message,
    packet,
    welcome,
)  # fmt: skip


@pytest.fixture
def broker() -> Iterator[Callable[..., MqttConnection]]:
    """Makes a broker of a script, and a connection to it."""
    brokers: list[ScriptedBroker] = []

    def connection(*script: Mapping[int, Answer], protocol: Protocol = "5") -> MqttConnection:
        brokers.append(ScriptedBroker(list(script)))
        options = SubscribeOptions(topics=("a/#",), qos=2, timeout=10.0, protocol=protocol)
        return MqttConnection(parse_broker(brokers[-1].url), "client", options, SystemClock())

    yield connection
    for each in brokers:
        each.close()


@pytest.mark.parametrize("qos", [1, 2])
def test_what_a_kept_session_delivers_again_comes_once(broker: Callable[..., MqttConnection], qos: int) -> None:
    connection = broker(
        {CONNECT: welcome(message(0, 0, payload=b"once"), message(7, qos))},
        {CONNECT: welcome(message(7, qos, again=True)), SUBSCRIBE: granted(2)},
    )
    assert connection.open()
    with pytest.raises(BrokerUnavailableError, match="did not answer SUBSCRIBE"):
        connection.subscribe({"a/#": 2}, {})
    assert connection.open()
    connection.subscribe({"a/#": 2}, {})
    arrivals = connection.poll(5.0, 100).arrivals
    assert [(arrival.payload, arrival.again) for arrival in arrivals] == [(b"once", False), (b"x", True)]


def test_what_a_lost_session_delivered_is_kept_and_not_acknowledged(broker: Callable[..., MqttConnection]) -> None:
    connection = broker({CONNECT: welcome(message(7, 2))}, {CONNECT: welcome(kept=False), SUBSCRIBE: granted(2)})
    assert connection.open()
    with pytest.raises(BrokerUnavailableError, match="did not answer SUBSCRIBE"):
        connection.subscribe({"a/#": 2}, {})
    assert not connection.open()
    connection.subscribe({"a/#": 2}, {})
    assert [(arrival.payload, arrival.qos) for arrival in connection.poll(5.0, 100).arrivals] == [(b"x", 0)]


def test_a_subscription_has_ended_once_the_broker_says_so(broker: Callable[..., MqttConnection]) -> None:
    connection = broker(
        {CONNECT: welcome()},
        {CONNECT: welcome(), UNSUBSCRIBE: ended(0x87)},
        {CONNECT: welcome(), UNSUBSCRIBE: ended(0)},
    )
    wanted, known = {"a/#": 2}, {"a/#": 2, "b/#": 2}
    connection.open()
    with pytest.raises(BrokerUnavailableError, match="did not answer UNSUBSCRIBE"):
        connection.subscribe(wanted, known)
    connection.open()
    with pytest.raises(BrokerRefusedError, match="refused to end the subscription to 'b/#'"):
        connection.subscribe(wanted, known)
    connection.open()
    connection.subscribe(wanted, known)


def test_mqtt_3_says_that_a_subscription_has_ended_without_a_code(broker: Callable[..., MqttConnection]) -> None:
    answers: Mapping[int, Answer] = {
        CONNECT: lambda _: packet(0x20, b"\x01\x00"),
        UNSUBSCRIBE: lambda identifier: packet(0xB0, identifier),
    }
    connection = broker(answers, protocol="3.1.1")
    assert connection.open()
    connection.subscribe({"a/#": 2}, {"a/#": 2, "b/#": 2})
