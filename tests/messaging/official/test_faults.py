"""Official clients while their broker dies, is cut off or stops: nothing confirmed is missing, and order holds."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from official.clients import Drivers, OfficialClient
from official.known import NEWEST
from official.moving_broker import MovingBroker
from official.relay import Wire
from official.traffic import TOPICS, Traffic

from millstream.core.clock import SystemClock
from millstream.testing.brokers import IMPATIENT, BrokerProcess
from millstream.testing.crashing_calls import CrashPoint
from millstream.testing.disk.shim import DiskFaults, build_shim
from millstream.testing.disk.small import on_a_small_disk
from millstream.testing.waiting import until
from suite.sizes import sized

LIMITS = msgspec.structs.replace(
    IMPATIENT, longest_poll=2_000_000, renewed_for=5_000_000, max_attempts=17, snapshot_after=10_000_000
)
WHEN: tuple[Literal["before", "after"], ...] = ("before", "after")
METHODS = ("SendMessage", "ReceiveMessage", "AckMessage")
OPEN_STREAMS_AGAIN = ("java", "node")
"""Clients that open their telemetry stream again at once; the others do so after minutes, or never."""
SPIN = ("rust",)
"""Clients that read the end of a telemetry stream on a connection that stays for ever, and do nothing else then."""

pytestmark = pytest.mark.timeout(7200)


@contextlib.contextmanager
def serving_topics(broker: BrokerProcess) -> Iterator[None]:
    """*broker* with the topics of the traffic, until the block ends."""
    broker.start()
    try:
        for topic, kind in TOPICS.items():
            broker.create_topic(topic, kind, 1)
        yield
    finally:
        broker.kill()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(f"segments:///{tmp_path / 'logs'}", LIMITS)
    with serving_topics(process):
        yield process


@contextlib.contextmanager
def flowing(
    broker: BrokerProcess | MovingBroker,
    drivers: Drivers,
    *clients: OfficialClient,
    place: object = None,
    pause: float = 0.02,
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
    steps = [CrashPoint(method, when) for method in methods for when in WHEN]
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


@pytest.mark.parametrize("client", NEWEST, ids=lambda client: client.language)
def test_p2_p4_a_broker_on_a_slow_disk_that_dies_as_well(
    client: OfficialClient, drivers: Drivers, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    slow = DiskFaults(disk, slow_ms=150).environment(build_shim(tmp_path))
    broker = BrokerProcess(f"segments:///{disk}", LIMITS, environment=slow)
    with serving_topics(broker), flowing(broker, drivers, client) as traffic:
        for _ in range(sized(ci=2, long=10)):
            more(traffic, 10)
            broker.kill()
            broker.start()
        more(traffic, 10)
        traffic.settle()
        broker.kill()
        traffic.check()


@pytest.mark.parametrize("client", NEWEST, ids=lambda client: client.language)
def test_p2_p4_a_broker_whose_disk_runs_full_and_has_room_again(
    client: OfficialClient, drivers: Drivers, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    broker = BrokerProcess(f"segments:///{disk}/logs", LIMITS, python=on_a_small_disk(disk, "size=100m"))
    with serving_topics(broker), flowing(broker, drivers, client) as traffic:
        inside = Path(f"/proc/{broker.pid}/root") / disk.relative_to("/")
        for turn in range(sized(ci=2, long=5)):
            more(traffic, 10)
            ballast, refused = inside / f"ballast-{turn}", traffic.refused
            until(
                lambda ballast=ballast, refused=refused: is_refused(traffic, ballast, refused), "refusals", seconds=60
            )
            ballast.unlink()
        more(traffic, 10)
        traffic.settle()
        shutil.copytree(inside / "logs", tmp_path / "copy")
        broker.kill()
        traffic.check(f"segments:///{tmp_path / 'copy'}")


def is_refused(traffic: Traffic, ballast: Path, before: int) -> bool:
    """Whether more sends were refused than *before*; the broker's reserve gives it room for a while."""
    fill(ballast)
    return traffic.refused > before


def fill(ballast: Path) -> None:
    """Let *ballast* take all the room that its disk has left."""
    with ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        for size in (1 << 20, 1 << 12):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass


@pytest.mark.parametrize(
    "client", [client for client in NEWEST if client.language not in SPIN], ids=lambda client: client.language
)
def test_p2_p4_a_broker_that_moves_to_another_process(client: OfficialClient, drivers: Drivers, tmp_path: Path) -> None:
    """The client knows the address of a process on standby alone: it follows the routes that this one tells, or its
    calls are passed on."""
    with contextlib.ExitStack() as stack:
        broker = MovingBroker(f"segments:///{tmp_path / 'logs'}", LIMITS, tmp_path, stack)
        broker.move(kill=False)
        for topic, kind in TOPICS.items():
            broker.create_topic(topic, kind)
        traffic = stack.enter_context(flowing(broker, drivers, client, place=broker.standby))
        for turn in range(sized(ci=2, long=6)):
            more(traffic, 10)
            broker.move(kill=turn % 2 == 0)
        more(traffic, 10)
        traffic.settle()
        broker.end()
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
