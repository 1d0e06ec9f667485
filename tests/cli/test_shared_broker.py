"""Processes that serve one node with its broker, which is killed in one and drained in another: clients continue."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from serving_nodes import MEMBER_SETTINGS, Serving, open_node, owner_of

from millstream.messaging.client import ClientError, Message, Producer, PushConsumer
from millstream.node import Node
from millstream.node.members.assignment import BROKER_ROLE
from millstream.node.members.member_table import Member
from millstream.testing.waiting import until_allowed_async, until_async
from support.server_databases import new_database

SETTINGS = f"""{MEMBER_SETTINGS}
[serve.batching]
orders = "orders.batches"
"""


class Cluster:
    """Processes, each with a folder and a broker of its own, and the node that they serve."""

    def __init__(self, tmp_path: Path, settings: str, stack: ExitStack) -> None:
        self._path, self._settings, self._stack = tmp_path, settings, stack
        self.node: Node = stack.enter_context(open_node(self._folder("tests")))
        self._members: dict[int, Serving] = {}

    def start(self, name: str) -> Serving:
        serving = self._stack.enter_context(Serving(self._folder(name), broker=True))
        self._members[serving.process.pid] = serving
        return serving

    async def owned(self, *, but: str = "") -> tuple[Member, Serving]:
        """The owner of the broker, once there is one, and another one than the member *but*."""
        found = await asyncio.to_thread(owner_of, self.node, BROKER_ROLE, but=but)
        return found, self._members[found.details.pid]

    def _folder(self, name: str) -> Path:
        folder = self._path / name
        folder.mkdir()
        (folder / "millstream.toml").write_text(self._settings, "utf-8")
        return folder


def create_topic(member: Serving, name: str) -> None:
    """Create a topic over the interface of *member*, whether it has the broker or not."""
    body = json.dumps({"name": name, "type": "FIFO", "queues": 2}).encode()
    headers = {"Content-Type": "application/json"}
    with urlopen(Request(f"{member.ready['console']}/api/v1/topics", body, headers)) as answer:
        assert json.load(answer)["name"] == name


@pytest.mark.served
def test_p1_p3_clients_continue_when_the_broker_of_a_node_is_killed_and_when_it_is_drained(
    tmp_path: Path, postgresql: str
) -> None:
    with (
        new_database(postgresql, "node") as database,
        new_database(postgresql, "logs") as logs,
        ExitStack() as stack,
    ):
        settings = SETTINGS.format(database=database, logs=logs, shared=tmp_path / "cas")
        cluster = Cluster(tmp_path, settings, stack)
        asyncio.run(_walk(cluster))


async def _walk(cluster: Cluster) -> None:
    members = [await asyncio.to_thread(cluster.start, name) for name in ("one", "two", "three")]
    first, killed = await cluster.owned()
    await asyncio.to_thread(create_topic, next(each for each in members if each is not killed), "orders")
    access_point = ";".join(each.ready["broker"] for each in members)
    sent: list[bytes] = []
    heard: list[bytes] = []

    async def listen(message: Any) -> None:
        heard.append(message.body)

    async with (
        Producer(access_point, ["orders"]) as producer,
        PushConsumer(access_point, "group", {"orders": "*"}, listen),
    ):

        async def send(count: int) -> None:
            for _ in range(count):
                body = b"%d" % len(sent)
                message = Message("orders", body, message_group="a")
                await until_allowed_async(lambda message=message: producer.send(message), ClientError)
                sent.append(body)

        await send(20)
        killed.process.kill()
        await send(20)
        second, drained = await cluster.owned(but=first.id)
        await asyncio.to_thread(cluster.node.databases.members.table.drain, second.id, draining=True)
        third, _ = await cluster.owned(but=second.id)
        await send(20)
        assert drained.process.poll() is None
        assert len({first.id, second.id, third.id}) == 3
        await until_async(lambda: len(set(heard)) == len(sent), seconds=60)
    assert sorted(set(heard), key=heard.index) == sent
    batched = cluster.node.anchoring.observer.index
    await until_async(lambda: batched.totals().messages >= len(sent), seconds=60)
