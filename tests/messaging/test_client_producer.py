"""The producer against a scripted server: which attempts it makes, where, when it stops, and what it gathers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from millstream.messaging.client import (
    BadRequestError,
    ClientError,
    ForbiddenError,
    Intervals,
    Message,
    NotRunningError,
    Options,
    PartialFailureError,
    PayloadError,
    Producer,
    Receipt,
    ResourceNotFoundError,
    ServerFailedError,
    ThrottledError,
    TransportError,
    blocking,
)
from millstream.messaging.protocol import v2
from millstream.testing.scripted_server import ScriptedServer
from millstream.testing.waiting import until_async

QUIET = Options(
    request_timeout=10.0, startup_timeout=30.0, intervals=Intervals(first_heartbeat=60.0, reopen=0.05, resend=0.02)
)
BEATING = Options(
    request_timeout=10.0,
    startup_timeout=30.0,
    intervals=Intervals(first_heartbeat=0.02, heartbeat=0.02, reopen=0.05, resend=0.02),
)
BEATING_LATER = msgspec.structs.replace(
    BEATING, intervals=msgspec.structs.replace(BEATING.intervals, first_heartbeat=0.5)
)
"""The first heartbeats, which fail and open the connection anew, come when the sends are over."""

VECTORS = Path(__file__).parents[2] / "docs" / "formats" / "fifo-vectors.json"


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(90):
            await test()

    asyncio.run(limited())


def refusal(code: Any, text: str = "no") -> v2.SendMessageResponse:
    return v2.SendMessageResponse(status=v2.Status(code=code, message=text))


def entries(*codes: Any) -> v2.SendMessageResponse:
    response = v2.SendMessageResponse(status=v2.Status(code=v2.OK if set(codes) == {v2.OK} else v2.MULTIPLE_RESULTS))
    for number, code in enumerate(codes):
        response.entries.add(message_id=f"stored-{number}", offset=number).status.code = code
    return response


def sent(server: ScriptedServer) -> list[list[bytes]]:
    return [[message.body for message in request.messages] for request in server.called("SendMessage")]


def own_server() -> ScriptedServer:
    """A server that counts as a broker of Millstream without columns: several messages share a call of the protocol."""
    return ScriptedServer(platform="millstream batches-0")


def texts(count: int, topic: str = "t", **more: Any) -> list[Message]:
    return [Message(topic, b"%d" % number, **more) for number in range(count)]


def test_a_send_that_failed_goes_to_the_next_broker_at_once_and_a_heartbeat_brings_the_first_one_back() -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            one, two = [await stack.enter_async_context(ScriptedServer()) for _ in range(2)]
            one.queues = [one.queue(0, "a"), one.queue(0, "b", two.port)]
            producer = await stack.enter_async_context(Producer(one.place, ["t"], options=BEATING_LATER))
            for server in (one, two):
                server.script["Heartbeat"].extend([grpc.StatusCode.UNAVAILABLE] * 3)
                server.script["SendMessage"].append(grpc.StatusCode.UNAVAILABLE)
            with pytest.raises(TransportError, match="as the test says"):
                for server in (one, two, one):
                    server.script["SendMessage"].append(grpc.StatusCode.UNAVAILABLE)
                await producer.send(Message("t", b"x"))
            assert len(sent(one)) + len(sent(two)) == 3
            assert min(len(sent(one)), len(sent(two))) == 1
            assert len(producer.isolated) == 2
            ids = {message.system_properties.message_id for each in (one, two)
                   for request in each.called("SendMessage") for message in request.messages}  # fmt: skip
            assert len(ids) == 1  # however often it is sent, it is one message
            await until_async(lambda: not producer.isolated)
            for server in (one, two):
                server.script["SendMessage"].clear()
            assert isinstance(await producer.send(Message("t", b"y")), Receipt)

    run(test)


def test_a_broker_that_failed_is_passed_over_while_another_one_is_well() -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            one, two = [await stack.enter_async_context(ScriptedServer()) for _ in range(2)]
            one.queues = [one.queue(0, "a"), one.queue(0, "b", two.port)]
            producer = await stack.enter_async_context(Producer(one.place, ["t"], options=QUIET))
            one.script["SendMessage"].append(refusal(v2.INTERNAL_SERVER_ERROR))
            for message in texts(6):
                await producer.send(message)
            assert len(producer.isolated) == 1
            assert len(sent(one)) <= 2
            assert len(sent(two)) >= 5

    run(test)


def test_a_send_that_failed_goes_to_the_server_that_has_the_topic_by_then() -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            one, two = [await stack.enter_async_context(ScriptedServer()) for _ in range(2)]
            one.queues = [one.queue(0, "a")]
            producer = await stack.enter_async_context(Producer(one.place, ["t"], options=QUIET))
            one.script["SendMessage"].extend([grpc.StatusCode.UNAVAILABLE] * 3)
            one.queues = [one.queue(0, "a", two.port)]
            assert isinstance(await producer.send(Message("t", b"x", message_group="g")), Receipt)
            assert (len(sent(one)), len(sent(two))) == (1, 1)

    run(test)


def test_a_send_to_the_only_server_waits_before_it_tries_again() -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            only = await stack.enter_async_context(ScriptedServer())
            only.queues = [only.queue(0, "a")]
            producer = await stack.enter_async_context(Producer(only.place, ["t"], options=QUIET))
            only.script["SendMessage"].extend([grpc.StatusCode.UNAVAILABLE] * 2)
            begin = producer.clock.monotonic()
            assert isinstance(await producer.send(Message("t", b"x")), Receipt)
            pause = QUIET.intervals.resend
            assert producer.clock.monotonic() - begin >= pause + 4 * pause

    run(test)


@pytest.mark.parametrize("busy", [refusal(v2.TOO_MANY_REQUESTS), grpc.StatusCode.RESOURCE_EXHAUSTED])
def test_under_flow_control_a_send_waits_as_the_server_has_it(busy: Any) -> None:
    async def test() -> None:
        async with ScriptedServer() as server, Producer(server.place, ["t"], options=QUIET) as producer:
            server.script["SendMessage"].extend([busy, busy])
            begin = asyncio.get_running_loop().time()
            await producer.send(Message("t", b"x"))
            assert asyncio.get_running_loop().time() - begin >= 0.02 + 0.04  # 10 ms, doubled each time
            server.script["SendMessage"].extend([busy] * 3)
            with pytest.raises(ThrottledError) as refused:
                await producer.send(Message("t", b"x"))
            assert refused.value.code == v2.TOO_MANY_REQUESTS

    run(test)


@pytest.mark.parametrize("code", [v2.ILLEGAL_MESSAGE_KEY, v2.MESSAGE_BODY_TOO_LARGE, v2.FORBIDDEN, v2.TOPIC_NOT_FOUND])
def test_what_would_fail_again_is_tried_once_and_isolates_nobody(code: int) -> None:
    async def test() -> None:
        async with ScriptedServer() as server, Producer(server.place, ["t"], options=QUIET) as producer:
            server.script["SendMessage"].append(refusal(code, "why"))
            with pytest.raises(ClientError, match="why") as refused:
                await producer.send(Message("t", b"x"))
            headers = next(call.headers for call in server.calls if call.method == "SendMessage")
            assert (refused.value.code, refused.value.request_id) == (code, headers["x-mq-request-id"])
            assert len(sent(server)) == 1
            assert not producer.isolated

    run(test)


def test_a_refusal_after_an_attempt_without_an_answer_is_told_as_an_unknown_result() -> None:
    async def test() -> None:
        async with ScriptedServer() as server, Producer(server.place, ["t"], options=QUIET) as producer:
            server.script["SendMessage"].extend([grpc.StatusCode.UNAVAILABLE, refusal(v2.FORBIDDEN, "not you")])
            with pytest.raises(TransportError, match=r"may have been stored, although .* failed: not you") as unknown:
                await producer.send(Message("t", b"x"))
            assert (unknown.value.code, unknown.value.reason) == (0, "UNAVAILABLE")
            assert isinstance(unknown.value.__cause__, ForbiddenError)
            server.script["SendMessage"].extend([grpc.StatusCode.UNAVAILABLE, *[refusal(v2.TOO_MANY_REQUESTS)] * 2])
            with pytest.raises(TransportError, match="may have been stored"):
                await producer.send(Message("t", b"x"))
            server.script["SendMessage"].extend([refusal(v2.TOO_MANY_REQUESTS), refusal(v2.FORBIDDEN)])
            with pytest.raises(ForbiddenError):  # a busy server has stored nothing
                await producer.send(Message("t", b"x"))

    run(test)


def test_in_a_batch_only_what_an_earlier_attempt_may_have_stored_is_told_as_unknown() -> None:
    async def test() -> None:
        async with own_server() as server, Producer(server.place, ["t"], options=QUIET) as producer:
            first = entries(v2.INTERNAL_SERVER_ERROR, v2.ILLEGAL_MESSAGE_KEY, v2.OK, v2.TOO_MANY_REQUESTS)
            server.script["SendMessage"].extend([first, entries(v2.FORBIDDEN, v2.FORBIDDEN)])
            with pytest.raises(PartialFailureError, match="3 of 4 messages were not confirmed as stored") as failed:
                await producer.send_many(texts(4))
            kinds = [type(each) for each in failed.value.results]
            assert kinds == [ServerFailedError, BadRequestError, Receipt, ForbiddenError]
            assert "may have been stored" in str(failed.value.results[0])

    run(test)


def test_messages_that_may_be_stored_are_not_sent_one_by_one_under_new_ids() -> None:
    async def test() -> None:
        async with own_server() as server, Producer(server.place, ["t"], linger=0.01, options=QUIET) as producer:
            server.script["SendMessage"].extend([grpc.StatusCode.UNAVAILABLE, refusal(v2.FORBIDDEN)])
            results = await asyncio.gather(*map(producer.send, texts(3)), return_exceptions=True)
            assert [type(result) for result in results] == [TransportError] * 3
            assert sent(server) == [[b"0", b"1", b"2"]] * 2

    run(test)


def test_a_blocking_send_tells_an_unknown_result_too() -> None:
    def send(place: str) -> None:
        with blocking.Producer(place, ["t"], options=QUIET) as producer:
            producer.send(Message("t", b"x"))

    async def test() -> None:
        async with ScriptedServer() as server:
            server.script["SendMessage"].extend([grpc.StatusCode.UNAVAILABLE, refusal(v2.FORBIDDEN)])
            with pytest.raises(TransportError, match="may have been stored"):
                await asyncio.to_thread(send, server.place)

    run(test)


def test_a_transaction_that_may_have_ended_says_so_when_a_repeated_end_is_refused() -> None:
    async def check(_message: Any) -> Any:
        return "unknown"

    async def test() -> None:
        ended = v2.EndTransactionResponse(status=v2.Status(code=v2.INVALID_TRANSACTION_ID, message="no open one"))
        async with ScriptedServer() as server, Producer(server.place, ["t"], checker=check, options=QUIET) as producer:
            transaction = await producer.begin(Message("t", b"half"))
            server.script["EndTransaction"].extend([grpc.StatusCode.UNAVAILABLE, ended])
            with pytest.raises(
                TransportError, match=r"may have been committed, although .* failed: no open one; .* asks the checker"
            ):
                async with transaction:
                    await transaction.commit()  # and the block rolls back
            server.script["EndTransaction"].append(ended)
            with pytest.raises(BadRequestError, match="no open one"):
                await (await producer.begin(Message("t", b"half"))).commit()

    run(test)


def test_halves_of_transactions_are_never_sent_again() -> None:
    async def check(_message: Any) -> Any:
        return "unknown"

    async def test() -> None:
        async with ScriptedServer() as server, Producer(server.place, ["t"], checker=check, options=QUIET) as producer:
            server.script["SendMessage"].append(grpc.StatusCode.UNAVAILABLE)
            with pytest.raises(TransportError):
                await producer.begin(Message("t", b"half"))
            assert len(sent(server)) == 1
            transaction = await producer.begin(Message("t", b"half"))
            server.script["EndTransaction"].append(grpc.StatusCode.UNAVAILABLE)
            with pytest.raises(TransportError):
                await transaction.commit()
            await transaction.commit()  # a failure may be tried again
            with pytest.raises(BadRequestError, match="already ended"):
                await transaction.rollback()
            ends = server.called("EndTransaction")
            assert [(end.resolution, end.source) for end in ends] == [(v2.COMMIT, v2.SOURCE_CLIENT)] * 2
            assert ends[0].transaction_id == "transaction"
        async with ScriptedServer() as server, Producer(server.place, ["t"], options=QUIET) as producer:
            with pytest.raises(BadRequestError, match="checker"):
                await producer.begin(Message("t", b"half"))

    run(test)


def test_p4_a_message_group_keeps_to_its_queue_of_the_published_vectors_whatever_is_isolated() -> None:
    vectors = [each for each in json.loads(VECTORS.read_text("utf-8")) if each["group"].strip()]

    async def test() -> None:
        async with ScriptedServer() as server:
            server.queues = [server.queue(number) for number in range(8)]
            async with Producer(server.place, ["t"], options=QUIET) as producer:
                for number, vector in enumerate(vectors):
                    if number % 5 == 0:
                        server.script["SendMessage"].append(grpc.StatusCode.UNAVAILABLE)
                    await producer.send(Message("t", b"x", message_group=vector["group"]))
                assert producer.isolated
                placed: dict[str, set[int]] = {}
                for request in server.called("SendMessage"):
                    found = request.messages[0].system_properties
                    placed.setdefault(found.message_group, set()).add(found.queue_id)
                assert placed == {vector["group"]: {vector["queues"]["8"]} for vector in vectors}

    run(test)


def test_of_a_batch_only_what_failed_is_sent_again() -> None:
    async def test() -> None:
        async with own_server() as server, Producer(server.place, ["t"], options=QUIET) as producer:
            server.script["SendMessage"].append(entries(v2.OK, v2.INTERNAL_SERVER_ERROR, v2.ILLEGAL_MESSAGE_KEY, v2.OK))
            with pytest.raises(PartialFailureError, match="1 of 4 messages were not confirmed as stored") as failed:
                await producer.send_many(texts(4))
            assert [type(each) for each in failed.value.results] == [Receipt, Receipt, BadRequestError, Receipt]
            assert sent(server) == [[b"0", b"1", b"2", b"3"], [b"1"]]
            assert failed.value.code == v2.ILLEGAL_MESSAGE_KEY

    run(test)


@pytest.mark.parametrize("more", [{}, {"deliver_at": datetime.now(UTC) + timedelta(hours=1)}])
def test_a_server_that_is_not_millstreams_gets_each_message_in_a_call_of_its_own(more: dict[str, Any]) -> None:
    """Apache's gives all messages of a call the properties of the first; delayed ones can stop its timer for ever."""

    async def test() -> None:
        async with ScriptedServer() as server, Producer(server.place, ["t"], linger=60.0, options=QUIET) as producer:
            tagged = [Message("t", b"%d" % number, tag=f"tag-{number}", **more) for number in range(40)]
            server.script["SendMessage"].append(refusal(v2.ILLEGAL_MESSAGE_TAG, "bad tag"))
            with pytest.raises(PartialFailureError, match="1 of 40 messages were not confirmed as stored"):
                await producer.send_many(tagged)
            receipts = await asyncio.gather(*map(producer.send, tagged))  # which do not linger: they share nothing
            assert len({receipt.message_id for receipt in receipts}) == 40
            assert sorted(sent(server)) == sorted([message.body] for message in [*tagged, *tagged])
            server.script["SendMessage"].extend([refusal(v2.INTERNAL_SERVER_ERROR)] * 48)
            with pytest.raises(ServerFailedError):
                await producer.send_many(tagged)
            assert len(sent(server)) <= 80 + 3 * 16  # a server that fails is not asked for each message

    run(test)


def test_p4_messages_of_a_group_stay_in_order_at_a_server_that_is_not_millstreams() -> None:
    async def test() -> None:
        under_way: list[bytes] = []

        async def slow(request: Any) -> None:
            under_way.append(request.messages[0].body)
            settings = len(server.called("Telemetry"))
            await producer.sync_settings()
            await until_async(lambda: len(server.called("Telemetry")) > settings)  # which come after a second call
            assert under_way.pop() == request.messages[0].body
            assert not under_way

        async with ScriptedServer() as server, Producer(server.place, ["t"], options=QUIET) as producer:
            ordered = texts(12, message_group="g")
            server.script["SendMessage"].extend([slow, grpc.StatusCode.UNAVAILABLE, *[slow] * 11])
            await producer.send_many(ordered[:6])
            await asyncio.gather(*map(producer.send, ordered[6:]))
            calls = sent(server)
            assert calls.pop(2) == calls[1]  # the second attempt of the second message
            assert calls == [[message.body] for message in ordered]

    run(test)


def test_a_topic_that_is_first_sent_to_later_is_declared_to_its_servers() -> None:
    async def test() -> None:
        async with ScriptedServer() as server, Producer(server.place, ["early"], options=QUIET) as producer:
            await producer.send(Message("late", b"x"))

            def declared() -> list[str]:
                return [topic.name for topic in server.called("Telemetry")[-1].settings.publishing.topics]

            await until_async(lambda: declared() == ["early", "late"])
            await producer.send(Message("late", b"y"))
            assert len(server.called("QueryRoute")) == 2

    run(test)


def test_the_servers_settings_count_and_change_while_it_runs() -> None:
    async def test() -> None:
        async with ScriptedServer() as server, Producer(server.place, ["t"], options=QUIET) as producer:
            changed = v2.TelemetryCommand(status=v2.Status(code=v2.OK))
            changed.settings.publishing.max_body_size = 3
            changed.settings.publishing.validate_message_type = False
            await server.command(changed)
            with pytest.raises(PayloadError, match="exceeds the server's limit of 3"):
                while True:
                    await producer.send(Message("t", b"long"))

            def lenient(settings: v2.Settings) -> None:
                settings.publishing.max_body_size, settings.publishing.validate_message_type = 1000, False

            server.settings = lenient
            queue = server.queue(0)
            del queue.accept_message_types[:]
            server.queues = [queue]
            await producer.send(Message("unchecked", b"x"))

    run(test)


def test_messages_sent_at_the_same_time_travel_together() -> None:
    async def test() -> None:
        async with (
            own_server() as server,
            Producer(server.place, ["t", "u"], linger=0.01, batch=10, options=QUIET) as producer,
        ):
            receipts = await asyncio.gather(*map(producer.send, [*texts(25), *texts(3, "u")]))
            assert [receipt.offset for receipt in receipts] == [*range(10), *range(10), *range(5), *range(3)]
            found = sorted(sent(server), key=lambda bodies: (-len(bodies), bodies))
            assert [len(bodies) for bodies in found] == [10, 10, 5, 3]
            begin = asyncio.get_running_loop().time()
            await producer.send(Message("t", b"alone"))
            assert asyncio.get_running_loop().time() - begin >= 0.009
            due = datetime.now(UTC) + timedelta(hours=1)
            await asyncio.gather(*map(producer.send, texts(2, deliver_at=due)))
            assert [len(bodies) for bodies in sent(server)[-2:]] == [1, 1]  # delayed messages go by themselves

    run(test)


def test_p4_gathered_messages_of_a_group_are_sent_in_order_one_call_at_a_time() -> None:
    async def test() -> None:
        at_once: list[int] = []

        async def slow(_request: Any) -> None:
            at_once.append(1)
            settings = len(server.called("Telemetry"))
            await producer.sync_settings()
            await until_async(lambda: len(server.called("Telemetry")) > settings)  # which come after a second call
            assert len(at_once) == 1
            at_once.clear()

        async with (
            own_server() as server,
            Producer(server.place, ["t"], linger=0.0, batch=4, options=QUIET) as producer,
        ):
            server.script["SendMessage"].extend([slow, grpc.StatusCode.UNAVAILABLE, *[slow] * 5])
            await asyncio.gather(*map(producer.send, texts(18, message_group="g")))
            calls = sent(server)
            assert calls.pop(2) == calls[1]  # the second attempt of the second batch
            assert [body for bodies in calls for body in bodies] == [b"%d" % number for number in range(18)]

    run(test)


def test_a_batch_is_full_by_its_bytes_too_and_a_large_message_goes_alone() -> None:
    async def test() -> None:
        async with (
            own_server() as server,
            Producer(server.place, ["t"], linger=5.0, batch_bytes=1000, options=QUIET) as producer,
        ):
            bodies = [b"a" * 400, b"b" * 400, b"c" * 400, b"d" * 3000]
            sending = asyncio.gather(*(producer.send(Message("t", body)) for body in bodies))
            await until_async(lambda: len(sent(server)) == 3)
            await sending
            assert [list(map(len, each)) for each in sorted(sent(server))] == [[400, 400], [400], [3000]]
            with pytest.raises(PayloadError):
                await producer.send(Message("t", b"x" * (4 << 20 | 1)))

    run(test)


def test_closing_sends_what_lingers_and_waits_for_what_is_under_way() -> None:
    async def test() -> None:
        may_answer = asyncio.Event()

        async def slow(_request: Any) -> None:
            await may_answer.wait()

        async with own_server() as server:
            producer = Producer(server.place, ["t"], linger=60.0, options=BEATING)
            await producer.start()
            server.script["SendMessage"].append(slow)
            under_way = asyncio.ensure_future(producer.send_many(texts(2)))
            await until_async(lambda: len(sent(server)) == 1)
            lingering = [asyncio.ensure_future(producer.send(message)) for message in texts(3)]
            await asyncio.sleep(0)
            closing = asyncio.ensure_future(producer.close())
            await asyncio.sleep(0)
            with pytest.raises(NotRunningError):
                await producer.send(Message("t", b"late"))
            closing.cancel()  # whoever is impatient does not stop it half-way
            assert len(await asyncio.gather(*lingering)) == 3
            beats = len(server.called("Heartbeat"))
            await until_async(
                lambda: len(server.called("Heartbeat")) >= beats + 3 or bool(server.called("NotifyClientTermination"))
            )
            assert not server.called("NotifyClientTermination")
            may_answer.set()
            assert len(await under_way) == 2
            await producer.close()
            assert sorted(map(len, sent(server))) == [2, 3]
            assert server.called("NotifyClientTermination")

    run(test)


def test_a_flush_sends_at_once_and_a_cancelled_send_takes_its_message_back() -> None:
    async def test() -> None:
        async with own_server() as server, Producer(server.place, ["t"], linger=60.0, options=QUIET) as producer:
            sending = [asyncio.ensure_future(producer.send(message)) for message in texts(4)]
            await asyncio.sleep(0)
            sending[1].cancel()
            await asyncio.sleep(0)
            await producer.flush()
            assert sent(server) == [[b"0", b"2", b"3"]]
            assert [task.done() for task in sending] == [True] * 4
            await producer.flush()
            with pytest.raises(BadRequestError, match="batch at least 1 message, batch_bytes at least 1 byte"):
                Producer(server.place, linger=0.0, batch=0)

    run(test)


def test_messages_that_are_too_large_for_one_call_are_sent_alone_and_other_refusals_are_final() -> None:
    async def test() -> None:
        async with own_server() as server, Producer(server.place, ["t"], linger=0.01, options=QUIET) as producer:

            def strict(request: Any) -> Any:
                if any(message.body == b"1" for message in request.messages):
                    return refusal(v2.PAYLOAD_TOO_LARGE, "too large")
                return None

            server.script["SendMessage"].extend([strict] * 4)
            results = await asyncio.gather(*map(producer.send, texts(3)), return_exceptions=True)
            assert [type(result) for result in results] == [Receipt, PayloadError, Receipt]
            server.script["SendMessage"].extend([refusal(v2.TOPIC_NOT_FOUND), *[refusal(v2.INTERNAL_SERVER_ERROR)] * 3])
            for error, calls in ((ResourceNotFoundError, 1), (ServerFailedError, 3)):
                before = len(sent(server))
                results = await asyncio.gather(*map(producer.send, texts(3)), return_exceptions=True)
                assert [type(result) for result in results] == [error] * 3
                assert len(sent(server)) == before + calls

    run(test)
