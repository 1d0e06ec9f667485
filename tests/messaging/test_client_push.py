"""The push consumer against a scripted server: receiving, caching, retries, order, assignments, and its end."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import grpc
import msgspec
import pytest

from millstream.messaging.client import Intervals, NotRunningError, Options, PushConsumer, Received, SimpleConsumer
from millstream.messaging.protocol import v2
from millstream.testing.scripted_server import ScriptedServer
from millstream.testing.waiting import until_async

QUICK = Options(
    request_timeout=10.0,
    startup_timeout=30.0,
    intervals=Intervals(
        first_heartbeat=0.05, heartbeat=0.05, reopen=0.05, retry=0.05, assignments=0.05, throttled=0.02
    ),
)
MORE = 100_000
"""More scripted answers than are ever asked for."""


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(90):
            await test()

    asyncio.run(limited())


def status(code: Any) -> v2.ReceiveMessageResponse:
    return v2.ReceiveMessageResponse(status=v2.Status(code=code))


def push(server: ScriptedServer, listener: Any, **more: Any) -> PushConsumer:
    return PushConsumer(server.place, "g", {"t": "*"}, listener, options=QUICK, **more)


def ordered(settings: v2.Settings) -> None:
    """Settings of a server for a group with order, whose messages are tried three times, 20 ms apart."""
    settings.subscription.fifo = True
    settings.backoff_policy.max_attempts = 3
    settings.backoff_policy.customized_backoff.next.add().FromMilliseconds(20)


async def accept(_message: Received) -> None:
    """A listener that is content."""


async def refuse(_message: Received) -> bool:
    return False


async def next_beats(server: ScriptedServer, count: int = 3) -> None:
    """Wait for *count* more heartbeats, which the server gets after all earlier calls.

    They come as often as the other chores of QUICK: when three have come, each of those has been done.
    """
    before = len(server.called("Heartbeat"))
    await until_async(lambda: len(server.called("Heartbeat")) >= before + count)


def acknowledged(server: ScriptedServer) -> list[str]:
    return [entry.receipt_handle for request in server.called("AckMessage") for entry in request.entries]


def test_the_attempt_id_is_kept_until_messages_come() -> None:
    async def test() -> None:
        async with ScriptedServer() as server:
            answers = [grpc.StatusCode.UNAVAILABLE, status(v2.MESSAGE_NOT_FOUND), status(v2.INTERNAL_SERVER_ERROR)]
            server.script["ReceiveMessage"].extend([*answers, None])
            server.inbox.append(server.message("t", b"x"))
            async with push(server, accept):
                await until_async(lambda: len(server.called("ReceiveMessage")) >= 6)
            ids = [request.attempt_id for request in server.called("ReceiveMessage")]
            assert len(set(ids[:4])) == 1
            assert ids[4] != ids[3]
            assert ids[5] == ids[4]
            first = server.called("ReceiveMessage")[0]
            assert (first.auto_renew, first.batch_size, first.message_queue.id) == (True, 32, -1)
            assert not first.HasField("invisible_duration")
            assert first.long_polling_timeout.ToMilliseconds() == 500

    run(test)


def test_under_flow_control_it_asks_again_after_20_ms_and_after_failures_later() -> None:
    times: list[float] = []

    def note(answer: Any) -> Callable[[Any], Any]:
        def noted(_request: Any) -> Any:
            times.append(asyncio.get_running_loop().time())
            return answer

        return noted

    async def test() -> None:
        async with ScriptedServer() as server:
            answers = [status(v2.TOO_MANY_REQUESTS)] * 3 + [status(v2.INTERNAL_SERVER_ERROR)] * 3 + [None]
            server.script["ReceiveMessage"].extend(map(note, answers))
            patient = msgspec.structs.replace(QUICK, intervals=msgspec.structs.replace(QUICK.intervals, retry=1.0))
            async with PushConsumer(server.place, "g", {"t": "*"}, accept, options=patient):
                await until_async(lambda: len(times) == 7)
            pauses = [after - before for before, after in itertools.pairwise(times)]
            assert min(pauses[:3]) >= 0.02
            assert min(pauses[:3]) < 1.0
            assert min(pauses[3:]) >= 1.0

    run(test)


@pytest.mark.parametrize("bounds", [{"cache": 10}, {"cache_bytes": 100}])
def test_a_full_cache_receives_no_more_by_count_and_by_bytes(bounds: dict[str, int]) -> None:
    held: list[Received] = []
    go_on = asyncio.Event()

    async def listen(message: Received) -> None:
        held.append(message)
        await go_on.wait()

    async def test() -> None:
        async with ScriptedServer() as server:
            server.inbox.extend(server.message("t", b"%010d" % number) for number in range(50))
            async with push(server, listen, concurrency=100, **bounds) as consumer:
                most = 10 if "cache" in bounds else 32  # a batch is not cut by its bytes
                await until_async(lambda: len(held) == most)
                before = len(server.called("ReceiveMessage"))
                await next_beats(server)
                assert (len(server.called("ReceiveMessage")), len(held)) == (before, most)
                assert consumer.cached() == {"t": (len(held), 10 * len(held))}
                go_on.set()
                await until_async(lambda: len(held) == 50)
                await until_async(lambda: len(acknowledged(server)) == 50)
                await until_async(lambda: consumer.cached() == {"t": (0, 0)})

    run(test)


def test_an_acknowledgement_is_repeated_until_it_succeeds_or_its_handle_is_no_good() -> None:
    async def test() -> None:
        async with ScriptedServer() as server:
            failed = v2.AckMessageResponse(status=v2.Status(code=v2.INTERNAL_SERVER_ERROR))
            invalid = v2.AckMessageResponse(status=v2.Status(code=v2.INVALID_RECEIPT_HANDLE))
            server.script["AckMessage"].extend([failed, grpc.StatusCode.UNAVAILABLE, None, invalid])
            server.inbox.append(server.message("t", b"one"))
            async with push(server, accept, concurrency=1):
                await until_async(lambda: len(acknowledged(server)) == 3)
                server.inbox.append(server.message("t", b"two"))
                await until_async(lambda: len(acknowledged(server)) == 4)
                await next_beats(server)
            assert acknowledged(server) == ["handle-one"] * 3 + ["handle-two"]

    run(test)


def test_a_message_that_failed_is_hidden_for_the_pause_of_its_attempt_and_that_is_repeated_too() -> None:
    async def test() -> None:
        async with ScriptedServer() as server:
            invalid = v2.ChangeInvisibleDurationResponse(status=v2.Status(code=v2.INVALID_RECEIPT_HANDLE))
            server.script["ChangeInvisibleDuration"].extend([grpc.StatusCode.UNAVAILABLE, None, invalid])
            server.inbox.append(server.message("t", b"x", attempt=3))
            async with push(server, refuse):
                await until_async(lambda: len(server.called("ChangeInvisibleDuration")) == 2)
                server.inbox.append(server.message("t", b"y", attempt=1))
                await until_async(lambda: len(server.called("ChangeInvisibleDuration")) == 3)
                await next_beats(server)
            hidden = [
                (request.receipt_handle, request.invisible_duration.ToMilliseconds())
                for request in server.called("ChangeInvisibleDuration")
            ]
            assert hidden == [("handle-x", 40), ("handle-x", 40), ("handle-y", 10)]  # 10 ms, doubled each time
            assert not server.called("AckMessage")

    run(test)


def test_p4_order_holds_past_retries_and_dead_letters_which_are_repeated_until_they_are_told() -> None:
    seen: list[tuple[bytes, int]] = []

    async def listen(message: Received) -> bool:
        seen.append((message.body, message.attempt))
        if message.body == b"raises" and message.attempt == 1:
            raise ValueError("once")
        return message.body != b"bad"

    async def test() -> None:
        async with ScriptedServer() as server:
            server.settings = ordered
            move_to_dead_letters = "ForwardMessageToDeadLetterQueue"
            server.script[move_to_dead_letters].extend([grpc.StatusCode.UNAVAILABLE, None])
            bodies = (b"good", b"raises", b"bad", b"last")
            server.inbox.extend(server.message("t", body, message_group="g") for body in bodies)
            async with push(server, listen):
                await until_async(lambda: len(acknowledged(server)) == 3)
            expected = [
                (b"good", 1),
                (b"raises", 1),
                (b"raises", 2),
                (b"bad", 1),
                (b"bad", 2),
                (b"bad", 3),
                (b"last", 1),
            ]
            assert seen == expected
            assert acknowledged(server) == ["handle-good", "handle-raises", "handle-last"]
            buried = server.called(move_to_dead_letters)
            assert [(each.receipt_handle, each.delivery_attempt) for each in buried] == [("handle-bad", 3)] * 2
            assert buried[0].max_delivery_attempts == 3
            order = [call.method for call in server.calls if call.method in (move_to_dead_letters, "AckMessage")]
            assert order == ["AckMessage", "AckMessage", move_to_dead_letters, move_to_dead_letters, "AckMessage"]
            assert not server.called("ChangeInvisibleDuration")

    run(test)


@pytest.mark.parametrize("lost", ["AckMessage", "ForwardMessageToDeadLetterQueue"])
def test_p4_what_is_behind_a_message_that_another_consumer_has_is_not_handled_but_given_back(lost: str) -> None:
    seen: list[bytes] = []

    async def listen(message: Received) -> bool:
        seen.append(message.body)
        return lost == "AckMessage"

    async def test() -> None:
        async with ScriptedServer() as server:
            server.settings = ordered
            code = v2.Status(code=v2.INVALID_RECEIPT_HANDLE)
            response = v2.AckMessageResponse if lost == "AckMessage" else v2.ForwardMessageToDeadLetterQueueResponse
            server.script[lost].append(response(status=code))
            server.inbox.extend(server.message("t", body, message_group="g") for body in (b"one", b"two", b"three"))
            async with push(server, listen) as consumer:
                await until_async(lambda: len(server.called("ChangeInvisibleDuration")) == 2 or b"two" in seen)
                await until_async(lambda: consumer.cached() == {"t": (0, 0)})
            assert set(seen) == {b"one"}
            hidden = server.called("ChangeInvisibleDuration")
            assert [each.receipt_handle for each in hidden] == ["handle-two", "handle-three"]

    run(test)


def test_p4_message_groups_do_not_wait_for_one_another() -> None:
    seen: list[bytes] = []
    go_on = asyncio.Event()

    async def listen(message: Received) -> None:
        seen.append(message.body)
        if message.body == b"a-0":
            await go_on.wait()

    async def test() -> None:
        async with ScriptedServer() as server:
            server.settings = ordered
            for number in range(3):
                for group in "ab":
                    body = f"{group}-{number}".encode()
                    server.inbox.append(server.message("t", body, message_group=group))
            async with push(server, listen):
                await until_async(lambda: len(seen) == 4)
                assert sorted(seen) == [b"a-0", b"b-0", b"b-1", b"b-2"]
                go_on.set()
                await until_async(lambda: len(acknowledged(server)) == 6)

    run(test)


def test_a_corrupted_message_reaches_no_listener() -> None:
    seen: list[bytes] = []

    async def listen(message: Received) -> None:
        seen.append(message.body)

    def broken(server: ScriptedServer) -> v2.Message:
        message = server.message("t", b"broken")
        message.body = b"brokem"
        return message

    async def test() -> None:
        async with ScriptedServer() as server:
            server.inbox.append(broken(server))
            async with push(server, listen):
                await until_async(lambda: bool(server.called("ChangeInvisibleDuration")))
        async with ScriptedServer() as server:
            server.settings = ordered
            server.inbox.append(broken(server))
            async with push(server, listen):
                await until_async(lambda: bool(server.called("ForwardMessageToDeadLetterQueue")))
        assert not seen

    run(test)


def test_queues_come_and_go_with_the_assignments_and_a_failure_changes_nothing() -> None:
    def assignments(server: ScriptedServer, numbers: Sequence[int]) -> v2.QueryAssignmentResponse:
        response = v2.QueryAssignmentResponse(status=v2.Status(code=v2.OK))
        for number in numbers:
            response.assignments.add().message_queue.CopyFrom(server.queue(number))
        return response

    async def test() -> None:
        async with ScriptedServer() as server:

            def asked() -> set[int]:
                return {request.message_queue.id for request in server.called("ReceiveMessage")[-6:]}

            def assign(*numbers: int) -> None:
                server.script["QueryAssignment"].clear()
                server.script["QueryAssignment"].extend([assignments(server, numbers)] * MORE)

            assign(0, 1)
            async with push(server, accept, cache=100) as consumer:
                await until_async(lambda: asked() == {0, 1})
                assert {request.batch_size for request in server.called("ReceiveMessage")} == {32}
                assign(1, 2, 3, 4, 5)  # a share of the cache is 20 messages now
                await until_async(lambda: asked() == {1, 2, 3, 4, 5} or len(consumer._queues) == 5)
                await until_async(lambda: server.called("ReceiveMessage")[-1].batch_size == 20)
                server.script["QueryAssignment"].clear()
                server.script["QueryAssignment"].extend([grpc.StatusCode.UNAVAILABLE] * 5)
                await until_async(lambda: not server.script["QueryAssignment"])
                assert len(consumer._queues) >= 1
                dropped = [queue._task for queue in consumer._queues.values()]
                assign()
                await until_async(lambda: not consumer._queues and all(task.done() for task in dropped))
                before = len(server.called("ReceiveMessage"))
                await next_beats(server)
                assert len(server.called("ReceiveMessage")) == before

    run(test)


def test_an_answer_that_cannot_be_read_does_not_silence_a_queue() -> None:
    async def test() -> None:
        async with ScriptedServer() as server:
            odd = server.message("t", b"odd")
            odd.system_properties.born_timestamp.seconds = 1 << 60  # no time that Python knows
            server.inbox.extend([odd, server.message("t", b"good")])
            server.script["ReceiveMessage"].append(lambda _request: b"no response at all")
            async with push(server, accept):
                await until_async(lambda: sorted(acknowledged(server)) == ["handle-good", "handle-odd"])

    run(test)


def test_while_it_closes_it_receives_nothing_more_and_its_heart_goes_on_beating() -> None:
    begun = asyncio.Event()
    go_on = asyncio.Event()

    async def listen(_message: Received) -> None:
        begun.set()
        await go_on.wait()

    async def test() -> None:
        async with ScriptedServer() as server:
            server.inbox.extend(server.message("t", b"%d" % number) for number in range(3))
            consumer = push(server, listen, concurrency=1)
            await consumer.start()
            await begun.wait()
            closing = asyncio.ensure_future(consumer.close())
            await until_async(lambda: not consumer._queues)
            await next_beats(server, 2)
            server.inbox.append(server.message("t", b"late"))
            received, beats = len(server.called("ReceiveMessage")), len(server.called("Heartbeat"))
            await until_async(lambda: len(server.called("Heartbeat")) >= beats + 3)
            assert len(server.called("ReceiveMessage")) == received
            assert not server.called("NotifyClientTermination")
            go_on.set()
            await closing
            assert acknowledged(server) == ["handle-0"]
            given_back = server.called("ChangeInvisibleDuration")
            assert [each.receipt_handle for each in given_back] == ["handle-1", "handle-2"]
            assert {each.invisible_duration.ToMilliseconds() for each in given_back} == {0}
            assert server.calls[-1].method == "NotifyClientTermination"

    run(test)


def test_closing_never_waits_for_a_sleeping_retry() -> None:
    async def test() -> None:
        async with ScriptedServer() as server:

            def patient(settings: v2.Settings) -> None:
                ordered(settings)
                settings.backoff_policy.customized_backoff.next[0].FromSeconds(3600)

            server.settings = patient
            server.inbox.extend(server.message("t", b"%d" % number, message_group="g") for number in range(2))
            begin = asyncio.get_running_loop().time()
            async with push(server, refuse) as consumer:
                await until_async(lambda: consumer.cached() == {"t": (2, 2)})
            handles = [each.receipt_handle for each in server.called("ChangeInvisibleDuration")]
            assert handles == ["handle-0", "handle-1"]
            server.settings = lambda _settings: None
            server.script["AckMessage"].extend([grpc.StatusCode.UNAVAILABLE] * MORE)
            server.inbox.append(server.message("t", b"x"))
            async with push(server, accept):
                await until_async(lambda: bool(server.called("AckMessage")))
            assert asyncio.get_running_loop().time() - begin < 10

    run(test)


def test_a_slow_consumer_of_ten_thousand_messages_caches_a_bounded_number_and_loses_none() -> None:
    most = 0
    seen: set[bytes] = set()

    async def test() -> None:
        async with ScriptedServer() as server:
            server.inbox.extend(server.message("t", b"%d" % number) for number in range(10_000))

            async def listen(message: Received) -> None:
                nonlocal most
                most = max(most, consumer.cached()["t"][0])
                await asyncio.sleep(0)
                seen.add(message.body)

            consumer = push(server, listen, cache=300, concurrency=50)
            async with consumer:
                await until_async(lambda: len(seen) == 10_000)
                await until_async(lambda: consumer.cached() == {"t": (0, 0)})
            assert most <= 300
            assert len(acknowledged(server)) == len(set(acknowledged(server))) == 10_000

    run(test)


def test_simple_consumers_take_turns_with_topics_and_queues_and_refuse_what_cannot_be() -> None:
    async def test() -> None:
        async with ScriptedServer() as server:
            async with SimpleConsumer(server.place, "g", {"a": "*", "b": "x || y"}, options=QUICK) as consumer:
                for _ in range(8):
                    assert await consumer.receive(7, invisible=15) == []
                asked = [
                    (each.message_queue.topic.name, each.message_queue.id) for each in server.called("ReceiveMessage")
                ]
                assert [topic for topic, _ in asked] == ["a", "b"] * 4
                assert [queue for topic, queue in asked if topic == "a"] == [0, 1, 2, 3]
                request = server.called("ReceiveMessage")[1]
                assert (request.batch_size, request.auto_renew, request.invisible_duration.seconds) == (7, False, 15)
                assert request.filter_expression.expression == "x || y"
                with pytest.raises(Exception, match="at least 1"):
                    await consumer.receive(0)
                server.inbox.append(server.message("a", b"x"))
                (message,) = await consumer.receive()
                later = await consumer.change_invisible_duration(message, 30)
                assert later.receipt_handle == message.receipt_handle + "+"
            for refused in (consumer.ack(message), consumer.change_invisible_duration(message, 1), consumer.receive(),
                            consumer.subscribe("a"), consumer.unsubscribe("a")):  # fmt: skip
                with pytest.raises(NotRunningError):
                    await refused

    run(test)
