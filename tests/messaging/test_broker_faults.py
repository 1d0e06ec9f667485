"""A store that fails under a running broker: what was confirmed stays, what was not may be sent again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from millstream.core.address import Address
from millstream.core.clock import SystemClock, VirtualClock
from millstream.log import (
    DamagedLogError,
    FencedError,
    Log,
    LogError,
    LogSpec,
    StorageFullError,
    StorageUnavailableError,
    Writer,
    WriterFailedError,
    open_store,
)
from millstream.log import Message as LogMessage
from millstream.log.backend import Head
from millstream.log.backends.memory import MemoryBackend
from millstream.log.store import LogStore
from millstream.messaging.admin_client import call_broker
from millstream.messaging.broker.address import RouteEndpoints
from millstream.messaging.broker.admin import CREATE_TOPIC
from millstream.messaging.broker.core import BrokerCore
from millstream.messaging.broker.handlers.receive import ReceiveHandler, ReceiveRequest
from millstream.messaging.broker.server.broker_server import BrokerServer, running_broker
from millstream.messaging.broker.storage.message_cache import MessageCache
from millstream.messaging.broker.storage.topic import REPLACE_SECONDS, Topic, TopicSpec
from millstream.messaging.broker.storage.wire_codec import ID
from millstream.messaging.client import Message, Options, Producer, ServerFailedError, SimpleConsumer
from millstream.messaging.errors import BrokerError, DamagedJournalError, StatusError
from millstream.testing.brokers import IMPATIENT
from millstream.testing.waiting import until_allowed_async, until_async
from support.faulty_log import FaultyBackend
from support.small_disk import small_disk

ONCE = Options(attempts=1)
CHILD = Path(__file__).parent / "children" / "full_disk.py"


async def patiently(work: Callable[[], Awaitable[Any]]) -> Any:
    """What *work* returns once the broker has recovered."""
    return await until_allowed_async(work, ServerFailedError, seconds=30)


@pytest.mark.parametrize("fault", ["before", "after"])
def test_p2_a_full_disk_is_told_and_the_broker_goes_on_when_there_is_room(fault: str) -> None:
    clock = SystemClock()
    backend = FaultyBackend(MemoryBackend(clock), StorageFullError())

    async def run(store: LogStore) -> None:
        async with BrokerServer(store, Address("127.0.0.1", 0), limits=IMPATIENT) as server:
            at = f"127.0.0.1:{server.port}"
            place = Address("127.0.0.1", server.port)
            await asyncio.to_thread(call_broker, place, CREATE_TOPIC, TopicSpec("t"))
            async with (
                Producer(at, ["t"], options=ONCE) as producer,
                SimpleConsumer(at, "g", {"t": "*"}, await_duration=0.2, options=ONCE) as consumer,
            ):
                await producer.send(Message("t", b"one"))
                backend.faults.append(fault)  # the topic's log
                with pytest.raises(ServerFailedError, match="the message store failed"):
                    await producer.send(Message("t", b"two"))
                await patiently(lambda: producer.send(Message("t", b"three")))
                backend.faults.append(fault)  # the journal, when messages are lent
                with pytest.raises(ServerFailedError):
                    await consumer.receive(invisible=1)
                got: dict[bytes, int] = {}
                while b"three" not in got:
                    for message in await patiently(lambda: consumer.receive(invisible=2)):
                        got[message.body] = message.attempt
                        await consumer.ack(message)
                assert got[b"one"] == (1 if fault == "before" else 2)
                assert (b"two" in got) == (fault == "after")
                assert await consumer.receive() == []

    with LogStore(backend, clock) as store:
        asyncio.run(run(store))


def test_a_receive_that_waits_beyond_the_end_of_its_core_leaves_the_topic_to_the_next_one() -> None:
    async def run(store: LogStore) -> None:
        clock = SystemClock()
        core = BrokerCore(store, clock)
        await core.create_topic(TopicSpec("t"))
        ask = ReceiveRequest(group="g", topic="t", count=1, invisible=1_000_000, poll=8.0)
        receiving = asyncio.ensure_future(ReceiveHandler(core).receive(ask))
        await until_async(lambda: core.writer_of("t") is not None, seconds=30)
        core.close()
        with pytest.raises(StatusError, match="try again in a moment"):
            await receiving
        following = BrokerCore(store, clock, before=core)
        assert await following.publish("t", [LogMessage(b"one")]) == [1]
        following.close()

    with open_store("memory://") as store:
        asyncio.run(run(store))


def test_a_broker_whose_supervision_fails_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.messaging.broker.server.supervisor._RETRY_SECONDS", 0.001)
    monkeypatch.setattr("millstream.messaging.broker.server.supervisor._SWEEP_SECONDS", 0.01)
    failures: list[Exception] = []

    class FailingCore(BrokerCore):
        def __init__(self, *args: Any, **more: Any) -> None:
            if failures:
                raise failures.pop()
            super().__init__(*args, **more)

    monkeypatch.setattr("millstream.messaging.broker.server.supervisor.BrokerCore", FailingCore)

    async def run(store: LogStore) -> None:
        clock, routes = SystemClock(), RouteEndpoints(address=Address("127.0.0.1", 1))
        async with running_broker(store, clock, None, routes) as supervisor:
            with monkeypatch.context() as failing:
                failing.setattr(supervisor.core.sessions, "sweep", lambda _now: 1 / 0)
                await supervisor.core.create_topic(TopicSpec("t"))
                await supervisor.core.publish("t", [LogMessage(b"one")])
                await supervisor.core.finish("g", "t", [(1, 1)])
            await until_async(lambda: store.log(LogSpec("t")).pointer("group.g") == 1, seconds=30)
            core = supervisor.core
            failures.extend([ZeroDivisionError(), DamagedJournalError("unknown event")])
            monkeypatch.setattr(core.journal._writer, "append_nowait", refuse)
            await until_async(lambda: not failures and supervisor.writer_of("t") is None, seconds=30)
            await until_allowed_async(lambda: supervisor.core.publish("t", [LogMessage(b"two")]), StatusError)
            assert supervisor.core is not core
        BrokerCore(store, clock).close()

    def refuse(_messages: object) -> None:
        raise WriterFailedError

    with open_store("memory://") as store:
        asyncio.run(run(store))


def test_messages_that_fail_while_their_topic_is_closed_leave_its_log_to_the_next_one() -> None:
    clock = SystemClock()
    backend = FaultyBackend(MemoryBackend(clock), StorageFullError())

    async def run(store: LogStore) -> None:
        topic = Topic(TopicSpec("t"), store)
        backend.faults.append("before")
        publishing = asyncio.ensure_future(topic.publish([LogMessage(b"x")] * 1000))
        await asyncio.sleep(0)
        with contextlib.suppress(LogError):
            topic.close()
        with pytest.raises(WriterFailedError):
            await publishing
        following = Topic(TopicSpec("t"), store)
        assert await following.publish([LogMessage(b"one")]) == [1]
        following.close()

    with LogStore(backend, clock) as store:
        asyncio.run(run(store))


@pytest.mark.parametrize("fault", ["before", "after"])
def test_a_message_that_is_sent_again_after_a_commit_that_failed_is_stored_once(
    fault: Literal["before", "after"],
) -> None:
    clock = SystemClock()
    backend = FaultyBackend(MemoryBackend(clock), StorageFullError())

    async def run(store: LogStore) -> None:
        topic = Topic(TopicSpec("t"), store)
        one, two, three = (LogMessage(name, headers=((ID, name),)) for name in (b"one", b"two", b"three"))
        assert list(await topic.publish([one])) == [1]
        backend.faults.append(fault)
        with pytest.raises(WriterFailedError):
            await topic.publish([two])
        assert list(await topic.publish([two])) == [2], "not 3, where it was stored all the same"
        assert list(await topic.publish([three, two, one])) == [3, 2, 1]
        topic.close()

    with LogStore(backend, clock) as store:
        asyncio.run(run(store))


def test_a_topic_whose_log_another_process_took_over_is_usable_again_after_that_process() -> None:
    clock, tries = VirtualClock(), list[int]()

    class CountedLeases(MemoryBackend):
        def take_lease(self, log: str, *, epoch: int, holder: bytes, until: int) -> bool:
            tries.append(epoch)
            return super().take_lease(log, epoch=epoch, holder=holder, until=until)

        def head(self, log: str) -> Head:
            tries.append(0)
            return super().head(log)

    backend = CountedLeases(clock)

    async def refused(topic: Topic) -> int:
        """How often the store is asked about the lease for a message that is refused."""
        before = len(tries)
        with pytest.raises(FencedError):
            await topic.publish([LogMessage(b"three")])
        return len(tries) - before

    async def run(store: LogStore) -> None:
        topic = Topic(TopicSpec("t"), store, clock)
        assert list(await topic.publish([LogMessage(b"one")])) == [1]
        backend.release_lease("t", epoch=1)  # as if it ran out while this process was suspended
        with store.log(LogSpec("t")).writer("another process") as other:
            other.append([LogMessage(b"two", headers=((ID, b"two"),))])
            assert await refused(topic) > 0
            assert [await refused(topic) for _ in range(3)] == [0, 0, 0]
            clock.advance(REPLACE_SECONDS)
            assert await refused(topic) > 0
        assert await refused(topic) == 0
        clock.advance(REPLACE_SECONDS)
        assert await refused(topic) > 0
        assert list(await topic.publish([LogMessage(b"three"), LogMessage(b"2", headers=((ID, b"two"),))])) == [3, 2]
        topic.close()

    with LogStore(backend, clock) as store:
        asyncio.run(run(store))


def test_a_topic_whose_store_does_not_answer_tries_again_to_write_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, tries = VirtualClock(), list[str]()
    backend = FaultyBackend(MemoryBackend(clock))

    def fail(_log: Log, name: str) -> Writer:
        tries.append(name)
        raise StorageUnavailableError

    async def run(store: LogStore) -> None:
        topic = Topic(TopicSpec("t"), store, clock)
        backend.faults.append("before")
        with monkeypatch.context() as patch:
            patch.setattr(Log, "writer", fail)
            for expected in (1, 1, 1, 2, 2):
                if expected > len(tries) > 0:
                    clock.advance(REPLACE_SECONDS)
                with pytest.raises(LogError):
                    await topic.publish([LogMessage(b"refused")])
                assert len(tries) == expected
        clock.advance(REPLACE_SECONDS)
        with pytest.raises(WriterFailedError):
            await topic.publish([LogMessage(b"refused, too")])
        assert list(await topic.publish([LogMessage(b"stored")])) == [1]
        topic.close()

    with LogStore(backend, clock) as store:
        asyncio.run(run(store))


def test_consumers_get_what_another_process_wrote_after_a_topic_lost_its_lease() -> None:
    clock = VirtualClock()
    backend = MemoryBackend(clock)

    async def run(store: LogStore) -> None:
        core = BrokerCore(store, clock)
        await core.create_topic(TopicSpec("t"))
        ask = ReceiveRequest(group="g", topic="t", count=1, invisible=1_000_000, poll=30.0)
        receiving = asyncio.ensure_future(ReceiveHandler(core).receive(ask))
        await until_async(lambda: core.waiting == 1, seconds=30)
        backend.release_lease("t", epoch=1)  # as if it ran out while this process was suspended
        with store.log(LogSpec("t")).writer("another process") as other:
            other.append([LogMessage(b"one")])
        clock.advance(6)

        def is_replaced() -> bool:
            core.replace_failed_writers()
            return core.topic("t").last_id == 1

        await until_async(is_replaced, seconds=30)
        (received,) = await receiving
        assert not isinstance(received, tuple)
        assert received.message.body == b"one"
        core.close()

    with LogStore(backend, clock) as store:
        asyncio.run(run(store))


def test_a_topic_whose_writer_cannot_be_replaced_holds_up_no_other_and_a_closed_journal_is_not_usable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run(store: LogStore) -> None:
        core = BrokerCore(store, VirtualClock())
        for name in ("bad", "good"):
            await core.create_topic(TopicSpec(name))
        bad, good = core.topic("bad"), core.topic("good")
        replaced: list[str] = []
        monkeypatch.setattr(bad, "replace_failed_writer", lambda: 1 // 0)
        monkeypatch.setattr(good, "replace_failed_writer", lambda: replaced.append("good"))
        core.replace_failed_writers()
        assert replaced == ["good"]
        assert core.journal.is_usable
        core.close()
        assert not core.journal.is_usable

    with open_store("memory://") as store:
        asyncio.run(run(store))


def test_a_log_that_is_shorter_than_its_writer_says_is_an_error() -> None:
    with open_store("memory://") as store:
        log = store.log(LogSpec("t"))
        with log.writer() as writer:
            writer.append([LogMessage(b"one")])
        cache = MessageCache(log)
        with pytest.raises(DamagedLogError, match="log 't' ends before message 2, which it had"):
            asyncio.run(cache.read(2, 3))


def test_a_damaged_block_of_a_topic_keeps_no_message_from_being_sent() -> None:
    clock = SystemClock()
    backend = MemoryBackend(clock)
    messages = [LogMessage(name, headers=((ID, name),)) for name in (b"one", b"two", b"three")]

    async def send_each(store: LogStore) -> list[int]:
        topic = Topic(TopicSpec("t"), store)
        ids = [number for message in messages for number in await topic.publish([message])]
        topic.close()
        return ids

    with LogStore(backend, clock) as store:
        assert asyncio.run(send_each(store)) == [1, 2, 3]
        blocks = backend._logs["t"].blocks
        blocks[1] = msgspec.structs.replace(blocks[1], data=bytes(len(blocks[1].data)))
        assert asyncio.run(send_each(store)) == [1, 4, 3], "the damaged message is not recognised"


@pytest.mark.parametrize("scheme", ["sqlite", "segments"])
def test_p2_a_real_disk_that_runs_full_loses_nothing_that_was_confirmed(tmp_path: Path, scheme: str) -> None:
    command = [*small_disk(tmp_path, "size=10m"), str(CHILD), str(tmp_path), scheme]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert "the message store failed" in found["told"]
    assert len(found["confirmed"]) > 10
    got = found["received"]
    assert got[-1] == "after "
    assert set(found["confirmed"]) <= set(got)
    assert len(got) == len(set(got)), "and nothing comes twice"
    assert len(set(got) - set(found["confirmed"])) <= 2, "but for the last one, perhaps the one that was refused"


def test_a_place_that_is_taken_is_told() -> None:
    clock = SystemClock()

    async def run() -> None:
        with LogStore(MemoryBackend(clock), clock) as one, LogStore(MemoryBackend(clock), clock) as other:
            async with BrokerServer(one, Address("127.0.0.1", 0)) as server:
                with pytest.raises(BrokerError, match="stop the program that uses the port"):
                    async with BrokerServer(other, Address("127.0.0.1", server.port)):
                        pass

    asyncio.run(run())
