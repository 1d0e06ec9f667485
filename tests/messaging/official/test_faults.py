"""Official clients while their broker dies, is cut off or stops: nothing confirmed is missing, and order holds."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from official.clients import Drivers, OfficialClient
from official.known import NEWEST
from official.relay import Wire
from official.traffic import TOPICS, Traffic

from millstream.core.clock import SystemClock
from millstream.testing.brokers import IMPATIENT, BrokerProcess
from millstream.testing.mortal_calls import Death
from millstream.testing.waiting import until
from suite.sizes import sized

LIMITS = msgspec.structs.replace(
    IMPATIENT, longest_poll=2_000_000, renewed_for=5_000_000, max_attempts=17, snapshot_after=10_000_000
)
WHEN: tuple[Literal["before", "after"], ...] = ("before", "after")
METHODS = ("SendMessage", "ReceiveMessage", "AckMessage")
OPEN_STREAMS_AGAIN = ("java", "node")
"""Clients that open their telemetry stream again at once; the others do so after minutes, or never."""

pytestmark = pytest.mark.timeout(4000)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(f"segments:///{tmp_path / 'logs'}", LIMITS)
    process.start()
    for topic, kind in TOPICS.items():
        process.make_topic(topic, kind, 1)
    yield process
    process.kill()


@contextlib.contextmanager
def flowing(
    broker: BrokerProcess, drivers: Drivers, *clients: OfficialClient, place: object = None, pause: float = 0.02
) -> Iterator[Traffic]:
    with contextlib.ExitStack() as stack:
        found = [(client, stack.enter_context(drivers.start(client, place or broker.place))) for client in clients]
        yield stack.enter_context(Traffic(broker, found, pause=pause))


def more(traffic: Traffic, count: int) -> None:
    """Return when *count* more messages are confirmed."""
    reached = traffic.sent() + count
    until(lambda: traffic.sent() >= reached, f"{count} more messages", seconds=60)


@pytest.mark.parametrize("client", NEWEST, ids=lambda client: client.language)
def test_p2_p4_a_broker_that_dies_at_each_step_of_the_workflow(
    client: OfficialClient, broker: BrokerProcess, drivers: Drivers
) -> None:
    draw = random.Random(17)
    methods = (*METHODS, "Telemetry") if client.language in OPEN_STREAMS_AGAIN else METHODS
    steps = [Death(method, when) for method in methods for when in WHEN]
    with flowing(broker, drivers, client) as traffic:
        for _ in range(sized(ci=1, long=5)):
            for step in steps:
                more(traffic, 10)
                number = draw.randint(1, 5) if step.method in METHODS else 1
                broker.start(msgspec.structs.replace(step, number=number))
                broker.wait()  # the kill has fallen where it was meant to, or this hangs
                broker.start()
        traffic.settle()
        broker.kill()
        figures = traffic.check()
    assert figures["confirmed"] >= 10 * len(steps)


@pytest.mark.parametrize("client", NEWEST, ids=lambda client: client.language)
def test_p2_p4_connections_that_are_cut_in_the_middle_of_answers(
    client: OfficialClient, broker: BrokerProcess, drivers: Drivers
) -> None:
    draw = random.Random(4)
    with Wire(broker.place) as wire, flowing(broker, drivers, client, place=wire.place) as traffic:
        for _ in range(sized(ci=10, long=30)):
            cuts = wire.cuts
            wire.cut_after(draw.randint(1, 4000))
            until(lambda cuts=cuts: wire.cuts > cuts, "a cut", seconds=60)
            more(traffic, 10)
        traffic.settle()
        broker.kill()
        traffic.check()


@pytest.mark.parametrize("client", NEWEST, ids=lambda client: client.language)
def test_p2_p4_a_broker_that_stops_for_seconds(client: OfficialClient, broker: BrokerProcess, drivers: Drivers) -> None:
    """As one does whose disk takes that long to sync."""
    with flowing(broker, drivers, client) as traffic:
        for seconds in (1, 4, 8)[: sized(ci=2, long=3)]:
            more(traffic, 10)
            os.kill(broker.pid, signal.SIGSTOP)
            SystemClock().sleep(seconds)
            os.kill(broker.pid, signal.SIGCONT)
        more(traffic, 10)
        traffic.settle()
        broker.kill()
        traffic.check()


def test_p2_p4_mixed_clients_for_an_hour_with_a_kill_every_two_minutes(broker: BrokerProcess, drivers: Drivers) -> None:
    rounds, seconds = sized(ci=(3, 15), long=(30, 120))
    clock = SystemClock()
    with flowing(broker, drivers, *NEWEST, pause=sized(ci=0.02, long=0.2)) as traffic:
        for _ in range(rounds):
            before, end = traffic.sent(), clock.monotonic() + seconds
            until(lambda end=end: clock.monotonic() > end, "the end of a round", seconds=2 * seconds)
            broker.kill()
            broker.start()
            assert traffic.sent() > before
        traffic.settle()
        broker.kill()
        figures = traffic.check()
    print(figures, f"{rounds} kills")
