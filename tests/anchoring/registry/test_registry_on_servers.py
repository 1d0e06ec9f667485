"""The queue tests of Orb, restated: instances share a real RabbitMQ and a real database server, and run alone."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import sqlalchemy as sa

from millstream.anchoring import MemoryCas, MemoryLedger
from millstream.anchoring.registry import (
    DidRegistry,
    OperationQueueSettings,
    OperationState,
    QueueStoppedError,
    RegistryDatabase,
    RegistryParameters,
)
from millstream.anchoring.sidetree import Operation
from millstream.core.canonical import canonical_json
from millstream.core.clock import SystemClock
from millstream.core.database_server import open_server
from millstream.queue.rabbitmq import RabbitWorkQueue
from millstream.testing import services
from millstream.testing.dids import DidOwner
from millstream.testing.waiting import until
from suite.sizes import sized
from support.server_databases import new_database

_places = itertools.count(1)
QUIET = {"monitor_interval": 0.2, "task_expiration": 1.0, "retry_first": 0.0, "pool": 2}


class Domain:
    """Instances that share a database, a broker, files and a ledger; each with its own connections."""

    def __init__(self, url: str, rabbitmq: str, opened: ExitStack) -> None:
        self.name = f"domain_{next(_places)}_{id(opened)}"
        self._url, self._rabbitmq, self._opened = url, rabbitmq, opened
        self._clock = SystemClock()
        self.cas, self.ledger = MemoryCas(), MemoryLedger(self._clock)

    def instance(self, name: str, *, max_retries: int = 30, writes: bool = False) -> DidRegistry:
        """An instance; one that does not write leaves its queue to the test."""
        broker = RabbitWorkQueue(self._rabbitmq, self._engine(), self.name)
        self._opened.callback(broker.close)
        registry = DidRegistry(
            RegistryDatabase(self._engine(), self._clock),
            self.cas,
            self.ledger,
            instance=name,
            settings=RegistryParameters(
                batch_writer_timeout=0.1 if writes else 3600.0,
                writer_monitor_interval=0.05,
                task_check_interval=0.1,
                queue=OperationQueueSettings(max_retries=max_retries, **QUIET),  # type: ignore[arg-type]
            ),
            broker=broker,
        )
        self._opened.callback(registry.close)
        return registry

    def _engine(self) -> sa.Engine:
        engine = open_server(self._url)
        self._opened.callback(engine.dispose)
        return engine


@pytest.fixture(params=["mariadb", "postgresql"])
def domain(request: pytest.FixtureRequest, rabbitmq: str) -> Iterator[Domain]:
    with new_database(request.getfixturevalue(request.param), "domain") as url, ExitStack() as opened:
        yield Domain(url, rabbitmq, opened)


def submit(registry: DidRegistry, *operations: Operation) -> list[str]:
    return [registry.acceptance.submit(canonical_json(operation.request)).id for operation in operations]


def creates(count: int, name: str) -> list[Operation]:
    return [DidOwner(f"{name}{n}").create for n in range(count)]


def queued(registry: DidRegistry, limit: int = 1_000) -> list[str]:
    return [operation.id for operation in registry.queue.peek(limit)]


def test_two_instances_share_what_either_was_sent_and_one_goes_on_with_all_of_it(domain: Domain) -> None:
    """Orb's TestQueue: share, remove with ack and nack, stop one, and see each operation processed once."""
    one, two = domain.instance("one"), domain.instance("two")
    one.start()
    two.start()
    accepted = list[str]()
    while not (len(one.queue) and len(two.queue)):
        accepted += submit(one, *creates(2, f"wave{len(accepted)}-"))
    until(lambda: len(one.queue) + len(two.queue) == len(accepted))
    assert sorted(queued(one) + queued(two)) == sorted(accepted), "each is in one queue"

    processed = Counter[str]()
    shown = one.queue.peek(2)
    taken = one.queue.remove(shown)
    assert [operation.id for operation in taken.operations] == [operation.id for operation in shown]
    one.store.reject(one.instance, {operation.seq: "processed" for operation in taken.operations})
    processed.update(operation.id for operation in taken.operations)
    taken.ack()

    failed = two.queue.remove(two.queue.peek(1))
    failed.nack({operation.seq: "not now" for operation in failed.operations})
    until(lambda: len(one.queue) + len(two.queue) == len(accepted) - len(taken.operations))
    one.close()
    until(lambda: len(two.queue) == len(accepted) - sum(processed.values()), seconds=20)
    rest = two.queue.remove(two.queue.peek(1_000))
    processed.update(operation.id for operation in rest.operations)
    assert processed == Counter(accepted), "every operation exactly once"


def test_an_operation_that_failed_comes_back_as_often_as_is_allowed_and_is_dead_then(domain: Domain) -> None:
    """Orb's TestRepostWithMaxRetries."""
    registry = domain.instance("one", max_retries=1)
    registry.start()
    accepted = submit(registry, *creates(5, "retry"))
    for turn in range(2):
        until(lambda: len(registry.queue) == 5, f"turn {turn}")
        removed = registry.queue.remove(registry.queue.peek(10))
        removed.nack({operation.seq: "no" for operation in removed.operations})
    assert [registry.store.status(name).state for name in accepted] == [OperationState.DEAD] * 5  # type: ignore[union-attr]
    assert (len(registry.queue), queued(registry)) == (0, [])


def test_a_queue_that_has_ended_takes_nothing_and_says_so(domain: Domain) -> None:
    registry = domain.instance("one")
    registry.start()
    accepted = submit(registry, *creates(1, "last"))
    registry.close()
    registry.close()
    calls: list[Callable[[], Any]] = [
        lambda: registry.queue.add(accepted),
        lambda: registry.queue.peek(1),
        lambda: registry.queue.remove([]),
        lambda: submit(registry, DidOwner("after").create),
    ]
    for call in calls:
        with pytest.raises(QueueStoppedError):
            call()
    assert len(registry.queue) == 0


def test_200_creates_each_with_an_immediate_update_are_all_anchored_in_order(domain: Domain) -> None:
    """Orb's BDD scenario (b); half of the creates and the other half of the updates go to either instance."""
    one, two = domain.instance("one", writes=True), domain.instance("two", writes=True)
    one.start()
    two.start()
    people = [DidOwner(f"quick{n}") for n in range(sized(ci=40, long=200))]
    for n, person in enumerate(people):
        first, second = (one, two) if n % 2 else (two, one)
        submit(first, person.create)
        submit(second, person.update())
    until(lambda: one.store.counts()["observed"] == 2 * len(people), seconds=120)
    for person in people:
        state = two.history.state(person.suffix)
        assert state is not None
        assert [service["id"] for service in state.document["services"]] == ["home", "s3"]
    counted = sum(int(entry.anchor_string.partition(".")[0]) for entry in domain.ledger.entries())
    assert counted == 2 * len(people), "each is anchored once"


def test_a_dead_instance_is_replaced_by_whoever_is_left(domain: Domain) -> None:
    """Orb's "Recovery": the monitor finds the silent instance, and its operations go on at no cost of a retry."""
    one, two = domain.instance("one"), domain.instance("two", writes=True)
    one.instances.heartbeat()
    accepted = submit(one, *creates(6, "orphan"))
    assert one.queue.add(accepted) == 6, "in the hands of an instance of which nothing is heard again"
    two.start()
    until(lambda: two.store.counts()["observed"] == 6)
    found = [two.store.status(name) for name in accepted]
    assert [(status.state, status.retries) for status in found if status] == [(OperationState.OBSERVED, 0)] * 6


def test_a_notice_that_makes_no_sense_is_passed_over(domain: Domain) -> None:
    """Orb acknowledges and forgets what it cannot read; here a notice only names what lies in the database."""
    registry = domain.instance("one", writes=True)
    assert registry._broker is not None
    registry._broker.put([b"\xff\x00", b"nobody has heard of this", b""])
    registry.start()
    accepted = submit(registry, *creates(2, "sense"))
    registry._broker.put(["\n".join(accepted * 2).encode()])  # and one that comes twice does no harm
    until(lambda: registry.store.counts()["observed"] == 2)
    until(lambda: registry._broker is not None and not registry._broker.depth().open)
    assert registry._broker.depth().dead == 0


@pytest.mark.crash
def test_operations_go_on_while_the_broker_is_away_and_when_it_is_back(mariadb: str) -> None:
    """What Orb lost when RabbitMQ was restarted (orb#1290, #1293), and what could not be published (orb#1289)."""
    with (
        services.private("rabbitmq") as broker,
        new_database(mariadb, "domain") as url,
        ExitStack() as opened,
    ):
        domain = Domain(url, broker.url, opened)
        registry = domain.instance("one", writes=True)
        registry.start()
        accepted = submit(registry, *creates(3, "before"))
        broker.kill()
        accepted += submit(registry, *creates(3, "during"))
        until(lambda: registry.store.counts()["observed"] == 6)
        broker.start()
        accepted += submit(registry, *creates(3, "after"))
        until(lambda: registry.store.counts()["observed"] == 9)
        assert {registry.store.status(name).retries for name in accepted} == {0}  # type: ignore[union-attr]
