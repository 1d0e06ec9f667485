"""What every client keeps up with its servers: streams, settings, commands, routes, heartbeats, connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from millstream.core.clock import VirtualClock
from millstream.messaging.client import (
    ClientError,
    Credentials,
    ForbiddenError,
    Intervals,
    InvalidHandleError,
    Message,
    NotRunningError,
    Options,
    PartialFailureError,
    Producer,
    PushConsumer,
    Received,
    ServerFailedError,
    SimpleConsumer,
    StartupError,
    ThrottledError,
    Tls,
    TransportError,
    client,
)
from millstream.messaging.client.server_connections import COOLDOWN, ConnectionRecovery
from millstream.messaging.protocol import v2
from millstream.testing.scripted_server import ScriptedServer
from millstream.testing.waiting import until_async
from support.certificates import Authority

QUIET = Options(request_timeout=10.0, startup_timeout=30.0, intervals=Intervals(first_heartbeat=60.0, reopen=0.05))


def options(request_timeout: float = 10.0, **intervals: float) -> Options:
    every = Intervals(**{"first_heartbeat": 60.0, "reopen": 0.05, **intervals})
    return Options(request_timeout=request_timeout, startup_timeout=30.0, intervals=every)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(90):
            await test()

    asyncio.run(limited())


async def ignore(_message: Received) -> None:
    """A listener that is content."""


def test_a_stream_that_ends_or_breaks_is_opened_again_with_the_settings() -> None:
    async def test() -> None:
        async with ScriptedServer() as server, Producer(server.place, ["t"], options=QUIET):
            for number in range(2, 5):
                await server.break_streams()
                await until_async(lambda number=number: len(server.called("Telemetry")) == number)  # type: ignore[misc]
            assert server.called("Telemetry")[-1].settings.publishing.topics[0].name == "t"
            await until_async(lambda: server.streams == 1)

    run(test)


def test_a_closed_client_opens_no_stream_again_and_says_goodbye() -> None:
    async def test() -> None:
        async with ScriptedServer() as server:
            async with SimpleConsumer(server.place, "g", {"t": "*"}, options=QUIET):
                pass
            assert server.called("NotifyClientTermination")[0].group.name == "g"
            await until_async(lambda: server.streams == 0)
            async with Producer(server.place, ["t"], options=QUIET):
                for number in range(3, 6):  # a client that is open opens its stream again, three times as late
                    await server.break_streams()
                    await until_async(lambda number=number: len(server.called("Telemetry")) >= number)  # type: ignore[misc]
            kinds = [command.settings.WhichOneof("pub_sub") for command in server.called("Telemetry")]
            assert kinds == ["subscription", *["publishing"] * 4]

    run(test)


def test_settings_are_declared_anew_at_intervals_and_when_subscriptions_change() -> None:
    async def test() -> None:
        async with ScriptedServer() as server:
            async with SimpleConsumer(server.place, "g", {"t": "*"}, options=options(settings=0.05)):
                await until_async(lambda: len(server.called("Telemetry")) >= 3)
                assert len({id(call) for call in server.called("Telemetry")}) >= 3
                assert server.streams == 1  # on the stream that is there
            async with SimpleConsumer(server.place, "g", {"t": "*"}, options=QUIET) as consumer:

                def declared() -> dict[str, str]:
                    wanted = server.called("Telemetry")[-1].settings.subscription.subscriptions
                    return {each.topic.name: each.expression.expression for each in wanted}

                await consumer.subscribe("u", "a || b")
                await until_async(lambda: declared() == {"t": "*", "u": "a || b"})
                await consumer.unsubscribe("t")
                await until_async(lambda: declared() == {"u": "a || b"})

    run(test)


def test_a_server_that_never_settles_fails_the_start_and_is_named() -> None:
    async def never(_command: Any) -> None:
        await asyncio.Event().wait()

    async def test() -> None:
        async with ScriptedServer() as server:
            server.script["Telemetry"].append(never)
            hasty = Options(startup_timeout=0.2, intervals=QUIET.intervals)
            with pytest.raises(
                StartupError, match=f"{server.place} did not return routes and settings for t within 0.2"
            ):
                await Producer(server.place, ["t"], options=hasty).start()
            server.script["Telemetry"].append(v2.TelemetryCommand(status=v2.Status(code=v2.FORBIDDEN, message="no")))
            with pytest.raises(
                StartupError, match=f"{server.place} did not confirm the settings of this client for t: no"
            ):
                await Producer(server.place, ["t"], options=QUIET).start()
            wrong = v2.TelemetryCommand(status=v2.Status(code=v2.OK))
            wrong.settings.subscription.receive_batch_size = 3
            server.script["Telemetry"].append(wrong)
            with pytest.raises(
                StartupError, match="sent settings for subscription, but this client needs settings for publishing"
            ):
                await Producer(server.place, ["t"], options=QUIET).start()

    run(test)


def test_every_topic_is_settled_before_the_start_is_over_and_asked_for_once() -> None:
    may_answer = asyncio.Event()

    async def when_it_may(_command: Any) -> None:
        await may_answer.wait()

    async def test() -> None:
        async with ScriptedServer() as server, ScriptedServer() as other:
            server.script["Telemetry"].append(when_it_may)
            producer = Producer(server.place, list("abcde"), options=QUIET)
            starting = asyncio.ensure_future(producer.start())
            await until_async(lambda: bool(server.called("Telemetry")))
            async with Producer(other.place, list("abcde"), options=QUIET):  # which makes as many calls
                assert not starting.done()
                assert [request.topic.name for request in server.called("QueryRoute")] == ["a"]
            may_answer.set()
            await starting
            async with producer:
                assert [request.topic.name for request in server.called("QueryRoute")] == list("abcde")
                assert len(server.called("Telemetry")) == 1
                may_answer.clear()
                server.script["QueryRoute"].append(when_it_may)
                sending = asyncio.gather(*(producer.send(Message("later", b"x")) for _ in range(10)))
                await until_async(lambda: len(server.called("QueryRoute")) >= 6)
                may_answer.set()
                await sending
                assert len(server.called("QueryRoute")) == 6

    run(test)


def test_a_client_can_start_again_after_its_end_and_not_twice_at_once() -> None:
    async def test() -> None:
        async with ScriptedServer() as server:
            producer = Producer(server.place, ["t"], options=QUIET)
            for number in range(1, 3):
                await producer.start()
                await producer.start()
                await producer.send(Message("t", b"x"))
                assert len(server.called("QueryRoute")) == number
                await asyncio.gather(producer.close(), producer.close())
                with pytest.raises(NotRunningError):
                    await producer.send(Message("t", b"x"))

    run(test)


def test_a_call_that_the_end_of_its_client_cuts_off_fails_and_is_no_cancellation() -> None:
    async def for_ever(_request: Any) -> None:
        await asyncio.Event().wait()

    async def test() -> None:
        async with ScriptedServer() as server:
            consumer = SimpleConsumer(server.place, "g", {"t": "*"}, options=QUIET)
            await consumer.start()
            server.script["AckMessage"].append(for_ever)
            server.inbox.append(server.message("t", b"x"))
            (message,) = await consumer.receive()
            acknowledging = asyncio.ensure_future(consumer.ack(message))
            await until_async(lambda: bool(server.called("AckMessage")))
            await consumer.close()
            with pytest.raises(TransportError, match="the connection was closed"):
                await acknowledging

    run(test)


def test_a_server_is_told_the_stacks_of_all_threads() -> None:
    async def test() -> None:
        async with ScriptedServer() as server, Producer(server.place, ["t"], options=QUIET):
            ask = v2.TelemetryCommand()
            ask.print_thread_stack_trace_command.nonce = "n-1"
            await server.command(ask)
            answer = await server.said.get()
            assert (answer.status.code, answer.thread_stack_trace.nonce) == (v2.OK, "n-1")
            assert "MainThread" in answer.thread_stack_trace.thread_stack_trace
            assert "test_client_session" in answer.thread_stack_trace.thread_stack_trace

    run(test)


def verify(server: ScriptedServer, body: bytes) -> v2.TelemetryCommand:
    ask = v2.TelemetryCommand()
    ask.verify_message_command.nonce = body.decode()
    ask.verify_message_command.message.CopyFrom(server.message("t", body))
    return ask


def test_a_server_may_have_a_message_verified_and_a_slow_listener_holds_nothing_up() -> None:
    may_go_on = asyncio.Event()

    async def listen(message: Received) -> bool:
        if message.body == b"slow":
            await may_go_on.wait()
        return message.body != b"bad"

    async def test() -> None:
        async with ScriptedServer() as server:
            async with PushConsumer(server.place, "g", {"t": "*"}, listen, options=QUIET):
                for body in (b"slow", b"good", b"bad"):
                    await server.command(verify(server, body))
                answers = [await server.said.get() for _ in range(2)]
                may_go_on.set()
                answers.append(await server.said.get())
                found = {answer.verify_message_result.nonce: answer.status.code for answer in answers}
                assert found == {"slow": v2.OK, "good": v2.OK, "bad": v2.FAILED_TO_CONSUME_MESSAGE}
            async with Producer(server.place, ["t"], options=QUIET):
                await server.command(verify(server, b"x"))
                assert (await server.said.get()).status.code == v2.NOT_IMPLEMENTED

    run(test)


def test_orphaned_transactions_are_ended_as_the_checker_says_where_the_server_asked() -> None:
    async def check(message: Received) -> Any:
        if message.body == b"broken":
            raise ValueError("no idea")
        return message.body.decode()

    async def test() -> None:
        async with ScriptedServer() as server, Producer(server.place, ["t"], checker=check, options=QUIET):
            for body in (b"broken", b"unknown", b"commit", b"rollback"):
                ask = v2.TelemetryCommand()
                ask.recover_orphaned_transaction_command.transaction_id = f"tx-{body.decode()}"
                ask.recover_orphaned_transaction_command.message.CopyFrom(server.message("t", body))
                await server.command(ask)
            await until_async(lambda: len(server.called("EndTransaction")) == 2)
            ends = {end.transaction_id: (end.resolution, end.source) for end in server.called("EndTransaction")}
            asked = v2.SOURCE_SERVER_CHECK
            assert ends == {"tx-commit": (v2.COMMIT, asked), "tx-rollback": (v2.ROLLBACK, asked)}

    run(test)


def test_a_command_that_nobody_knows_is_passed_over() -> None:
    async def test() -> None:
        async with ScriptedServer() as server, Producer(server.place, ["t"], options=QUIET) as producer:
            ask = v2.TelemetryCommand()
            ask.notify_unsubscribe_lite_command.lite_topic = "light"
            await server.command(ask)
            await server.command(v2.TelemetryCommand())
            await server.command(verify(server, b"x"))
            assert (await server.said.get()).status.code == v2.NOT_IMPLEMENTED
            await producer.send(Message("t", b"x"))
            assert len(server.called("Telemetry")) == 1

    run(test)


def test_a_server_may_have_its_client_connect_anew() -> None:
    async def test() -> None:
        async with ScriptedServer() as server, Producer(server.place, ["t"], options=QUIET) as producer:
            for number in range(2, 4):  # no cooldown: the server knows what it does
                ask = v2.TelemetryCommand()
                ask.reconnect_endpoints_command.nonce = "n"
                await server.command(ask)
                await until_async(lambda number=number: len(server.called("Telemetry")) == number)  # type: ignore[misc]
                await until_async(lambda: server.streams == 1)
            await producer.send(Message("t", b"x"))

    run(test)


def test_a_connection_that_is_late_twice_is_made_anew() -> None:
    async def late(_request: Any) -> None:
        await asyncio.Event().wait()

    async def test() -> None:
        hasty = options(0.5, first_heartbeat=0.0, heartbeat=0.01)
        async with ScriptedServer() as server:
            server.script["Heartbeat"].extend([late, None, late, late, late, late])
            async with Producer(server.place, ["t"], options=hasty) as producer:
                await until_async(lambda: len(server.called("Telemetry")) == 2)
                assert len(server.called("Heartbeat")) >= 4
                await until_async(lambda: len(server.called("Heartbeat")) >= 17)  # long enough to open another stream
                assert len(server.called("Telemetry")) == 2  # one in thirty seconds
                await producer.send(Message("t", b"x"))

    run(test)


LATE = TransportError(reason="DEADLINE_EXCEEDED")
GONE = TransportError(reason="UNAVAILABLE")


@pytest.mark.parametrize(
    ("failures", "expected"),
    [
        ([(LATE, True)], [False]),
        ([(LATE, True), (LATE, True)], [False, True]),
        ([(LATE, True), None, (LATE, True)], [False, False]),
        ([(LATE, True), (ServerFailedError(), True), (LATE, True)], [False, False, False]),
        ([(GONE, True)], [True]),
        ([(GONE, False), (GONE, False)], [False, False]),
        ([(ThrottledError(), True)] * 3, [False] * 3),
        ([(GONE, True), (GONE, True), (LATE, True), (LATE, True)], [True, False, False, False]),
    ],
)
def test_connections_are_made_anew_where_they_look_well_and_are_dead(
    failures: list[tuple[ClientError, bool] | None], expected: list[bool]
) -> None:
    clock = VirtualClock()
    recovery = ConnectionRecovery(clock)
    found = []
    for failure in failures:
        if failure is None:
            recovery.succeeded()
        else:
            found.append(recovery.failed(failure[0], is_ready=failure[1]))
    assert found == expected
    clock.advance(COOLDOWN)
    assert recovery.failed(GONE, is_ready=True)


def test_routes_are_refreshed_and_servers_come_and_go_with_them() -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            one, two = [await stack.enter_async_context(ScriptedServer()) for _ in range(2)]
            every = options(first_route=0.02, route=0.02, idle=0.1, sweep=0.02)
            producer = await stack.enter_async_context(Producer(one.place, ["t", "u"], options=every))
            assert (one.streams, two.streams) == (1, 0)
            one.queues = [one.queue(0, "b", two.port)]
            await until_async(lambda: (one.streams, two.streams) == (0, 1))
            await producer.send(Message("t", b"x"))
            assert two.called("SendMessage")
            one.script["QueryRoute"].extend([grpc.StatusCode.UNAVAILABLE] * 6)
            await until_async(lambda: not one.script["QueryRoute"])  # the route that is known is kept
            await producer.send(Message("t", b"y"))
            one.queues = None
            await until_async(lambda: (one.streams, two.streams) == (1, 0))
            await until_async(lambda: len(producer._connections.transports) == 1)  # nobody needs the other one any more
            await producer.send(Message("t", b"z"))

    run(test)


def test_one_topic_without_a_route_keeps_no_other_from_being_refreshed() -> None:
    async def test() -> None:
        def without_a(request: Any) -> Any:
            return grpc.StatusCode.UNAVAILABLE if request.topic.name == "a" else None

        often = options(first_route=0.02, route=0.02)
        async with ScriptedServer() as server, Producer(server.place, ["a", "b"], options=often):
            before = len(server.called("QueryRoute"))
            server.script["QueryRoute"].extend([without_a] * 1000)
            await until_async(lambda: len(server.called("QueryRoute")) >= before + 8)
            names = [request.topic.name for request in server.called("QueryRoute")[before:]]
            assert abs(names.count("a") - names.count("b")) <= 1

    run(test)


def test_namespace_session_token_and_signature_travel_with_every_call(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        known = Options(
            namespace="space", credentials=Credentials("key", "hidden", "token"), intervals=Intervals(first_heartbeat=0)
        )
        async with ScriptedServer() as server:
            server.inbox.append(server.message("t", b"x"))
            async with (
                Producer(server.place, ["t"], options=known) as producer,
                SimpleConsumer(server.place, "g", {"t": "*"}, options=known) as consumer,
            ):
                await producer.send(Message("t", b"x"))
                (message,) = await consumer.receive()
                await consumer.ack(message)
                await until_async(lambda: len(server.called("Heartbeat")) >= 2)
            for call in server.calls:
                assert call.headers["x-mq-namespace"] == "space"
                assert call.headers["x-mq-session-token"] == "token"
                assert call.headers["authorization"].startswith("MQv2-HMAC-SHA1 Credential=key,")
                assert call.headers["x-mq-protocol"] == "v2"
            assert len({call.headers["x-mq-request-id"] for call in server.calls}) == len(server.calls)
            named = [
                server.called("QueryRoute")[0].topic,
                server.called("SendMessage")[0].messages[0].topic,
                server.called("ReceiveMessage")[0].group,
                server.called("ReceiveMessage")[0].message_queue.topic,
                server.called("AckMessage")[0].topic,
                server.called("Heartbeat")[-1].group,
            ]
            assert {each.resource_namespace for each in named} <= {"space", ""}
            assert [each.resource_namespace for each in named[:-1]] == ["space"] * 5

    with caplog.at_level(logging.DEBUG, "millstream"):
        run(test)
    assert "hidden" not in caplog.text
    assert "token" not in caplog.text


def test_a_server_is_checked_by_the_clients_own_ca_and_by_the_name_in_its_certificate(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    certificate, key = (path.read_bytes() for path in authority.issue("server"))

    def known(ca: Path, server_name: str = "") -> Options:
        return msgspec.structs.replace(QUIET, tls=Tls(ca.read_bytes(), server_name=server_name))

    async def test() -> None:
        async with ScriptedServer(credentials=grpc.ssl_server_credentials([(key, certificate)])) as server:
            for right in (known(authority.path), known(authority.path, "localhost")):
                async with Producer(server.place, ["t"], options=right) as producer:
                    await producer.send(Message("t", b"x"))
            for wrong in (known(other.path), known(authority.path, "elsewhere.example"), QUIET):
                with pytest.raises(TransportError):
                    await Producer(server.place, ["t"], options=wrong).start()

    run(test)


@pytest.mark.parametrize("wait", [0.0, 1.0, 20.0])
def test_a_receive_leaves_the_server_the_time_that_apaches_proxy_waits_at_least(wait: float) -> None:
    async def test() -> None:
        async with (
            ScriptedServer() as server,
            SimpleConsumer(server.place, "g", {"t": "*"}, await_duration=wait, options=QUIET) as consumer,
        ):
            assert await consumer.receive() == []
            (call,) = [call for call in server.calls if call.method == "ReceiveMessage"]
            assert call.request.long_polling_timeout.ToTimedelta().total_seconds() == wait
            assert call.seconds is not None
            spare = call.seconds - max(wait, 5.0)
            assert QUIET.request_timeout - 2 < spare < QUIET.request_timeout + 1

    run(test)


def refuse(topic: str) -> Callable[[v2.TelemetryCommand], v2.TelemetryCommand | None]:
    """Refuse settings that declare *topic*."""

    def answer(command: v2.TelemetryCommand) -> v2.TelemetryCommand | None:
        if topic not in declared(command.settings):
            return None
        return v2.TelemetryCommand(status=v2.Status(code=v2.FORBIDDEN, message=f"not {topic}"))

    return answer


def declared(settings: v2.Settings) -> list[str]:
    subscribed = [each.topic for each in settings.subscription.subscriptions]
    return [topic.name for topic in [*settings.publishing.topics, *subscribed]]


@pytest.mark.parametrize("method", ["QueryRoute", "SendMessage"])
def test_a_topic_that_a_producer_may_not_use_does_not_end_its_telemetry(method: str) -> None:
    async def test() -> None:
        async with ScriptedServer() as server, Producer(server.place, ["mine"], options=QUIET) as producer:
            server.script["Telemetry"].extend([refuse("secret")] * 50)
            forbidden = v2.Status(code=v2.FORBIDDEN, message="no permission")
            server.script[method].append(getattr(v2, f"{method}Response")(status=forbidden))
            with pytest.raises(ForbiddenError, match="no permission"):
                await producer.send(Message("secret", b"x"))
            if method == "QueryRoute":
                await producer.sync_settings()
            await until_async(lambda: len(server.called("Telemetry")) > 1)
            await until_async(lambda: declared(server.called("Telemetry")[-1].settings) == ["mine"])
            await until_async(lambda: server.streams == 1)
            await producer.send(Message("mine", b"x"))

    run(test)


def test_a_topic_that_a_consumer_may_not_use_does_not_end_its_telemetry() -> None:
    async def test() -> None:
        async with (
            ScriptedServer() as server,
            SimpleConsumer(server.place, "g", {"mine": "*"}, options=QUIET) as consumer,
        ):
            server.script["Telemetry"].extend([refuse("secret")] * 50)
            await consumer.subscribe("secret")
            denied = v2.ReceiveMessageResponse(status=v2.Status(code=v2.FORBIDDEN, message="no permission"))
            server.script["ReceiveMessage"].extend([None, denied])
            assert await consumer.receive() == []
            with pytest.raises(ForbiddenError, match="no permission"):
                await consumer.receive()
            await until_async(lambda: declared(server.called("Telemetry")[-1].settings) == ["mine"])
            assert await consumer.receive() == await consumer.receive() == []
            await consumer.sync_settings()
            await until_async(lambda: "secret" in declared(server.called("Telemetry")[-1].settings))

    run(test)


def test_results_of_acknowledgements_are_told_by_handle_whatever_their_order() -> None:
    async def test() -> None:
        async with (
            ScriptedServer() as server,
            SimpleConsumer(server.place, "g", {"t": "*"}, options=QUIET) as consumer,
        ):
            server.inbox.extend(server.message("t", b"%d" % number) for number in range(3))
            answer = v2.AckMessageResponse(status=v2.Status(code=v2.MULTIPLE_RESULTS))
            for number, code in ((2, v2.INVALID_RECEIPT_HANDLE), (0, v2.OK), (1, v2.OK)):
                answer.entries.add(receipt_handle=f"handle-{number}").status.code = code
            server.script["AckMessage"].append(answer)
            messages = await consumer.receive()
            with pytest.raises(PartialFailureError) as failed:
                await consumer.ack(*messages)
            assert [type(result) for result in failed.value.results] == [type(None), type(None), InvalidHandleError]

    run(test)


def test_a_send_goes_on_with_a_new_stream_where_another_one_gave_up_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "SETTLING", 0.0)

    async def test() -> None:
        async with (
            ScriptedServer() as server,
            ScriptedServer() as other,
            Producer(server.place, ["t"], options=options(request_timeout=1.0)) as producer,
        ):
            server.queues = [server.queue(0, "b", other.port)]
            other.script["Telemetry"].append(lambda _command: asyncio.Event().wait())  # no answer to the first settings
            first = asyncio.ensure_future(producer.send(Message("a", b"x")))
            begin = producer.clock.monotonic()
            await until_async(lambda: producer.clock.monotonic() - begin > 0.6)
            second = asyncio.ensure_future(producer.send(Message("b", b"x")))
            with pytest.raises(StartupError, match="no settings within 1 seconds"):
                await first
            await second
            await producer.send(Message("a", b"x"))

    run(test)
