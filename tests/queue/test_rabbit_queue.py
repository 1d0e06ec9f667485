"""The work queue on a real RabbitMQ passes the shipped suite and machine, and loses nothing in an outage."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pika
import pytest
import sqlalchemy as sa
from hypothesis.stateful import run_state_machine_as_test

from millstream.core.clock import SystemClock, VirtualClock
from millstream.core.database_server import open_server
from millstream.core.retry import NO_RETRY
from millstream.core.sql import SqlBusyError, waiting_with
from millstream.queue import QueueInputError, WorkQueue
from millstream.queue.rabbitmq import RabbitWorkQueue
from millstream.queue.rabbitmq.connections import parse_url
from millstream.queue.task_rows import TaskRows
from millstream.testing import services
from millstream.testing.killed_programs import kill_after
from millstream.testing.queue_machine import OpenQueue, queue_machine
from millstream.testing.queues import WorkQueueConformance
from suite.sizes import machine, sized
from support.server_databases import new_database
from support.statement_counts import statements_of

_names = itertools.count(1)
WORKER = Path(__file__).parent / "rabbit_worker.py"


def new_name() -> str:
    """A queue that the broker has never seen."""
    return f"test-{id(_names)}-{next(_names)}"


class RabbitConformance(WorkQueueConformance):
    """Keeps the databases that a test opens, and disposes of them when it is over."""

    @pytest.fixture(autouse=True)
    def place(self, rabbitmq: str) -> Iterator[None]:
        self.broker, self.suffix = rabbitmq, new_name()
        with ExitStack() as self.opened:
            yield

    def engine(self, folder: Path) -> sa.Engine:
        engine = sa.create_engine(f"sqlite:///{folder / 'tasks.db'}", connect_args={"timeout": 30})
        self.opened.callback(engine.dispose)
        return engine

    def open_queue(self, folder: Path, name: str, clock: VirtualClock) -> WorkQueue:
        return RabbitWorkQueue(self.broker, self.engine(folder), f"{name}-{self.suffix}", clock, server_time=False)


@pytest.mark.smoke
class TestRabbitQueueWithSqlite(RabbitConformance):
    pass


class ServerConformance(RabbitConformance):
    """Tasks on a database server, which has a database of its own for each test."""

    server: str

    @pytest.fixture(autouse=True)
    def database(self, request: pytest.FixtureRequest) -> Iterator[None]:
        with new_database(request.getfixturevalue(self.server), "queue") as self.url:
            yield

    def engine(self, folder: Path) -> sa.Engine:
        engine = open_server(self.url)
        self.opened.callback(engine.dispose)
        return engine

    def test_a_lease_of_an_empty_queue_takes_one_query(self, rabbitmq: str, tmp_path: Path) -> None:
        engine = self.engine(tmp_path)
        with RabbitWorkQueue(rabbitmq, engine, new_name()) as queue, statements_of(engine) as statements:
            assert not queue.lease(10, visibility=30)
            assert len(statements) == 1, "the time is a part of it"


@pytest.mark.served
class TestRabbitQueueWithMariadb(ServerConformance):
    server = "mariadb"


@pytest.mark.served
class TestRabbitQueueWithPostgresql(ServerConformance):
    server = "postgresql"


@pytest.mark.smoke
@pytest.mark.long
def test_p6_a_queue_on_rabbitmq_does_what_the_model_does(rabbitmq: str, tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'tasks.db'}", connect_args={"timeout": 30})

    def make() -> OpenQueue:
        name = new_name()
        return lambda clock: RabbitWorkQueue(rabbitmq, engine, name, clock)

    steps = machine(ci=10, long=200, steps=30)
    run_state_machine_as_test(queue_machine(make, travelling=True), settings=steps)
    engine.dispose()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sa.Engine]:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'tasks.db'}", connect_args={"timeout": 30})
    yield engine
    engine.dispose()


def messages(url: str, name: str) -> int:
    """How many messages wait in the broker's queue *name*."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        found: Any = connection.channel().queue_declare(name, passive=True)
        return int(found.method.message_count)


def test_many_tasks_are_few_messages(rabbitmq: str, engine: sa.Engine) -> None:
    name = new_name()
    with RabbitWorkQueue(rabbitmq, engine, name) as queue:
        queue.put([b"%d" % n for n in range(1000)])
        assert messages(rabbitmq, name) == 10
        leases = queue.lease(1000, visibility=30)
        assert [lease.body for lease in leases] == [b"%d" % n for n in range(1000)]
        assert messages(rabbitmq, name) == 0


def test_a_lease_of_an_empty_queue_takes_one_query(rabbitmq: str, engine: sa.Engine) -> None:
    with RabbitWorkQueue(rabbitmq, engine, new_name()) as queue, statements_of(engine) as statements:
        assert not queue.lease(10, visibility=30)
        assert len(statements) == 1


def test_tasks_that_are_put_are_counted_by_one_statement(rabbitmq: str, engine: sa.Engine) -> None:
    with RabbitWorkQueue(rabbitmq, engine, new_name()) as queue:
        assert queue.put([b"1"]) == range(1, 2)
        with statements_of(engine) as statements:
            assert queue.put([b"2", b"3"]) == range(2, 4)
        assert [text.split()[0] for text in statements] == ["UPDATE", "INSERT", "UPDATE"], "the last one: noticed"


def test_notices_that_lead_to_tasks_suffice_for_a_second(rabbitmq: str, engine: sa.Engine) -> None:
    clock = VirtualClock()
    with RabbitWorkQueue(rabbitmq, engine, new_name(), clock, server_time=False) as queue:
        queue.put([b"1"])
        assert len(queue.lease(10, visibility=30)) == 1
        queue.put([b"2"])
        with statements_of(engine) as statements:
            assert len(queue.lease(10, visibility=30)) == 1
            assert [text.split()[0] for text in statements] == ["SELECT", "UPDATE"], "the claim alone"
        clock.advance(31)
        queue.put([b"3"])
        assert {lease.body for lease in queue.lease(10, visibility=30)} == {b"1", b"2", b"3"}


def test_tasks_whose_claim_failed_are_leased_by_the_next_call(rabbitmq: str, engine: sa.Engine) -> None:
    clock, name, claims = SystemClock(), new_name(), itertools.count()

    def fail(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("UPDATE queue_tasks") and next(claims) in (0, 2):
            raise sa.exc.OperationalError(statement, None, ConnectionError("the connection was lost"))

    with RabbitWorkQueue(rabbitmq, engine, name, clock) as queue, waiting_with(NO_RETRY):
        ids = queue.put([b"taken", b"1", b"2"])
        assert len(TaskRows(engine, name, clock).claim(ids[:1], 30_000_000)) == 1
        sa.event.listen(engine, "before_cursor_execute", fail)
        with pytest.raises(SqlBusyError):
            queue.lease(2, visibility=30)
        for body in (b"1", b"2"):  # what is leased already is returned although the next claim fails
            assert [lease.body for lease in queue.lease(2, visibility=30)] == [body]


def test_two_workers_share_what_was_put(rabbitmq: str, engine: sa.Engine) -> None:
    name = new_name()
    with RabbitWorkQueue(rabbitmq, engine, name) as one, RabbitWorkQueue(rabbitmq, engine, name) as two:
        one.put([b"%d" % n for n in range(300)])
        first, second = one.lease(100, visibility=30), two.lease(200, visibility=30)
        assert len(first) == 100
        assert len(second) == 200
        assert len({lease.task_id for lease in [*first, *second]}) == 300


def test_what_a_worker_has_taken_from_the_broker_and_not_leased_goes_back(rabbitmq: str, engine: sa.Engine) -> None:
    name = new_name()
    with RabbitWorkQueue(rabbitmq, engine, name) as one, RabbitWorkQueue(rabbitmq, engine, name) as two:
        one.put([b"%d" % n for n in range(100)])
        assert len(one.lease(1, visibility=30)) == 1
        assert two.lease(100, visibility=30) == []
        one.close()
        assert len(two.lease(100, visibility=30)) == 99


def test_a_delay_is_waited_for_at_the_broker_and_holds_up_nobody(rabbitmq: str, engine: sa.Engine) -> None:
    name, clock = new_name(), SystemClock()
    with RabbitWorkQueue(rabbitmq, engine, name) as queue:
        start = clock.monotonic()
        queue.put([b"late"], delay=60.0)
        queue.put([b"soon"], delay=0.5)
        while not (leases := queue.lease(2, visibility=30)):
            clock.sleep(0.01)
        assert [lease.body for lease in leases] == [b"soon"]
        assert clock.monotonic() - start >= 0.5


def test_a_broker_that_is_named_wrongly_is_refused(engine: sa.Engine) -> None:
    with pytest.raises(QueueInputError, match="amqp://"):
        RabbitWorkQueue("http://localhost", engine, "x")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("amqp://ann:x@mq/v?password_file={file}", "either the password or one password_file"),
        ("amqp://ann@mq/v?password_file={file}&password_file={file}", "either the password or one password_file"),
        ("amqp://mq/v?password_file={file}", "requires a user"),
        ("amqp://ann@mq/v?password_file=/absent", "cannot read the password file /absent of RabbitMQ at mq"),
    ],
)
def test_the_password_of_the_broker_may_be_in_a_file(tmp_path: Path, url: str, reason: str) -> None:
    (tmp_path / "password").write_text("p@ss/w%rd\n")
    given = parse_url(f"amqp://ann%40x@mq:56/%2F?heartbeat=7&password_file={tmp_path / 'password'}")
    assert (given.credentials.username, given.credentials.password) == ("ann@x", "p@ss/w%rd")
    assert (given.host, given.port, given.virtual_host, given.heartbeat) == ("mq", 56, "/", 7)
    with pytest.raises(QueueInputError, match=reason):
        parse_url(url.format(file=tmp_path / "password"))


@pytest.mark.served
def test_a_connection_logs_in_with_the_password_in_a_file(rabbitmq: str, tmp_path: Path) -> None:
    place = urlsplit(rabbitmq)
    (tmp_path / "password").write_text(f"{place.password or 'guest'}\n")
    user = f"{place.username or 'guest'}@{place.hostname}:{place.port}"
    url = place._replace(netloc=user, query=f"password_file={tmp_path / 'password'}").geturl()
    with closing(pika.BlockingConnection(parse_url(url))) as connection:
        assert connection.is_open


@pytest.mark.crash
def test_p6_nothing_is_lost_while_the_broker_is_away(engine: sa.Engine, caplog: pytest.LogCaptureFixture) -> None:
    clock, name = SystemClock(), new_name()
    with services.private("rabbitmq") as server, RabbitWorkQueue(server.url, engine, name) as queue:
        queue.put([b"before"])
        server.kill()
        queue.put([b"during 1", b"during 2"])
        found = [lease.body for lease in queue.lease(10, visibility=300)]
        assert set(found) >= {b"during 1", b"during 2"}
        queue.put([b"during 3"])
        server.start()
        while len(found) < 4:
            found += [lease.body for lease in queue.lease(10, visibility=300)]
            clock.sleep(0.02)
        assert sorted(found) == [b"before", b"during 1", b"during 2", b"during 3"]
        assert queue.depth().leased == 4
        texts = [record.message for record in caplog.records]
        assert sum("is unreachable" in text for text in texts) == 1, "an outage is one line"


@pytest.mark.crash
@pytest.mark.long
def test_p6_workers_that_are_killed_lose_and_repeat_no_task(rabbitmq: str, engine: sa.Engine) -> None:
    name, kills = new_name(), sized(ci=4, long=20)
    tasks = [b"%d" % n for n in range(50 * kills)]
    with RabbitWorkQueue(rabbitmq, engine, name) as queue:
        queue.put(tasks)
        done = list[bytes]()
        for _ in range(kills):
            command = [sys.executable, str(WORKER), rabbitmq, str(engine.url), name]
            done += kill_after(command, 30)
        clock = SystemClock()
        while queue.depth().open:
            leases = queue.lease(100, visibility=30)
            queue.ack(leases)
            done += [lease.body for lease in leases]
            clock.sleep(0.05)
    assert len(done) == len(set(done)), "what was acknowledged came again"
    unsaid = set(tasks) - set(done)
    assert len(unsaid) <= 10 * kills, "a worker may die between its acknowledgement and its word, ten tasks at most"
