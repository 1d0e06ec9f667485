"""Delays, recalls, transactions and orphans, on a virtual clock."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Iterator, Sequence

import msgspec
import pytest

from millstream.core.clock import MICROSECONDS, VirtualClock
from millstream.log import LogSpec, Message, StorageUnavailableError, Writer
from millstream.log.backends.memory import MemoryBackend
from millstream.log.store import LogStore
from millstream.messaging.broker.limits import Limits
from millstream.messaging.broker.storage.deduplication_index import DeduplicationIndex
from millstream.messaging.broker.storage.journal import HELD
from millstream.messaging.broker.storage.journal_events import OffsetMoved
from millstream.messaging.broker.storage.topic import Topic, TopicSpec
from millstream.messaging.errors import StatusError
from millstream.messaging.protocol import v2
from support.broker_harness import CALL, BrokerHarness, bodies, open_harness, settle, with_harness


def test_a_delayed_message_comes_at_its_time_also_after_a_restart() -> None:
    async def send(desk: BrokerHarness) -> None:
        due = desk.clock.now() + 60 * MICROSECONDS
        await desk.send("later", b"soon", deliver_at=due)
        await desk.send("later", b"past", deliver_at=due - 3600 * MICROSECONDS)
        await settle(lambda: desk.core.topic("later").last_id == 1)
        past = await desk.receive("g", "later")
        assert bodies(past) == [b"past"]
        await desk.ack("g", "later", *past)

    async def wait(desk: BrokerHarness) -> None:
        desk.clock.advance(61)
        await desk.send("later", b"wakes the broker", deliver_at=desk.clock.now() + 60 * MICROSECONDS)
        await settle(lambda: desk.core.topic("later").last_id == 2)
        (got,) = await desk.receive("g", "later")
        assert (got.body, got.system_properties.message_type) == (b"soon", v2.DELAY)
        assert got.system_properties.HasField("delivery_timestamp")

    with_harness(send, wait)


def test_a_topic_that_cannot_be_used_holds_up_no_other() -> None:
    async def send(desk: BrokerHarness) -> None:
        await desk.core.create_topic(TopicSpec("too", "DELAY", 1))
        for topic in ("later", "too"):
            await desk.send(topic, topic.encode(), deliver_at=desk.clock.now() + 60 * MICROSECONDS)
        await desk.send("halves", b"half", message_id="half")

    async def wait(desk: BrokerHarness) -> None:
        other = desk.store.log(LogSpec("later")).writer("another process")
        desk.clock.advance(61)
        desk.delayed_messages.check_due_now()
        await settle(lambda: [hold.topic for hold in desk.core.journal.state.delayed if not hold.half] == ["later"])
        assert desk.core.extent("too")[1] == 1
        other.close()
        desk.clock.advance(6)
        desk.delayed_messages.check_due_now()
        await settle(lambda: desk.core.extent("later")[1] == 1)
        assert bodies(await desk.receive("g", "later")) == [b"later"]

    with_harness(send, wait)


def test_large_messages_that_are_due_together_are_delivered_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def step(desk: BrokerHarness) -> None:
        publish, parts = desk.core.publish, list[list[int]]()

        async def note(name: str, messages: Sequence[Message]) -> Sequence[int]:
            parts.append([message.body[0] for message in messages])
            return await publish(name, messages)

        monkeypatch.setattr(desk.core, "publish", note)
        for number in range(5):
            body = bytes([number]) * (3 << 20)
            await desk.send("later", body, message_id=str(number), deliver_at=desk.clock.now() + 60 * MICROSECONDS)
        desk.clock.advance(61)
        desk.delayed_messages.check_due_now()
        await settle(lambda: not desk.core.journal.state.delayed)
        assert parts == [[0, 1, 2], [3, 4]]
        assert desk.core.extent("later") == (1, 5)

    with_harness(step)


def test_a_topic_whose_log_fails_holds_up_neither_other_topics_nor_transactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(topic: Topic, original: Callable[[Topic], DeduplicationIndex] = Topic._read_known) -> DeduplicationIndex:
        if topic.spec.name == "later":
            raise StorageUnavailableError
        return original(topic)

    async def send(desk: BrokerHarness) -> None:
        await desk.core.create_topic(TopicSpec("too", "DELAY", 1))
        await desk.send("later", b"past", deliver_at=desk.clock.now())
        await settle(lambda: desk.core.extent("later")[1] == 1)
        for topic in ("later", "too"):
            await desk.send(topic, topic.encode(), deliver_at=desk.clock.now() + 60 * MICROSECONDS)
        await desk.send("halves", b"half", message_type=v2.TRANSACTION)
        monkeypatch.setattr(Topic, "_read_known", fail)

    async def wait(desk: BrokerHarness) -> None:
        desk.clock.advance(61)
        desk.delayed_messages.check_due_now()
        await settle(lambda: [hold.topic for hold in desk.core.journal.state.delayed] == ["later"])
        assert bodies(await desk.receive("g", "too")) == [b"too"]

    with_harness(send, wait, limits=Limits(longest_poll=0, max_checks=0))


@pytest.mark.parametrize("is_missing", [False, True])
def test_a_damaged_or_missing_delayed_message_holds_up_no_other(is_missing: bool) -> None:
    clock, limits = VirtualClock(), Limits(longest_poll=0)
    backend = MemoryBackend(clock)

    async def run(store: LogStore) -> None:
        async with open_harness(store, clock, limits) as desk:
            for body in (b"1", b"2", b"3", b"4", b"5"):
                await desk.send("later", body, deliver_at=clock.now() + 60 * MICROSECONDS)
            blocks = backend._logs[HELD.name].blocks
            assert len(blocks) == 5
            if is_missing:
                store.log(HELD).trim(3)
            else:
                blocks[1] = msgspec.structs.replace(blocks[1], data=bytes(len(blocks[1].data)))
            left = [1, 2] if is_missing else [2]
            clock.advance(61)
            desk.delayed_messages.check_due_now()
            await settle(lambda: [hold.id for hold in desk.core.journal.state.delayed] == left)
            assert bodies(await desk.receive("g", "later")) == [
                b"%d" % each for each in range(1, 6) if each not in left
            ]
            await settle(lambda: desk.core.journal.state.delayed.next_due() == clock.now() + 60 * MICROSECONDS)

    with LogStore(backend, clock) as store:
        asyncio.run(run(store))


@pytest.mark.parametrize("snapshot_after", [20_000, 8])
def test_a_damaged_delayed_message_does_not_keep_a_broker_from_starting(
    snapshot_after: int, caplog: pytest.LogCaptureFixture
) -> None:
    clock, limits = VirtualClock(), Limits(longest_poll=0, snapshot_after=snapshot_after)
    backend = MemoryBackend(clock)

    async def hold(store: LogStore) -> None:
        async with open_harness(store, clock, limits) as desk:
            await desk.send("later", b"1", deliver_at=clock.now())
            await settle(lambda: not desk.core.journal.state.delayed)
            for body in (b"2", b"3", b"4"):
                await desk.send("later", body, deliver_at=clock.now() + 60 * MICROSECONDS)
            await take_snapshot(desk)

    async def take_snapshot(desk: BrokerHarness) -> None:
        for number in range(8):
            await desk.core.journal.write(OffsetMoved("g", "plain", 0, number))
        await settle(desk.core.journal.is_at_rest)

    async def read_on(store: LogStore) -> None:
        async with open_harness(store, clock, limits) as desk:
            assert "1 delayed messages or open transactions of the broker cannot be read" in caplog.text
            caplog.clear()
            assert [hold.id for hold in desk.core.journal.state.delayed] == [2, 4]
            await take_snapshot(desk)

    async def end(store: LogStore) -> None:
        async with open_harness(store, clock, limits) as desk:
            assert [hold.id for hold in desk.core.journal.state.delayed] == [2, 3, 4], "it was not forgotten"
            clock.advance(61)
            desk.delayed_messages.check_due_now()
            await settle(lambda: not desk.core.journal.state.delayed)
            assert bodies(await desk.receive("g", "later")) == [b"1", b"2", b"3", b"4"]

    with LogStore(backend, clock) as store:
        asyncio.run(hold(store))
        log = backend._logs[HELD.name]
        whole = log.blocks
        log.blocks = [
            msgspec.structs.replace(block, data=bytes(len(block.data))) if block.header.first_id in (1, 3) else block
            for block in whole
        ]
        asyncio.run(read_on(store))
        asyncio.run(read_on(store))
        log.blocks = whole
        asyncio.run(end(store))


def test_a_recalled_message_never_comes_and_can_be_recalled_once() -> None:
    async def step(desk: BrokerHarness) -> None:
        sent = await desk.send("later", b"x", message_id="m", deliver_at=desk.clock.now() + 60 * MICROSECONDS)
        request = v2.RecallMessageRequest(recall_handle=sent.entries[0].recall_handle)
        request.topic.name = "later"
        assert (await desk.service.recall_message(request, CALL)).message_id == "m"
        for handle, code in ((request.recall_handle, v2.NOT_FOUND), ("?", v2.BAD_REQUEST)):
            request.recall_handle = handle
            with pytest.raises(StatusError) as refused:
                await desk.service.recall_message(request, CALL)
            assert refused.value.code == code

    async def after_restart(desk: BrokerHarness) -> None:
        assert len(desk.core.journal.state.delayed) == 0

    with_harness(step, after_restart)


@pytest.mark.parametrize("recalled", [(b"1",), (b"2",), (b"1", b"2", b"3")])
def test_a_recall_while_messages_of_another_topic_are_delivered_takes_back_only_its_message(
    recalled: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def step(desk: BrokerHarness) -> None:
        await desk.core.create_topic(TopicSpec("too", "DELAY", 1))
        due = desk.clock.now() + 60 * MICROSECONDS
        await desk.send("later", b"first", deliver_at=due)
        sent = await desk.send("too", b"1", b"2", b"3", deliver_at=due)
        handles = dict(zip((b"1", b"2", b"3"), (entry.recall_handle for entry in sent.entries), strict=True))
        with disk_that_waits(monkeypatch) as disk:
            desk.clock.advance(61)
            desk.delayed_messages.check_due_now()
            await disk.wait()
            recalls = [asyncio.ensure_future(desk.delayed_messages.recall("too", handles[body])) for body in recalled]
            await asyncio.sleep(0)
            disk.go_on()
            await asyncio.gather(*recalls)
        await settle(lambda: not desk.core.journal.state.delayed)
        assert bodies(await desk.receive("g", "later")) == [b"first"]
        assert set(bodies(await desk.receive("g", "too"))) == {b"1", b"2", b"3"} - set(recalled)

    with_harness(step)


@pytest.mark.parametrize("used", [0, 1])
def test_a_repeated_send_gets_the_first_handle_and_its_recall_leaves_nothing(used: int) -> None:
    handles: list[str] = []

    async def send(desk: BrokerHarness) -> None:
        handles.extend([await send_again(desk), await send_again(desk)])

    async def recall(desk: BrokerHarness) -> None:
        handles.append(await send_again(desk))
        assert handles == [handles[0]] * 3
        request = v2.RecallMessageRequest(recall_handle=handles[used])
        request.topic.name = "later"
        assert (await desk.service.recall_message(request, CALL)).message_id == "again"
        assert len(desk.core.journal.state.delayed) == 0

    async def after_restart(desk: BrokerHarness) -> None:
        assert await send_again(desk) == handles[0]
        assert len(desk.core.journal.state.delayed) == 0

    with_harness(send, recall, after_restart)


def test_a_snapshot_keeps_what_repeated_sends_are_recognised_by() -> None:
    handles: list[str] = []

    async def first(desk: BrokerHarness) -> None:
        handles.append(await send_again(desk))
        for number in range(30):
            await desk.send("plain", b"%d" % number)
            await desk.ack("g", "plain", *await desk.receive("g", "plain"))
        await settle(desk.core.journal.is_at_rest)
        assert desk.core.journal._log.pointer("snapshot") > 0

    async def second(desk: BrokerHarness) -> None:
        assert await send_again(desk) == handles[0]
        desk.clock.advance(3601)
        desk.delayed_messages.check_due_now()
        await settle(lambda: not desk.core.journal.state.delayed)

    async def third(desk: BrokerHarness) -> None:
        assert await send_again(desk) == handles[0]
        assert len(desk.core.journal.state.delayed) == 0
        assert bodies(await desk.receive("g", "later")) == [b"x"]

    with_harness(first, second, third, limits=Limits(longest_poll=0, snapshot_after=20))


@pytest.mark.parametrize("snapshot_after", [1, 20_000])
def test_what_is_held_back_for_a_deleted_topic_is_not_of_a_later_one_of_its_name(snapshot_after: int) -> None:
    async def send(desk: BrokerHarness) -> None:
        await desk.send("later", b"past", message_id="past", deliver_at=desk.clock.now() - MICROSECONDS)
        await settle(lambda: desk.core.extent("later")[1] == 1)
        await desk.send("later", b"old", message_id="again", deliver_at=desk.clock.now() + 60 * MICROSECONDS)
        await desk.send("halves", b"half", message_type=v2.TRANSACTION)
        await settle(lambda: len(desk.core.journal.state.delayed) == 2 and desk.core.journal.is_at_rest())
        for topic in ("later", "halves"):
            await desk.core.drop_topic(topic)
        assert not desk.core.journal.state.delayed
        await desk.core.create_topic(TopicSpec("later", "DELAY", 1))
        await desk.send("later", b"new", message_id="again", deliver_at=desk.clock.now() + 60 * MICROSECONDS)
        assert len(desk.core.journal.state.delayed) == 1, "it does not repeat the one that was deleted"

    async def after_restart(desk: BrokerHarness) -> None:
        assert [hold.message_id for hold in desk.core.journal.state.delayed] == ["again"]
        await desk.send("later", b"past", message_id="past", deliver_at=desk.clock.now() + 60 * MICROSECONDS)
        assert len(desk.core.journal.state.delayed) == 2, "the deleted topic knew this id, and this one does not"
        desk.clock.advance(61)
        desk.delayed_messages.check_due_now()
        await settle(lambda: not desk.core.journal.state.delayed)
        assert bodies(await desk.receive("g", "later")) == [b"past", b"new"], "the first one is in the log"

    with_harness(send, after_restart, limits=Limits(longest_poll=0, snapshot_after=snapshot_after))


def test_nothing_is_held_back_for_a_topic_that_is_being_deleted() -> None:
    async def step(desk: BrokerHarness) -> None:
        due = desk.clock.now() + 60 * MICROSECONDS
        await desk.send("later", b"x", deliver_at=due)
        deleting = asyncio.ensure_future(desk.core.drop_topic("later"))
        await asyncio.sleep(0)
        with pytest.raises(StatusError, match="there is no topic later"):
            await desk.send("later", b"y", deliver_at=due)
        await deleting
        assert not desk.core.journal.state.delayed

    with_harness(step)


def test_a_topic_that_is_created_while_it_is_deleted_is_there_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = TopicSpec("later", "DELAY", 1)

    async def step(desk: BrokerHarness) -> None:
        await desk.send("later", b"old", deliver_at=desk.clock.now() + 60 * MICROSECONDS)
        with disk_that_waits(monkeypatch) as disk:
            deleting = asyncio.ensure_future(desk.core.drop_topic("later"))
            creating = asyncio.ensure_future(desk.core.create_topic(spec))
            await disk.wait()
            assert not creating.done()
            disk.go_on()
            await asyncio.gather(deleting, creating)
        assert desk.core.find_spec("later") == spec and not desk.core.journal.state.delayed
        await desk.send("later", b"new", deliver_at=desk.clock.now() + 60 * MICROSECONDS)

    async def after_restart(desk: BrokerHarness) -> None:
        assert [hold.topic for hold in desk.core.journal.state.delayed] == ["later"]

    with_harness(step, after_restart)


def test_a_topic_that_exists_as_asked_is_durable_when_that_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = TopicSpec("new")

    async def step(desk: BrokerHarness) -> None:
        with disk_that_waits(monkeypatch) as disk:
            calls = [asyncio.ensure_future(desk.core.create_topic(spec)) for _ in range(2)]
            await disk.wait()
            assert not any(call.done() for call in calls)
            disk.go_on()
            await asyncio.gather(*calls)

    with_harness(step)


class WaitingDisk:
    """Writers wait for the disk until :meth:`go_on`."""

    def __init__(self) -> None:
        self._reached, self._open, self._durable = asyncio.Event(), asyncio.Event(), Writer.durable_async

    async def durable_async(self, writer: Writer, last_id: int) -> None:
        self._reached.set()
        await self._open.wait()
        await self._durable(writer, last_id)

    async def wait(self) -> None:
        """Until a writer waits, and the other calls went on as far as they can."""
        await self._reached.wait()
        for _ in range(10):
            await asyncio.sleep(0)

    def go_on(self) -> None:
        self._open.set()


@contextlib.contextmanager
def disk_that_waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[WaitingDisk]:
    """A disk that confirms nothing yet."""
    disk = WaitingDisk()

    async def durable_async(writer: Writer, last_id: int) -> None:
        await disk.durable_async(writer, last_id)

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "durable_async", durable_async)
        yield disk


def test_a_message_that_is_twice_in_a_call_is_held_once_but_half_messages_are_separate() -> None:
    async def step(desk: BrokerHarness) -> None:
        due = desk.clock.now() + 60 * MICROSECONDS
        sent = await desk.send("later", b"x", b"x", b"y", deliver_at=due)
        assert [entry.offset for entry in sent.entries] == [0, 0, 1]
        halves = await desk.send("halves", b"x", b"x", message_type=v2.TRANSACTION)
        assert [entry.offset for entry in halves.entries] == [2, 3]

    with_harness(step)


def test_a_send_that_is_cancelled_while_it_is_stored_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    async def step(desk: BrokerHarness) -> None:
        storing = asyncio.Event()

        async def wait_for_ever(*_: object) -> None:
            storing.set()
            await asyncio.Event().wait()

        with monkeypatch.context() as patch:
            patch.setattr(Writer, "durable_async", wait_for_ever)
            call = asyncio.ensure_future(send_again(desk))
            await storing.wait()
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
        request = v2.RecallMessageRequest(recall_handle=await send_again(desk))
        request.topic.name = "later"
        assert (await desk.service.recall_message(request, CALL)).message_id == "again"

    async def after_restart(desk: BrokerHarness) -> None:
        assert len(desk.core.journal.state.delayed) == 0

    with_harness(step, after_restart)


async def send_again(desk: BrokerHarness) -> str:
    """Send the delayed message ``again``, due in an hour; its recall handle."""
    sent = await desk.send("later", b"x", message_id="again", deliver_at=desk.clock.now() + 3600 * MICROSECONDS)
    return sent.entries[0].recall_handle


@pytest.mark.parametrize("topic", ["later", "halves"])
def test_the_offset_of_what_is_held_counts_what_was_held_before(topic: str) -> None:
    async def step(desk: BrokerHarness) -> None:
        kind = v2.TRANSACTION if topic == "halves" else v2.DELAY
        more = {} if topic == "halves" else {"deliver_at": desk.clock.now() + 60 * MICROSECONDS}
        sent = await desk.send(topic, b"a", b"b", message_type=kind, **more)
        (again,) = (await desk.send(topic, b"c", message_type=kind, **more)).entries
        assert [entry.offset for entry in (*sent.entries, again)] == [0, 1, 2]

    with_harness(step)


def test_transactions_end_once_and_survive_restarts() -> None:
    ids: list[str] = []

    async def send(desk: BrokerHarness) -> None:
        for name in ("commit", "rollback", "open"):
            sent = await desk.send("halves", name.encode(), message_id=name, message_type=v2.TRANSACTION)
            ids.append(sent.entries[0].transaction_id)
        assert await desk.receive("g", "halves") == []

    async def end(desk: BrokerHarness) -> None:
        for _ in range(2):  # a call that is repeated because its answer was lost
            await desk.end(ids[0], "commit", v2.COMMIT)
            await desk.end(ids[1], "rollback", v2.ROLLBACK)
        wrong = (ids[0], "commit", v2.ROLLBACK), (ids[2], "other", v2.COMMIT), ("?", "x", v2.COMMIT)
        for transaction_id, message_id, resolution in wrong:
            with pytest.raises(StatusError) as refused:
                await desk.end(transaction_id, message_id, resolution)
            assert refused.value.code == v2.INVALID_TRANSACTION_ID
        (got,) = await desk.receive("g", "halves")
        assert (got.body, got.system_properties.message_type) == (b"commit", v2.TRANSACTION)

    async def later(desk: BrokerHarness) -> None:
        assert [hold.message_id for hold in desk.core.journal.state.delayed] == ["open"]
        await desk.end(ids[2], "open", v2.COMMIT)
        assert bodies(await desk.receive("another", "halves")) == [b"commit", b"open"]

    with_harness(send, end, later)


@pytest.mark.parametrize("resolution", [v2.COMMIT, v2.ROLLBACK])
@pytest.mark.parametrize("restarts", [False, True])
def test_the_end_of_a_transaction_can_be_repeated_although_the_call_was_cut_off(
    resolution: int, restarts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction_id = ""

    async def end(desk: BrokerHarness) -> None:
        nonlocal transaction_id
        sent = await desk.send("halves", b"x", message_id="half", message_type=v2.TRANSACTION)
        transaction_id = sent.entries[0].transaction_id
        recorded = asyncio.Event()

        async def cut_off(_number: int) -> None:
            recorded.set()
            await asyncio.Event().wait()

        with monkeypatch.context() as patch:
            patch.setattr(desk.core.journal, "confirm", cut_off)
            call = asyncio.ensure_future(desk.end(transaction_id, "half", resolution))
            await recorded.wait()
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
        if not restarts:
            await repeat(desk)

    async def repeat(desk: BrokerHarness) -> None:
        await desk.end(transaction_id, "half", resolution)
        for message_id, other in (("another", resolution), ("half", v2.COMMIT + v2.ROLLBACK - resolution)):
            with pytest.raises(StatusError, match="has no open transaction"):
                await desk.end(transaction_id, message_id, other)
        assert bodies(await desk.receive("g", "halves")) == ([b"x"] if resolution == v2.COMMIT else [])

    with_harness(end, *([repeat] if restarts else []))


def test_an_orphan_is_asked_about_and_rolled_back_in_the_end() -> None:
    async def step(desk: BrokerHarness) -> None:
        session = desk.core.sessions.touch("producer", desk.clock.now())
        settings = v2.Settings(client_type=v2.PRODUCER)
        settings.publishing.topics.add(name="halves")
        assert desk.service.telemetry.merge_settings(session, settings).status.code == v2.OK
        session.streams.append(asyncio.Queue())
        await desk.send("halves", b"x", message_id="orphan", message_type=v2.TRANSACTION)
        for _ in range(3):
            desk.clock.advance(31)
            await desk.send("halves", b"wakes the broker", message_type=v2.TRANSACTION)
            asked = None
            while asked != "orphan":
                command = await asyncio.wait_for(session.streams[0].get(), 5)
                assert command.recover_orphaned_transaction_command.transaction_id
                asked = command.recover_orphaned_transaction_command.message.system_properties.message_id
                assert asked in ("orphan", hashlib.sha256(b"wakes the broker").hexdigest())
        desk.clock.advance(3600)
        await desk.send("halves", b"wakes it again", message_type=v2.TRANSACTION)
        await settle(lambda: all(hold.message_id != "orphan" for hold in desk.core.journal.state.delayed))
        assert await desk.receive("g", "halves") == []

    with_harness(step, limits=Limits(longest_poll=0, max_checks=3))


@pytest.mark.parametrize(("namespace", "name"), [("", "space%halves"), ("space", "halves")])
def test_a_producer_is_asked_about_a_topic_by_the_name_that_it_declared(namespace: str, name: str) -> None:
    async def step(desk: BrokerHarness) -> None:
        await desk.core.create_topic(TopicSpec("space%halves", "TRANSACTION", 1))
        session = desk.core.sessions.touch("producer", desk.clock.now())
        settings = v2.Settings(client_type=v2.PRODUCER)
        settings.publishing.topics.add(name=name, resource_namespace=namespace)
        desk.service.telemetry.merge_settings(session, settings)
        session.streams.append(commands := asyncio.Queue[v2.TelemetryCommand]())
        await desk.send("space%halves", b"x", message_type=v2.TRANSACTION)
        desk.clock.advance(31)
        desk.delayed_messages.check_due_now()
        message = (await asyncio.wait_for(commands.get(), 5)).recover_orphaned_transaction_command.message
        assert (message.topic.resource_namespace, message.topic.name) == (namespace, name)

    with_harness(step)


def test_a_producer_that_does_not_read_is_not_asked_about_more_transactions_until_it_does() -> None:
    async def step(desk: BrokerHarness) -> None:
        session = desk.core.sessions.touch("producer", desk.clock.now())
        settings = v2.Settings(client_type=v2.PRODUCER)
        settings.publishing.topics.add(name="halves")
        desk.service.telemetry.merge_settings(session, settings)
        commands = asyncio.Queue[v2.TelemetryCommand](2)
        session.streams.append(commands)
        for number in range(5):
            await desk.send("halves", b"%d" % number, message_type=v2.TRANSACTION)
        for _ in range(3):
            desk.clock.advance(31)
            desk.delayed_messages.check_due_now()
            await settle(commands.full)
            await settle(lambda: all(hold.due > desk.clock.now() for hold in desk.core.journal.state.delayed))
            while not commands.empty():
                commands.get_nowait()
        assert sum(hold.asked for hold in desk.core.journal.state.delayed) == 6
        assert len(list(desk.core.journal.state.delayed)) == 5

    with_harness(step, limits=Limits(longest_poll=0))


async def send_half(desk: BrokerHarness) -> Callable[[], Awaitable[None]]:
    """Begin the transaction ``half``; what commits it."""
    sent = await desk.send("halves", b"x", message_id="half", message_type=v2.TRANSACTION)
    return lambda: desk.end(sent.entries[0].transaction_id, "half", v2.COMMIT)


def test_a_transaction_whose_commit_fails_while_its_check_is_due_is_checked_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def step(desk: BrokerHarness) -> None:
        commit = await send_half(desk)
        with disk_that_waits(monkeypatch) as disk:
            call = asyncio.ensure_future(commit())
            await disk.wait()
            desk.clock.advance(31)
            desk.delayed_messages.check_due_now()
            await disk.wait()
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
        desk.clock.advance(31)
        desk.delayed_messages.check_due_now()
        await settle(lambda: not desk.core.journal.state.delayed)

    with_harness(step, limits=Limits(longest_poll=0, max_checks=0))


def test_a_commit_that_waits_when_the_last_check_is_due_delivers_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    async def step(desk: BrokerHarness) -> None:
        commit = await send_half(desk)
        (half,) = desk.core.journal.state.delayed
        await desk.send("later", b"first", deliver_at=desk.clock.now() + 30 * MICROSECONDS)
        with disk_that_waits(monkeypatch) as disk_of_delayed:
            desk.clock.advance(31)
            desk.delayed_messages.check_due_now()
            await disk_of_delayed.wait()
        with disk_that_waits(monkeypatch) as disk_of_commit:
            call = asyncio.ensure_future(commit())
            await disk_of_commit.wait()
        disk_of_delayed.go_on()
        await settle(lambda: half.due > desk.clock.now() or not desk.core.journal.state.delayed)
        disk_of_commit.go_on()
        await call
        assert bodies(await desk.receive("g", "halves")) == [b"x"]

    with_harness(step, limits=Limits(longest_poll=0, max_checks=0))


def test_a_commit_is_refused_where_its_topic_is_deleted_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    async def step(desk: BrokerHarness) -> None:
        commit = await send_half(desk)
        with disk_that_waits(monkeypatch) as disk:
            call = asyncio.ensure_future(commit())
            await disk.wait()
        await desk.core.drop_topic("halves")
        disk.go_on()
        with pytest.raises(StatusError, match="has no open transaction"):
            await call

    with_harness(step)


@pytest.mark.parametrize(("seconds", "expected"), [(60, 60), (-1, 0), (-(2**63), 0), (2**63 - 1, 24 * 3600)])
def test_a_producer_is_asked_about_its_transaction_after_a_day_at_most(seconds: int, expected: int) -> None:
    async def step(desk: BrokerHarness) -> None:
        message = v2.Message(body=b"half")
        message.topic.name, message.system_properties.message_id = "halves", "id"
        message.system_properties.message_type = v2.TRANSACTION
        message.system_properties.orphaned_transaction_recovery_duration.seconds = seconds
        stored = await desk.service.send_message(v2.SendMessageRequest(messages=[message]), CALL)
        assert stored.status.code == v2.OK
        (hold,) = desk.core.journal.state.delayed
        assert hold.due - desk.clock.now() == expected * MICROSECONDS

    with_harness(step, limits=Limits())
