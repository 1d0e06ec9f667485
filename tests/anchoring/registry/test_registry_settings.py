"""What the section ``registry`` of a settings file says reaches a running instance."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from millstream.anchoring import MemoryCas, MemoryLedger
from millstream.anchoring.registry import DidRegistry, RegistryDatabase
from millstream.anchoring.registry.service import NOTICES
from millstream.core.canonical import canonical_json
from millstream.core.clock import SystemClock
from millstream.queue import Lease
from millstream.settings import RegistrySettings, SettingsError, load_settings
from millstream.testing.dids import DidOwner
from millstream.testing.waiting import until


class NotingClock(SystemClock):
    """Remembers for how many seconds somebody wanted to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = set[float]()

    def wait(self, condition: threading.Condition, seconds: float | None = None) -> bool:
        self.waits.add(-1.0 if seconds is None else seconds)
        return super().wait(condition, seconds)


class NotingBroker:
    """A broker without notices, which remembers for how long they would have been hidden."""

    def __init__(self) -> None:
        self.visibilities = set[float]()

    def lease(self, _count: int, *, visibility: float) -> list[Lease]:
        self.visibilities.add(visibility)
        return []


class CountingBroker:
    """A broker that has *notices* of nothing whenever it is asked. ``pauses`` are the seconds before each request, as
    far as the clock of a test adds them; ``told`` are the notices that were put."""

    def __init__(self, notices: int) -> None:
        self.pauses, self.told = [0.0], list[str]()
        self._leases = [Lease(task_id=n, body=b"", attempts=1, token="t", until=0) for n in range(notices)]

    def lease(self, _count: int, *, visibility: float) -> list[Lease]:
        self.pauses.append(0.0)
        return self._leases

    def ack(self, leases: list[Lease]) -> None:
        assert leases == self._leases

    def put(self, bodies: list[bytes]) -> None:
        self.told += [body.decode() for body in bodies]


def settings_of(folder: Path, text: str) -> RegistrySettings:
    (folder / "millstream.toml").write_text(f"[registry]\n{text}\n")
    return load_settings({"data": str(folder)}, environment={})[0].registry


@pytest.fixture
def instance(tmp_path: Path) -> Callable[..., DidRegistry]:
    """instance(text of the section, clock, broker) → an instance; not started."""

    def make(text: str, clock: SystemClock, broker: Any = None) -> DidRegistry:
        engine = sa.create_engine(f"sqlite:///{tmp_path / 'registry.db'}", connect_args={"timeout": 30})
        database, ledger = RegistryDatabase(engine, clock), MemoryLedger(clock)
        parameters = settings_of(tmp_path, text).parameters
        return DidRegistry(database, MemoryCas(), ledger, instance="one", settings=parameters, broker=broker)

    return make


@pytest.mark.parametrize(
    ("text", "pause"),
    [
        ("", 1.0),
        ('writer_monitor_interval = "7s"', 7.0),
        ('writer_monitor_interval = "20ms"', 0.02),
        ('writer_monitor_interval = "30s"\nbatch_writer_timeout = "8s"', 2.0),
    ],
)
def test_the_writer_looks_at_its_queue_as_often_as_the_settings_say(
    instance: Callable[..., DidRegistry], text: str, pause: float
) -> None:
    clock = NotingClock()
    with instance(text, clock) as registry:
        registry.start()
        until(lambda: pause in clock.waits)
    assert clock.waits <= {pause, 10.0}, "the other threads wait for 10 seconds"


def test_a_notice_is_hidden_for_as_long_as_the_settings_say(instance: Callable[..., DidRegistry]) -> None:
    broker = NotingBroker()
    with instance('op_queue_notice_visibility = "90s"', SystemClock(), broker) as registry:
        registry.start()
        until(lambda: bool(broker.visibilities))
    assert broker.visibilities == {90.0}


def test_a_broker_without_notices_is_asked_ever_less_often(instance: Callable[..., DidRegistry]) -> None:
    waits = list[float]()

    class Hurrying(SystemClock):
        def wait(self, condition: threading.Condition, seconds: float | None = None) -> bool:
            if threading.current_thread().name == "registry-subscribe-0":
                waits.append(seconds or 0.0)
            return condition.wait(0.001)

    with instance("op_queue_pool = 1", Hurrying(), NotingBroker()) as registry:
        registry.start()
        until(lambda: len(waits) >= 10)
    assert waits[:10:2] == pytest.approx([0.2, 0.4, 0.8, 1.0, 1.0]), "at last as often as batches are cut"


@pytest.mark.parametrize(("notices", "pause"), [(1, 0.7), (NOTICES - 1, 0.7), (NOTICES, 0.2)])
def test_a_broker_with_few_notices_is_not_asked_again_at_once(
    instance: Callable[..., DidRegistry], notices: int, pause: float
) -> None:
    broker = CountingBroker(notices)

    class Hurrying(SystemClock):
        def wait(self, condition: threading.Condition, seconds: float | None = None) -> bool:
            if threading.current_thread().name == "registry-subscribe-0":
                broker.pauses[-1] += seconds or 0.0
            return condition.wait(0.001)

    with instance("op_queue_pool = 1", Hurrying(), broker) as registry:
        registry.start()
        until(lambda: len(broker.pauses) >= 5)
    assert broker.pauses[1:4] == pytest.approx([pause] * 3)


def test_operations_that_are_accepted_one_after_the_other_share_a_notice(instance: Callable[..., DidRegistry]) -> None:
    broker, paused, resumed = CountingBroker(0), threading.Event(), threading.Event()

    class Stepped(SystemClock):
        def wait(self, condition: threading.Condition, seconds: float | None = None) -> bool:
            if threading.current_thread().name == "registry-announce" and seconds == 0.25:
                paused.set()
                until(resumed.is_set)
            return super().wait(condition, seconds)

    first, *others = [canonical_json(DidOwner(f"o{number}").create.request) for number in range(5)]
    with instance("", Stepped(), broker) as registry:
        registry.start()
        accepted = [registry.acceptance.submit(first).id]
        until(paused.is_set)
        accepted += [registry.acceptance.submit(request).id for request in others]
        resumed.set()
        until(lambda: len(broker.told) == 2)
    assert [notice.split() for notice in broker.told] == [accepted[:1], accepted[1:]]


def test_both_may_be_set_by_environment() -> None:
    environment = {
        "MILLSTREAM_REGISTRY__WRITER_MONITOR_INTERVAL": "250ms",
        "MILLSTREAM_REGISTRY__OP_QUEUE_NOTICE_VISIBILITY": "5m",
    }
    parameters = load_settings(environment=environment)[0].registry.parameters
    assert (parameters.writer_monitor_interval, parameters.queue.visibility) == (0.25, 300.0)


@pytest.mark.parametrize("name", ["writer_monitor_interval", "op_queue_notice_visibility"])
def test_no_time_at_all_is_refused_with_the_name_of_the_setting(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError, match=rf"setting registry \(.*millstream.toml\): {name} must be longer than 0"):
        settings_of(tmp_path, f"{name} = 0")
