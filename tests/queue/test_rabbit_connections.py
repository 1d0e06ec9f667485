"""How many connections a queue has to a real RabbitMQ, and how it looks for one that is away: as the settings say."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pika.adapters.blocking_connection as pika_blocking
import pytest
import sqlalchemy as sa

from millstream.core.clock import VirtualClock
from millstream.node import Node
from millstream.queue.rabbitmq import ConnectionOptions, RabbitWorkQueue
from millstream.queue.rabbitmq.connections import BrokerHealth
from millstream.settings import SettingsError, load_settings
from millstream.testing import services
from millstream.testing.waiting import until

ESTABLISHED = "01"


@pytest.fixture
def broker() -> Iterator[Any]:
    with services.private("rabbitmq") as server:
        yield server


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sa.Engine]:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'tasks.db'}", connect_args={"timeout": 30})
    yield engine
    engine.dispose()


@contextmanager
def node_with(folder: Path, queue_section: str) -> Iterator[Node]:
    (folder / "millstream.toml").write_text(f"[queue]\n{queue_section}\n")
    with Node.open(load_settings({"data": str(folder)}, environment={})[0]) as node:
        yield node


def connections_to(url: str) -> int:
    """How many connections are open to the port of *url* on this machine, as the kernel says."""
    port = f":{urlsplit(url).port:04X}"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    return sum(fields[2].endswith(port) and fields[3] == ESTABLISHED for fields in lines)


@pytest.mark.served
@pytest.mark.parametrize(("setting", "senders"), [("publisher_pool_size = 3", 3), ("publisher_pool_size = 1", 1)])
def test_as_many_connections_send_at_the_same_time_as_the_settings_say(
    broker: services.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, senders: int
) -> None:
    threads, at_once, most = 6, 0, 0
    counting, enough = threading.Lock(), threading.Event()
    publish = pika_blocking.BlockingChannel.basic_publish

    def slow(*arguments: Any, **options: Any) -> None:
        nonlocal at_once, most
        with counting:
            at_once += 1
            most = max(most, at_once)
            if most >= senders:
                enough.set()
        enough.wait(30)
        publish(*arguments, **options)
        with counting:
            at_once -= 1

    monkeypatch.setattr(pika_blocking.BlockingChannel, "basic_publish", slow)
    with node_with(tmp_path, f'broker = "{broker.url}"\n{setting}') as node:
        queue = node.queues.open("orders")
        assert connections_to(broker.url) == 0, "connections are opened when they are needed"
        senders_at_work = [threading.Thread(target=queue.put, args=([b"%d" % n],)) for n in range(threads)]
        for thread in senders_at_work:
            thread.start()
        for thread in senders_at_work:
            thread.join()
        assert (most, connections_to(broker.url)) == (senders, senders)
        assert len(queue.lease(threads, visibility=60)) == threads
        assert connections_to(broker.url) == senders + 1, "one receives"
    until(lambda: connections_to(broker.url) == 0, "the end of all connections")


def test_who_waits_for_a_confirm_keeps_nobody_from_receiving(
    rabbitmq: str, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, hanging, go_on = pika_blocking.BlockingChannel.basic_publish, threading.Event(), threading.Event()
    with RabbitWorkQueue(rabbitmq, engine, f"hanging-{id(engine)}") as queue, ExitStack() as at_the_end:
        queue.put([b"before"])

        def hang(*arguments: Any, **options: Any) -> None:
            hanging.set()
            go_on.wait(60)
            publish(*arguments, **options)

        monkeypatch.setattr(pika_blocking.BlockingChannel, "basic_publish", hang)
        sender = threading.Thread(target=queue.put, args=([b"hangs"],))
        sender.start()
        at_the_end.callback(sender.join)
        at_the_end.callback(go_on.set)
        assert hanging.wait(30)
        found: list[bytes] = []
        receiver = threading.Thread(target=lambda: found.extend(t.body for t in queue.lease(1, visibility=60)))
        receiver.start()
        receiver.join(20)
        assert found == [b"before"]


@pytest.mark.served
def test_a_broker_that_was_started_again_while_nobody_used_it_is_no_outage(
    broker: services.Server, engine: sa.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    with RabbitWorkQueue(broker.url, engine, "idle") as queue:
        queue.put([b"before"])
        broker.kill()
        broker.start()
        queue.put([b"after"])
        assert sorted(lease.body for lease in queue.lease(2, visibility=60)) == [b"after", b"before"]
    assert [record.message for record in caplog.records if "broker" in record.message] == []


def test_a_broker_that_is_away_is_called_as_often_as_the_settings_say(tmp_path: Path) -> None:
    calls = 0
    with socket.create_server(("127.0.0.1", 0)) as nobody, ExitStack() as at_the_end:
        port = nobody.getsockname()[1]

        def hang_up() -> None:
            nonlocal calls
            while True:
                try:
                    caller, _ = nobody.accept()
                except OSError:
                    return
                calls += 1
                caller.close()

        listener = threading.Thread(target=hang_up, daemon=True)
        listener.start()
        at_the_end.callback(nobody.shutdown, socket.SHUT_RDWR)
        options = 'reconnect_initial_interval = "10ms"\nreconnect_max_interval = "20ms"'
        with node_with(tmp_path, f'broker = "amqp://guest:guest@127.0.0.1:{port}"\n{options}') as node:
            queue = node.queues.open("orders")
            queue.put([b"work goes on from the database"])

            def called_often() -> bool:
                queue.lease(1, visibility=60)
                return calls >= 30  # with the pauses that there are without these settings it would take four minutes

            until(called_often, "the thirtieth call", seconds=30)


def test_pauses_double_up_to_the_longest_and_begin_anew_when_the_broker_has_answered() -> None:
    clock = VirtualClock()
    outage = BrokerHealth("orders", ConnectionOptions(retry_first=0.5, retry_longest=3.0), clock)
    for pause in (0.5, 1.0, 2.0, 3.0, 3.0):
        assert outage.may_connect()
        outage.failed(OSError())
        outage.failed(OSError())  # another connection that was lost with it
        clock.advance(pause - 0.01)
        assert not outage.may_connect(), pause
        clock.advance(0.01)
    outage.connected()
    outage.failed(OSError())
    clock.advance(0.5)
    assert outage.may_connect()


def test_the_connections_of_a_queue_may_be_set_by_environment() -> None:
    environment = {
        "MILLSTREAM_QUEUE__PUBLISHER_POOL_SIZE": "25",
        "MILLSTREAM_QUEUE__RECONNECT_MAX_INTERVAL": "5s",
        "MILLSTREAM_QUEUE__RECONNECT_INITIAL_INTERVAL": "50ms",
    }
    queue = load_settings(environment=environment)[0].queue
    times = (queue.reconnect_initial_interval, queue.reconnect_max_interval)
    assert (queue.publisher_pool_size, *times) == (25, 50_000, 5_000_000)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("publisher_pool_size = 0", "publisher_pool_size"),
        ("reconnect_max_interval = 0", "reconnect_max_interval must be longer than 0"),
    ],
)
def test_no_connection_and_no_pause_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason), node_with(tmp_path, text):
        pass
