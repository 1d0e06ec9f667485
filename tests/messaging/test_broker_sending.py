"""What becomes of messages that are sent: refused, stored, stored once, and the same in the log."""

from __future__ import annotations

import asyncio
import re
import threading
from typing import Any

import pytest

from millstream.core.clock import MICROSECONDS, VirtualClock
from millstream.log import Log, LogSpec, Message, open_store
from millstream.messaging.broker.handlers.validation import MAX_BORN, MIN_BORN, check_properties
from millstream.messaging.broker.limits import Limits
from millstream.messaging.broker.storage.delayed_messages import delayed_message
from millstream.messaging.broker.storage.topic import TopicSpec
from millstream.messaging.errors import StatusError
from millstream.messaging.protocol import v2
from millstream.messaging.protocol.siphash import group_queue
from support.broker_harness import CALL, BrokerHarness, bodies, open_harness, settle, with_harness

REFUSED: list[tuple[str, bytes, dict[str, Any], int]] = [
    ("plain", b"", {}, v2.MESSAGE_BODY_EMPTY),
    ("plain", b"x" * (4 * 2**20 + 1), {}, v2.MESSAGE_BODY_TOO_LARGE),
    ("plain", b"x", {"message_id": " "}, v2.ILLEGAL_MESSAGE_ID),
    ("plain", b"x", {"message_id": "m" * 256}, v2.ILLEGAL_MESSAGE_ID),
    ("plain", b"x", {"tag": "a|b"}, v2.ILLEGAL_MESSAGE_TAG),
    ("plain", b"x", {"tag": " "}, v2.ILLEGAL_MESSAGE_TAG),
    ("plain", b"x", {"keys": [" "]}, v2.ILLEGAL_MESSAGE_KEY),
    ("plain", b"x", {"keys": ["k" * 17_000]}, v2.MESSAGE_PROPERTIES_TOO_LARGE),
    ("plain", b"x", {"properties": {"KEYS": "x"}}, v2.ILLEGAL_MESSAGE_PROPERTY_KEY),
    ("plain", b"x", {"properties": {"mq:id": "x"}}, v2.ILLEGAL_MESSAGE_PROPERTY_KEY),
    ("plain", b"x", {"properties": {" ": "x"}}, v2.ILLEGAL_MESSAGE_PROPERTY_KEY),
    ("plain", b"x", {"properties": {"a": "x\ny"}}, v2.ILLEGAL_MESSAGE_PROPERTY_KEY),
    ("plain", b"x", {"properties": {"a": "x" * 17_000}}, v2.MESSAGE_PROPERTIES_TOO_LARGE),
    ("plain", b"x", {"properties": {f"p{n}": "x" for n in range(129)}}, v2.MESSAGE_PROPERTIES_TOO_LARGE),
    ("plain", b"x", {"born_host": "h" * 256}, v2.MESSAGE_PROPERTIES_TOO_LARGE),
    ("plain", b"x", {"born_host": "a\nb"}, v2.BAD_REQUEST),
    ("plain", b"x", {"trace_context": "t" * 17_000}, v2.MESSAGE_PROPERTIES_TOO_LARGE),
    ("plain", b"x", {"trace_context": "a\nb"}, v2.BAD_REQUEST),
    ("later", b"x", {"born_host": "h" * 256, "deliver_at": 0}, v2.MESSAGE_PROPERTIES_TOO_LARGE),
    ("halves", b"x", {"trace_context": "t" * 17_000, "message_type": v2.TRANSACTION}, v2.MESSAGE_PROPERTIES_TOO_LARGE),
    ("plain", b"x", {"message_group": "g"}, v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    ("plain", b"x", {"message_type": v2.TRANSACTION}, v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    ("plain", b"x", {"message_type": v2.LITE}, v2.UNSUPPORTED),
    ("plain", b"x", {"message_type": 99}, v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    ("ordered", b"x", {}, v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    ("ordered", b"x", {"message_type": v2.FIFO}, v2.ILLEGAL_MESSAGE_GROUP),
    ("ordered", b"x", {"message_group": "g" * 64}, v2.ILLEGAL_MESSAGE_GROUP),
    ("later", b"x", {"message_type": v2.DELAY}, v2.ILLEGAL_DELIVERY_TIME),
    ("later", b"x", {"deliver_at": 4_000_000_000 * MICROSECONDS}, v2.ILLEGAL_DELIVERY_TIME),
]


def test_every_message_that_cannot_be_is_refused_with_its_status() -> None:
    async def step(desk: BrokerHarness) -> None:
        for topic, body, system, code in REFUSED:
            response = await desk.send(topic, body, **system)
            assert response.status.code == code, (topic, system, response.status)
            assert response.entries[0].status.code == code
        assert desk.core.topic("plain").last_id == desk.core.topic("ordered").last_id == 0

    with_harness(step)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"born_host": "h" * 256}, "the born host 'h{80}'… has 256 characters; the limit is 255: send"),
        ({"trace_context": "t" * 16_385}, "the trace context has 16,385 characters; the limit is 16,384: shorten it"),
    ],
)
def test_the_refusal_of_a_long_field_names_it_and_its_limit(fields: dict[str, str], error: str) -> None:
    async def step(desk: BrokerHarness) -> None:
        response = await desk.send("plain", b"x", **fields)
        assert re.match(error, response.entries[0].status.message)
        allowed = {name: value[:-1] for name, value in fields.items()}
        assert (await desk.send("plain", b"y", **allowed)).status.code == v2.OK
        (found,) = await desk.receive("g", "plain")
        assert {name: getattr(found.system_properties, name) for name in fields} == allowed

    with_harness(step)


def test_messages_that_were_stored_with_longer_fields_are_delivered() -> None:
    host, trace = "h" * 20_000, b"t" * 20_000
    long = [Message(b"%d" % n, source=host, headers=(("mq:id", b"%d" % n), ("mq:trace", trace))) for n in range(2)]

    async def store(desk: BrokerHarness) -> None:
        await desk.core.publish("plain", long[:1])
        await desk.delayed_messages.hold([delayed_message(long[1], "later", desk.clock.now() + MICROSECONDS)])

    async def read(desk: BrokerHarness) -> None:
        desk.clock.advance(2)
        await settle(lambda: desk.core.topic("later").last_id == 1)
        for topic in ("plain", "later"):
            (found,) = await desk.receive("g", topic)
            assert (found.system_properties.born_host, found.system_properties.trace_context) == (host, trace.decode())
            await desk.core.move_to_dead_letters("g", topic, [1], "")
        assert [each.system_properties.born_host for each in await desk.receive("h", "%DLQ%g")] == [host, host]

    with_harness(store, read)


@pytest.mark.parametrize("seconds", [2**63 - 1, -(2**63), MAX_BORN // MICROSECONDS + 1, MIN_BORN // MICROSECONDS - 1])
def test_a_message_born_in_no_year_of_the_protocol_is_refused_alone(seconds: int) -> None:
    async def step(desk: BrokerHarness) -> None:
        request = v2.SendMessageRequest()
        for number in range(2):
            message = request.messages.add(body=b"%d" % number)
            message.topic.name, message.system_properties.message_id = "plain", f"m-{number}"
        request.messages[1].system_properties.born_timestamp.seconds = seconds
        answer, other = await asyncio.gather(desk.service.send_message(request, CALL), desk.send("plain", b"other"))
        assert [entry.status.code for entry in answer.entries] == [v2.OK, v2.BAD_REQUEST]
        assert other.status.code == v2.OK
        assert sorted(bodies(await desk.receive("g", "plain"))) == [b"0", b"other"]

    with_harness(step)


@pytest.mark.parametrize("time", [MIN_BORN, -1, 1, MAX_BORN])
def test_a_message_born_in_any_other_year_keeps_its_time(time: int) -> None:
    async def step(desk: BrokerHarness) -> None:
        request = v2.SendMessageRequest(messages=[v2.Message(body=b"x")])
        (message,) = request.messages
        message.topic.name, message.system_properties.message_id = "plain", "m"
        message.system_properties.born_timestamp.FromMicroseconds(time)
        assert (await desk.service.send_message(request, CALL)).status.code == v2.OK
        (received,) = await desk.receive("g", "plain")
        assert received.system_properties.born_timestamp.ToMicroseconds() == time

    with_harness(step)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("TAGS", "'TAGS': the protocol reserves this name; choose another name"),
        ("mq:x", "'mq:x': the broker reserves names that begin with 'mq:'; choose another name"),
        (" ", "' ': a name must not be blank or contain control characters"),
    ],
)
def test_the_refusal_of_a_property_says_why_its_name_is_invalid(name: str, problem: str) -> None:
    with pytest.raises(StatusError, match=f"invalid property name {problem}"):
        check_properties({name: "x"})


def test_requests_that_make_no_sense_are_refused() -> None:
    async def step(desk: BrokerHarness) -> None:
        mixed = v2.SendMessageRequest(messages=[v2.Message(body=b"x"), v2.Message(body=b"y")])
        mixed.messages[0].topic.name = "plain"
        for request in (v2.SendMessageRequest(), mixed):
            with pytest.raises(StatusError) as refused:
                await desk.service.send_message(request, CALL)
            assert refused.value.code == v2.MESSAGE_CORRUPTED

    with_harness(step)


def test_a_batch_has_a_result_for_each_message() -> None:
    async def step(desk: BrokerHarness) -> None:
        response = await desk.send("plain", b"a", b"", b"c")
        assert response.status.code == v2.MULTIPLE_RESULTS
        assert [entry.status.code for entry in response.entries] == [v2.OK, v2.MESSAGE_BODY_EMPTY, v2.OK]
        assert [entry.offset for entry in response.entries] == [0, 0, 1]
        assert bodies(await desk.receive("g", "plain")) == [b"a", b"c"]

    with_harness(step)


def test_a_message_that_is_sent_again_gets_its_first_receipt() -> None:
    async def first(desk: BrokerHarness) -> None:
        sent = await desk.send("plain", b"a", message_id="same")
        again = await desk.send("plain", b"a", message_id="same")
        twice = await desk.send("plain", b"x", b"x")
        assert sent.entries[0].offset == again.entries[0].offset == 0
        assert twice.entries[0].offset == twice.entries[1].offset == 1

    async def after_restart(desk: BrokerHarness) -> None:
        again = await desk.send("plain", b"a", message_id="same")
        assert again.entries[0].offset == 0
        assert bodies(await desk.receive("g", "plain")) == [b"a", b"x"]

    with_harness(first, after_restart)


def test_the_ids_of_clients_are_found_among_messages_of_others() -> None:
    clock = VirtualClock()
    with open_store("memory://", clock) as store:
        with store.log(LogSpec("one")).writer() as writer:
            ids = [((), "no headers"), ((("h", b"v"),), "others"), ((("mq:id", b"sent"), ("h", b"v")), "a client's")]
            writer.append([Message(text.encode(), headers=headers) for headers, text in ids])

        async def run() -> None:
            async with open_harness(store, clock, Limits(longest_poll=0)) as desk:
                again = await desk.send("one", b"a client's", message_id="sent")
                assert again.entries[0].offset == 2
                assert desk.core.topic("one").last_id == 3

        asyncio.run(run())


def test_messages_of_a_group_go_to_the_queue_of_its_hash() -> None:
    async def step(desk: BrokerHarness) -> None:
        for number in range(8):
            await desk.send("ordered", b"%d" % number, message_group=f"order-{number}")
        for message in await desk.receive("g", "ordered"):
            system = message.system_properties
            assert system.queue_id == group_queue(system.message_group, 4)

    with_harness(step)


def test_messages_are_those_of_the_log_both_ways() -> None:
    clock = VirtualClock()
    with open_store("memory://", clock) as store:
        with store.log(LogSpec("one")).writer() as writer:
            writer.append(
                [Message(b"by hand", key="k", source="JFK", event_time=5, headers=(("h", b"v"), ("b", b"\xff")))]
            )

        async def run() -> None:
            async with open_harness(store, clock, Limits(longest_poll=0)) as desk:
                await desk.send("one", b"by client", message_id="m", keys=["x"], properties={"p": "q"})
                by_hand, _ = await desk.receive("g", "one")
                system = by_hand.system_properties
                assert (by_hand.body, list(system.keys), system.born_host) == (b"by hand", ["k"], "JFK")
                assert (dict(by_hand.user_properties), system.born_timestamp.nanos) == ({"h": "v"}, 5000)
                assert system.message_id == "LOG0000000000000000001"

        asyncio.run(run())
        last = next(iter(store.log(LogSpec("one")).read(2)))
        (by_client,) = list(last)
        assert (by_client.body, by_client.key, dict(by_client.headers)["p"]) == (b"by client", "x", b"q")


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Until it is set, the ids of a topic's last messages cannot be read; they are never read in the event loop."""
    gate, loop, read = threading.Event(), threading.current_thread(), Log.read

    def slow(log: Log, first_id: int, last_id: int | None = None, columns: Any = None, **more: Any) -> Any:
        if columns == ["headers"]:
            assert threading.current_thread() is not loop, "the event loop stands still"
            assert gate.wait(30)
        return read(log, first_id, last_id, columns, **more)

    monkeypatch.setattr(Log, "read", slow)
    return gate


def test_while_the_ids_of_an_opened_topic_are_read_consumers_receive_and_sends_wait(gate: threading.Event) -> None:
    async def before(desk: BrokerHarness) -> None:
        await desk.send("ordered", b"0", message_group="g")

    async def after_restart(desk: BrokerHarness) -> None:
        again = asyncio.ensure_future(desk.send("ordered", b"0", message_group="g"))
        more = [asyncio.ensure_future(desk.send("ordered", body, message_group="g")) for body in (b"1", b"2", b"3")]
        got = await desk.receive("g", "ordered")
        assert bodies(got) == [b"0"]
        await desk.ack("g", "ordered", *got)
        assert not any(send.done() for send in (again, *more))
        gate.set()
        assert (await again).entries[0].offset == 0
        assert [(await send).entries[0].offset for send in more] == [1, 2, 3]
        assert bodies(await desk.receive("g", "ordered", auto_renew=True)) == [b"1", b"2", b"3"]

    with_harness(before, after_restart)


def test_sends_that_waited_for_an_opened_topic_are_stored_before_later_ones(gate: threading.Event) -> None:
    async def before(desk: BrokerHarness) -> None:
        await desk.send("plain", b"first")

    async def after_restart(desk: BrokerHarness) -> None:
        topic = desk.core.topic("plain")
        sends = []
        for number in range(300):
            sends.append(asyncio.ensure_future(topic.publish_columns([b""], [Message(b"%d" % number)])))
            if number == 100:
                gate.set()
            await asyncio.sleep(0)
        assert [list(await send) for send in sends] == [[number + 2] for number in range(300)]

    with_harness(before, after_restart)


def test_a_send_that_waited_for_a_topic_which_was_changed_meanwhile_is_to_be_repeated(gate: threading.Event) -> None:
    async def before(desk: BrokerHarness) -> None:
        await desk.send("one", b"first")

    async def after_restart(desk: BrokerHarness) -> None:
        many = [Message(b"%d" % number) for number in range(100)]
        waiting = asyncio.ensure_future(desk.core.publish("one", many))
        await asyncio.sleep(0)
        await desk.core.create_topic(TopicSpec("one", "NORMAL", 2))
        gate.set()
        with pytest.raises(StatusError, match="the topic is being changed: send the message again") as refused:
            await waiting
        assert refused.value.code == v2.INTERNAL_SERVER_ERROR
        assert list(await desk.core.publish("one", many)) == list(range(2, 102))

    with_harness(before, after_restart)
