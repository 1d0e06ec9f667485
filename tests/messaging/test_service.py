"""The broker's methods, called without a network on a virtual clock: results, statuses, restarts."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import pytest

from millstream.core.clock import MICROSECONDS, VirtualClock
from millstream.log import LogSpec, LogStore, Message, open_store
from millstream.messaging.broker.checks import Limits
from millstream.messaging.broker.core import Core
from millstream.messaging.broker.endpoints import Place, wire_endpoints
from millstream.messaging.broker.holding import Holding
from millstream.messaging.broker.service import Call, Service
from millstream.messaging.broker.topic import TopicSpec
from millstream.messaging.errors import RefusedError, TopicError, TopicNotFoundError
from millstream.messaging.protocol import v2
from millstream.messaging.protocol.batches import is_offered
from millstream.messaging.protocol.siphash import group_queue

CALL = Call("client-1", "", lambda: None)
TOPICS = (
    TopicSpec("plain", "NORMAL", 4),
    TopicSpec("one", "NORMAL", 1),
    TopicSpec("ordered", "FIFO", 4),
    TopicSpec("later", "DELAY", 1),
    TopicSpec("halves", "TRANSACTION", 1),
)


class Desk:
    """A broker without a network: what a client would say to it, in one line each."""

    def __init__(self, store: LogStore, clock: VirtualClock, limits: Limits) -> None:
        self.clock = clock
        self.core = Core(store, clock, limits)
        self.holding = Holding(self.core)
        self.service = Service(self.core, self.holding, wire_endpoints(Place("127.0.0.1", 8081)))

    async def send(self, topic: str, *bodies: bytes, **system: Any) -> v2.SendMessageResponse:
        request = v2.SendMessageRequest()
        for body in bodies:
            message = request.messages.add(body=body)
            message.topic.name = topic
            message.system_properties.message_id = system.get("message_id") or hashlib.sha256(body).hexdigest()
            fill(message, **system)
        return await self.service.send_message(request, CALL)

    async def receive(self, group: str, topic: str, count: int = 32, **more: Any) -> list[v2.Message]:
        request = v2.ReceiveMessageRequest(batch_size=count, auto_renew=more.get("auto_renew", False))
        request.group.name, request.message_queue.topic.name = group, topic
        request.invisible_duration.seconds = more.get("invisible", 30)
        request.long_polling_timeout.seconds = more.get("poll", 0)
        if "attempt_id" in more:
            request.attempt_id = more["attempt_id"]
        if "filter" in more:
            request.filter_expression.type, request.filter_expression.expression = more["filter"]
        frames = [frame async for frame in self.service.receive_message(request, more.get("call", CALL))]
        assert frames[0].HasField("status")
        assert frames[0].status.code in (v2.OK, v2.MESSAGE_NOT_FOUND)
        return [frame.message for frame in frames if frame.HasField("message")]

    async def ack(self, group: str, topic: str, *messages: v2.Message) -> v2.AckMessageResponse:
        request = v2.AckMessageRequest()
        request.group.name, request.topic.name = group, topic
        for message in messages:
            handle = message.system_properties.receipt_handle
            request.entries.add(message_id=message.system_properties.message_id, receipt_handle=handle)
        return await self.service.ack_message(request, CALL)

    async def hide(self, group: str, topic: str, message: v2.Message, seconds: int) -> str:
        request = v2.ChangeInvisibleDurationRequest(receipt_handle=message.system_properties.receipt_handle)
        request.group.name, request.topic.name = group, topic
        request.invisible_duration.seconds = seconds
        return (await self.service.change_invisible_duration(request, CALL)).receipt_handle

    async def end(self, transaction_id: str, message_id: str, resolution: int) -> None:
        kind: Any = resolution
        request = v2.EndTransactionRequest(transaction_id=transaction_id, message_id=message_id, resolution=kind)
        request.topic.name = "halves"
        await self.service.end_transaction(request, CALL)

    async def pull(self, topic: str, queue: int, offset: int) -> tuple[list[bytes], int]:
        request = v2.PullMessageRequest(offset=offset, batch_size=100)
        request.message_queue.topic.name, request.message_queue.id = topic, queue
        frames = [frame async for frame in self.service.pull_message(request, CALL)]
        return [frame.message.body for frame in frames if frame.HasField("message")], frames[-1].next_offset


def fill(message: v2.Message, **system: Any) -> None:
    properties = message.system_properties
    for name in ("tag", "message_group", "message_type"):
        if name in system:
            setattr(properties, name, system[name])
    properties.keys.extend(system.get("keys", ()))
    if "deliver_at" in system:
        properties.delivery_timestamp.FromMicroseconds(system["deliver_at"])
    for name, value in system.get("properties", {}).items():
        message.user_properties[name] = value


Test = Callable[[Desk], Awaitable[None]]


@contextlib.asynccontextmanager
async def open_desk(store: LogStore, clock: VirtualClock, limits: Limits) -> AsyncIterator[Desk]:
    desk = Desk(store, clock, limits)
    work = asyncio.ensure_future(desk.holding.run())
    try:
        for spec in TOPICS:
            await desk.core.make_topic(spec)
        yield desk
    finally:
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work
        desk.core.close()


def on_desk(*steps: Callable[[Desk], Coroutine[Any, Any, None]], limits: Limits | None = None) -> None:
    """Run *steps* one after the other, each on a broker started anew on the same store."""
    limits = limits or Limits(longest_poll=0)
    clock = VirtualClock()
    with open_store("memory://", clock) as store:

        async def one(step: Callable[[Desk], Coroutine[Any, Any, None]]) -> None:
            async with open_desk(store, clock, limits) as desk:
                await step(desk)

        for step in steps:
            asyncio.run(one(step))


async def settle(condition: Callable[[], bool]) -> None:
    """Let the broker's tasks and threads run until *condition* holds."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


def bodies(messages: list[v2.Message]) -> list[bytes]:
    return [message.body for message in messages]


def test_a_route_names_every_queue_and_the_way_that_the_client_came() -> None:
    async def step(desk: Desk) -> None:
        request = v2.QueryRouteRequest(endpoints=wire_endpoints(Place("broker.example", 1234)))
        request.topic.name = "ordered"
        response = await desk.service.query_route(request, CALL)
        assert response.status.code == v2.OK
        assert [queue.id for queue in response.message_queues] == [0, 1, 2, 3]
        first = response.message_queues[0]
        assert (first.permission, first.broker.id, list(first.accept_message_types)) == (v2.READ_WRITE, 0, [v2.FIFO])
        assert first.broker.endpoints == request.endpoints
        request.ClearField("endpoints")
        again = await desk.service.query_route(request, CALL)
        assert again.message_queues[0].broker.endpoints.addresses[0].port == 8081

    on_desk(step)


@pytest.mark.parametrize(("topic", "code"), [("absent", v2.TOPIC_NOT_FOUND), ("a b", v2.ILLEGAL_TOPIC)])
def test_a_route_to_nowhere_is_refused(topic: str, code: int) -> None:
    async def step(desk: Desk) -> None:
        request = v2.QueryRouteRequest()
        request.topic.name = topic
        with pytest.raises(RefusedError) as refused:
            await desk.service.query_route(request, CALL)
        assert refused.value.code == code

    on_desk(step)


def test_a_plain_group_is_assigned_any_queue_and_one_with_order_all() -> None:
    async def step(desk: Desk) -> None:
        for topic, expected in (("plain", [-1]), ("ordered", [0, 1, 2, 3])):
            request = v2.QueryAssignmentRequest()
            request.topic.name, request.group.name = topic, "g"
            response = await desk.service.query_assignment(request, CALL)
            assert [each.message_queue.id for each in response.assignments] == expected

    on_desk(step)


REFUSED: list[tuple[str, bytes, dict[str, Any], int]] = [
    ("plain", b"", {}, v2.MESSAGE_BODY_EMPTY),
    ("plain", b"x" * (4 * 2**20 + 1), {}, v2.MESSAGE_BODY_TOO_LARGE),
    ("plain", b"x", {"message_id": " "}, v2.ILLEGAL_MESSAGE_ID),
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
    ("plain", b"x", {"message_group": "g"}, v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    ("plain", b"x", {"message_type": v2.TRANSACTION}, v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    ("plain", b"x", {"message_type": v2.LITE}, v2.UNSUPPORTED),
    ("ordered", b"x", {}, v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    ("ordered", b"x", {"message_type": v2.FIFO}, v2.ILLEGAL_MESSAGE_GROUP),
    ("ordered", b"x", {"message_group": "g" * 64}, v2.ILLEGAL_MESSAGE_GROUP),
    ("later", b"x", {"message_type": v2.DELAY}, v2.ILLEGAL_DELIVERY_TIME),
    ("later", b"x", {"deliver_at": 4_000_000_000 * MICROSECONDS}, v2.ILLEGAL_DELIVERY_TIME),
]


def test_every_message_that_cannot_be_is_refused_with_its_status() -> None:
    async def step(desk: Desk) -> None:
        for topic, body, system, code in REFUSED:
            response = await desk.send(topic, body, **system)
            assert response.status.code == code, (topic, system, response.status)
            assert response.entries[0].status.code == code
        assert desk.core.topic("plain").last_id == desk.core.topic("ordered").last_id == 0

    on_desk(step)


def test_requests_that_make_no_sense_are_refused() -> None:
    async def step(desk: Desk) -> None:
        mixed = v2.SendMessageRequest(messages=[v2.Message(body=b"x"), v2.Message(body=b"y")])
        mixed.messages[0].topic.name = "plain"
        for request in (v2.SendMessageRequest(), mixed):
            with pytest.raises(RefusedError) as refused:
                await desk.service.send_message(request, CALL)
            assert refused.value.code == v2.MESSAGE_CORRUPTED

    on_desk(step)


def test_a_batch_has_a_result_for_each_message() -> None:
    async def step(desk: Desk) -> None:
        response = await desk.send("plain", b"a", b"", b"c")
        assert response.status.code == v2.MULTIPLE_RESULTS
        assert [entry.status.code for entry in response.entries] == [v2.OK, v2.MESSAGE_BODY_EMPTY, v2.OK]
        assert [entry.offset for entry in response.entries] == [0, 0, 1]
        assert bodies(await desk.receive("g", "plain")) == [b"a", b"c"]

    on_desk(step)


def test_a_message_that_is_sent_again_gets_its_first_receipt() -> None:
    async def first(desk: Desk) -> None:
        sent = await desk.send("plain", b"a", message_id="same")
        again = await desk.send("plain", b"a", message_id="same")
        twice = await desk.send("plain", b"x", b"x")
        assert sent.entries[0].offset == again.entries[0].offset == 0
        assert twice.entries[0].offset == twice.entries[1].offset == 1

    async def after_restart(desk: Desk) -> None:
        again = await desk.send("plain", b"a", message_id="same")
        assert again.entries[0].offset == 0
        assert bodies(await desk.receive("g", "plain")) == [b"a", b"x"]

    on_desk(first, after_restart)


def test_the_ids_of_clients_are_found_among_messages_of_others() -> None:
    clock = VirtualClock()
    with open_store("memory://", clock) as store:
        with store.log(LogSpec("one")).writer() as writer:
            ids = [((), "no headers"), ((("h", b"v"),), "others"), ((("mq:id", b"sent"), ("h", b"v")), "a client's")]
            writer.append([Message(text.encode(), headers=headers) for headers, text in ids])

        async def run() -> None:
            async with open_desk(store, clock, Limits(longest_poll=0)) as desk:
                again = await desk.send("one", b"a client's", message_id="sent")
                assert again.entries[0].offset == 2
                assert desk.core.topic("one").last_id == 3

        asyncio.run(run())


def test_groups_pass_over_what_was_trimmed() -> None:
    clock = VirtualClock()
    with open_store("memory://", clock) as store:

        async def run() -> None:
            async with open_desk(store, clock, Limits(longest_poll=0)) as desk:
                for topic, system in (("plain", {}), ("ordered", {"message_group": "g"})):
                    await desk.send(topic, b"1", b"2", b"3", b"4", **system)
                    assert bodies(await desk.receive("early", topic, 1)) == [b"1"]
                    store.log(LogSpec(topic)).trim(3)
                    desk.clock.advance(31)
                    desk.core.topic(topic).pages._batches.clear()
                    for group in ("early", "late"):
                        got = await desk.receive(group, topic, auto_renew=True)
                        assert bodies(got) == [b"3", b"4"]
                        await desk.ack(group, topic, *got)
                        assert await desk.receive(group, topic) == []
                        assert desk.core.delivery(group, topic).done.pointer == 4
                assert await desk.pull("plain", -1, 0) == ([b"3", b"4"], 4)

        asyncio.run(run())


def test_what_is_received_is_what_was_sent() -> None:
    async def step(desk: Desk) -> None:
        await desk.send("one", b"body", message_id="the-id", tag="t", keys=["k", "l"], properties={"a": "b"})
        (got,) = await desk.receive("g", "one")
        system = got.system_properties
        assert (got.body, dict(got.user_properties), system.tag, list(system.keys)) == (
            b"body", {"a": "b"}, "t", ["k", "l"],
        )  # fmt: skip
        assert (system.message_id, system.message_type, system.body_encoding) == ("the-id", v2.NORMAL, v2.IDENTITY)
        assert system.body_digest.checksum == "841A2D689AD86BD1611447453C22C6FC"
        assert (system.delivery_attempt, system.invisible_duration.seconds, system.queue_offset) == (1, 30, 0)
        assert system.store_timestamp.ToMicroseconds() == desk.clock.now()

    on_desk(step)


def test_messages_of_a_group_go_to_the_queue_of_its_hash() -> None:
    async def step(desk: Desk) -> None:
        for number in range(8):
            await desk.send("ordered", b"%d" % number, message_group=f"order-{number}")
        for message in await desk.receive("g", "ordered"):
            system = message.system_properties
            assert system.queue_id == group_queue(system.message_group, 4)

    on_desk(step)


def test_p4_of_a_message_group_only_the_first_message_is_given() -> None:
    async def step(desk: Desk) -> None:
        for body in (b"1", b"2", b"3"):
            await desk.send("ordered", body, message_group="g1")
        await desk.send("ordered", b"other", message_group="g2")
        first = await desk.receive("g", "ordered")
        assert bodies(first) == [b"1", b"other"]
        assert await desk.receive("g", "ordered") == []
        await desk.ack("g", "ordered", first[0])
        second = await desk.receive("g", "ordered")
        assert bodies(second) == [b"2"]
        desk.clock.advance(31)
        assert bodies(await desk.receive("g", "ordered")) == [b"2", b"other"]

    on_desk(step)


def test_p4_a_push_consumer_is_given_runs_and_an_attempt_can_be_repeated() -> None:
    async def step(desk: Desk) -> None:
        for body in (b"1", b"2", b"3"):
            await desk.send("ordered", body, message_group="g1")
        lost = await desk.receive("g", "ordered", 2, auto_renew=True, attempt_id="x")
        assert bodies(lost) == [b"1", b"2"]
        assert await desk.receive("g", "ordered", auto_renew=True, attempt_id="y") == []
        again = await desk.receive("g", "ordered", 2, auto_renew=True, attempt_id="x")
        assert bodies(again) == [b"1", b"2"]
        stale = await desk.ack("g", "ordered", lost[0])
        assert stale.status.code == v2.INVALID_RECEIPT_HANDLE
        assert (await desk.ack("g", "ordered", *again)).status.code == v2.OK

    on_desk(step)


def test_a_message_comes_back_after_its_time_until_it_is_dead() -> None:
    async def step(desk: Desk) -> None:
        await desk.send("plain", b"poison", message_id="p")
        for attempt in (1, 2, 3):
            (got,) = await desk.receive("g", "plain")
            assert got.system_properties.delivery_attempt == attempt
            assert await desk.receive("g", "plain") == []
            desk.clock.advance(31)
        assert await desk.receive("g", "plain") == []
        (dead,) = await desk.receive("undertaker", "%DLQ%g")
        origin = dead.system_properties.dead_letter_queue
        assert (dead.body, origin.topic, origin.message_id) == (b"poison", "plain", "p")
        assert bodies(await desk.receive("another", "plain")) == [b"poison"]

    on_desk(step, limits=Limits(longest_poll=0, max_attempts=3))


def test_handles_are_valid_once_and_only_in_time() -> None:
    async def step(desk: Desk) -> None:
        await desk.send("plain", b"a")
        await desk.send("plain", b"b")
        one, two = await desk.receive("g", "plain")
        mixed = await desk.ack("g", "plain", one, one)
        assert mixed.status.code == v2.OK  # one call, one message: it is done
        assert (await desk.ack("g", "plain", one)).status.code == v2.INVALID_RECEIPT_HANDLE
        desk.clock.advance(30)
        assert (await desk.ack("g", "plain", two)).status.code == v2.INVALID_RECEIPT_HANDLE
        (two,) = await desk.receive("g", "plain")
        results = await desk.ack("g", "plain", one, two)
        assert results.status.code == v2.MULTIPLE_RESULTS
        assert [entry.status.code for entry in results.entries] == [v2.INVALID_RECEIPT_HANDLE, v2.OK]
        two.system_properties.receipt_handle = "nonsense"
        assert (await desk.ack("g", "plain", two)).status.code == v2.INVALID_RECEIPT_HANDLE
        assert (await desk.ack("g", "plain")).status.code == v2.BAD_REQUEST

    on_desk(step)


def test_a_changed_duration_gives_a_new_handle() -> None:
    async def step(desk: Desk) -> None:
        await desk.send("plain", b"a")
        (got,) = await desk.receive("g", "plain")
        handle = await desk.hide("g", "plain", got, 100)
        with pytest.raises(RefusedError) as refused:
            await desk.hide("g", "plain", got, 100)
        assert refused.value.code == v2.INVALID_RECEIPT_HANDLE
        desk.clock.advance(99)
        assert await desk.receive("g", "plain") == []
        got.system_properties.receipt_handle = handle
        handle = await desk.hide("g", "plain", got, 0)
        (again,) = await desk.receive("g", "plain")
        assert again.system_properties.delivery_attempt == 2

    on_desk(step)


@pytest.mark.parametrize(
    ("seconds", "renew", "fine"), [(9, False, False), (10, False, True), (43_201, False, False), (0, True, True)]
)
def test_invisible_durations_have_bounds(seconds: int, renew: bool, fine: bool) -> None:
    async def step(desk: Desk) -> None:
        receive = desk.receive("g", "plain", invisible=seconds, auto_renew=renew)
        if fine:
            assert await receive == []
            return
        with pytest.raises(RefusedError) as refused:
            await receive
        assert refused.value.code == v2.ILLEGAL_INVISIBLE_TIME

    on_desk(step)


def test_what_a_living_client_has_is_renewed_and_a_dead_ones_comes_back() -> None:
    async def step(desk: Desk) -> None:
        await desk.send("plain", b"a")
        (got,) = await desk.receive("g", "plain", auto_renew=True)
        for _ in range(5):
            desk.clock.advance(50)
            desk.core.sessions.see("client-1", desk.clock.now())
            assert await desk.receive("g", "plain", auto_renew=True) == []
        await desk.service.notify_client_termination(v2.NotifyClientTerminationRequest(), CALL)
        desk.clock.advance(1)
        assert bodies(await desk.receive("g", "plain", auto_renew=True)) == [b"a"]
        assert (await desk.ack("g", "plain", got)).status.code == v2.INVALID_RECEIPT_HANDLE

    on_desk(step)


def test_filters_select_by_tag_and_condition_and_the_rest_is_done() -> None:
    async def step(desk: Desk) -> None:
        for number, tag in enumerate("abca"):
            await desk.send("plain", b"%d" % number, tag=tag, properties={"n": str(number)})
        assert bodies(await desk.receive("by-tag", "plain", filter=(v2.TAG, "a || c"))) == [b"0", b"2", b"3"]
        assert bodies(await desk.receive("by-sql", "plain", filter=(v2.SQL, "n > 0 AND TAGS = 'a'"))) == [b"3"]
        assert bodies(await desk.receive("all", "plain", filter=(v2.TAG, "*"))) == [b"0", b"1", b"2", b"3"]
        assert desk.core.delivery("by-tag", "plain").done.ahead[0].first == 2
        with pytest.raises(RefusedError) as refused:
            await desk.receive("g", "plain", filter=(v2.TAG, "a || "))
        assert refused.value.code == v2.ILLEGAL_FILTER_EXPRESSION

    on_desk(step)


def test_a_delayed_message_comes_at_its_time_also_after_a_restart() -> None:
    async def send(desk: Desk) -> None:
        due = desk.clock.now() + 60 * MICROSECONDS
        await desk.send("later", b"soon", deliver_at=due)
        await desk.send("later", b"past", deliver_at=due - 3600 * MICROSECONDS)
        await settle(lambda: desk.core.topic("later").last_id == 1)
        past = await desk.receive("g", "later")
        assert bodies(past) == [b"past"]
        await desk.ack("g", "later", *past)

    async def wait(desk: Desk) -> None:
        desk.clock.advance(61)
        await desk.send("later", b"wakes the broker", deliver_at=desk.clock.now() + 60 * MICROSECONDS)
        await settle(lambda: desk.core.topic("later").last_id == 2)
        (got,) = await desk.receive("g", "later")
        assert (got.body, got.system_properties.message_type) == (b"soon", v2.DELAY)
        assert got.system_properties.HasField("delivery_timestamp")

    on_desk(send, wait)


def test_a_recalled_message_never_comes_and_can_be_recalled_once() -> None:
    async def step(desk: Desk) -> None:
        sent = await desk.send("later", b"x", message_id="m", deliver_at=desk.clock.now() + 60 * MICROSECONDS)
        request = v2.RecallMessageRequest(recall_handle=sent.entries[0].recall_handle)
        request.topic.name = "later"
        assert (await desk.service.recall_message(request, CALL)).message_id == "m"
        for handle, code in ((request.recall_handle, v2.NOT_FOUND), ("?", v2.BAD_REQUEST)):
            request.recall_handle = handle
            with pytest.raises(RefusedError) as refused:
                await desk.service.recall_message(request, CALL)
            assert refused.value.code == code

    async def after_restart(desk: Desk) -> None:
        assert len(desk.core.journal.state.holds) == 0

    on_desk(step, after_restart)


def test_transactions_end_once_and_survive_restarts() -> None:
    ids: list[str] = []

    async def send(desk: Desk) -> None:
        for name in ("commit", "rollback", "open"):
            sent = await desk.send("halves", name.encode(), message_id=name, message_type=v2.TRANSACTION)
            ids.append(sent.entries[0].transaction_id)
        assert await desk.receive("g", "halves") == []

    async def end(desk: Desk) -> None:
        for _ in range(2):  # a call that is repeated because its answer was lost
            await desk.end(ids[0], "commit", v2.COMMIT)
            await desk.end(ids[1], "rollback", v2.ROLLBACK)
        wrong = (ids[0], "commit", v2.ROLLBACK), (ids[2], "other", v2.COMMIT), ("?", "x", v2.COMMIT)
        for transaction_id, message_id, resolution in wrong:
            with pytest.raises(RefusedError) as refused:
                await desk.end(transaction_id, message_id, resolution)
            assert refused.value.code == v2.INVALID_TRANSACTION_ID
        (got,) = await desk.receive("g", "halves")
        assert (got.body, got.system_properties.message_type) == (b"commit", v2.TRANSACTION)

    async def later(desk: Desk) -> None:
        assert [hold.message_id for hold in desk.core.journal.state.holds] == ["open"]
        await desk.end(ids[2], "open", v2.COMMIT)
        assert bodies(await desk.receive("another", "halves")) == [b"commit", b"open"]

    on_desk(send, end, later)


def test_an_orphan_is_asked_about_and_rolled_back_in_the_end() -> None:
    async def step(desk: Desk) -> None:
        session = desk.core.sessions.see("producer", desk.clock.now())
        settings = v2.Settings(client_type=v2.PRODUCER)
        settings.publishing.topics.add(name="halves")
        assert desk.service.telemetry.settle(session, settings).status.code == v2.OK
        session.streams.append(asyncio.Queue())
        await desk.send("halves", b"x", message_id="orphan", message_type=v2.TRANSACTION)
        for _ in range(3):
            desk.clock.advance(31)
            await desk.send("halves", b"wakes the broker", message_type=v2.TRANSACTION)
            command = await asyncio.wait_for(session.streams[0].get(), 5)
            asked = command.recover_orphaned_transaction_command
            assert asked.message.system_properties.message_id in (
                "orphan",
                hashlib.sha256(b"wakes the broker").hexdigest(),
            )
            assert asked.transaction_id
        desk.clock.advance(3600)
        await desk.send("halves", b"wakes it again", message_type=v2.TRANSACTION)
        await settle(lambda: all(hold.message_id != "orphan" for hold in desk.core.journal.state.holds))
        assert await desk.receive("g", "halves") == []

    on_desk(step, limits=Limits(longest_poll=0, most_checks=3))


def test_consumers_that_pull_keep_their_own_place() -> None:
    place = v2.MessageQueue()
    place.topic.name, place.id = "plain", 1
    group = v2.Resource(name="puller")

    async def step(desk: Desk) -> None:
        await desk.send("plain", *(b"%d" % number for number in range(8)))
        assert await desk.pull("plain", 1, 0) == ([b"1", b"5"], 8)
        assert await desk.pull("plain", -1, 6) == ([b"6", b"7"], 8)
        with pytest.raises(RefusedError) as refused:
            await desk.pull("plain", 1, 9)
        assert refused.value.code == v2.ILLEGAL_OFFSET
        with pytest.raises(RefusedError) as refused:
            await desk.service.get_offset(v2.GetOffsetRequest(group=group, message_queue=place), CALL)
        assert refused.value.code == v2.OFFSET_NOT_FOUND
        await desk.service.update_offset(v2.UpdateOffsetRequest(group=group, message_queue=place, offset=6), CALL)
        stored = desk.clock.now()
        desk.clock.advance(10)
        await desk.send("plain", b"8")
        for policy, time, expected in (
            (v2.BEGINNING, 0, 0), (v2.END, 0, 9), (v2.TIMESTAMP, stored + 1, 8), (v2.TIMESTAMP, stored, 0),
        ):  # fmt: skip
            request = v2.QueryOffsetRequest(message_queue=place, query_offset_policy=policy)
            request.timestamp.FromMicroseconds(time)
            assert (await desk.service.query_offset(request, CALL)).offset == expected

    async def after_restart(desk: Desk) -> None:
        response = await desk.service.get_offset(v2.GetOffsetRequest(group=group, message_queue=place), CALL)
        assert response.offset == 6

    on_desk(step, after_restart)


def test_p3_what_is_done_stays_done_and_attempts_are_counted_across_restarts() -> None:
    async def first(desk: Desk) -> None:
        await desk.send("plain", b"a", b"b", b"c")
        got = await desk.receive("g", "plain", 2)
        await desk.ack("g", "plain", got[0])

    async def second(desk: Desk) -> None:
        assert bodies(await desk.receive("g", "plain")) == [b"c"]
        desk.clock.advance(31)
        assert [(m.body, m.system_properties.delivery_attempt) for m in await desk.receive("g", "plain")] == [
            (b"b", 2), (b"c", 2),
        ]  # fmt: skip

    on_desk(first, second)


def test_a_handle_outlives_a_restart() -> None:
    held: list[v2.Message] = []

    async def first(desk: Desk) -> None:
        await desk.send("plain", b"a")
        held.extend(await desk.receive("g", "plain"))

    async def second(desk: Desk) -> None:
        assert (await desk.ack("g", "plain", *held)).status.code == v2.OK
        desk.clock.advance(3600)
        assert await desk.receive("g", "plain") == []

    on_desk(first, second)


def test_snapshots_keep_all_that_the_journal_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.messaging.broker.journal.SNAPSHOT_AFTER", 20)

    async def first(desk: Desk) -> None:
        await desk.send("later", b"x", message_id="held", deliver_at=desk.clock.now() + 3600 * MICROSECONDS)
        for number in range(30):
            await desk.send("plain", b"%d" % number)
            got = await desk.receive("g", "plain")
            if number % 3:
                await desk.ack("g", "plain", *got)
        await desk.send("ordered", b"o1", message_group="g")
        await desk.send("ordered", b"o2", message_group="g")
        await desk.receive("g", "ordered")

    async def second(desk: Desk) -> None:
        assert desk.core.journal._log.pointer("snapshot") > 0
        assert [hold.message_id for hold in desk.core.journal.state.holds] == ["held"]
        assert len(desk.core.delivery("g", "plain").flights) == 10
        assert await desk.receive("g", "ordered") == []
        desk.clock.advance(31)
        assert len(await desk.receive("g", "plain")) == 10
        assert bodies(await desk.receive("g", "ordered")) == [b"o1"]

    on_desk(first, second)


def test_namespaces_keep_topics_and_groups_apart() -> None:
    async def step(desk: Desk) -> None:
        await desk.core.make_topic(TopicSpec("space%plain", "NORMAL", 1))
        request = v2.SendMessageRequest(messages=[v2.Message(body=b"x")])
        request.messages[0].topic.name = "plain"
        request.messages[0].topic.resource_namespace = "space"
        request.messages[0].system_properties.message_id = "m"
        assert (await desk.service.send_message(request, CALL)).status.code == v2.OK
        assert await desk.receive("g", "plain") == []
        (got,) = await desk.receive("g", "plain", call=Call("client-2", "space", lambda: None))
        assert (got.topic.name, got.topic.resource_namespace) == ("plain", "")

    on_desk(step)


def test_messages_are_those_of_the_log_both_ways() -> None:
    clock = VirtualClock()
    with open_store("memory://", clock) as store:
        with store.log(LogSpec("one")).writer() as writer:
            writer.append(
                [Message(b"by hand", key="k", source="JFK", event_time=5, headers=(("h", b"v"), ("b", b"\xff")))]
            )

        async def run() -> None:
            async with open_desk(store, clock, Limits(longest_poll=0)) as desk:
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


def test_a_topic_is_made_once_and_dropped_with_its_groups() -> None:
    async def step(desk: Desk) -> None:
        await desk.core.make_topic(TopicSpec("plain", "NORMAL", 8))
        with pytest.raises(TopicError):
            await desk.core.make_topic(TopicSpec("plain", "FIFO", 8))
        with pytest.raises(TopicError):
            await desk.core.make_topic(TopicSpec("plain", "NORMAL", 4))
        await desk.send("plain", b"x")
        await desk.receive("g", "plain")
        await desk.core.drop_topic("plain")
        with pytest.raises(TopicNotFoundError):
            await desk.core.drop_topic("plain")
        assert (await desk.send("one", b"x")).status.code == v2.OK
        with pytest.raises(RefusedError):
            await desk.send("plain", b"y")

    async def again(desk: Desk) -> None:
        assert bodies(await desk.receive("g", "plain")) == [b"x"]  # made anew by the desk: its log was kept

    on_desk(step, again)


@pytest.mark.parametrize("spec", [("-a", "NORMAL", 1), ("a", "LITE", 1), ("a", "NORMAL", 0), ("a" * 128, "FIFO", 1)])
def test_topics_that_cannot_be_are_refused(spec: tuple[str, str, int]) -> None:
    with pytest.raises(TopicError):
        TopicSpec(*spec)


def test_settings_come_back_with_what_the_client_is_to_keep_to() -> None:
    async def step(desk: Desk) -> None:
        session = desk.core.sessions.see("c", desk.clock.now())
        wanted = v2.Settings(client_type=v2.PUSH_CONSUMER)
        wanted.subscription.group.name = "g"
        wanted.subscription.subscriptions.add().topic.name = "ordered"
        answer = desk.service.telemetry.settle(session, wanted)
        assert answer.status.code == v2.OK
        subscription = answer.settings.subscription
        assert (subscription.fifo, subscription.receive_batch_size) == (True, 32)
        assert answer.settings.backoff_policy.max_attempts == 17
        assert len(answer.settings.backoff_policy.customized_backoff.next) == 18
        produced = v2.Settings(client_type=v2.PRODUCER)
        produced.publishing.topics.add(name="plain")
        answer = desk.service.telemetry.settle(session, produced)
        assert answer.settings.publishing.max_body_size == 4 << 20
        assert answer.settings.backoff_policy.exponential_backoff.multiplier == 2
        nothing = desk.service.telemetry.settle(session, v2.Settings())
        assert nothing.status.code == v2.UNRECOGNIZED_CLIENT_TYPE

    on_desk(step)


def test_batched_receives_are_offered_to_our_clients_alone() -> None:
    async def step(desk: Desk) -> None:
        session = desk.core.sessions.see("c", desk.clock.now())
        for platform, offered in (("Linux", False), ("millstream Linux", True)):
            settings = v2.Settings(client_type=v2.SIMPLE_CONSUMER)
            settings.user_agent.platform = platform
            settings.subscription.group.name = "g"
            answer = desk.service.telemetry.settle(session, settings).settings
            assert is_offered(answer) is offered
            assert offered or answer.user_agent.platform == platform

    on_desk(step)


def test_a_receive_is_bounded_by_bytes_as_well() -> None:
    async def step(desk: Desk) -> None:
        big = [bytes([number]) * (3 << 20) for number in range(5)]
        for topic, system in (("plain", {}), ("ordered", {"message_group": "g"})):
            for body in big:
                await desk.send(topic, body, **system)
            got = []
            while more := await desk.receive("g", topic, auto_renew=True):
                assert len(more) == (3 if len(got) == 0 and topic == "plain" else len(more))
                got += bodies(more)
                await desk.ack("g", topic, *more)
            assert got == big

    on_desk(step)


def test_a_heartbeat_needs_a_client_that_says_what_it_is() -> None:
    async def step(desk: Desk) -> None:
        with pytest.raises(RefusedError) as refused:
            await desk.service.heartbeat(v2.HeartbeatRequest(), CALL)
        assert refused.value.code == v2.UNRECOGNIZED_CLIENT_TYPE
        request = v2.HeartbeatRequest(client_type=v2.PUSH_CONSUMER)
        request.group.name = "g"
        assert (await desk.service.heartbeat(request, CALL)).status.code == v2.OK
        assert [each.client_id for each in desk.core.sessions.in_group("g")] == ["client-1"]
        request.group.name = "a b"
        with pytest.raises(RefusedError) as refused:
            await desk.service.heartbeat(request, CALL)
        assert refused.value.code == v2.ILLEGAL_CONSUMER_GROUP

    on_desk(step)


def test_who_waits_is_woken_by_what_arrives() -> None:
    async def step(desk: Desk) -> None:
        waiting = asyncio.ensure_future(desk.receive("g", "plain", poll=15))
        await asyncio.sleep(0)
        await desk.send("plain", b"news")
        assert bodies(await asyncio.wait_for(waiting, 5)) == [b"news"]

    on_desk(step, limits=Limits())


def test_who_stops_waiting_leaves_the_messages_to_others() -> None:
    async def step(desk: Desk) -> None:
        waiting = asyncio.ensure_future(desk.receive("g", "plain", poll=15))
        await asyncio.sleep(0)
        waiting.cancel()
        await desk.send("plain", b"news")
        assert bodies(await desk.receive("g", "plain")) == [b"news"]

    on_desk(step, limits=Limits())
