"""What a broker remembers across restarts, and what it lets go of."""

from __future__ import annotations

import asyncio

import pytest

from millstream.core.clock import MICROSECONDS
from millstream.log import Log, LogError, LogSpec
from millstream.messaging.broker.core import BrokerCore
from millstream.messaging.broker.handlers.telemetry import TelemetryHandler
from millstream.messaging.broker.limits import Limits
from millstream.messaging.broker.storage.journal import HELD, JOURNAL
from millstream.messaging.protocol import v2
from support.broker_harness import CALL, BrokerHarness, bodies, settle, with_harness


def test_p3_what_is_done_stays_done_and_attempts_are_counted_across_restarts() -> None:
    async def first(desk: BrokerHarness) -> None:
        await desk.send("plain", b"a", b"b", b"c")
        got = await desk.receive("g", "plain", 2)
        await desk.ack("g", "plain", got[0])

    async def second(desk: BrokerHarness) -> None:
        assert bodies(await desk.receive("g", "plain")) == [b"c"]
        desk.clock.advance(31)
        assert [(m.body, m.system_properties.delivery_attempt) for m in await desk.receive("g", "plain")] == [
            (b"b", 2), (b"c", 2),
        ]  # fmt: skip

    with_harness(first, second)


def test_what_clients_have_stays_renewed_when_the_journal_is_read_again_in_the_same_process() -> None:
    async def step(desk: BrokerHarness) -> None:
        await desk.send("plain", b"a")
        session = desk.heard_of()
        with session.stream(asyncio.Queue(), CALL.connection, desk.clock.now()):
            (got,) = await desk.receive("g", "plain", auto_renew=True)
            asked = asyncio.ensure_future(desk.core.client_commands.stack_trace(session))
            desk.core.close()
            desk.core = BrokerCore(desk.store, desk.clock, before=desk.core)
            desk.clock.advance(200)
            desk.core.check_handle("g", "plain", got.system_properties.receipt_handle)
            answer = v2.TelemetryCommand()
            question = (await session.streams[0].get()).print_thread_stack_trace_command
            answer.thread_stack_trace.nonce = question.nonce
            assert TelemetryHandler(desk.core).handle(session, CALL, answer) == []
            assert await asked == answer

    with_harness(step)


def test_a_handle_outlives_a_restart() -> None:
    held: list[v2.Message] = []

    async def first(desk: BrokerHarness) -> None:
        await desk.send("plain", b"a")
        held.extend(await desk.receive("g", "plain"))

    async def second(desk: BrokerHarness) -> None:
        assert (await desk.ack("g", "plain", *held)).status.code == v2.OK
        desk.clock.advance(3600)
        assert await desk.receive("g", "plain") == []

    with_harness(first, second)


def test_snapshots_keep_all_that_the_journal_says() -> None:

    async def first(desk: BrokerHarness) -> None:
        await desk.send("later", b"x", message_id="held", deliver_at=desk.clock.now() + 3600 * MICROSECONDS)
        for number in range(30):
            await desk.send("plain", b"%d" % number)
            got = await desk.receive("g", "plain")
            if number % 3:
                await desk.ack("g", "plain", *got)
        await desk.send("ordered", b"o1", message_group="g")
        await desk.send("ordered", b"o2", message_group="g")
        await desk.receive("g", "ordered")

    async def second(desk: BrokerHarness) -> None:
        assert desk.core.journal._log.pointer("snapshot") > 0
        assert [hold.message_id for hold in desk.core.journal.state.delayed] == ["held"]
        assert len(desk.core.delivery("g", "plain").flights) == 10
        assert await desk.receive("g", "ordered") == []
        desk.clock.advance(31)
        assert len(await desk.receive("g", "plain")) == 10
        assert bodies(await desk.receive("g", "ordered")) == [b"o1"]

    with_harness(first, second, limits=Limits(longest_poll=0, snapshot_after=20))


def test_the_journal_and_the_held_messages_are_trimmed_behind_what_still_counts() -> None:
    async def first(desk: BrokerHarness) -> None:
        delayed = desk.core.journal.state.delayed
        for number in range(200):
            due = desk.clock.now() + (3600 if number == 150 else 1) * MICROSECONDS
            await desk.send("later", b"%d" % number, message_id=f"held-{number}", deliver_at=due)
            await desk.send("plain", b"%d" % number)
            desk.clock.advance(2)
            desk.delayed_messages.check_due_now()
            await settle(lambda: len(delayed) <= 1 and all(hold.message_id == "held-150" for hold in delayed))
            await desk.ack("g", "plain", *await desk.receive("g", "plain"))
        await settle(desk.core.journal.is_at_rest)

    async def second(desk: BrokerHarness) -> None:
        journal = desk.core.journal
        logs = desk.store.log(JOURNAL), desk.store.log(HELD)
        assert all(log.last_id >= 200 for log in logs)
        assert logs[0].last_id - logs[0].first_id < 100
        assert logs[1].first_id == 151, "nothing before the one that is held"
        assert [hold.message_id for hold in journal.state.delayed] == ["held-150"]
        assert await desk.receive("g", "plain") == []
        assert desk.store.log(LogSpec("plain")).pointer("group.g") > 150
        desk.clock.advance(3600)
        desk.delayed_messages.check_due_now()
        await settle(lambda: not journal.state.delayed)
        assert desk.core.topic("later").last_id == 200

    with_harness(first, second, limits=Limits(longest_poll=0, snapshot_after=20))


def test_a_journal_whose_snapshot_fails_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def step(desk: BrokerHarness) -> None:
        journal = desk.store.log(JOURNAL)
        for number in range(60):
            if number == 30:
                monkeypatch.setattr(Log, "trim", refuse)
            await desk.send("plain", b"%d" % number)
            await desk.ack("g", "plain", *await desk.receive("g", "plain"))
            await settle(desk.core.journal.is_at_rest)
        monkeypatch.undo()
        assert "a snapshot of the broker's journal failed" in caplog.text
        begin = journal.first_id
        for number in range(60, 90):
            await desk.send("plain", b"%d" % number)
            await desk.ack("g", "plain", *await desk.receive("g", "plain"))
        await settle(desk.core.journal.is_at_rest)
        assert journal.first_id > begin

    def refuse(*_: object) -> int:
        raise LogError("the disk is full")

    with_harness(step, limits=Limits(longest_poll=0, snapshot_after=20))
