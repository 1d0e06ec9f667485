"""Topics, consumer groups and clients of the broker in a node, over the interface for programs."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import threading
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import pytest
from in_process import AskedInProcess

from millstream.cli.main import run
from millstream.core.address import Address
from millstream.core.clock import SystemClock
from millstream.core.errors import InputError
from millstream.core.sql import SqlBusyError
from millstream.log import Message
from millstream.messaging.broker.address import RouteEndpoints
from millstream.messaging.broker.admin import TOPICS, AdminCall, AdminCallError, AdminService
from millstream.messaging.broker.core import BrokerCore
from millstream.messaging.broker.server.supervisor import BrokerSupervisor
from millstream.messaging.errors import StatusError
from millstream.messaging.protocol import v2
from millstream.node import Node
from millstream.rest import broker_link
from millstream.rest.broker_client import BrokerClient
from millstream.rest.broker_link import BrokerBusyError, BrokerLink
from millstream.rest.views import all_endpoints
from millstream.settings import Settings

REFUSED = [
    ("POST", "/topics", {"name": "no good"}, 400, "invalid topic name"),
    ("POST", "/topics", {"name": "orders", "queue": 8}, 400, "queue"),
    ("POST", "/topics", {"name": "orders", "type": "DELAY"}, 400, "already exists"),
    ("POST", "/topics/delete", {"topic": "absent"}, 404, "there is no topic absent"),
    ("POST", "/topics/delete", {"topic": ""}, 400, "topic"),
    ("GET", "/topics?topic=absent", None, 404, "there is no topic absent"),
    ("GET", "/groups?group=absent", None, 404, "absent"),
    ("POST", "/groups/configure", {"group": "no good", "max_attempts": 5}, 400, "invalid group name"),
    ("POST", "/groups/configure", {"group": "g", "max_attempts": 5_000}, 400, "max_attempts must be 1 to 1,000"),
    ("POST", "/groups/reset", {"group": "g", "topic": "orders"}, 400, "exactly one of next_id and time"),
    (
        "POST",
        "/groups/reset",
        {"group": "g", "topic": "orders", "next_id": 1, "time": 1},
        400,
        "exactly one of next_id and time",
    ),
    ("POST", "/groups/reset", {"group": "g", "topic": "orders", "time": 2**63}, 400, "time"),
    ("POST", "/groups/reset", {"group": "g", "topic": "absent", "next_id": 1}, 404, "there is no topic absent"),
    ("GET", "/clients/stack?client_id=nobody", None, 404, "unknown client nobody"),
    ("POST", "/clients/verify", {"client_id": "nobody", "topic": "orders", "id": 1}, 404, "unknown client nobody"),
    ("POST", "/clients/verify", {"client_id": "silent", "topic": "orders", "id": 9}, 404, "has no message 9"),
    ("GET", "/clients/stack?client_id=silent", None, 503, "no open telemetry stream"),
]


class RunningBroker:
    """A broker on the logs of *node*, in a thread of its own, that listens nowhere."""

    def __init__(self, node: Node) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.supervisor = self.within(self._start(node))
        self.link = BrokerLink(lambda: self.supervisor, self.loop)

    def within(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    def close(self) -> None:
        self.within(self.supervisor.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    @staticmethod
    async def _start(node: Node) -> BrokerSupervisor:
        return BrokerSupervisor(node.logs.store, SystemClock(), None, RouteEndpoints(address=Address("127.0.0.1", 1)))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node.open(Settings(data=str(tmp_path_factory.mktemp("administered"))), create=True) as opened:
        yield opened


@pytest.fixture(scope="module")
def broker(node: Node) -> Iterator[RunningBroker]:
    with contextlib.closing(RunningBroker(node)) as running:
        yield running


@pytest.fixture(scope="module")
def asked(node: Node, broker: RunningBroker) -> AskedInProcess:
    asked = AskedInProcess(node, broker.link)
    asked.api("/topics", {"name": "orders", "type": "FIFO", "queues": 2})
    broker.supervisor.core.sessions.touch("silent", 7)
    return asked


def trail_of(asked: AskedInProcess, target: str) -> list[tuple[str, dict[str, Any]]]:
    events = asked.api("/system/audit-log")["items"]
    return [(event["action"], event["facts"]) for event in events if event["target"] == target]


def test_every_call_of_the_broker_is_an_endpoint_of_the_same_route() -> None:
    routes = {(endpoint.method, endpoint.path) for endpoint in all_endpoints()}
    calls = AdminService(cast(BrokerCore, None)).calls
    assert len(calls) == 10
    assert {(call.method, call.path) for call in calls} <= routes


def test_a_topic_is_created_and_deleted_and_its_log_stays(asked: AskedInProcess) -> None:
    created = asked.api("/topics", {"name": "parcels", "type": "FIFO", "queues": 8})
    assert created == {
        "name": "parcels", "type": "FIFO", "queues": 8, "messages": 0, "groups": [], "first": 1, "held": 0,
    }  # fmt: skip
    assert asked.api("/topics?topic=parcels")["items"] == [created]
    published = asked.api("/logs/parcels/messages", {"body": "kept"})
    assert published == {"log": "parcels", "id": 1}, "the first message creates the log of a topic"
    assert asked.api("/topics/delete", {"topic": "parcels"}) == "parcels"
    assert [row["name"] for row in asked.api("/topics")["items"]] == ["orders"]
    assert asked.api("/logs/parcels/messages")["items"][0]["body"] == "kept"
    assert trail_of(asked, "topic parcels") == [
        ("delete topic", {}), ("create topic", {"type": "FIFO", "queues": 8}),
    ]  # fmt: skip


def test_a_group_gets_limits_of_its_own_and_a_position(asked: AskedInProcess, broker: RunningBroker) -> None:
    for body in (b"one", b"two"):
        broker.link.publish("orders", Message(body))
    found = asked.api("/groups/reset", {"group": "billing", "topic": "orders", "next_id": 2})
    assert (found["done"], found["lag"]) == (1, 1)
    limits = asked.api("/groups/configure", {"group": "billing", "max_attempts": 3, "backoff": [1_000_000]})
    assert limits == {"name": "billing", "max_attempts": 3, "backoff": [1_000_000]}
    assert asked.api("/groups/limits?group=billing")["items"] == [limits]
    (row,) = asked.api("/groups?group=billing")["items"]
    assert (row["topic"], row["done"], row["max_attempts"]) == ("orders", 1, 3)
    assert asked.api("/groups/reset", {"group": "billing", "topic": "orders", "time": 0})["done"] == 0
    assert trail_of(asked, "group billing") == [
        ("reset offset", {"topic": "orders", "done": 0}),
        ("configure group", {"max_attempts": 3, "backoff": [1_000_000]}),
        ("reset offset", {"topic": "orders", "done": 1}),
    ]


def test_a_client_is_listed_and_asked(asked: AskedInProcess, broker: RunningBroker) -> None:
    broker.link.publish("orders", Message(b"to be verified"))
    session = broker.supervisor.core.sessions.touch("talkative", 7)
    session.group = "billing"

    async def talk() -> None:
        session.streams.append(queue := asyncio.Queue[v2.TelemetryCommand]())
        for _ in range(2):
            question, answer = await queue.get(), v2.TelemetryCommand()
            if question.HasField("verify_message_command"):
                answer.verify_message_result.nonce = question.verify_message_command.nonce
                answer.status.code = v2.OK
            else:
                answer.thread_stack_trace.nonce = question.print_thread_stack_trace_command.nonce
                answer.thread_stack_trace.thread_stack_trace = "main: asleep"
            broker.supervisor.core.client_commands.answer(session, answer)

    talking = asyncio.run_coroutine_threadsafe(talk(), broker.loop)
    assert [row["client_id"] for row in asked.api("/clients?group=billing")["items"]] == ["talkative"]
    assert asked.api("/clients/stack?client_id=talkative") == "main: asleep"
    wanted = {"client_id": "talkative", "topic": "orders", "id": 1}
    assert asked.api("/clients/verify", wanted) == {"status": "OK", "text": ""}
    talking.result(30)
    assert trail_of(asked, "client talkative") == [("verify message", {"topic": "orders", "id": 1, "status": "OK"})]


@pytest.mark.parametrize(("method", "path", "body", "status", "text"), REFUSED)
def test_what_cannot_be_done_is_refused_with_the_reason(
    asked: AskedInProcess, method: str, path: str, body: Any, status: int, text: str
) -> None:
    before = asked.api("/system/audit-log")["items"]
    code, answer = asked.ask(method, f"/api/v1{path}", body)
    found = json.loads(answer)
    assert (code, text in found["message"], isinstance(found["code"], str)) == (status, True, True), found
    assert asked.api("/system/audit-log")["items"] == before


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_a_topic_is_created_or_deleted_only_once_that_is_recorded(
    node: Node, broker: RunningBroker, is_elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask_elsewhere(call: AdminCall[Any, Any], request: Any) -> Any:
        serve = call.served_by(functools.partial(broker.supervisor.admin.ask, call))
        return call.result_of(broker.within(serve(msgspec.json.encode(request))))

    asked = AskedInProcess(node, BrokerLink(lambda: None, broker.loop, ask_elsewhere) if is_elsewhere else broker.link)
    name = f"bills-{is_elsewhere}"

    def topics() -> list[str]:
        return [row["name"] for row in asked.api("/topics")["items"] if row["name"] == name]

    for path, body, before in (("/topics", {"name": name}, []), ("/topics/delete", {"topic": name}, [name])):
        for fault in ("add", "check"):
            with monkeypatch.context() as patch:
                patch.setattr(asked.app.operator_log, fault, _raise_busy)
                code, _ = asked.ask("POST", f"/api/v1{path}", body)
            assert (code >= 400, topics()) == (True, before)
        asked.api(path, body)
        if path == "/topics":
            asked.api(path, body)  # a program asks for its topics each time it starts
    facts = {"type": "NORMAL", "queues": 4}
    assert trail_of(asked, f"topic {name}") == [("delete topic", {}), ("create topic", facts)]
    refused = asked.ask("POST", "/api/v1/topics", {"name": "orders", "type": "NORMAL"})
    assert (refused[0], trail_of(asked, "topic orders")) == (400, [("create topic", {"type": "FIFO", "queues": 2})])


def _raise_busy(*_: object, **_facts: object) -> None:
    raise SqlBusyError("the database does not answer")


def test_a_node_without_a_broker_has_no_topics_and_says_so_to_changes(node: Node) -> None:
    asked = AskedInProcess(node)
    assert [asked.api(path)["items"] for path in ("/topics", "/groups", "/groups/limits", "/clients")] == [[]] * 4
    for method, path, body in (("POST", "/topics", {"name": "t"}), ("GET", "/topics?topic=t", None)):
        status, text = asked.ask(method, f"/api/v1{path}", body)
        assert status == 404
        assert "No broker runs in this node" in text


def test_a_broker_that_is_late_or_between_two_cores_is_busy(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed() -> BrokerSupervisor:
        raise StatusError(v2.INTERNAL_SERVER_ERROR, "the broker is opening its journal")

    async def forever(_topic: str, _messages: Any) -> list[int]:
        return [await asyncio.Future()]

    with pytest.raises(BrokerBusyError, match="is opening its journal"):
        BrokerLink(closed, broker.loop).publish("orders", Message(b""))
    monkeypatch.setattr(broker_link, "_ANSWER_SECONDS", 0.01)
    monkeypatch.setattr(broker.supervisor.core, "publish", forever)
    with pytest.raises(BrokerBusyError, match="did not answer in time"):
        broker.link.publish("orders", Message(b""))


@pytest.mark.parametrize("url", ["127.0.0.1:8460", "ftp://node", "http://", "http://me:secret@node", "http://node?x=1"])
def test_an_address_that_is_no_url_of_a_node_is_refused(url: str) -> None:
    with pytest.raises(
        InputError, match=r"--url: .* (expected http://HOST:PORT|--user and --password-file)"
    ) as refused:
        BrokerClient(url=url)
    assert "secret" not in str(refused.value)


def test_a_password_goes_to_another_host_only_by_https() -> None:
    with pytest.raises(InputError, match="only over https"):
        BrokerClient(url="http://node.example", user="ada", password="secret")
    for url in ("https://node.example", "http://127.0.0.1:8460", "http://localhost:8460"):
        assert BrokerClient(url=url, user="ada", password="secret").url == url


def test_a_node_with_users_asks_for_the_options_of_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = (401, {"message": "wrong user name or password"})
    monkeypatch.setattr(BrokerClient, "_send", lambda *_: answer)
    url = "http://127.0.0.1:8460"
    with pytest.raises(AdminCallError, match="requires a user: give --user and --password-file"):
        BrokerClient(url=url)(TOPICS, "")
    with pytest.raises(AdminCallError, match="wrong user name or password"):
        BrokerClient(url=url, user="ada", password="secret")(TOPICS, "")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--url", "http://a", "--broker", "127.0.0.1:8081"], "--url cannot be combined with --broker"),
        (["--user", "ada"], "--user and --password-file"),
        (["--url", "http://a", "--user", "ada"], "--user and --password-file"),
    ],
)
@pytest.mark.parametrize("command", [["topic", "list"], ["client", "list"]])
def test_options_that_do_not_go_together_are_refused(
    command: list[str], options: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, *options]) == 2
    assert text in capsys.readouterr().err
