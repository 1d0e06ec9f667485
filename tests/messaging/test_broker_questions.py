"""Questions that a broker puts to its clients: stack traces, and what a listener makes of a message."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from millstream.cli.main import run
from millstream.core.address import Address
from millstream.messaging import admin_client
from millstream.messaging.admin_client import call_broker
from millstream.messaging.broker.admin import ADMIN_SERVICE, CLIENTS, AdminCallError
from millstream.messaging.broker.clients import client_commands
from millstream.messaging.broker.clients.client_commands import ClientCommands
from millstream.messaging.broker.clients.sessions import ClientSession
from millstream.messaging.client import Message, Producer, PushConsumer, Received
from millstream.messaging.errors import ClientNotRespondingError, UnreachableError
from millstream.messaging.protocol import v2
from millstream.testing.brokers import BrokerProcess
from millstream.testing.waiting import until_async


def test_clients_are_listed_and_asked(broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    broker.create_topic("asked")
    endpoint = ["--broker", str(broker.place)]
    seen: list[bytes] = []

    async def handle(message: Received) -> bool:
        seen.append(message.body)
        return message.body != b"bad"

    async def ask(*arguments: str) -> tuple[int, str]:
        code = await asyncio.to_thread(run, ["client", *arguments, *endpoint])
        return code, capsys.readouterr().out

    async def talk() -> None:
        async with (
            Producer(str(broker.place), ["asked"]) as producer,
            PushConsumer(str(broker.place), "listeners", {"asked": "*"}, handle) as consumer,
        ):
            good, bad = [await producer.send(Message("asked", body)) for body in (b"good", b"bad")]
            code, text = await ask("list", "--group", "listeners")
            assert code == 0
            assert f"{consumer.id}  PUSH_CONSUMER of listeners  asked  seen" in text
            code, text = await ask("list", "--json")
            kinds = {json.loads(line)["client_id"]: json.loads(line)["kind"] for line in text.splitlines()}
            assert (kinds[producer.id], kinds[consumer.id]) == ("PRODUCER", "PUSH_CONSUMER")
            code, text = await ask("stack", consumer.id)
            assert (code, "test_broker_questions" in text) == (0, True)
            await until_async(lambda: len(seen) == 2, seconds=60)
            seen.clear()
            assert await ask("verify", consumer.id, "asked", str(good.offset + 1)) == (0, "OK\n")
            code, text = await ask("verify", consumer.id, "asked", str(bad.offset + 1))
            assert (code, text.partition("\n")[0].partition(":")[0]) == (1, "FAILED_TO_CONSUME_MESSAGE")
            assert seen.count(b"good") == 1
            code, text = await ask("verify", producer.id, "asked", "1")
            assert (code, text.partition("\n")[0].partition(":")[0]) == (1, "NOT_IMPLEMENTED")
            assert await ask("verify", consumer.id, "asked", "99") == (3, "")
            assert await ask("verify", "nobody", "asked", "1") == (3, "")
        assert call_broker(broker.place, CLIENTS, "listeners") == []

    asyncio.run(talk())


def session(name: str) -> ClientSession:
    made = ClientSession(name, 0)
    made.streams.append(asyncio.Queue())
    return made


def test_only_who_was_asked_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def talk() -> None:
        asked, other, open_questions = session("asked"), session("other"), ClientCommands()
        question = asyncio.ensure_future(open_questions.stack_trace(asked))
        command = await asked.streams[0].get()
        answer = v2.TelemetryCommand()
        answer.thread_stack_trace.nonce = command.print_thread_stack_trace_command.nonce
        answer.thread_stack_trace.thread_stack_trace = "main"
        open_questions.answer(other, answer)
        open_questions.answer(asked, v2.TelemetryCommand())
        await asyncio.sleep(0)
        assert not question.done()
        open_questions.answer(asked, answer)
        open_questions.answer(asked, answer)
        assert (await question).thread_stack_trace.thread_stack_trace == "main"
        open_questions.answer(asked, answer)

    asyncio.run(talk())


def test_who_does_not_answer_or_cannot_be_asked_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_commands, "ANSWER_TIMEOUT_SECONDS", 0.01)

    async def talk() -> None:
        with pytest.raises(ClientNotRespondingError, match="client silent did not answer"):
            await ClientCommands().stack_trace(session("silent"))
        with pytest.raises(ClientNotRespondingError, match="no open telemetry stream"):
            await ClientCommands().verify(ClientSession("gone", 0), v2.Message())
        full = session("full")
        full.streams[0] = asyncio.Queue(1)
        assert full.command(v2.TelemetryCommand())
        with pytest.raises(ClientNotRespondingError, match="client full does not read the commands"):
            await ClientCommands().stack_trace(full)

    asyncio.run(talk())


def test_a_server_without_the_admin_service_is_not_called_an_old_broker() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with pytest.raises(AdminCallError, match="is not a Millstream broker, or one of an earlier release"):
            call_broker(Address("127.0.0.1", port), CLIENTS, "g")
    finally:
        server.stop(None).wait()


@contextlib.contextmanager
def admin_server(answer: Callable[[], bytes]) -> Iterator[Address]:
    """Where a server is that gives *answer* to each administration call."""
    server = grpc.server(ThreadPoolExecutor(1))
    handler = grpc.unary_unary_rpc_method_handler(lambda _request, _context: answer())
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(ADMIN_SERVICE, {CLIENTS.name: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield Address("127.0.0.1", port)
    finally:
        server.stop(None).wait()


def test_a_large_answer_of_a_broker_is_taken() -> None:
    with admin_server(lambda: b'{"result":[]}' + b" " * (5 << 20)) as place:
        assert call_broker(place, CLIENTS, "g") == []


def test_a_broker_that_does_not_answer_in_time_may_have_made_the_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_client, "_SECONDS", 0.2)
    ended = threading.Event()
    with admin_server(lambda: str(ended.wait()).encode()) as place:
        try:
            with pytest.raises(UnreachableError, match="it may have made a change"):
                call_broker(place, CLIENTS, "g")
        finally:
            ended.set()
