"""What our clients must do with any server of RocketMQ 5: ours and Apache's own.

Inherit the class in a test module and give your class the fixture ``server``, a :class:`MessagingServer`::

    class TestMyServer(ClientConformance):
        @pytest.fixture
        def server(self):
            ...
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import msgspec
import pytest

from millstream.messaging.client import (
    BadRequestError,
    ClientError,
    Filter,
    Intervals,
    InvalidHandleError,
    Message,
    Options,
    Producer,
    PushConsumer,
    Received,
    ResourceNotFoundError,
    ServerFailedError,
    SimpleConsumer,
    TransportError,
)
from millstream.testing.waiting import until_async

OPTIONS = Options(startup_timeout=60.0, intervals=Intervals(first_heartbeat=0.5, heartbeat=2.0, assignments=1.0))
_names = itertools.count()


class ServerTraits(msgspec.Struct, frozen=True):
    """What servers may do differently: times are in seconds.

    ``shortest`` is the shortest time that a received message can be hidden for, ``pause`` the longest between two
    deliveries of a message that failed, ``patience`` how long a transaction may go unasked about. ``replaces_handles``
    says whether an old handle is refused once there is a newer one, ``forgets_recalled`` whether a second recall is
    told that there is nothing left.
    """

    shortest: float
    pause: float
    patience: float
    replaces_handles: bool = True
    forgets_recalled: bool = True


class MessagingServer(Protocol):
    """A server to test clients with."""

    place: str
    traits: ServerTraits

    def create_topic(self, name: str, kind: str) -> None:
        """Make the topic *name* of the type *kind*, with four queues; return when clients find it."""
        ...

    def make_group(self, name: str, *, ordered: bool) -> int:
        """Make a group whose messages are tried a few times: how often."""
        ...

    def kill(self) -> None:
        """Let it die as ``kill -9`` does."""
        ...

    def start(self) -> None:
        """Start it again."""
        ...


def run(test: Callable[[], Coroutine[Any, Any, None]], seconds: float = 120.0) -> None:
    """Run *test*, for this many seconds at most."""

    async def limited() -> None:
        async with asyncio.timeout(seconds):
            await test()

    asyncio.run(limited())


async def drain(source: SimpleConsumer, count: int, *, invisible: float = 60.0) -> list[Received]:
    """The next *count* messages, acknowledged."""
    found: list[Received] = []
    while len(found) < count:
        messages = await source.receive(16, invisible=invisible)
        found += messages
        if messages:
            await source.ack(*messages)
    return found


async def patiently(work: Callable[[], Awaitable[Any]]) -> Any:
    """What *work* comes to once the server is there again."""
    while True:
        try:
            return await work()
        except (TransportError, ServerFailedError, ResourceNotFoundError):
            await asyncio.sleep(0.1)


def bodies(messages: list[Received]) -> list[bytes]:
    """The bodies of *messages*, sorted: queues have no common order."""
    return sorted(message.body for message in messages)


class ClientConformance:
    """What holds with every server."""

    def topic(self, server: MessagingServer, kind: str = "NORMAL") -> str:
        """A new topic."""
        name = f"conformance-{next(_names)}"
        server.create_topic(name, kind)
        return name

    def consumer(self, server: MessagingServer, topic: str, wanted: str | Filter = "*") -> SimpleConsumer:
        """A simple consumer of a new group."""
        group = f"group-{next(_names)}"
        server.make_group(group, ordered=False)
        return SimpleConsumer(server.place, group, {topic: wanted}, await_duration=0.5, options=OPTIONS)

    def test_a_message_arrives_as_it_was_sent(self, server: MessagingServer) -> None:
        topic = self.topic(server)

        async def test() -> None:
            async with (
                Producer(server.place, [topic], options=OPTIONS) as producer,
                self.consumer(server, topic) as source,
            ):
                sent = Message(topic, b"body \x00\xff", tag="t", keys=("k", "l"), properties={"a": "b"})
                receipt = await producer.send(sent)
                (got,) = await drain(source, 1)
                assert (got.topic, got.body, got.tag, got.keys) == (topic, sent.body, "t", ("k", "l"))
                assert dict(got.properties) == {"a": "b"}
                assert (got.message_id, got.offset, got.attempt) == (receipt.message_id, receipt.offset, 1)
                assert not got.is_corrupted
                assert abs(got.born_at - datetime.now(UTC)) < timedelta(minutes=5)

        run(test)

    def test_messages_that_are_sent_together_arrive_as_they_were_sent(self, server: MessagingServer) -> None:
        topic = self.topic(server)

        async def test() -> None:
            tags = ("a", "b", "c")
            texts = [
                Message(topic, b"%03d" % number, tag=tags[number % 3], properties={"number": f"{number}"})
                for number in range(90)
            ]
            async with (
                Producer(server.place, [topic], linger=0.02, batch=20, options=OPTIONS) as producer,
                self.consumer(server, topic) as source,
            ):
                receipts = await producer.send_many(texts[:30])
                receipts += await asyncio.gather(*map(producer.send, texts[30:]))
                assert len({receipt.message_id for receipt in receipts}) == 90
                found = sorted(await drain(source, 90), key=lambda message: message.body)
                assert [(each.body, each.tag, dict(each.properties)) for each in found] == [
                    (each.body, each.tag, dict(each.properties)) for each in texts
                ]
                assert [each.message_id for each in found] == [receipt.message_id for receipt in receipts]
                assert await source.receive(invisible=server.traits.shortest) == []

        run(test)

    def test_p4_message_groups_keep_their_order_past_failures_and_dead_letters(self, server: MessagingServer) -> None:
        topic = self.topic(server, "FIFO")
        group = f"ordered-{next(_names)}"
        attempts = server.make_group(group, ordered=True)
        got: list[bytes] = []
        tried: Counter[bytes] = Counter()

        async def listen(message: Received) -> bool:
            got.append(message.body)
            tried[message.body] += 1
            return message.body != b"a-2" and (message.body != b"b-1" or tried[message.body] > 1)

        async def test() -> None:
            ordered = {
                name: [Message(topic, f"{name}-{number}".encode(), message_group=name) for number in range(4)]
                for name in "ab"
            }
            async with Producer(server.place, [topic], options=OPTIONS) as producer:
                for messages in ordered.values():
                    await producer.send_many(messages[:2])
                await asyncio.gather(
                    *(producer.send(messages[number]) for number in (2, 3) for messages in ordered.values())
                )
            async with PushConsumer(server.place, group, {topic: "*"}, listen, options=OPTIONS):
                await until_async(lambda: len(got) == 8 + 1 + attempts - 1)
            for name, repeated, times in ((b"a", 2, attempts), (b"b", 1, 2)):
                expected = [b"%s-%d" % (name, n) for n in range(4) for _ in range(times if n == repeated else 1)]
                assert [body for body in got if body.startswith(name)] == expected

        run(test, 300)

    def test_a_delayed_message_comes_in_time_and_a_recalled_one_never(self, server: MessagingServer) -> None:
        topic = self.topic(server, "DELAY")

        async def test() -> None:
            async with (
                Producer(server.place, [topic], options=OPTIONS) as producer,
                self.consumer(server, topic) as source,
            ):
                due = datetime.now(UTC) + timedelta(seconds=4)
                delayed = [Message(topic, body, deliver_at=due) for body in (b"soon", b"never")]
                _, recalled = await producer.send_many(delayed)
                assert await producer.recall(topic, recalled.recall_handle) == recalled.message_id
                (got,) = await drain(source, 1)
                assert got.body == b"soon"
                assert datetime.now(UTC) > due - timedelta(seconds=1.1)  # Apache's timer has ticks of a second
                assert await source.receive(invisible=server.traits.shortest) == []
                if server.traits.forgets_recalled:
                    with pytest.raises(ResourceNotFoundError):
                        await producer.recall(topic, recalled.recall_handle)
                with pytest.raises(ClientError):
                    await producer.recall(topic, "no handle")

        run(test)

    def test_transactions_commit_roll_back_and_are_asked_about(self, server: MessagingServer) -> None:
        topic = self.topic(server, "TRANSACTION")
        asked: list[bytes] = []

        async def check(message: Received) -> Any:
            asked.append(message.body)
            return "commit" if message.body == b"orphan" else "unknown"

        async def test() -> None:
            async with (
                Producer(server.place, [topic], checker=check, options=OPTIONS) as producer,
                self.consumer(server, topic) as source,
            ):
                async with await producer.begin(Message(topic, b"committed")):
                    pass
                with pytest.raises(ZeroDivisionError):
                    async with await producer.begin(Message(topic, b"rolled back")):
                        raise ZeroDivisionError
                await producer.begin(Message(topic, b"orphan"))
                assert bodies(await drain(source, 2)) == [b"committed", b"orphan"]
                assert set(asked) == {b"orphan"}
                with pytest.raises(BadRequestError):
                    await producer.begin(Message(topic, b"x", message_group="g"))

        run(test, 60 + server.traits.patience)

    def test_messages_are_filtered_by_tag_and_by_condition(self, server: MessagingServer) -> None:
        topic = self.topic(server)

        async def test() -> None:
            async with Producer(server.place, [topic], options=OPTIONS) as producer:
                for number, tag in enumerate("abc"):
                    await producer.send(Message(topic, tag.encode(), tag=tag, properties={"n": str(number)}))
            async with self.consumer(server, topic, "a || b") as by_tag:
                assert bodies(await drain(by_tag, 2)) == [b"a", b"b"]
                assert await by_tag.receive(invisible=server.traits.shortest) == []
            async with self.consumer(server, topic, Filter("n >= 1 AND TAGS <> 'c'", "sql")) as by_condition:
                assert bodies(await drain(by_condition, 1)) == [b"b"]
            async with self.consumer(server, topic, Filter("n >=", "sql")) as wrong:
                with pytest.raises(ClientError):
                    await wrong.receive(invisible=server.traits.shortest)

        run(test)

    def test_a_push_consumer_gets_every_message_and_those_that_failed_again(self, server: MessagingServer) -> None:
        topic = self.topic(server)
        group = f"pushed-{next(_names)}"
        server.make_group(group, ordered=False)
        got: list[tuple[bytes, int]] = []

        async def listen(message: Received) -> None:
            got.append((message.body, message.attempt))
            if message.body == b"3" and message.attempt < 3:
                raise ValueError("not yet")

        async def test() -> None:
            async with Producer(server.place, options=OPTIONS) as producer:
                await producer.send_many([Message(topic, b"%d" % number) for number in range(6)])
            async with PushConsumer(server.place, group, {topic: "*"}, listen, options=OPTIONS):
                await until_async(lambda: len(got) >= 8)
            assert sorted(got) == sorted([(b"%d" % number, 1) for number in range(6)] + [(b"3", 2), (b"3", 3)])

        run(test, 60 + 2 * server.traits.pause)

    def test_what_always_fails_is_given_up_after_the_attempts_of_its_group(self, server: MessagingServer) -> None:
        topic = self.topic(server)
        group = f"unlucky-{next(_names)}"
        attempts = server.make_group(group, ordered=False)
        got: list[int] = []

        async def listen(message: Received) -> bool:
            got.append(message.attempt)
            return False

        async def test() -> None:
            async with Producer(server.place, options=OPTIONS) as producer:
                await producer.send(Message(topic, b"poison"))
            async with PushConsumer(server.place, group, {topic: "*"}, listen, options=OPTIONS):
                await until_async(lambda: len(got) >= attempts)
                await asyncio.sleep(server.traits.pause)
            assert got == list(range(1, attempts + 1))

        run(test, 60 + (attempts + 1) * server.traits.pause)

    def test_closing_gives_back_what_has_not_begun(self, server: MessagingServer) -> None:
        topic = self.topic(server)
        group = f"closing-{next(_names)}"
        server.make_group(group, ordered=False)
        begun: list[bytes] = []
        go_on = asyncio.Event()

        async def listen(message: Received) -> None:
            begun.append(message.body)
            await go_on.wait()

        async def test() -> None:
            async with Producer(server.place, options=OPTIONS) as producer:
                for number in range(6):
                    await producer.send(Message(topic, b"%d" % number))
            push = PushConsumer(server.place, group, {topic: "*"}, listen, concurrency=2, options=OPTIONS)
            await push.start()
            await until_async(lambda: push.cached()[topic][0] == 6)
            closing = asyncio.ensure_future(push.close())
            await asyncio.sleep(0.1)
            go_on.set()
            await closing
            assert len(begun) == 2
            async with SimpleConsumer(server.place, group, {topic: "*"}, await_duration=0, options=OPTIONS) as rest:
                begin = asyncio.get_running_loop().time()
                assert sorted([*begun, *bodies(await drain(rest, 4))]) == [b"%d" % number for number in range(6)]
                assert asyncio.get_running_loop().time() - begin < 30  # given back, not waited for

        run(test)

    def test_a_handle_is_replaced_by_a_new_one_and_expires(self, server: MessagingServer) -> None:
        topic = self.topic(server)

        async def test() -> None:
            async with (
                Producer(server.place, [topic], options=OPTIONS) as producer,
                self.consumer(server, topic) as source,
            ):
                await producer.send(Message(topic, b"x"))
                messages: list[Received] = []
                while not messages:
                    messages = await source.receive(1, invisible=60)
                changed = await source.change_invisible_duration(messages[0], timedelta(seconds=60))
                assert changed.receipt_handle != messages[0].receipt_handle
                if server.traits.replaces_handles:
                    with pytest.raises(InvalidHandleError) as refused:
                        await source.ack(messages[0])
                    assert refused.value.code == 40013
                expiring = await source.change_invisible_duration(changed, server.traits.shortest)
                await asyncio.sleep(server.traits.shortest + 0.5)
                with pytest.raises(InvalidHandleError):
                    await source.ack(expiring)
                (again,) = await drain(source, 1)
                assert (again.body, again.attempt) == (b"x", 2)

        run(test)

    def test_what_no_server_takes_is_refused_by_its_class(self, server: MessagingServer) -> None:
        topic = self.topic(server)

        async def test() -> None:
            with pytest.raises(ResourceNotFoundError, match="topic absent could not be fetched from") as refused:
                await Producer(server.place, ["absent"], options=OPTIONS).start()
            assert refused.value.code // 100 == 404
            async with Producer(server.place, [topic], options=OPTIONS) as producer:
                with pytest.raises(BadRequestError, match=f"topic {topic} takes NORMAL, not FIFO"):
                    await producer.send(Message(topic, b"x", message_group="g"))
                with pytest.raises(BadRequestError) as bad:
                    await producer.send(Message(topic, b"x", properties={"KEYS": "k"}))
                assert bad.value.code // 100 == 400
                assert bad.value.request_id
                assert not producer.isolated

        run(test)

    def test_p3_clients_go_on_after_the_server_was_killed_and_started_again(self, server: MessagingServer) -> None:
        topic = self.topic(server)
        group = f"killed-{next(_names)}"
        server.make_group(group, ordered=False)
        got: list[bytes] = []

        async def listen(message: Received) -> None:
            got.append(message.body)

        async def test() -> None:
            async with (
                Producer(server.place, [topic], options=OPTIONS) as producer,
                PushConsumer(server.place, group, {topic: "*"}, listen, options=OPTIONS),
            ):
                await producer.send(Message(topic, b"before"))
                await until_async(lambda: got == [b"before"])
                await asyncio.to_thread(server.kill)
                with pytest.raises(TransportError):
                    await producer.send(Message(topic, b"lost"))
                assert producer.isolated
                await asyncio.to_thread(server.start)
                await patiently(lambda: producer.send(Message(topic, b"after")))
                await until_async(lambda: b"after" in got)
                await until_async(lambda: not producer.isolated)

        run(test, 300)
