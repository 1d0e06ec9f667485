"""How messages are given to consumers: order, attempts, handles, filters, and waiting."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
import pytest
from pyarrow import RecordBatch

from millstream.batching.message_events import make_tick
from millstream.core.clock import VirtualClock
from millstream.log import LogSpec, StorageFullError, open_store
from millstream.messaging.broker.admin import AdminService
from millstream.messaging.broker.handlers import pull, receive
from millstream.messaging.broker.limits import GroupSpec, Limits
from millstream.messaging.broker.storage.topic import TopicSpec
from millstream.messaging.errors import StatusError
from millstream.messaging.protocol import v2
from millstream.messaging.protocol.batch_calls import AckBatchRequest, text_column
from support.broker_harness import CALL, BrokerHarness, bodies, open_harness, settle, with_harness


def test_what_is_received_is_what_was_sent() -> None:
    async def step(desk: BrokerHarness) -> None:
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

    with_harness(step)


def test_groups_pass_over_what_was_trimmed() -> None:
    clock = VirtualClock()
    with open_store("memory://", clock) as store:

        async def run() -> None:
            async with open_harness(store, clock, Limits(longest_poll=0)) as desk:
                for topic, system in (("plain", {}), ("ordered", {"message_group": "g"})):
                    await desk.send(topic, b"1", b"2", b"3", b"4", **system)
                    assert bodies(await desk.receive("early", topic, 1)) == [b"1"]
                    store.log(LogSpec(topic)).trim(3)
                    desk.clock.advance(31)
                    desk.core.topic(topic).message_cache._batches.clear()
                    for group in ("early", "late"):
                        got = await desk.receive(group, topic, auto_renew=True)
                        assert bodies(got) == [b"3", b"4"]
                        await desk.ack(group, topic, *got)
                        assert await desk.receive(group, topic) == []
                        assert desk.core.delivery(group, topic).done.pointer == 4
                assert await desk.pull("plain", -1, 0) == ([b"3", b"4"], 4)

        asyncio.run(run())


def hold_reads(desk: BrokerHarness, topic: str, monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """Let reads of *topic* wait: the first event is set when one has begun, the second one lets it go on."""
    cache, begun, go = desk.core.topic(topic).message_cache, asyncio.Event(), asyncio.Event()
    read_columns = cache.read_columns

    async def held(first_id: int, last_id: int) -> RecordBatch | None:
        begun.set()
        await go.wait()
        return await read_columns(first_id, last_id)

    monkeypatch.setattr(cache, "read_columns", held)
    return begun, go


@pytest.mark.parametrize(("topic", "group"), [("plain", {}), ("ordered", {"message_group": "g"})])
def test_p4_a_reset_during_a_receive_skips_nothing(
    topic: str, group: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def step(desk: BrokerHarness) -> None:
        await desk.send(topic, b"1", b"2", b"3", **group)
        await desk.ack("g", topic, *await desk.receive("g", topic, auto_renew=True))
        await desk.send(topic, b"4", **group)
        begun, go = hold_reads(desk, topic, monkeypatch)
        receiving = asyncio.ensure_future(desk.receive("g", topic))
        await begun.wait()
        resetting = asyncio.ensure_future(desk.core.reset_offset("g", topic, 1))
        await asyncio.sleep(0)
        go.set()
        await resetting
        await desk.ack("g", topic, *await receiving)
        assert bodies(await desk.receive("g", topic, auto_renew=True)) == [b"1", b"2", b"3", b"4"]

    with_harness(step)


def test_a_receive_whose_topic_is_deleted_meanwhile_gives_nothing_and_leaves_no_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def step(desk: BrokerHarness) -> None:
        await desk.send("plain", b"1")
        begun, go = hold_reads(desk, "plain", monkeypatch)
        receiving = asyncio.ensure_future(desk.receive("g", "plain"))
        await begun.wait()
        await desk.core.drop_topic("plain")
        go.set()
        with contextlib.suppress(StatusError):
            assert await receiving == []
        assert ("g", "plain") not in desk.core.journal.state.deliveries

    with_harness(step)


@pytest.mark.parametrize("topic", ["plain", "ordered"])
def test_ticks_of_the_batcher_are_given_to_nobody(topic: str) -> None:
    async def step(desk: BrokerHarness) -> None:
        system = {"message_group": "g"} if topic == "ordered" else {}
        for body in (b"1", b"2"):
            await desk.send(topic, body, **system)
            desk.core.topic(topic).writer.append([make_tick()])
        got = await desk.receive("g", topic, auto_renew=True)
        assert bodies(got) == [b"1", b"2"]
        await desk.ack("g", topic, *got)
        assert await desk.receive("g", topic) == []
        assert desk.core.delivery("g", topic).done.pointer == 4, "no group waits for a tick"
        assert await desk.pull(topic, -1, 0) == ([b"1", b"2"], 4)

    with_harness(step)


def test_p4_of_a_message_group_only_the_first_message_is_given() -> None:
    async def step(desk: BrokerHarness) -> None:
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

    with_harness(step)


def test_p4_a_push_consumer_is_given_runs_and_an_attempt_can_be_repeated() -> None:
    async def step(desk: BrokerHarness) -> None:
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

    with_harness(step)


def declare(desk: BrokerHarness, *topics: str) -> bool:
    """The client of :data:`CALL` sends settings as a push consumer of *topics*; whether it is told to keep order."""
    settings = v2.Settings(client_type=v2.PUSH_CONSUMER)
    settings.subscription.group.name = "g"
    for topic in topics:
        settings.subscription.subscriptions.add().topic.name = topic
    answer = desk.service.telemetry.merge_settings(desk.heard_of(), settings)
    return answer.settings.subscription.fifo


def test_p4_a_push_consumer_that_began_without_order_is_given_one_message_of_a_group_at_a_time() -> None:
    """Java's and Node's choose at their start whether they handle messages in order, and never again."""

    async def step(desk: BrokerHarness) -> None:
        await desk.send("ordered", b"1", b"2", b"3", b"4", b"5", message_group="g1")

        async def get_and_ack() -> list[bytes]:
            got = await desk.receive("g", "ordered", auto_renew=True)
            await desk.ack("g", "ordered", *got)
            return bodies(got)

        assert not declare(desk, "plain")
        assert declare(desk, "plain", "ordered")  # it subscribes to another topic
        assert await get_and_ack() == [b"1"]
        desk.core.remove_client(CALL.client_id)
        assert declare(desk, "plain", "ordered")  # a broker that was started again does not know how it began
        assert await get_and_ack() == [b"2"]
        desk.core.remove_client(CALL.client_id)
        assert declare(desk, "ordered")
        assert await get_and_ack() == [b"3", b"4", b"5"]

    with_harness(step)


def test_p4_a_push_consumer_whose_topic_is_created_again_with_order_is_given_one_message_at_a_time() -> None:
    async def step(desk: BrokerHarness) -> None:
        assert not declare(desk, "one")
        await desk.core.drop_topic("one")
        await desk.core.create_topic(TopicSpec("one", "FIFO", 1))
        await desk.send("one", b"1", b"2", message_group="g1")
        assert bodies(await desk.receive("g", "one", auto_renew=True)) == [b"1"]

    with_harness(step)


@pytest.mark.parametrize("language", ["GOLANG", "CPP", ""])
def test_p4_clients_that_go_on_after_a_failure_get_the_next_message_when_the_one_before_is_done(language: str) -> None:
    call = msgspec.structs.replace(CALL, language=language)

    async def step(desk: BrokerHarness) -> None:
        for body in (b"1", b"2", b"3"):
            await desk.send("ordered", body, message_group="g1")
        await desk.send("ordered", b"other", message_group="g2")
        one, other = await desk.receive("g", "ordered", auto_renew=True, call=call)
        assert bodies([one, other]) == [b"1", b"other"]
        assert await desk.receive("g", "ordered", auto_renew=True, call=call) == []
        await desk.ack("g", "ordered", one)
        assert bodies(await desk.receive("g", "ordered", auto_renew=True, call=call)) == [b"2"]

    with_harness(step)


def test_answers_that_were_lost_are_given_again_and_count_as_no_attempt() -> None:
    async def step(desk: BrokerHarness) -> None:
        await desk.send("plain", b"1")
        for _ in range(2 * Limits().max_attempts):
            (got,) = await desk.receive("g", "plain", auto_renew=True, attempt_id="x")
            assert got.system_properties.delivery_attempt == 1
        assert await desk.receive("g", "plain", auto_renew=True, attempt_id="y") == []
        assert (await desk.ack("g", "plain", got)).status.code == v2.OK

    with_harness(step)


def test_a_call_of_another_client_or_group_with_the_same_attempt_id_ends_no_waiting_call() -> None:
    async def step(desk: BrokerHarness) -> None:
        waits = asyncio.ensure_future(desk.receive("g", "plain", attempt_id="x", poll=10))
        await asyncio.sleep(0)
        other = msgspec.structs.replace(CALL, client_id="another")
        assert await desk.receive("g", "plain", attempt_id="x", call=other) == []
        assert await desk.receive("h", "plain", attempt_id="x") == []
        await desk.send("plain", b"1")
        assert bodies(await waits) == [b"1"]

    with_harness(step, limits=Limits())


def test_a_call_that_is_repeated_takes_the_place_of_the_one_that_still_waits() -> None:
    async def step(desk: BrokerHarness) -> None:
        first = asyncio.ensure_future(desk.receive("g", "plain", auto_renew=True, attempt_id="x", poll=10))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(desk.receive("g", "plain", auto_renew=True, attempt_id="x", poll=10))
        await asyncio.sleep(0)
        await desk.send("plain", b"1")
        assert bodies(await second) == [b"1"]
        assert await first == []

    with_harness(step, limits=Limits())


def test_a_message_comes_back_after_its_time_until_it_is_dead() -> None:
    async def step(desk: BrokerHarness) -> None:
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

    with_harness(step, limits=Limits(longest_poll=0, max_attempts=3))


def test_handles_are_valid_once_and_only_in_time() -> None:
    async def step(desk: BrokerHarness) -> None:
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

    with_harness(step)


def test_a_changed_duration_gives_a_new_handle() -> None:
    async def step(desk: BrokerHarness) -> None:
        await desk.send("plain", b"a")
        (got,) = await desk.receive("g", "plain")
        handle = await desk.hide("g", "plain", got, 100)
        with pytest.raises(StatusError) as refused:
            await desk.hide("g", "plain", got, 100)
        assert refused.value.code == v2.INVALID_RECEIPT_HANDLE
        desk.clock.advance(99)
        assert await desk.receive("g", "plain") == []
        got.system_properties.receipt_handle = handle
        handle = await desk.hide("g", "plain", got, 0)
        (again,) = await desk.receive("g", "plain")
        assert again.system_properties.delivery_attempt == 2

    with_harness(step)


@pytest.mark.parametrize(
    ("seconds", "renew", "fine"), [(9, False, False), (10, False, True), (43_201, False, False), (0, True, True)]
)
def test_invisible_durations_have_bounds(seconds: int, renew: bool, fine: bool) -> None:
    async def step(desk: BrokerHarness) -> None:
        receive = desk.receive("g", "plain", invisible=seconds, auto_renew=renew)
        if fine:
            assert await receive == []
            return
        with pytest.raises(StatusError) as refused:
            await receive
        assert refused.value.code == v2.ILLEGAL_INVISIBLE_TIME

    with_harness(step)


TOPICS_OF_BOTH_KINDS = pytest.mark.parametrize(
    ("topic", "system"), [("plain", {}), ("ordered", {"message_group": "g"})]
)


@TOPICS_OF_BOTH_KINDS
def test_what_a_living_client_has_is_renewed_and_a_dead_ones_comes_back(topic: str, system: dict[str, str]) -> None:
    async def step(desk: BrokerHarness) -> None:
        await desk.send(topic, b"a", **system)
        (got,) = await desk.receive("g", topic, auto_renew=True)
        for _ in range(5):
            desk.clock.advance(50)
            desk.heard_of()
            assert await desk.receive("g", topic, auto_renew=True) == []
        await desk.service.notify_client_termination(v2.NotifyClientTerminationRequest(), CALL)
        desk.clock.advance(1)
        assert bodies(await desk.receive("g", topic, auto_renew=True)) == [b"a"]
        assert (await desk.ack("g", topic, got)).status.code == v2.INVALID_RECEIPT_HANDLE

    with_harness(step)


def test_a_handle_stays_valid_while_nobody_receives() -> None:
    async def step(desk: BrokerHarness) -> None:
        await desk.send("plain", b"a", b"b")
        one, two = await desk.receive("g", "plain", auto_renew=True)
        for _ in range(5):
            desk.clock.advance(35)
            desk.heard_of()
        assert (await desk.ack("g", "plain", one)).status.code == v2.OK
        for _ in range(5):
            desk.clock.advance(35)
            desk.heard_of()
            desk.core.renew()
        assert desk.core.delivery("g", "plain").next_due() > desk.clock.now()
        batch = AckBatchRequest("", "g", "plain", text_column([two.system_properties.receipt_handle]))
        assert (await desk.service.ack_batch(batch, CALL)).code == v2.OK

    with_harness(step)


@TOPICS_OF_BOTH_KINDS
@pytest.mark.parametrize("end", ["cut", "silence"])
def test_p4_a_message_comes_again_where_the_connection_is_gone_that_brought_it(
    topic: str, system: dict[str, str], end: str
) -> None:
    """Its client is alive, and sends heartbeats by another connection; who knows whether it has the message?"""
    anew = msgspec.structs.replace(CALL, connection="ipv4:10.0.0.1:50001")

    async def step(desk: BrokerHarness) -> None:
        await desk.send(topic, b"a", **system)
        session = desk.heard_of()
        with session.stream(asyncio.Queue(), CALL.connection, desk.clock.now()):
            await desk.receive("g", topic, auto_renew=True)
            for _ in range(4):
                desk.clock.advance(50)
                desk.heard_of(anew)
                assert await desk.receive("g", topic, auto_renew=True, call=anew) == [], "its stream is open"
        if end == "silence":
            desk.heard_of()  # the connection is there, and only the stream has ended
        left = (desk.core.delivery("g", topic).next_due() - desk.clock.now()) // 1_000_000
        for step in (left - 1, 1):
            desk.heard_of(anew)
            assert await desk.receive("g", topic, auto_renew=True, call=anew) == []
            desk.clock.advance(step)
        (again,) = await desk.receive("g", topic, auto_renew=True, call=anew)
        assert again.system_properties.delivery_attempt == 2

    with_harness(step)


@TOPICS_OF_BOTH_KINDS
@pytest.mark.parametrize("handled_for", [1, 59, 130])
def test_p4_after_a_restart_a_message_comes_again_when_its_duration_has_run_out(
    topic: str, system: dict[str, str], handled_for: int
) -> None:
    anew = msgspec.structs.replace(CALL, connection="ipv4:10.0.0.1:50001")
    handles: list[v2.Message] = []

    async def before(desk: BrokerHarness) -> None:
        await desk.send(topic, b"a", **system)
        await desk.send(topic, b"b", **{**system, "message_group": "h"} if system else {})
        handles.extend(await desk.receive("g", topic, auto_renew=True))
        for _ in range(handled_for):
            desk.clock.advance(1)
            desk.heard_of()
            assert await desk.receive("g", topic, auto_renew=True) == []

    async def after(desk: BrokerHarness) -> None:
        assert (await desk.ack("g", topic, handles[1])).status.code == v2.OK, "the client had it, and is done"
        for _ in range(60 - handled_for % 60):
            desk.heard_of(CALL)  # even if it comes from the same port again
            desk.heard_of(anew)
            assert await desk.receive("g", topic, auto_renew=True, call=anew) == []
            desk.clock.advance(1)
        assert bodies(await desk.receive("g", topic, auto_renew=True, call=anew)) == [b"a"]

    with_harness(before, after)


def test_what_a_group_has_yet_to_see_is_counted_exactly() -> None:
    async def check(desk: BrokerHarness, topic: str, expected: tuple[int, int, int]) -> None:
        (info,) = [info for info in await AdminService(desk.core).groups("g") if info.topic == topic]
        assert (info.done, info.in_flight, info.lag) == expected

    async def before(desk: BrokerHarness) -> None:
        for topic in ("plain", "ordered"):
            for number in range(10):
                await desk.send(topic, b"%d" % number, message_group=str(number)) if topic == "ordered" else (
                    await desk.send(topic, b"%d" % number)
                )
            got = await desk.receive("g", topic, 6)
            await desk.ack("g", topic, *got[1:5])
            await check(desk, topic, (0, 2, 4))

    async def after(desk: BrokerHarness) -> None:
        for topic in ("plain", "ordered"):
            await check(desk, topic, (0, 2, 4))
            await desk.receive("g", topic, 1)
            await check(desk, topic, (0, 3, 3))

    with_harness(before, after)


def test_filters_select_by_tag_and_condition_and_the_rest_is_done() -> None:
    async def step(desk: BrokerHarness) -> None:
        for number, tag in enumerate("abca"):
            await desk.send("plain", b"%d" % number, tag=tag, properties={"n": str(number)})
        assert bodies(await desk.receive("by-tag", "plain", filter=(v2.TAG, "a || c"))) == [b"0", b"2", b"3"]
        assert bodies(await desk.receive("by-sql", "plain", filter=(v2.SQL, "n > 0 AND TAGS = 'a'"))) == [b"3"]
        assert bodies(await desk.receive("all", "plain", filter=(v2.TAG, "*"))) == [b"0", b"1", b"2", b"3"]
        assert desk.core.delivery("by-tag", "plain").done.ahead[0].first == 2
        with pytest.raises(StatusError) as refused:
            await desk.receive("g", "plain", filter=(v2.TAG, "a || "))
        assert refused.value.code == v2.ILLEGAL_FILTER_EXPRESSION

    with_harness(step)


async def send_large(desk: BrokerHarness, topic: str, tags: str) -> None:
    """Send a message to *topic* for each of *tags*; of each the log is read separately."""
    for number, tag in enumerate(tags):
        ordered = {"message_group": str(number)} if topic == "ordered" else {}
        body = tag.encode() * (2 << 20)
        await desk.send(topic, body, tag=tag, message_id=f"{number}", **ordered)


@pytest.mark.parametrize("topic", ["plain", "ordered"])
def test_a_receive_that_finds_nothing_ends_with_its_time_and_makes_progress(
    topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def step(desk: BrokerHarness) -> None:
        monkeypatch.setattr(receive, "_SEARCH_SECONDS", 0)
        await send_large(desk, topic, "aaba")
        got = [await desk.receive("g", topic, filter=(v2.TAG, "b")) for _ in range(4)]
        assert [[message.body[:1] for message in messages] for messages in got] == [[], [], [b"b"], []]
        assert [len(await desk.receive("all", topic, auto_renew=True)) for _ in range(4)] == [1, 1, 1, 1]

    with_harness(step)


@pytest.mark.parametrize("topic", ["plain", "ordered"])
@pytest.mark.parametrize("limit", ["_SEARCH_SECONDS", "_SKIP_AT_MOST"])
def test_a_receive_does_not_wait_while_there_is_more_to_look_at(
    topic: str, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def step(desk: BrokerHarness) -> None:
        monkeypatch.setattr(receive, limit, 0)
        monkeypatch.setattr(desk.core, "wait_for_messages", refuse_to_wait)
        await send_large(desk, topic, "aab")
        (got,) = await desk.receive("g", topic, filter=(v2.TAG, "b"), poll=15)
        assert got.body[:1] == b"b"
        with pytest.raises(AssertionError):
            await desk.receive("g", topic, filter=(v2.TAG, "b"), poll=15)

    async def refuse_to_wait(*_: object) -> None:
        raise AssertionError

    with_harness(step, limits=Limits())


def test_a_receive_that_is_cancelled_keeps_what_it_has_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    async def step(desk: BrokerHarness) -> None:
        await send_large(desk, "plain", "aaba")
        cache = desk.core.topic("plain").message_cache
        read_columns = cache.read_columns

        async def read_three(first_id: int, last_id: int) -> RecordBatch | None:
            if first_id == 4:
                raise asyncio.CancelledError
            return await read_columns(first_id, last_id)

        monkeypatch.setattr(cache, "read_columns", read_three)
        with pytest.raises(asyncio.CancelledError):
            await desk.receive("g", "plain", filter=(v2.TAG, "b"))
        delivery = desk.core.delivery("g", "plain")
        assert (delivery.done.pointer, delivery.next) == (2, 3), "the message that was found is given to the next one"
        monkeypatch.undo()
        (got,) = await desk.receive("g", "plain", filter=(v2.TAG, "b"))
        assert got.body[:1] == b"b"

    monkeypatch.setattr(receive, "_SEARCH_SECONDS", 60)
    with_harness(step)


def test_a_receive_is_bounded_by_bytes_as_well() -> None:
    async def step(desk: BrokerHarness) -> None:
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

    with_harness(step)


def test_who_waits_is_woken_by_what_arrives() -> None:
    async def step(desk: BrokerHarness) -> None:
        waiting = asyncio.ensure_future(desk.receive("g", "plain", poll=15))
        await asyncio.sleep(0)
        await desk.send("plain", b"news")
        assert bodies(await asyncio.wait_for(waiting, 5)) == [b"news"]

    with_harness(step, limits=Limits())


def test_a_receive_that_does_not_say_for_how_long_waits_as_its_client_declared() -> None:
    """Go's simple consumer says it in its settings alone."""

    async def step(desk: BrokerHarness) -> None:
        declared = v2.Settings(client_type=v2.SIMPLE_CONSUMER)
        declared.subscription.long_polling_timeout.seconds = 15
        desk.service.telemetry.merge_settings(desk.heard_of(), declared)
        waiting = asyncio.ensure_future(desk.receive("g", "plain", poll=None))
        await settle(lambda: desk.core.waiting == 1)
        await desk.send("plain", b"news")
        assert bodies(await asyncio.wait_for(waiting, 5)) == [b"news"]
        stranger = msgspec.structs.replace(CALL, client_id="stranger", left=lambda: 0.6)
        assert await asyncio.wait_for(desk.receive("g", "plain", poll=None, call=stranger), 5) == []

    with_harness(step, limits=Limits())


def test_who_stops_waiting_leaves_the_messages_to_others() -> None:
    async def step(desk: BrokerHarness) -> None:
        waiting = asyncio.ensure_future(desk.receive("g", "plain", poll=15))
        await asyncio.sleep(0)
        waiting.cancel()
        await desk.send("plain", b"news")
        assert bodies(await desk.receive("g", "plain")) == [b"news"]

    with_harness(step, limits=Limits())


def test_consumers_that_pull_keep_their_own_place() -> None:
    place = v2.MessageQueue()
    place.topic.name, place.id = "plain", 1
    group = v2.Resource(name="puller")

    async def step(desk: BrokerHarness) -> None:
        await desk.send("plain", *(b"%d" % number for number in range(8)))
        assert await desk.pull("plain", 1, 0) == ([b"1", b"5"], 8)
        assert await desk.pull("plain", -1, 6) == ([b"6", b"7"], 8)
        with pytest.raises(StatusError) as refused:
            await desk.pull("plain", 1, 9)
        assert refused.value.code == v2.ILLEGAL_OFFSET
        with pytest.raises(StatusError) as refused:
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

    async def after_restart(desk: BrokerHarness) -> None:
        response = await desk.service.get_offset(v2.GetOffsetRequest(group=group, message_queue=place), CALL)
        assert response.offset == 6

    with_harness(step, after_restart)


@pytest.mark.parametrize("number", [-(2**31), -2, 4, 99, 2**31 - 1])
def test_calls_that_name_a_queue_which_the_topic_does_not_have_are_refused(number: int) -> None:
    place, group = v2.MessageQueue(id=number), v2.Resource(name="puller")
    place.topic.name = "plain"

    async def step(desk: BrokerHarness) -> None:
        await desk.send("plain", b"0")
        for call in (
            desk.service.update_offset(v2.UpdateOffsetRequest(group=group, message_queue=place, offset=1), CALL),
            desk.service.get_offset(v2.GetOffsetRequest(group=group, message_queue=place), CALL),
            desk.service.query_offset(v2.QueryOffsetRequest(message_queue=place), CALL),
            desk.pull("plain", number, 0),
        ):
            with pytest.raises(StatusError, match=rf"topic plain has no queue {number}: use 0 to 3") as refused:
                await call
            assert refused.value.code == v2.BAD_REQUEST
        assert not desk.core.journal.state.offsets

    with_harness(step)


def test_offsets_are_asked_for_by_a_known_policy_and_by_any_time() -> None:
    async def step(desk: BrokerHarness) -> None:
        await desk.send("plain", b"0", b"1")

        async def offset(policy: Any, seconds: int = 0) -> int:
            request = v2.QueryOffsetRequest(query_offset_policy=policy)
            request.message_queue.topic.name, request.timestamp.seconds = "plain", seconds
            return (await desk.service.query_offset(request, CALL)).offset

        assert [await offset(v2.TIMESTAMP, seconds) for seconds in (-(2**63), -1, 2**63 - 1)] == [0, 0, 2]
        with pytest.raises(StatusError, match="unknown offset policy number 7") as refused:
            await offset(7)
        assert refused.value.code == v2.BAD_REQUEST

    with_harness(step)


def test_a_pull_that_would_wait_for_a_negative_time_is_refused_like_a_receive() -> None:
    async def step(desk: BrokerHarness) -> None:
        request = v2.PullMessageRequest(batch_size=1)
        request.message_queue.topic.name, request.long_polling_timeout.seconds = "plain", -1
        with pytest.raises(StatusError, match="must not be negative") as refused:
            [frame async for frame in desk.service.pull_message(request, CALL)]
        assert refused.value.code == v2.ILLEGAL_POLLING_TIME

    with_harness(step)


@pytest.mark.parametrize(("name", "code"), [("absent", v2.TOPIC_NOT_FOUND), ("x" * 1000, v2.ILLEGAL_TOPIC)])
def test_calls_that_name_an_invented_topic_leave_nothing_in_memory(name: str, code: int) -> None:
    place = v2.MessageQueue()
    place.topic.name = name

    async def step(desk: BrokerHarness) -> None:
        group = v2.Resource(name="g")
        for call in (
            desk.receive("g", name),
            desk.pull(name, -1, 0),
            desk.service.query_offset(v2.QueryOffsetRequest(message_queue=place), CALL),
            desk.service.update_offset(v2.UpdateOffsetRequest(group=group, message_queue=place, offset=1), CALL),
            desk.service.get_offset(v2.GetOffsetRequest(group=group, message_queue=place), CALL),
        ):
            with pytest.raises(StatusError) as refused:
                await call
            assert refused.value.code == code
        notifier = desk.core.notifier
        assert not any(name in names for names in (notifier._versions, notifier._waiting))
        assert not desk.core._receive_locks

    with_harness(step)


def test_a_lock_of_receives_exists_only_while_a_call_has_it() -> None:
    async def step(desk: BrokerHarness) -> None:
        await desk.send("plain", b"1")
        assert bodies(await desk.receive("g", "plain")) == [b"1"]
        assert not desk.core._receive_locks
        held = desk.core.receive_lock("g", "plain")
        assert desk.core.receive_lock("g", "plain") is held

    with_harness(step)


def test_a_filter_by_very_many_tags_is_refused() -> None:
    async def step(desk: BrokerHarness) -> None:
        tags = " || ".join(["tag"] * 585)
        assert await desk.receive("g", "plain", filter=(v2.TAG, tags)) == []
        with pytest.raises(StatusError, match="the tag filter has 4,098 characters; the limit is 4,096") as refused:
            await desk.receive("g", "plain", filter=(v2.TAG, tags + " || tag"))
        assert refused.value.code == v2.ILLEGAL_FILTER_EXPRESSION

    with_harness(step)


def test_a_pull_is_bounded_by_bytes_as_well() -> None:
    async def step(desk: BrokerHarness) -> None:
        big = [bytes([number]) * (3 << 20) for number in range(5)]
        for body in big:
            await desk.send("plain", body)
        assert await desk.pull("plain", -1, 0) == (big[:3], 3)
        assert await desk.pull("plain", -1, 3) == (big[3:], 5)

    with_harness(step)


def test_a_pull_of_few_among_many_messages_ends_with_its_time_and_makes_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def step(desk: BrokerHarness) -> None:
        for number in range(4):
            await desk.send("plain", bytes([number]) * (2 << 20))
        assert await desk.pull("plain", 3, 0) == ([b"\3" * (2 << 20)], 4)
        monkeypatch.setattr(pull, "_SCAN_SECONDS", 0, raising=False)
        assert [await desk.pull("plain", 3, offset) for offset in range(4)] == [
            ([], 1), ([], 2), ([], 3), ([b"\3" * (2 << 20)], 4),
        ]  # fmt: skip
        assert await desk.pull("plain", -1, 1) == ([b"\1" * (2 << 20)], 2), "what was found is not kept back"

    with_harness(step)


def test_a_pull_that_may_not_wait_keeps_the_offset_that_it_has_reached() -> None:
    async def step(desk: BrokerHarness) -> None:
        for body in (b"a", b"b", b"c"):
            await desk.send("plain", body)
        puller = pull.PullHandler(desk.core)
        ask = pull.PullRequest(topic="plain", queue=3, offset=0, count=1, poll=60)
        assert await puller.pull(ask) == ([], 3)
        with pytest.raises(StatusError) as refused:
            await puller.pull(msgspec.structs.replace(ask, offset=3))
        assert refused.value.code == v2.TOO_MANY_REQUESTS

    with_harness(step, limits=Limits(max_waiting=0))


@pytest.mark.parametrize("group", ["a|b", "|" * 40])
def test_a_group_whose_name_no_topic_can_have_gets_a_dead_letter_topic(group: str) -> None:
    async def step(desk: BrokerHarness) -> None:
        await desk.send("plain", b"poison")
        assert bodies(await desk.receive(group, "plain")) == [b"poison"]
        desk.clock.advance(31)
        await desk.send("plain", b"next")
        assert bodies(await desk.receive(group, "plain")) == [b"next"]
        assert bodies(await desk.receive("undertaker", "%DLQ%" + group.replace("|", "%7C"))) == [b"poison"]
        with pytest.raises(StatusError, match="invalid group name") as refused:
            await desk.receive("|" * 41, "plain")
        assert refused.value.code == v2.ILLEGAL_CONSUMER_GROUP

    with_harness(step, limits=Limits(longest_poll=0, max_attempts=1))


async def forward(desk: BrokerHarness, message: v2.Message) -> None:
    """A client of the group ``g`` gives up *message* of the topic ``plain``."""
    request = v2.ForwardMessageToDeadLetterQueueRequest(receipt_handle=message.system_properties.receipt_handle)
    request.group.name, request.topic.name = "g", "plain"
    await desk.service.forward_message_to_dead_letter_queue(request, CALL)


def test_p6_a_message_that_is_dead_again_after_a_reset_is_a_dead_letter_again() -> None:
    async def step(desk: BrokerHarness) -> None:
        await desk.send("plain", b"poison", message_id="p")
        for _ in range(2):
            await forward(desk, *await desk.receive("g", "plain"))
            assert await desk.receive("g", "plain") == []
            (dead,) = await desk.receive("undertaker", "%DLQ%g")
            system = dead.system_properties
            assert (dead.body, system.message_id, system.dead_letter_queue.message_id) == (b"poison", "p", "p")
            await desk.ack("undertaker", "%DLQ%g", dead)
            await desk.core.reset_offset("g", "plain", 1)

    with_harness(step)


def test_p6_messages_of_two_topics_with_the_same_id_are_two_dead_letters() -> None:
    async def step(desk: BrokerHarness) -> None:
        for topic in ("plain", "one"):
            await desk.send(topic, topic.encode(), message_id="p")
            await desk.receive("g", topic)
            desk.clock.advance(31)
            assert await desk.receive("g", topic) == []
        assert sorted(bodies(await desk.receive("undertaker", "%DLQ%g"))) == [b"one", b"plain"]

    with_harness(step, limits=Limits(longest_poll=0, max_attempts=1))


@pytest.mark.parametrize("topic", ["plain", "ordered"])
def test_a_dead_letter_that_cannot_be_stored_yet_holds_up_no_other_message(
    topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordered = topic == "ordered"

    async def refuse(*_: Any) -> None:
        raise StorageFullError

    async def step(desk: BrokerHarness) -> None:
        for body, group in ((b"poison", "a"), (b"behind it", "a"), (b"next", "b")):
            await desk.send(topic, body, **({"message_group": group} if ordered else {}))
        assert bodies(await desk.receive("g", topic, 1)) == [b"poison"]
        desk.clock.advance(31)
        with monkeypatch.context() as patch:
            patch.setattr(desk.core, "publish", refuse)
            received = await desk.receive("g", topic, auto_renew=ordered)
        assert bodies(received) == ([b"next"] if ordered else [b"behind it", b"next"])
        await desk.ack("g", topic, *received)
        desk.clock.advance(6)
        assert bodies(await desk.receive("g", topic)) == ([b"behind it"] if ordered else [])
        assert bodies(await desk.receive("undertaker", "%DLQ%g")) == [b"poison"]

    with_harness(step, limits=Limits(longest_poll=0, max_attempts=1))


def test_a_dead_letter_that_was_stored_although_that_failed_is_stored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def step(desk: BrokerHarness) -> None:
        await desk.send("plain", b"poison")
        await desk.receive("g", "plain", auto_renew=True)
        publish, recorded = desk.core.publish, desk.core.journal.record

        async def store_and_fail(*call: Any) -> None:
            await publish(*call)
            raise StorageFullError

        desk.core.remove_client(CALL.client_id)
        desk.clock.advance(31)
        with monkeypatch.context() as patch:
            patch.setattr(desk.core, "publish", store_and_fail)
            events: list[object] = []
            patch.setattr(desk.core.journal, "record", lambda event: (events.append(event), recorded(event))[1])
            assert await desk.receive("g", "plain") == []
            assert "hide" not in [msgspec.to_builtins(event)["did"] for event in events]
        desk.clock.advance(6)
        assert await desk.receive("g", "plain") == []
        assert desk.core.delivery("g", "plain").done.pointer == 1
        assert bodies(await desk.receive("undertaker", "%DLQ%g")) == [b"poison"]

    with_harness(step, limits=Limits(longest_poll=0, max_attempts=1))


@pytest.mark.parametrize("late", [False, True])
def test_message_groups_do_not_wait_for_dead_letters_at_the_head_of_others(
    late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any) -> None:
        raise StorageFullError

    async def refuse_to_wait(*_: object) -> None:
        raise AssertionError

    async def step(desk: BrokerHarness) -> None:
        for group in "abc":
            await desk.send("ordered", group.encode(), message_group=group)
        assert len(await desk.receive("g", "ordered", 2)) == 2
        desk.clock.advance(31)
        monkeypatch.setattr(desk.core, "publish", refuse)
        monkeypatch.setattr(desk.core, "wait_for_messages", refuse_to_wait)
        if late:
            monkeypatch.setattr(receive, "_SEARCH_SECONDS", 0)
        assert bodies(await desk.receive("g", "ordered", 1, poll=30)) == [b"c"]

    with_harness(step, limits=Limits(max_attempts=1))


@pytest.mark.parametrize("topic", ["plain", "ordered"])
def test_a_receive_does_not_wait_while_there_are_further_messages_that_came_back(
    topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse_to_wait(*_: object) -> None:
        raise AssertionError

    async def step(desk: BrokerHarness) -> None:
        for number in range(40):
            await desk.send(topic, b"%d" % number, **({"message_group": f"{number}"} if topic == "ordered" else {}))
        assert len(await desk.receive("g", topic, 40)) == 40
        desk.clock.advance(31)
        await desk.core.configure_group(GroupSpec("g", max_attempts=1))
        monkeypatch.setattr(receive, "_SEARCH_SECONDS", 0)
        monkeypatch.setattr(desk.core, "wait_for_messages", refuse_to_wait)
        with pytest.raises(AssertionError):
            await desk.receive("g", topic, 1, poll=30)
        assert desk.core.delivery("g", topic).done.pointer == 40, "all are dead letters before it waits"

    with_harness(step, limits=Limits())


@pytest.mark.parametrize("topic", ["plain", "ordered"])
def test_other_calls_run_while_a_receive_passes_over_what_its_filter_does_not_match(
    topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def step(desk: BrokerHarness) -> None:
        group = {"message_group": "g"} if topic == "ordered" else {}
        await desk.send(topic, *[b"%d" % number for number in range(20)], tag="a", **group)
        assert await desk.receive("other", topic, filter=(v2.TAG, "b")) == []  # now they are in memory
        monkeypatch.setattr(receive, "_PAGE", 1)
        monkeypatch.setattr(receive, "_SEARCH_SECONDS", 60)
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.ensure_future(others())
        await asyncio.sleep(0)
        assert await desk.receive("g", topic, filter=(v2.TAG, "b")) == []
        task.cancel()
        assert turns >= 10

    with_harness(step)


def test_a_broker_that_ends_between_a_dead_letter_and_its_record_stores_it_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def ends(*_: Any, **__: Any) -> None:
        raise StatusError(v2.INTERNAL_SERVER_ERROR, "the broker ends")

    async def step(desk: BrokerHarness) -> None:
        await desk.send("plain", b"poison")
        (got,) = await desk.receive("g", "plain")
        monkeypatch.setattr(desk.core, "finish", ends)
        with pytest.raises(StatusError, match="the broker ends"):
            await forward(desk, got)

    async def after_restart(desk: BrokerHarness) -> None:
        desk.clock.advance(31)
        assert await desk.receive("g", "plain") == []
        assert bodies(await desk.receive("undertaker", "%DLQ%g")) == [b"poison"]

    with_harness(step, after_restart, limits=Limits(longest_poll=0, max_attempts=1))


def test_a_reset_while_a_message_is_given_up_gives_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def step(desk: BrokerHarness) -> None:
        await desk.send("plain", b"poison")
        (got,) = await desk.receive("g", "plain")
        begun, go = hold_reads(desk, "plain", monkeypatch)
        giving_up = asyncio.ensure_future(forward(desk, got))
        await begun.wait()
        await desk.core.reset_offset("g", "plain", 1)
        go.set()
        await giving_up
        assert bodies(await desk.receive("g", "plain")) == [b"poison"]

    with_harness(step)


def test_p3_messages_that_come_back_reach_their_group_whatever_it_subscribes_to_now() -> None:
    async def step(desk: BrokerHarness) -> None:
        for topic, system in (("plain", {}), ("ordered", {"message_group": "g"})):
            for tag in "ab":
                await desk.send(topic, tag.encode(), tag=tag, **system)
            assert bodies(await desk.receive("g", topic, auto_renew=True, filter=(v2.TAG, "a || b"))) == [b"a", b"b"]
            desk.clock.advance(61)
            assert bodies(await desk.receive("g", topic, auto_renew=True, filter=(v2.TAG, "a"))) == [b"a", b"b"]

    with_harness(step)
