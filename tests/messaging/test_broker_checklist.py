"""What clients of any language insist on: the rows of the server checklist and of the table of variants.

Rows that need a network or a real client are in ``test_official_client``, ``test_access`` and ``test_broker_faults``.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from millstream.core.clock import MICROSECONDS
from millstream.log import LogSpec
from millstream.messaging.broker.clients.sessions import MAX_COMMANDS
from millstream.messaging.broker.handlers.call_context import CallContext
from millstream.messaging.broker.handlers.telemetry import serve
from millstream.messaging.broker.limits import Limits
from millstream.messaging.broker.storage.topic import TopicSpec
from millstream.messaging.errors import StatusError
from millstream.messaging.protocol import v2
from support.broker_harness import CALL, TOPICS, BrokerHarness, bodies, settle, with_harness

KINDS = {"NORMAL": v2.NORMAL, "FIFO": v2.FIFO, "DELAY": v2.DELAY, "TRANSACTION": v2.TRANSACTION}


def settings(kind: Any, part: str) -> v2.Settings:
    made = v2.Settings(client_type=kind)
    if part == "publishing":
        made.publishing.topics.add().name = "plain"
    else:
        made.subscription.group.name = "g"
    return made


async def refusal(work: Any) -> int:
    with pytest.raises(StatusError) as refused:
        await work
    return refused.value.code


# What a client asks for before anything else


@pytest.mark.parametrize("spec", TOPICS, ids=lambda spec: spec.name)
def test_a_route_has_all_that_the_clients_look_for(spec: TopicSpec) -> None:
    """Readable and writable queues from number 0 on, of the broker 0, with endpoints and the topic's type."""

    async def step(desk: BrokerHarness) -> None:
        request = v2.QueryRouteRequest()
        request.topic.name = spec.name
        queues = (await desk.service.query_route(request, CALL)).message_queues
        assert [queue.id for queue in queues] == list(range(spec.queues))
        for queue in queues:
            assert queue.permission == v2.READ_WRITE
            assert (queue.broker.id, bool(queue.broker.name)) == (0, True)
            assert queue.broker.endpoints.scheme == v2.IPv4
            assert [(each.host, each.port) for each in queue.broker.endpoints.addresses] == [("127.0.0.1", 8081)]
            assert list(queue.accept_message_types) == [KINDS[spec.type]]

    with_harness(step)


@pytest.mark.parametrize(
    ("kind", "part"),
    [(v2.PRODUCER, "publishing"), (v2.PUSH_CONSUMER, "subscription"), (v2.SIMPLE_CONSUMER, "subscription")],
)
def test_settings_are_answered_with_status_ok_in_the_same_part_and_whole_seconds(kind: int, part: str) -> None:
    async def step(desk: BrokerHarness) -> None:
        session = desk.core.sessions.touch("c", desk.clock.now())
        answer = desk.service.telemetry.merge_settings(session, settings(kind, part))
        assert answer.HasField("status")
        assert answer.status.code == v2.OK
        found = answer.settings
        assert found.WhichOneof("pub_sub") == part
        assert found.backoff_policy.max_attempts > 0
        if part == "publishing":
            assert found.backoff_policy.WhichOneof("strategy") == "exponential_backoff"
            assert found.publishing.max_body_size == 4 << 20
        else:
            assert found.backoff_policy.WhichOneof("strategy") == "customized_backoff"
            assert all(pause.seconds >= 1 and not pause.nanos for pause in found.backoff_policy.customized_backoff.next)
            assert found.subscription.receive_batch_size == 32
            assert (found.subscription.long_polling_timeout.seconds, found.subscription.long_polling_timeout.nanos) == (
                20, 0,
            )  # fmt: skip
        assert not found.metric.on

    with_harness(step, limits=Limits())


@pytest.mark.parametrize(
    ("version", "backoff", "expected"),
    [
        ("1.0.8", (2_500_000,), (2500, 2500, 1)),
        ("1.0.4", (1_000_000, 5_000_000, 60_000_000), (1000, 60_000, 2)),
        ("1.0.9", (1_000_000, 5_000_000), None),
        ("1.1.0-beta.1", (1_000_000,), None),
        ("1.0.8-patched", (1_000_000,), (1000, 1000, 1)),
        ("unknown", (1_000_000,), None),
    ],
)
def test_the_client_of_node_gets_pauses_in_the_way_that_it_reads_them(
    version: str, backoff: tuple[int, ...], expected: tuple[int, int, float] | None
) -> None:
    async def step(desk: BrokerHarness) -> None:
        declared = settings(v2.PUSH_CONSUMER, "subscription")
        declared.user_agent.language, declared.user_agent.version = v2.NODE_JS, version
        policy = desk.service.telemetry.merge_settings(desk.heard_of(), declared).settings.backoff_policy
        if expected is None:
            assert policy.WhichOneof("strategy") == "customized_backoff"
            return
        found = policy.exponential_backoff
        assert (found.initial.seconds, found.max.seconds, found.multiplier) == expected

    with_harness(step, limits=Limits(backoff=backoff))


def test_no_more_settings_are_read_from_a_client_that_does_not_read_the_answers() -> None:
    async def step(desk: BrokerHarness) -> None:
        read = written = 0
        may_write = asyncio.Event()

        async def requests() -> AsyncIterator[v2.TelemetryCommand]:
            nonlocal read
            for _ in range(200):
                read += 1
                yield v2.TelemetryCommand(settings=settings(v2.PRODUCER, "publishing"))
                await asyncio.sleep(0)
            await asyncio.Event().wait()

        async def write(_: v2.TelemetryCommand) -> None:
            nonlocal written
            await may_write.wait()
            written += 1
            if written == 200:
                raise ConnectionError

        session = desk.heard_of()
        stream = asyncio.ensure_future(serve(lambda: desk.service.telemetry, session, CALL, requests(), write))
        await settle(lambda: bool(session.streams) and not session.takes_commands)
        for _ in range(100):
            await asyncio.sleep(0)
        assert read == MAX_COMMANDS + 2  # one is being written, and one waits for its place
        assert not session.command(v2.TelemetryCommand())
        may_write.set()
        await settle(lambda: written == 200)
        for _ in range(2 * MAX_COMMANDS):  # which nobody waits for any more
            await session.streams[0].put(v2.TelemetryCommand())
        stream.cancel()
        await asyncio.gather(stream, return_exceptions=True)

    with_harness(step)


def test_the_client_of_node_is_answered_when_it_has_asked_for_all_routes() -> None:
    async def step(desk: BrokerHarness) -> None:
        declared = v2.TelemetryCommand(settings=settings(v2.PRODUCER, "publishing"))
        declared.settings.user_agent.language = v2.NODE_JS
        for name in ("plain", "one", "later"):
            declared.settings.publishing.topics.add(name=name)
        session, loop, written = desk.heard_of(), asyncio.get_running_loop(), asyncio.Event()

        async def requests() -> AsyncIterator[v2.TelemetryCommand]:
            yield declared
            await asyncio.Event().wait()

        async def write(_: v2.TelemetryCommand) -> None:
            written.set()

        for asked in (("plain", "one", "later"), ("plain",)):
            begin = loop.time()
            stream = asyncio.ensure_future(serve(lambda: desk.service.telemetry, session, CALL, requests(), write))
            for name in asked:
                await asyncio.sleep(0)
                assert not written.is_set()
                await desk.service.query_route(v2.QueryRouteRequest(topic=v2.Resource(name=name)), CALL)
            await asyncio.wait_for(written.wait(), 5)
            took = loop.time() - begin
            assert took < 0.4 if len(asked) == 3 else took > 0.4
            stream.cancel()
            await asyncio.gather(stream, return_exceptions=True)
            desk.core.sessions.forget(CALL.client_id)
            session = desk.heard_of()
            written.clear()

    with_harness(step)


@pytest.mark.parametrize("kind", [v2.LITE_PUSH_CONSUMER, v2.LITE_SIMPLE_CONSUMER])
def test_clients_of_lite_topics_are_told_that_there_are_none(kind: int) -> None:
    async def step(desk: BrokerHarness) -> None:
        answer = desk.service.telemetry.merge_settings(desk.heard_of(), settings(kind, "subscription"))
        assert answer.status.code == v2.UNSUPPORTED
        heartbeat: Any = v2.HeartbeatRequest(client_type=kind)
        assert await refusal(desk.service.heartbeat(heartbeat, CALL)) == v2.UNSUPPORTED

    with_harness(step)


@pytest.mark.parametrize("system", [{"priority": 0}, {"lite_topic": "x"}, {"message_type": v2.PRIORITY}])
def test_messages_of_kinds_that_are_not_here_are_refused_even_if_only_a_property_says_so(system: Any) -> None:
    async def step(desk: BrokerHarness) -> None:
        request = v2.SendMessageRequest(messages=[v2.Message(body=b"x")])
        message = request.messages[0]
        message.topic.name, message.system_properties.message_id = "plain", "m"
        for name, value in system.items():
            setattr(message.system_properties, name, value)
        response = await desk.service.send_message(request, CALL)
        assert response.status.code == v2.UNSUPPORTED

    with_harness(step)


def test_a_topic_whose_log_another_process_appends_to_says_so_and_works_when_that_ends() -> None:
    async def step(desk: BrokerHarness) -> None:
        other = desk.store.log(LogSpec("plain")).writer("another process")
        for work in (desk.send("plain", b"x"), desk.receive("g", "plain")):
            with pytest.raises(StatusError, match="another process writes to the log of topic") as refused:
                await work
            assert refused.value.code == v2.PRECONDITION_FAILED
        other.append([b"by another"])
        other.close()
        await desk.send("plain", b"by a client")
        assert bodies(await desk.receive("g", "plain")) == [b"by another", b"by a client"]

    with_harness(step)


def test_a_consumer_is_served_before_it_has_sent_settings() -> None:
    async def step(desk: BrokerHarness) -> None:
        await desk.send("plain", b"a")
        assert bodies(await desk.receive("g", "plain", call=CallContext("never-seen", "", lambda: None))) == [b"a"]

    with_harness(step)


# What a delivery looks like


def test_a_delivery_is_a_status_then_messages_then_its_time_and_the_stream_ends() -> None:
    async def step(desk: BrokerHarness) -> None:
        await desk.send("plain", b"a", b"b")
        request = v2.ReceiveMessageRequest(batch_size=8)
        request.group.name, request.message_queue.topic.name = "g", "plain"
        request.invisible_duration.seconds = 30
        frames = [frame async for frame in desk.service.receive_message(request, CALL)]
        kinds = [frame.WhichOneof("content") for frame in frames]
        assert kinds == ["status", "message", "message", "delivery_timestamp"]
        empty = [frame async for frame in desk.service.receive_message(request, CALL)]
        assert [frame.status.code for frame in empty] == [v2.MESSAGE_NOT_FOUND]

    with_harness(step)


@pytest.mark.parametrize("zipped", [False, True])
def test_every_body_has_its_md5_in_capital_letters_also_one_in_gzip(zipped: bool) -> None:
    """A zipped body goes through as it is: the digest is that of its bytes."""
    body = gzip.compress(b"text") if zipped else b"text"

    async def step(desk: BrokerHarness) -> None:
        request = v2.SendMessageRequest(messages=[v2.Message(body=body)])
        message = request.messages[0]
        message.topic.name, message.system_properties.message_id = "plain", "m"
        message.system_properties.body_encoding = v2.GZIP if zipped else v2.IDENTITY
        await desk.service.send_message(request, CALL)
        (got,) = await desk.receive("g", "plain")
        system = got.system_properties
        assert got.body == body
        assert system.body_encoding == (v2.GZIP if zipped else v2.IDENTITY)
        assert system.body_digest.type == v2.MD5
        assert system.body_digest.checksum == hashlib.md5(body).hexdigest().upper()

    with_harness(step)


def test_any_queue_that_a_client_names_gives_what_the_group_is_due() -> None:
    """Node's client only ever asks for queue 0, Python's names none: neither starves, and neither splits a group."""

    async def step(desk: BrokerHarness) -> None:
        for number in range(12):
            await desk.send("ordered", b"%d" % number, message_group=f"g{number % 3}")
        got = await desk.receive("g", "ordered", auto_renew=True)
        assert sorted(bodies(got), key=int) == [b"%d" % number for number in range(12)]
        for group in range(3):
            mine = [message for message in got if message.system_properties.message_group == f"g{group}"]
            assert [int(message.body) for message in mine] == list(range(group, 12, 3))
            assert len({message.system_properties.queue_id for message in mine}) == 1

    with_harness(step)


def test_a_changed_duration_is_answered_with_another_handle() -> None:
    async def step(desk: BrokerHarness) -> None:
        await desk.send("plain", b"a")
        (message,) = await desk.receive("g", "plain")
        assert await desk.hide("g", "plain", message, 30) != message.system_properties.receipt_handle

    with_harness(step)


# What goes wrong


def test_the_code_of_the_only_message_stands_at_the_top() -> None:
    """Python's client looks at nothing else: an OK there would lose the message silently."""

    async def step(desk: BrokerHarness) -> None:
        response = await desk.send("plain", b"x", keys=[" "])
        assert response.status.code == response.entries[0].status.code == v2.ILLEGAL_MESSAGE_KEY

    with_harness(step)


def test_sends_are_put_off_while_too_much_is_being_stored() -> None:
    async def step(desk: BrokerHarness) -> None:
        body = b"x" * 60_000
        calls = [asyncio.ensure_future(desk.send("plain", body + b"%d" % number)) for number in range(4)]
        found = await asyncio.gather(*calls, return_exceptions=True)
        codes = [each.code if isinstance(each, StatusError) else v2.OK for each in found]
        assert codes == [v2.OK, v2.TOO_MANY_REQUESTS, v2.TOO_MANY_REQUESTS, v2.TOO_MANY_REQUESTS]
        assert (await desk.send("plain", body * 3)).status.code == v2.OK, "one alone may be larger than the limit"
        assert (await desk.send("plain", b"next")).status.code == v2.OK

    with_harness(step, limits=Limits(longest_poll=0, max_pending_bytes=100_000))


def test_receives_and_pulls_that_would_wait_are_put_off_while_too_many_do() -> None:
    async def step(desk: BrokerHarness) -> None:
        waiting = [asyncio.ensure_future(desk.receive("g", "plain", 1, poll=10)) for _ in range(2)]
        await settle(lambda: desk.core.waiting == 2)
        assert await refusal(desk.receive("g", "plain", 1, poll=10)) == v2.TOO_MANY_REQUESTS
        pulling = v2.PullMessageRequest(batch_size=1)
        pulling.message_queue.topic.name, pulling.long_polling_timeout.seconds = "plain", 1
        assert await refusal(anext(aiter(desk.service.pull_message(pulling, CALL)))) == v2.TOO_MANY_REQUESTS
        assert await desk.receive("g", "plain", 1) == [], "one that does not wait is answered"
        await desk.send("plain", b"a", b"b")
        assert sorted(bodies([each for got in await asyncio.gather(*waiting) for each in got])) == [b"a", b"b"]

    with_harness(step, limits=Limits(max_waiting=2))


# Clocks that are set


def test_a_clock_that_is_set_ahead_gives_everything_again_and_loses_nothing() -> None:
    async def step(desk: BrokerHarness) -> None:
        due = desk.clock.now() + 3600 * MICROSECONDS
        await desk.send("later", b"late", deliver_at=due)
        await desk.send("plain", b"a")
        (first,) = await desk.receive("g", "plain")
        desk.clock.jump(86_400)
        desk.delayed_messages.check_due_now()
        await settle(lambda: desk.core.topic("later").last_id == 1)
        assert (await desk.ack("g", "plain", first)).status.code == v2.INVALID_RECEIPT_HANDLE
        (again,) = await desk.receive("g", "plain")
        assert again.system_properties.delivery_attempt == 2
        assert (await desk.ack("g", "plain", again)).status.code == v2.OK
        assert bodies(await desk.receive("g", "later")) == [b"late"]

    with_harness(step)


def test_a_clock_that_is_set_back_keeps_handles_and_delivers_once_it_is_time() -> None:
    async def step(desk: BrokerHarness) -> None:
        await desk.send("plain", b"a", b"b")
        a, _ = await desk.receive("g", "plain")
        desk.clock.jump(-600)
        assert (await desk.ack("g", "plain", a)).status.code == v2.OK
        assert await desk.receive("g", "plain") == []
        desk.clock.advance(631)
        (b,) = await desk.receive("g", "plain")
        assert (b.body, b.system_properties.delivery_attempt) == (b"b", 2)

    async def after_restart(desk: BrokerHarness) -> None:
        desk.clock.jump(-600)
        await desk.send("ordered", b"1", b"2", message_group="g")
        assert bodies(await desk.receive("g", "ordered")) == [b"1"]
        desk.clock.jump(-600)
        assert await desk.receive("g", "ordered") == []
        desk.clock.advance(700)
        assert bodies(await desk.receive("g", "ordered")) == [b"1"]

    with_harness(step, after_restart)
