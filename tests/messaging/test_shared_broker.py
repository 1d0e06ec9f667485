"""A broker that moves between processes of one node: who is on standby leads clients to it, and they follow."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import msgspec
import pytest

from millstream.core.address import Address
from millstream.core.clock import SystemClock, VirtualClock
from millstream.core.sql import SqlBusyError
from millstream.log import LogError, LogStore, StorageFullError, WriterBusyError, open_store
from millstream.log.backends.memory import MemoryBackend
from millstream.messaging.admin_client import call_broker
from millstream.messaging.broker.address import RouteEndpoints, to_endpoints
from millstream.messaging.broker.admin import CLIENTS, CREATE_TOPIC, TOPICS, AdminCallError
from millstream.messaging.broker.clients import client_quirks
from millstream.messaging.broker.limits import Limits
from millstream.messaging.broker.security.access_keys import AccessKey, CallerPermissions, Keyring
from millstream.messaging.broker.security.generated_certificate import CERTIFICATE, generated_tls
from millstream.messaging.broker.security.tls import ServerTls
from millstream.messaging.broker.server import standby
from millstream.messaging.broker.server.broker_server import route_endpoints
from millstream.messaging.broker.server.listener import Listener
from millstream.messaging.broker.server.shared_broker import SharedBroker
from millstream.messaging.broker.server.standby import NoOwnerError, Standby
from millstream.messaging.broker.storage.journal import BrokerJournal
from millstream.messaging.broker.storage.journal_events import OffsetMoved, TopicDropped, TopicMade
from millstream.messaging.broker.storage.topic import TopicSpec
from millstream.messaging.broker.storage.topic_specs import TopicSpecs
from millstream.messaging.client import ClientError, Message, Options, Producer, PushConsumer, SimpleConsumer
from millstream.messaging.client.errors import ForbiddenError, TransportError, UnauthorizedError
from millstream.messaging.client.options import Intervals, Tls
from millstream.messaging.client.signing import Credentials, Signer
from millstream.messaging.errors import UnreachableError
from millstream.messaging.protocol import v2
from millstream.messaging.protocol.descriptor_methods import methods
from millstream.testing.waiting import until_allowed_async, until_async
from support.faulty_log import FaultyBackend

LOOPBACK = Address("127.0.0.1", 0)
QUICK = Options(intervals=msgspec.structs.replace(Intervals(), retry=0.05))


class Pair:
    """Two brokers of one node, *one* and *other*: both on standby, until :meth:`give` makes one the owner."""

    def __init__(
        self,
        store: LogStore,
        keys: Keyring | None = None,
        tls: ServerTls | None = None,
        *,
        other_tls: ServerTls | None = None,
        tls_place: Address | None = None,
        advertised: Address | None = None,
    ) -> None:
        self.owner: SharedBroker | None = None
        self.fault: Exception | None = None
        self.one, self.other = (
            SharedBroker(
                store,
                Listener(LOOPBACK, keys=keys, tls=own_tls, tls_place=tls_place),
                self._routes,
                clock=SystemClock(),
                member_key=b"members",
                advertised=advertised,
            )
            for own_tls in (tls, other_tls or tls)
        )

    @property
    def access_point(self) -> str:
        """The last address of each, as clients are given them."""
        return ";".join(str(broker.places[-1]) for broker in (self.one, self.other))

    async def give(self, broker: SharedBroker) -> None:
        """Let *broker* have the topics from now on."""
        if self.owner is not None:
            await self.owner.end()
        await broker.begin()
        self.owner = broker

    def _routes(self) -> RouteEndpoints | None:
        if self.fault is not None:
            raise self.fault
        return None if self.owner is None else self.owner.routes


@contextlib.asynccontextmanager
async def pair(keys: Keyring | None = None, tls: ServerTls | None = None, **places: Any) -> AsyncIterator[Pair]:
    with open_store("memory://") as store:
        both = Pair(store, keys, tls, **places)
        async with both.one, both.other:
            yield both


async def ask(broker: SharedBroker, call: Any, request: Any) -> Any:
    return await asyncio.to_thread(call_broker, broker.places[0], call, request)


async def patiently(work: Callable[[], Awaitable[Any]]) -> Any:
    """What *work* returns, once a server has taken the call."""
    return await until_allowed_async(work, TransportError, seconds=30)


@pytest.mark.parametrize("encrypted", ["no", "all", "beside"])
@pytest.mark.parametrize("advertised", [None, Address("localhost", 0)])
def test_clients_follow_the_topics_from_one_process_to_the_other_and_back(
    encrypted: str, advertised: Address | None, tmp_path: Path
) -> None:
    tls, other_tls, options = None, None, QUICK
    if encrypted != "no":
        folders = tmp_path / "one", tmp_path / "other"
        for folder in folders:
            folder.mkdir()
        tls, other_tls = (generated_tls(folder, ["127.0.0.1"], SystemClock()) for folder in folders)
        trusted = b"".join((folder / CERTIFICATE).read_bytes() for folder in folders)
        options = msgspec.structs.replace(QUICK, tls=Tls(trusted))
    tls_place = LOOPBACK if encrypted == "beside" else None

    async def test() -> None:
        async with pair(tls=tls, other_tls=other_tls, tls_place=tls_place, advertised=advertised) as both:
            await both.give(both.one)
            assert both.one.supervisor is not None
            await both.one.supervisor.core.create_topic(TopicSpec("orders", "FIFO", 2))
            sent: list[bytes] = []
            heard: list[bytes] = []

            async def listen(message: Any) -> None:
                heard.append(message.body)

            async with (
                Producer(both.access_point, ["orders"], options=options) as producer,
                PushConsumer(both.access_point, "g", {"orders": "*"}, listen, options=options),
            ):
                for owner in (both.one, both.other, both.one):
                    if both.owner is not owner:
                        await both.give(owner)
                    for _ in range(5):
                        body = b"%d" % len(sent)
                        message = Message("orders", body, message_group="a")
                        receipt = await patiently(lambda message=message: producer.send(message))
                        assert str(receipt.endpoints).rpartition(":")[0] == (advertised or LOOPBACK).host
                        sent.append(body)
                await until_async(lambda: len(set(heard)) == len(sent), seconds=60)
            firsts = sorted(set(heard), key=heard.index)
            assert firsts == sent

    asyncio.run(test())


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_client_starts_at_the_second_of_two_addresses_where_the_first_is_dead(
    encrypted: bool, tmp_path: Path
) -> None:
    tls, options = None, QUICK
    if encrypted:
        tls = generated_tls(tmp_path, ["127.0.0.1"], SystemClock())
        options = msgspec.structs.replace(QUICK, tls=Tls((tmp_path / CERTIFICATE).read_bytes()))

    async def test() -> None:
        async with pair(tls=tls) as both:
            await both.give(both.one)
            assert both.one.supervisor is not None
            await both.one.supervisor.core.create_topic(TopicSpec("t"))
            dead = "127.0.0.1:1"  # addresses are sorted: it is asked first
            async with (
                Producer(f"{both.one.places[0]};{dead}", ["t"], options=options) as producer,
                SimpleConsumer(f"{dead};{both.one.places[0]}", "g", {"t": "*"}, options=options) as consumer,
            ):
                await producer.send(Message("t", b"x"))
                assert [message.body for message in await consumer.receive()] == [b"x"]

    asyncio.run(test())


def test_transactions_end_where_their_topic_is_by_then() -> None:
    async def check(_message: Any) -> str:
        return "unknown"

    async def test() -> None:
        async with pair() as both:
            await both.give(both.one)
            await ask(both.one, CREATE_TOPIC, TopicSpec("t", "TRANSACTION", 1))
            async with (
                Producer(both.access_point, ["t"], checker=check, options=QUICK) as producer,
                SimpleConsumer(both.access_point, "g", {"t": "*"}, options=QUICK) as consumer,
            ):
                transaction = await producer.begin(Message("t", b"half"))
                await both.give(both.other)
                await patiently(transaction.commit)
                (received,) = await patiently(consumer.receive)
                assert received.body == b"half"

    asyncio.run(test())


def test_a_process_whose_journal_failed_is_on_standby_again() -> None:
    backend = FaultyBackend(MemoryBackend(SystemClock()), StorageFullError())

    async def test(store: LogStore) -> None:
        both = Pair(store)
        async with both.one, both.other:
            await both.give(both.one)
            await ask(both.one, CREATE_TOPIC, TopicSpec("t"))
            assert both.one.supervisor is not None
            backend.faults.append("before")
            both.one.supervisor.core.journal.record(OffsetMoved("g", "t", 0, 1))  # nobody waits for it
            with pytest.raises(LogError):
                await both.one.end()
            both.owner = None
            await both.give(both.other)
            async with Producer(str(both.one.places[0]), ["t"]) as producer:
                await producer.send(Message("t", b"led to the next one"))

    with LogStore(backend, SystemClock()) as store:
        asyncio.run(test(store))


def test_standby_leads_clients_to_the_owner_and_passes_on_what_else_it_is_asked() -> None:
    async def test() -> None:
        async with pair() as both:
            await both.give(both.one)
            await ask(both.other, CREATE_TOPIC, TopicSpec("t", "NORMAL", 3))
            async with Producer(str(both.other.places[0]), ["t"]) as producer:
                route = await producer.route("t")
                assert {str(endpoints) for endpoints in route.endpoints} == {str(both.one.places[0])}
                assert len(route.writable) == 3
                receipt = await producer.send(Message("t", b"by the route"))
                assert str(receipt.endpoints) == str(both.one.places[0])
                request = v2.SendMessageRequest(messages=[v2.Message(topic=v2.Resource(name="t"), body=b"x")])
                request.messages[0].system_properties.message_id = "passed on"
                response = await producer.transport(producer.access_point).call("SendMessage", request, 3.0)
                assert (response.status.code, response.entries[0].message_id) == (v2.OK, "passed on")
                with pytest.raises(ClientError, match="there is no topic absent; create it"):
                    await producer.route("absent")
            assert [(topic.name, topic.messages) for topic in await ask(both.other, TOPICS, "")] == [("t", 2)]

    asyncio.run(test())


def test_clients_that_do_not_follow_routes_go_on_at_the_process_that_they_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_quirks, "_FOLLOW_ROUTES", ())

    async def test() -> None:
        async with pair() as both:
            await both.give(both.one)
            await ask(both.one, CREATE_TOPIC, TopicSpec("orders", "FIFO", 2))
            known, sent, heard = str(both.other.places[0]), list[bytes](), list[bytes]()

            async def listen(message: Any) -> None:
                heard.append(message.body)

            async with (
                Producer(known, ["orders"], options=QUICK) as producer,
                PushConsumer(known, "g", {"orders": "*"}, listen, options=QUICK),
            ):
                for owner in (both.one, both.other, both.one):
                    if both.owner is not owner:
                        await both.give(owner)
                    for _ in range(5):
                        body = b"%d" % len(sent)
                        message = Message("orders", body, message_group="a")
                        receipt = await patiently(lambda message=message: producer.send(message))
                        assert str(receipt.endpoints) == known
                        sent.append(body)
                await until_async(lambda: len(set(heard)) == len(sent), seconds=60)
                async with asyncio.timeout(30):  # its stream is opened again after the last move
                    while not any(client.is_connected for client in await ask(both.one, CLIENTS, "g")):
                        pass
            assert sorted(set(heard), key=heard.index) == sent
            assert await ask(both.one, CLIENTS, "") == []

    asyncio.run(test())


def test_a_stream_that_is_passed_on_ends_when_another_process_has_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "_SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(standby, "_FRESH_SECONDS", 0.0)

    async def test() -> None:
        async with pair() as both:
            await both.give(both.one)
            async with Producer(str(both.other.places[0])) as producer:
                call = producer.transport(producer.access_point).telemetry()
                await call.write(v2.TelemetryCommand(settings=producer._settings()))
                assert (await call.read()).settings.publishing.validate_message_type
                # The owner hangs, so that it ends nothing itself, and another process takes over.
                monkeypatch.setattr(both.one, "_listener", Listener(Address("127.0.0.1", 1)))
                with pytest.raises(grpc.aio.AioRpcError, match="has moved to another process") as ended:
                    await call.read()
                assert ended.value.code() is grpc.StatusCode.UNAVAILABLE

    asyncio.run(asyncio.wait_for(test(), 30))


def test_a_call_is_not_passed_on_twice() -> None:
    async def test() -> None:
        async with pair() as both:
            await both.give(both.one)
            await ask(both.one, CREATE_TOPIC, TopicSpec("t"))
            await both.one.end()
            both.owner = both.other  # which has not begun: each takes the other one for the owner
            place = both.one.places[0]
            with pytest.raises(UnreachableError):
                await asyncio.to_thread(call_broker, place, TOPICS, "")

    asyncio.run(test())


def test_an_encrypted_broker_gets_no_calls_passed_on(tmp_path: Path) -> None:
    tls = generated_tls(tmp_path, ["127.0.0.1"], SystemClock())
    options = Options(tls=Tls((tmp_path / CERTIFICATE).read_bytes()))

    async def test() -> None:
        async with pair(tls=tls) as both:
            await both.give(both.one)
            assert await asyncio.to_thread(call_broker, both.one.places[0], TOPICS, "", options) == []
            with pytest.raises(AdminCallError, match=f"runs in another process: connect to {both.one.places[0]}"):
                await asyncio.to_thread(call_broker, both.other.places[0], TOPICS, "", options)

    asyncio.run(test())


def test_while_no_process_has_the_topics_clients_are_told_to_try_again() -> None:
    async def test() -> None:
        async with pair() as both:
            await both.give(both.one)
            await ask(both.one, CREATE_TOPIC, TopicSpec("t"))
            await both.one.end()
            both.owner = None
            with pytest.raises(ClientError, match="No process runs the broker of this node now"):
                async with Producer(both.access_point, ["t"], options=QUICK):
                    pass
            with pytest.raises(AdminCallError, match=str(NoOwnerError.__doc__)):
                await ask(both.one, TOPICS, "")

    asyncio.run(test())


def test_a_process_stays_on_standby_while_another_one_has_the_journal() -> None:
    async def test() -> None:
        async with pair() as both:
            await both.give(both.one)
            await ask(both.one, CREATE_TOPIC, TopicSpec("t"))
            with pytest.raises(WriterBusyError):
                await both.other.begin()
            assert both.other.supervisor is None
            async with SimpleConsumer(str(both.other.places[0]), "g", {"t": "*"}) as consumer:
                assert {str(place) for place in (await consumer.route("t")).endpoints} == {str(both.one.places[0])}

    asyncio.run(test())


def test_standby_tells_routes_to_callers_with_a_key_for_the_topic_only() -> None:
    keys = Keyring({"k": AccessKey("secret", CallerPermissions("k", publish=("mine",)))})

    async def test() -> None:
        async with pair(keys) as both:
            await both.give(both.one)
            assert both.one.supervisor is not None
            for name in ("mine", "other"):
                await both.one.supervisor.core.create_topic(TopicSpec(name))
            place, signed = str(both.other.places[0]), Options(credentials=Credentials("k", "secret"))
            with pytest.raises(UnauthorizedError):
                await Producer(place, ["mine"]).start()
            with pytest.raises(ForbiddenError, match="is not allowed to"):
                await Producer(place, ["other"], options=signed).start()
            async with Producer(place, ["mine"], options=signed) as producer:
                await producer.send(Message("mine", b"x"))

    asyncio.run(test())


def test_large_requests_without_a_key_are_refused_as_unauthorized_by_the_standby_and_through_it() -> None:
    keys = Keyring({"k": AccessKey("secret", CallerPermissions("k"))})

    async def test() -> None:
        async with pair(keys) as both:
            await both.give(both.one)
            async with grpc.aio.insecure_channel(str(both.other.places[0])) as channel:
                for name in ("QueryRoute", "SendMessage"):
                    method = methods()[name]
                    call = channel.unary_unary(method.path, None, method.response.FromString)
                    answer = await call(bytes(20 << 20), metadata=(("x-mq-client-id", "client"),))
                    assert answer.status.code == v2.UNAUTHORIZED

    asyncio.run(test())


def test_while_the_database_does_not_answer_clients_are_led_by_what_it_said_last() -> None:
    clock, routes, answers = VirtualClock(), RouteEndpoints(address=LOOPBACK), threading.Event()
    calls: list[None] = []

    def find_owner() -> RouteEndpoints:
        calls.append(None)
        if len(calls) > 1:
            assert answers.wait(60)
            raise SqlBusyError
        return routes

    async def test(store: LogStore) -> None:
        standby = Standby(store, find_owner, clock, Keyring(), member_key=b"members")
        assert await standby.owner() is routes
        clock.advance(2)
        try:
            assert await asyncio.gather(*(standby.owner() for _ in range(20))) == [routes] * 20
            assert len(calls) == 2, "one thread waits for the database, whoever asks"
        finally:
            answers.set()
        assert await standby.owner() is routes
        never = Standby(store, find_owner, clock, Keyring(), member_key=b"members")
        with pytest.raises(SqlBusyError):
            await never.owner()

    with open_store("memory://") as store:
        asyncio.run(test(store))


def test_standby_passes_on_no_unknown_method_without_a_known_key() -> None:
    signed = Signer("client", SystemClock(), credentials=Credentials("shop", "secret")).headers()
    keys = Keyring({"shop": AccessKey("secret", CallerPermissions("shop"))})
    with open_store("memory://") as store:
        standby = Standby(store, lambda: None, SystemClock(), keys, member_key=b"members")
        others: Any = standby.handlers()[-1]
        for metadata, passes in ((), False), (tuple(signed), True):
            call: Any = SimpleNamespace(method="/later.Service/Method", invocation_metadata=metadata)
            assert (others.service(call) is not None) == passes


def test_clients_go_to_another_server_where_standby_fails() -> None:
    async def test() -> None:
        async with pair() as both:
            await both.give(both.one)
            await ask(both.one, CREATE_TOPIC, TopicSpec("t"))
            both.fault = ZeroDivisionError("a fault that a test asked for")
            with pytest.raises(TransportError, match=r"unavailable: the standby of this broker failed"):
                async with Producer(str(both.other.places[0]), ["t"], options=QUICK):
                    pass
            with pytest.raises(AdminCallError, match=r"the standby of this broker failed"):
                await ask(both.other, TOPICS, "")

    asyncio.run(test())


def test_topics_of_another_broker_are_read_of_its_journal_as_it_changes() -> None:
    async def test() -> None:
        with open_store("memory://") as store:
            specs = TopicSpecs(store)
            assert specs.read().get("a") is None
            journal = BrokerJournal(store, 0, Limits(snapshot_after=4))
            await journal.write(TopicMade("a", "FIFO", 2))
            assert specs.read().get("a") == TopicSpec("a", "FIFO", 2)
            await journal.write(TopicMade("a", "FIFO", 3))
            await journal.write(TopicMade("b", "NORMAL", 1))
            assert (specs.read().get("a"), specs.read().get("b")) == (
                TopicSpec("a", "FIFO", 3),
                TopicSpec("b", "NORMAL", 1),
            )
            await journal.write(TopicDropped("b"))  # the snapshot that is due trims what tells of it
            for number in range(9):
                await journal.write(OffsetMoved("g", "a", 0, number))
            await until_async(journal.is_at_rest, seconds=30)
            assert specs.read().get("b") is None
            assert TopicSpecs(store).read()["a"] == specs.read().get("a") == TopicSpec("a", "FIFO", 3)
            journal.close()

    asyncio.run(test())


def test_routes_lead_where_a_client_came_or_to_the_advertised_address() -> None:
    plain, tls = Address("0.0.0.0", 8081), Address("0.0.0.0", 8082)
    asked, nothing = to_endpoints(Address("proxy.example", 443)), v2.Endpoints()
    alone = route_endpoints([plain], None, as_asked=True)
    assert alone.choose(asked, is_encrypted=False, follows=True) == asked
    assert alone.choose(nothing, is_encrypted=False, follows=True) == to_endpoints(plain)
    shared = route_endpoints([plain, tls], Address("node.example", 0), as_asked=False)
    assert shared.choose(asked, is_encrypted=False, follows=True) == to_endpoints(Address("node.example", 8081))
    assert shared.choose(asked, is_encrypted=True, follows=True) == to_endpoints(Address("node.example", 8082))
    mapped = route_endpoints([plain], Address("node.example", 18081), as_asked=False)
    assert mapped.choose(asked, is_encrypted=True, follows=True) == to_endpoints(Address("node.example", 18081))
