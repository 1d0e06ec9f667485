"""Changes of topics and groups by calls over the network are recorded, with who made them and from where."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import grpc
import msgspec
import pytest

from millstream.cli.main import run
from millstream.cli.serve import _own_broker, _recorder
from millstream.core.address import Address
from millstream.core.clock import SystemClock
from millstream.log import LogStore, open_store
from millstream.messaging import admin_client
from millstream.messaging.admin_client import call_broker
from millstream.messaging.broker.address import RouteEndpoints
from millstream.messaging.broker.admin import (
    _CHANGES,
    ADMIN_SERVICE,
    CONFIGURE_GROUP,
    CREATE_TOPIC,
    DROP_TOPIC,
    GROUPS,
    RESET_OFFSET,
    TOPICS,
    AdminCallError,
    AdminChange,
    AdminService,
    GroupConfigRequest,
    OffsetResetRequest,
)
from millstream.messaging.broker.core import BrokerCore
from millstream.messaging.broker.security.access_keys import AccessKey, CallerPermissions, Keyring
from millstream.messaging.broker.security.tls import read_tls
from millstream.messaging.broker.server.broker_server import BrokerServer
from millstream.messaging.broker.server.forwarder import FORWARDED, forwarding_proof
from millstream.messaging.broker.server.listener import Listener
from millstream.messaging.broker.server.shared_broker import SharedBroker
from millstream.messaging.broker.settings import BrokerSettings
from millstream.messaging.broker.storage.topic import TopicSpec
from millstream.messaging.client import Credentials, Options, Tls
from millstream.messaging.client.signing import Signer
from millstream.messaging.errors import UnreachableError
from millstream.node import Node
from millstream.rest.operator_audit_log import OperatorAuditLog
from millstream.settings import Settings
from millstream.testing.waiting import until_async
from support.certificates import Authority

LOOPBACK = Address("127.0.0.1", 0)
ORDERS = TopicSpec("orders")
METHOD = f"/{ADMIN_SERVICE}/{CREATE_TOPIC.name}"
KEYS = Keyring(
    {
        "chief": AccessKey("sesame", CallerPermissions("chief", admin=True)),
        "shop": AccessKey("secret", CallerPermissions("shop", publish=("*",))),
    }
)
CHIEF, SHOP = (Options(credentials=Credentials(*pair)) for pair in (("chief", "sesame"), ("shop", "secret")))


class Recorded(list[tuple[str, str, str, dict[str, Any]]]):
    """User, action, target and facts of every recorded change."""

    def __call__(self, user: str, change: AdminChange) -> None:
        self.append((user, change.action, change.target, dict(change.facts)))


@contextlib.asynccontextmanager
async def broker(record: Callable[[str, AdminChange], object], **more: Any) -> AsyncIterator[BrokerServer]:
    with open_store("memory://") as store:
        async with BrokerServer(store, LOOPBACK, record=record, **more) as server:
            yield server


def member(
    store: LogStore, record: Callable[[str, AdminChange], object], owner: Callable[[], RouteEndpoints | None]
) -> SharedBroker:
    listener = Listener(LOOPBACK, keys=KEYS)
    return SharedBroker(store, listener, owner, clock=SystemClock(), member_key=b"members", record=record)


async def ask(place: Address, call: Any, request: Any, options: Options = CHIEF) -> Any:
    return await asyncio.to_thread(call_broker, place, call, request, options)


def test_every_call_that_changes_something_has_an_entry_in_the_audit_log() -> None:
    assert {call for call in AdminService(cast(BrokerCore, None)).calls if call.method == "POST"} == set(_CHANGES)


def test_a_change_is_recorded_with_the_access_key_and_the_address_of_the_caller() -> None:
    recorded = Recorded()

    async def change() -> None:
        async with broker(recorded, keys=KEYS) as server:
            (place,) = server.places
            with pytest.raises(AdminCallError, match="is not allowed to administer"):
                await ask(place, CREATE_TOPIC, ORDERS, SHOP)
            with pytest.raises(AdminCallError, match="there is no topic absent"):
                await ask(place, DROP_TOPIC, "absent")
            await ask(place, CREATE_TOPIC, ORDERS)
            await ask(place, CREATE_TOPIC, ORDERS)
            await ask(place, TOPICS, "")
            await ask(place, CONFIGURE_GROUP, GroupConfigRequest("billing", 3, (1_000_000,)))
            await ask(place, RESET_OFFSET, OffsetResetRequest("billing", "orders", 1))
            await ask(place, GROUPS, "")
            await ask(place, CREATE_TOPIC, TopicSpec("orders", queues=8))
            await ask(place, DROP_TOPIC, "orders")

    asyncio.run(change())
    origin = {"address": "127.0.0.1"}
    assert recorded == [
        ("key:chief", "create topic", "topic orders", {"type": "NORMAL", "queues": 4, **origin}),
        ("key:chief", "configure group", "group billing", {"max_attempts": 3, "backoff": [1_000_000], **origin}),
        ("key:chief", "reset offset", "group billing", {"topic": "orders", "done": 0, **origin}),
        ("key:chief", "create topic", "topic orders", {"type": "NORMAL", "queues": 8, **origin}),
        ("key:chief", "delete topic", "topic orders", origin),
    ]


def test_a_caller_without_a_key_is_recorded_by_the_name_in_its_certificate(tmp_path: Path) -> None:
    servers, clients, recorded = Authority(tmp_path), Authority(tmp_path, "clients"), Recorded()
    (certificate, key), (own, own_key) = servers.issue("server"), clients.issue("client")
    settings = BrokerSettings(tls_certificate=str(certificate), tls_key=str(key), tls_client_ca=str(clients.path))
    tls = Tls(servers.path.read_bytes(), own.read_bytes(), own_key.read_bytes())

    async def change() -> None:
        async with broker(recorded, tls=read_tls(settings)) as server:
            await ask(Address("localhost", server.port), CREATE_TOPIC, ORDERS, Options(tls=tls))

    asyncio.run(change())
    ((user, action, _, _),) = recorded
    assert (user, action) == ("certificate:client", "create topic")


def test_a_change_that_cannot_be_recorded_is_an_error_and_its_repetition_is_recorded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recorded, faults = Recorded(), [OSError("the disk is full")]

    def record(user: str, change: AdminChange) -> None:
        if faults:
            raise faults.pop()
        recorded(user, change)

    async def change() -> None:
        async with broker(record, keys=KEYS) as server:
            (place,) = server.places

            async def ask_twice(call: Any, request: Any, error: str) -> None:
                with pytest.raises(AdminCallError, match=f"The change was {error}.* the operator audit log"):
                    await ask(place, call, request)
                topics = [topic.name for topic in await ask(place, TOPICS, "")]
                assert topics == ([] if call is CREATE_TOPIC else ["orders"])
                await ask(place, call, request)
                faults.append(OSError("the disk is full"))

            await ask_twice(CREATE_TOPIC, ORDERS, "not made, because it could not be recorded in")
            await ask_twice(CONFIGURE_GROUP, GroupConfigRequest("billing", 3), "made, but could not be recorded in")
            await ask_twice(RESET_OFFSET, OffsetResetRequest("billing", "orders", 1), "made, but could not be recorded")
            await ask_twice(DROP_TOPIC, "orders", "not made, because it could not be recorded in")

    asyncio.run(change())
    assert [(action, target) for _, action, target, _ in recorded] == [
        ("create topic", "topic orders"),
        ("configure group", "group billing"),
        ("reset offset", "group billing"),
        ("delete topic", "topic orders"),
    ]
    assert "key:chief" in caplog.text
    assert "the disk is full" in caplog.text


def test_a_caller_that_goes_away_cannot_prevent_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded, create = Recorded(), BrokerCore.create_topic
    monkeypatch.setattr(admin_client, "_SECONDS", 0.3)

    async def change() -> None:
        gone = asyncio.Event()

        async def create_late(core: BrokerCore, spec: TopicSpec) -> None:
            await gone.wait()
            await create(core, spec)

        monkeypatch.setattr(BrokerCore, "create_topic", create_late)
        async with broker(recorded, keys=KEYS) as server:
            with pytest.raises(UnreachableError):
                await ask(server.places[0], CREATE_TOPIC, ORDERS)
            gone.set()
            await until_async(lambda: len(recorded) == 1, seconds=30)

    asyncio.run(change())
    assert recorded[0][:3] == ("key:chief", "create topic", "topic orders")


def test_a_call_that_another_process_of_the_node_passed_on_is_recorded_as_forwarded() -> None:
    recorded, found = Recorded(), []

    async def change() -> None:
        with open_store("memory://") as store:
            owners = [member(store, recorded, lambda: found[0].routes) for _ in range(2)]
            async with owners[0] as owner, owners[1] as standby:
                found.append(owner)
                await owner.begin()
                await ask(standby.places[0], CREATE_TOPIC, ORDERS)

    asyncio.run(change())
    ((user, _, _, facts),) = recorded
    assert (user, facts["address"], facts["forwarded"]) == ("key:chief", "127.0.0.1", True)


@pytest.mark.parametrize("proof", ["1", "", forwarding_proof(b"another key", METHOD, {})])
def test_a_caller_cannot_say_that_a_member_passed_its_call_on(proof: str) -> None:
    recorded = Recorded()

    def create(place: Address) -> None:
        headers = Signer("shop", SystemClock(), credentials=CHIEF.credentials).headers()
        with grpc.insecure_channel(str(place)) as channel:
            send: Any = channel.unary_unary(METHOD)
            send(msgspec.json.encode(ORDERS), timeout=30, metadata=[*headers, (FORWARDED, proof)])

    async def change() -> None:
        with open_store("memory://") as store:
            async with member(store, recorded, lambda: None) as owner:
                await owner.begin()
                await asyncio.to_thread(create, owner.places[0])

    asyncio.run(change())
    ((user, _, _, facts),) = recorded
    assert (user, facts["address"], "forwarded" in facts) == ("key:chief", "127.0.0.1", False)


@pytest.mark.parametrize("shared", [False, True])
def test_the_operator_audit_log_of_the_node_has_the_change(shared: bool, tmp_path: Path) -> None:
    async def alone(node: Node, stack: contextlib.AsyncExitStack) -> Address:
        return (await _own_broker(stack, node, (LOOPBACK, None))).places[0]

    async def as_member(node: Node, stack: contextlib.AsyncExitStack) -> Address:
        member = await stack.enter_async_context(node.messaging.shared_broker(LOOPBACK, record=_recorder(node)))
        await member.begin()
        return member.places[0]

    async def change(node: Node, begin: Callable[..., Coroutine[Any, Any, Address]]) -> None:
        async with contextlib.AsyncExitStack() as stack:
            place = str(await begin(node, stack))
            for words in (["topic", "create", "orders"], ["topic", "list"], ["topic", "delete", "orders"]):
                assert await asyncio.to_thread(run, [*words, "--broker", place]) == 0

    with Node.open(Settings(data=str(tmp_path)), create=True) as node:
        asyncio.run(change(node, as_member if shared else alone))
        events = OperatorAuditLog(node.databases.own, node.clock).last(10)
    assert [(event.user, event.action, event.target, event.facts["address"]) for event in reversed(events)] == [
        ("local", "create topic", "topic orders", "127.0.0.1"),
        ("local", "delete topic", "topic orders", "127.0.0.1"),
    ]
