"""What a broker remembers across restarts, and what it lets go of."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from millstream.core.clock import MICROSECONDS, VirtualClock
from millstream.log import Log, LogError, LogSpec, LogStore, Message, StorageUnavailableError, open_store
from millstream.messaging.broker.core import BrokerCore
from millstream.messaging.broker.handlers.telemetry import TelemetryHandler
from millstream.messaging.broker.limits import Limits
from millstream.messaging.broker.security.access_keys import Keyring
from millstream.messaging.broker.security.required_permissions import RequiredPermission
from millstream.messaging.broker.server.rpc import check_caller
from millstream.messaging.broker.storage.broker_state import BrokerState
from millstream.messaging.broker.storage.journal import HELD, JOURNAL, SNAPSHOT, BrokerJournal
from millstream.messaging.broker.storage.journal_events import (
    DelayedMessagesSnapshot,
    Finished,
    MessagesLeased,
    OffsetMoved,
    read_event,
)
from millstream.messaging.broker.storage.topic_specs import TopicSpecs
from millstream.messaging.errors import StatusError
from millstream.messaging.protocol import v2
from support.broker_harness import CALL, BrokerHarness, bodies, open_harness, settle, with_harness


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


class LosingStore:
    """A log store in *folder* whose logs can be set back, as by a power loss with ``durability=os``."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._clock = folder, VirtualClock()

    def run(self, step: Callable[[BrokerHarness], Coroutine[Any, Any, None]]) -> None:
        """Run *step* on a broker started anew."""

        async def run() -> None:
            async with open_harness(store, self._clock, Limits(longest_poll=0)) as desk:
                await step(desk)

        with open_store(f"segments:///{self._folder}/store?durability=os", self._clock) as store:
            asyncio.run(run())

    def keep(self, log: str) -> None:
        """Remember the log *log* as it is now."""
        shutil.copytree(self._place(log), self._folder / "kept")

    def lose(self, log: str) -> None:
        """Set the log *log* back to what was kept."""
        place = self._place(log)
        shutil.rmtree(place)
        shutil.move(self._folder / "kept", place)

    def _place(self, log: str) -> Path:
        (found,) = (self._folder / "store" / "logs").glob(f"*{log}")
        return found


@pytest.mark.parametrize("topic", ["one", "ordered"])
def test_messages_with_the_ids_of_lost_ones_are_delivered(
    tmp_path: Path, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = LosingStore(tmp_path)

    async def send(desk: BrokerHarness, *texts: str) -> None:
        for text in texts:
            group = {"message_group": text} if topic == "ordered" else {}
            await desk.send(topic, text.encode(), **group)

    async def send_two(desk: BrokerHarness) -> None:
        await send(desk, "0", "1")
        (got,) = await desk.receive("g", topic, 1)  # it stays in flight
        assert got.body == b"0"

    async def send_three_and_finish_them(desk: BrokerHarness) -> None:
        await send(desk, "2", "3", "4")
        desk.core.journal.record(Finished("g", topic, [(2, 5)]))
        assert desk.core.journal.state.delivery("g", topic).last_seen == 5
        desk.core.journal.record(OffsetMoved("g", topic, 0, 4))

    async def send_again(desk: BrokerHarness) -> None:
        await send(desk, "5", "6", "7")
        assert bodies(await desk.receive("g", topic, 1)) == [b"5"], "the message has the id of a lost one"
        assert desk.core.journal.state.offsets["g", topic, 0] == 2
        assert [run.first for run in desk.core.delivery("g", topic).in_flight] == [1, 3]

    async def receive_again(desk: BrokerHarness) -> None:
        desk.clock.advance(31)
        got = await desk.receive("g", topic)
        assert [(m.body, m.system_properties.delivery_attempt) for m in sorted(got, key=lambda m: m.body)] == [
            (b"0", 2), (b"5", 2), (b"6", 1), (b"7", 1),
        ]  # fmt: skip

    store.run(send_two)
    store.keep(topic)
    store.run(send_three_and_finish_them)
    store.lose(topic)
    store.run(send_again)
    assert f"topic {topic} ends at message 2, but consumer groups have seen messages up to 5" in caplog.text
    caplog.clear()
    store.run(receive_again)
    assert "lost messages" not in caplog.text


def test_delayed_messages_with_the_ids_of_lost_ones_are_delivered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = LosingStore(tmp_path)

    async def hold(desk: BrokerHarness, *names: str) -> None:
        for name in names:
            due = desk.clock.now() + 10 * MICROSECONDS
            await desk.send("later", name.encode(), message_id=name, deliver_at=due)

    async def release(desk: BrokerHarness) -> None:
        desk.clock.advance(11)
        desk.delayed_messages.check_due_now()
        await settle(lambda: not desk.core.journal.state.delayed)

    async def hold_and_release(desk: BrokerHarness) -> None:
        await hold(desk, "b", "c")
        await release(desk)

    async def receive(desk: BrokerHarness) -> None:
        await release(desk)
        assert sorted(bodies(await desk.receive("g", "later"))) == [b"a", b"b", b"c", b"d"]

    store.run(lambda desk: hold(desk, "a"))
    store.keep("broker.held")
    store.run(hold_and_release)
    store.lose("broker.held")
    store.run(lambda desk: hold(desk, "d"))
    assert "the log of held messages ends at id 1, but the journal of the broker has ids up to 3" in caplog.text
    caplog.clear()
    store.run(receive)
    assert "lost messages" not in caplog.text


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


def test_an_id_of_an_attempt_or_a_client_that_is_long_is_refused_but_read_from_the_journal() -> None:
    async def first(desk: BrokerHarness) -> None:
        await desk.send("plain", b"a", b"b")
        with pytest.raises(StatusError, match=r"the attempt id 'x+'… has 256 characters; the limit is 255") as refused:
            await desk.receive("g", "plain", attempt_id="x" * 256)
        assert refused.value.code == v2.BAD_REQUEST
        assert bodies(await desk.receive("g", "plain", 1, attempt_id="x" * 255)) == [b"a"]
        with pytest.raises(StatusError, match=r"the client id 'y+'… has 256 characters; the limit is 255"):
            check_caller(Keyring(), RequiredPermission("none"), None, {"x-mq-client-id": "y" * 256})
        now, long = desk.clock.now(), "z" * 20_000
        await desk.core.journal.write(
            MessagesLeased(
                group="g", topic="plain", ids=[(2, 2)], at=now, until=now + MICROSECONDS, client=long, attempt_id=long
            )
        )

    async def second(desk: BrokerHarness) -> None:
        (_, run) = desk.core.delivery("g", "plain").in_flight
        assert (run.first, len(run.terms.attempt_id), len(run.terms.client)) == (2, 20_000, 20_000)

    with_harness(first, second)


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
        assert desk.core.delivery("g", "plain").in_flight.messages == 10
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
        desk.clock.advance(3600)
        desk.delayed_messages.check_due_now()
        await settle(lambda: not journal.state.delayed)
        assert desk.core.topic("later").last_id == 200

    with_harness(first, second, limits=Limits(longest_poll=0, snapshot_after=20))


def test_a_journal_whose_snapshot_pointer_lags_behind_is_read_from_where_it_begins() -> None:
    async def first(desk: BrokerHarness) -> None:
        for number in range(60):
            await desk.send("plain", b"%d" % number)
            await desk.ack("g", "plain", *await desk.receive("g", "plain"))
        await settle(desk.core.journal.is_at_rest)
        journal = desk.store.log(JOURNAL)
        assert journal.first_id > 2
        journal.set_pointer(SNAPSHOT, 1)  # by a process that was suspended while another one took over

    async def second(desk: BrokerHarness) -> None:
        assert desk.core.delivery("g", "plain").done.pointer == 60
        assert TopicSpecs(desk.store).read().keys() == desk.core.journal.state.topics.keys()

    with_harness(first, second, limits=Limits(longest_poll=0, snapshot_after=20))


@pytest.mark.parametrize("failing", [(Log, "read"), (LogStore, "log")])
def test_a_journal_that_cannot_be_opened_leaves_its_logs_to_the_next_attempt(
    failing: tuple[type[Any], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(owner: Any, *arguments: Any, **more: Any) -> Any:
        if isinstance(owner, Log) or arguments == (HELD,):
            raise StorageUnavailableError
        return original(owner, *arguments, **more)

    clock, original = VirtualClock(), getattr(*failing)
    with open_store("memory://", clock) as store:
        with monkeypatch.context() as patch:
            patch.setattr(*failing, refuse)
            with pytest.raises(StorageUnavailableError):
                BrokerCore(store, clock)
        for log in (JOURNAL, HELD):
            store.log(log).writer("broker").close()


def test_a_snapshot_names_no_delayed_message_that_a_crash_may_lose(monkeypatch: pytest.MonkeyPatch) -> None:
    async def step(desk: BrokerHarness) -> None:
        await desk.send("later", b"x", deliver_at=desk.clock.now() + 60 * MICROSECONDS)
        journal = desk.core.journal
        monkeypatch.setattr(journal, "_held", 2)  # one more was appended, and is not durable yet
        await journal._take_snapshot()
        *_, event = (read_event(message) for batch in desk.store.log(JOURNAL).read() for message in batch)
        assert isinstance(event, DelayedMessagesSnapshot)
        assert (event.upto, event.ids) == (1, [(1, 1)])

    with_harness(step)


def test_the_state_is_not_counted_before_a_snapshot_may_be_due(monkeypatch: pytest.MonkeyPatch) -> None:
    async def step(desk: BrokerHarness) -> None:
        monkeypatch.setattr(BrokerState, "size", property(lambda _: pytest.fail("it looks at each group")))
        await desk.send("plain", b"x")
        await desk.ack("g", "plain", *await desk.receive("g", "plain"))

    with_harness(step)


def test_positions_of_groups_are_stored_with_the_logs_of_their_topics_without_a_snapshot(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def step(desk: BrokerHarness) -> None:
        for topic in ("one", "plain", "ordered"):
            await desk.core.publish(topic, [Message(b"a"), Message(b"b")])
            await desk.ack("g", topic, *await desk.receive("g", topic, 1))
        await desk.receive("new", "one")
        set_pointer = Log.set_pointer
        monkeypatch.setattr(Log, "set_pointer", refuse_one)
        await desk.core.journal.save_positions()
        assert positions(desk, "g") == {"one": 0, "plain": 1, "ordered": 1}, "one that fails holds up no other"
        assert "cannot store 2 positions of consumer groups" in caplog.text
        monkeypatch.setattr(Log, "set_pointer", set_pointer)
        await desk.core.journal.save_positions()
        assert positions(desk, "g") == {"one": 1, "plain": 1, "ordered": 1}
        assert "group.new" in desk.store.log(LogSpec("one")).info().consumers
        await desk.core.reset_offset("g", "plain", 1)
        await desk.core.journal.save_positions()
        assert positions(desk, "g") == {"one": 1, "plain": 0, "ordered": 1}
        monkeypatch.setattr(Log, "set_pointer", refuse)
        await desk.core.journal.save_positions()  # nothing has moved
        desk.core.journal._saved_positions.clear()
        await desk.core.journal.save_positions()  # nothing has moved since the broker was started again
        await desk.core.reset_offset("g", "plain", 3)
        monkeypatch.setattr(BrokerJournal, "is_usable", False)
        await desk.core.journal.save_positions()  # another broker has taken over

    def positions(desk: BrokerHarness, group: str) -> dict[str, int]:
        return {name: desk.store.log(LogSpec(name)).pointer(f"group.{group}") for name in ("one", "plain", "ordered")}

    def refuse_one(log: Log, consumer: str, last_id: int, original: Callable[..., None] = Log.set_pointer) -> None:
        if log.name == "one":
            raise OSError("the disk is full")
        original(log, consumer, last_id)

    def refuse(_: Log, consumer: str, last_id: int) -> None:
        if last_id:
            pytest.fail(f"it stores the position of {consumer}")

    with_harness(step)


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
