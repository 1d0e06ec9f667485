"""The work queue on a broker of ours passes the shipped suite and machine, and loses nothing in an outage."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis.stateful import run_state_machine_as_test

from millstream.cli.main import run
from millstream.core.clock import SystemClock, VirtualClock
from millstream.messaging.admin_client import call_broker
from millstream.messaging.broker.admin import TOPICS
from millstream.messaging.client import Credentials
from millstream.messaging.errors import MessagingError
from millstream.messaging.rocketmq_work_queue import RocketNotices, RocketWorkQueue, read_url
from millstream.node import Node
from millstream.queue import QueueInputError, WorkQueue
from millstream.settings import load_settings
from millstream.testing.brokers import BrokerProcess
from millstream.testing.queue_machine import OpenQueue, queue_machine
from millstream.testing.queues import WorkQueueConformance
from millstream.testing.scripted_server import ScriptedServer
from millstream.testing.waiting import until, until_async
from suite.sizes import machine

_names = itertools.count(1)


def new_name() -> str:
    """A queue that the broker has never seen."""
    return f"queue-{next(_names)}"


def url(broker: BrokerProcess) -> str:
    return f"rocketmq://127.0.0.1:{broker.port}"


class TestQueueOnABroker(WorkQueueConformance):
    @pytest.fixture(autouse=True)
    def place(self, broker: BrokerProcess) -> Iterator[None]:
        self.url, self.suffix = url(broker), new_name()
        with ExitStack() as self.opened:
            yield

    def open_queue(self, folder: Path, name: str, clock: VirtualClock) -> WorkQueue:
        engine = sa.create_engine(f"sqlite:///{folder / 'tasks.db'}", connect_args={"timeout": 30})
        self.opened.callback(engine.dispose)
        return RocketWorkQueue(self.url, engine, f"{name}-{self.suffix}", clock, server_time=False)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sa.Engine]:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'tasks.db'}", connect_args={"timeout": 30})
    yield engine
    engine.dispose()


@pytest.mark.long
def test_p6_a_queue_on_a_broker_does_what_the_model_does(broker: BrokerProcess, engine: sa.Engine) -> None:
    def make() -> OpenQueue:
        name = new_name()
        return lambda clock: RocketWorkQueue(url(broker), engine, name, clock, server_time=False)

    steps = machine(ci=12, long=200, steps=30)
    run_state_machine_as_test(queue_machine(make, travelling=True), settings=steps)


def test_many_tasks_are_few_messages(broker: BrokerProcess, engine: sa.Engine) -> None:
    name = new_name()
    with RocketWorkQueue(url(broker), engine, name) as queue:
        queue.put([b"%d" % n for n in range(1000)])
        (topic,) = call_broker(broker.place, TOPICS, name)
        assert topic.messages == 10
        assert [lease.body for lease in queue.lease(1000, visibility=30)] == [b"%d" % n for n in range(1000)]


def test_two_workers_share_and_what_one_leaves_goes_to_the_other(broker: BrokerProcess, engine: sa.Engine) -> None:
    name = new_name()
    one, two = (RocketWorkQueue(url(broker), engine, name) for _ in range(2))
    with one, two:
        one.put([b"%d" % n for n in range(200)])
        assert len(one.lease(1, visibility=30)) == 1
        assert len(two.lease(200, visibility=30)) == 100
        one.close()
        assert len(two.lease(200, visibility=30)) == 99


def test_a_delay_is_waited_for_at_the_broker_and_holds_up_nobody(broker: BrokerProcess, engine: sa.Engine) -> None:
    clock = SystemClock()
    with RocketWorkQueue(url(broker), engine, new_name()) as queue:
        start = clock.monotonic()
        queue.put([b"late"], delay=60.0)
        queue.put([b"soon"], delay=0.5)
        leases = until(lambda: queue.lease(2, visibility=30), "a task")
        assert [lease.body for lease in leases] == [b"soon"]
        assert clock.monotonic() - start >= 0.5


def test_a_notice_that_is_settled_too_late_is_no_outage(
    broker: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    name = new_name()
    notices = RocketNotices(url(broker), name)
    try:
        notices.send([1])
        notices.send([2])
        late, other = until(lambda: notices.receive(2), "notices")
        for _ in range(2):
            notices.settle([late])
        notices.settle([late, other])
        assert not notices.receive(1)
    finally:
        notices.close()
    assert not any("is unreachable" in record.message for record in caplog.records)


def test_a_caller_does_not_wait_as_long_as_apaches_proxy_does_where_there_is_no_notice() -> None:
    async def test() -> None:
        arrived = asyncio.Event()

        async def wait_as_apache() -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(5):
                    await arrived.wait()
                    arrived.clear()

        async with ScriptedServer() as server:
            server.script["ReceiveMessage"].extend([lambda _request: wait_as_apache()] * 100)
            notices = RocketNotices(f"rocketmq://{server.place}", "q")
            clock = SystemClock()
            begin = clock.monotonic()
            assert await asyncio.to_thread(notices.receive, 10) == []
            assert await asyncio.to_thread(notices.receive, 10) == []
            assert len(server.called("ReceiveMessage")) == 2  # one of each topic is still under way
            server.inbox.append(server.message("q", b"[7]"))
            arrived.set()
            found = await asyncio.to_thread(until, lambda: notices.receive(1), "a notice")
            assert [list(notice.ids) for notice in found] == [[7]]
            await asyncio.to_thread(notices.settle, found)
            assert len(server.called("AckMessage")) == 1
            assert clock.monotonic() - begin < 4
            assert await asyncio.to_thread(notices.receive, 1) == []
            server.inbox.append(server.message("q", b"[8]"))
            arrived.set()
            await until_async(lambda: any(poll.done() and poll.result() for poll in notices._polls.values()))
            await asyncio.to_thread(notices.close)
            given_back = [call.receipt_handle for call in server.called("ChangeInvisibleDuration")]
            assert given_back == ["handle-[8]"]

    asyncio.run(test())


@pytest.mark.crash
def test_p6_nothing_is_lost_while_the_broker_is_away(
    mortal_broker: BrokerProcess, engine: sa.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    with RocketWorkQueue(url(mortal_broker), engine, new_name()) as queue:
        queue.put([b"before"])
        mortal_broker.kill()
        queue.put([b"during 1", b"during 2"])
        found = [lease.body for lease in queue.lease(10, visibility=300)]
        assert set(found) >= {b"during 1", b"during 2"}
        queue.put([b"during 3"])
        mortal_broker.start()
        while len(found) < 4:
            found += [lease.body for lease in until(lambda: queue.lease(10, visibility=300), "a task")]
        assert sorted(found) == [b"before", b"during 1", b"during 2", b"during 3"]
        assert queue.depth().leased == 4
    assert sum("is unreachable" in record.message for record in caplog.records) == 1, "an outage is one line"


def test_a_queue_opens_and_works_while_there_is_no_broker(engine: sa.Engine) -> None:
    with RocketWorkQueue("rocketmq://127.0.0.1:1", engine, new_name()) as queue:
        queue.put([b"a"])
        assert [lease.body for lease in queue.lease(1, visibility=30)] == [b"a"]


def test_no_outage_is_so_long_that_a_call_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(_notices: RocketNotices) -> None:
        raise MessagingError("no broker")

    monkeypatch.setattr(RocketNotices, "_connect", refuse)
    notices = RocketNotices("rocketmq://127.0.0.1:1", new_name())
    notices._failures = 2_000  # of an outage of some hours
    assert notices.send([1]) == []
    assert notices._not_before > notices._clock.monotonic()
    notices.close()


def test_a_node_puts_its_queues_on_the_broker_that_its_settings_name(
    broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MILLSTREAM_QUEUE__BROKER", url(broker))
    found, _ = load_settings({"data": str(tmp_path / "node")})
    with Node.open(found, create=True) as node:
        queue = node.queues.open("bits")
        assert isinstance(queue, RocketWorkQueue)
        queue.put([b"a"])
        assert [lease.body for lease in queue.lease(1, visibility=30)] == [b"a"]
        queue.put([b"poison"])
        queue.dead_letter(queue.lease(1, visibility=30)[0], cause="drill")
    assert call_broker(broker.place, TOPICS, "millstream-bits")
    data = ["--data", str(tmp_path / "node")]
    capsys.readouterr()
    assert run(["queue", "depth", *data]) == 0
    assert capsys.readouterr().out == "bits  0 ready  1 leased  0 delayed  1 dead\n"
    assert run(["queue", "dead", "bits", *data]) == 0
    assert "after 1 attempts: drill" in capsys.readouterr().out
    assert run(["queue", "redrive", "bits", *data]) == 0
    assert capsys.readouterr().out == "bits: 1 task ready again\n"


def test_a_url_says_where_and_as_whom(tmp_path: Path) -> None:
    for name in ("secret", "token"):
        (tmp_path / name).write_text(f"{name} text\n")
    text = f"rocketmq://me@host:81?secret_file={tmp_path}/secret&token_file={tmp_path}/token&tls=1&namespace=n"
    place, options = read_url(text)
    assert (str(place), options.namespace, options.tls is not None) == ("host:81", "n", True)
    assert options.credentials == Credentials("me", "secret text", "token text")


@pytest.mark.parametrize(
    "text",
    [
        "http://host:1", "rocketmq://host:1/path", "rocketmq://host:1?colour=red", "rocketmq://me@host:1",
        "rocketmq://me:secret@host:1?secret_file=x", "rocketmq://host:1?secret_file=x", "rocketmq://me@host:1?secret_file=/no",
        "rocketmq://host:1?tls_ca=/no",
    ],
)  # fmt: skip
def test_a_url_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(QueueInputError):
        read_url(text)
    with pytest.raises(QueueInputError):
        RocketNotices("rocketmq://host:1", "no.dots")


def test_a_mistyped_option_of_a_url_is_told_with_the_allowed_options() -> None:
    with pytest.raises(QueueInputError, match=r"unknown option 'tls_cert'; allowed: .*, tls_ca, tls_certificate, "):
        read_url("rocketmq://host:1?tls_cert=/path")
