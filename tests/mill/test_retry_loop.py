"""Every call of the mill to a provider is made again when it fails for a moment (seed document: "in a retry loop")."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.mill.configured_stores import QUARANTINE
from millstream.mill.duplication.duplicator import DuplicationProcessor
from millstream.mill.duplication.planning import plan_space_duplication
from millstream.mill.duplication.source_recorder import record_space
from millstream.mill.integrity.checker import BitChecker
from millstream.mill.integrity.sweep import check_space
from millstream.mill.item_ref import ItemRef
from millstream.mill.policies.locations import SpaceLocation
from millstream.mill.policies.policy import Pair
from millstream.mill.producers.bits import BitProducer
from millstream.mill.repair.repair_log import RepairLog
from millstream.mill.repair.repairer import Repairer
from millstream.mill.reports.report import ReportResult
from millstream.mill.tasks import decode_task
from millstream.stores import Store, StoreUnavailableError
from millstream.stores.wrapper import StoreCall
from millstream.testing.faulty_store import FaultyStore


class FirstTimeAway(FaultyStore):
    """Each different call fails once."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.failed: set[StoreCall] = set()

    def before(self, call: StoreCall) -> None:
        if call not in self.failed:
            self.failed.add(call)
            raise StoreUnavailableError("away for a moment")


def again(world: Any) -> None:
    """From now on each different call fails once more."""
    for name, store in world.stores.items():
        world.stores[name] = FirstTimeAway(store.store if isinstance(store, FirstTimeAway) else store)


def methods(world: Any, store: str) -> set[str]:
    return {call.method for call in world.stores[store].failed}


@pytest.fixture
def two_copies(world: Any) -> Any:
    """Store "1" has items, "2" and "3" get copies of them, and every call fails once."""
    for name in ("a", "b", "c"):
        world.put(ItemRef("1", "s", name), b"body of " + name.encode(), user="me")
    world.put(ItemRef("2", "s", "b"), b"another body", record=False)
    world.put(ItemRef("2", "s", "c"), b"body of c", record=False)
    world.put(ItemRef("2", "s", "gone"))
    world.record(ItemRef("1", "s", "gone"), None, deleted=True)
    again(world)
    return world


def duplicate(world: Any, destination: str) -> set[str]:
    """The rows of the table by which *destination* is brought in line."""
    queue = world.queue(f"to-{destination}")
    again(world)
    record_space(world.providers, world.manifest, "1", "s")
    plan_space_duplication(world.providers, world.manifest, Pair("1", destination), "s", queue)
    rows = set()
    while leases := queue.lease(100, visibility=10**6):
        for lease in leases:
            again(world)
            processor = DuplicationProcessor(world.providers, world.manifest)
            result = processor.process(decode_task(lease.body), 1)
            world.manifest.writer.record(result.events)
            rows.add(result.summary.split()[0])
        queue.ack(leases)
    return rows


def test_duplication_is_not_stopped_by_calls_that_fail_once(two_copies: Any) -> None:
    assert duplicate(two_copies, "2") == {"D8", "D11", "D12", "D19"}
    assert duplicate(two_copies, "3") == {"D12", "D2"}
    again(two_copies)
    for name in ("a", "b", "c"):
        for store in "23":
            assert two_copies.stores[store].store.info("s", name).properties == {"user": "me"}


def test_checks_and_repairs_are_not_stopped_by_calls_that_fail_once(two_copies: Any) -> None:
    world = two_copies
    duplicate(world, "2")
    duplicate(world, "3")
    again(world)
    tally = check_space(world.providers, world.manifest, "2", "s", threads=1)
    assert (tally.result, methods(world, "2")) == (ReportResult.SUCCESS, {"has_space", "entries", "info", "open"})
    inner = world.stores["3"].store
    inner.delete("s", "b")
    again(world)
    assert BitChecker(world.providers, world.manifest).check(ItemRef("3", "s", "b")).outcome.row == "B18"
    again(world)
    repairer = Repairer(world.providers, world.manifest, RepairLog(world.engine), sources=lambda _: {"1"})
    assert repairer.repair("s", "b").repaired == 1
    with inner.open("s", "b") as file:
        assert file.read() == b"body of b"


def test_a_bad_copy_is_set_aside_and_replaced_through_calls_that_fail_once(two_copies: Any) -> None:
    world = two_copies
    for store in "23":
        duplicate(world, store)
    bad = world.stores["3"].store
    info = bad.info("s", "a")
    with bad.open("s", "b") as other:
        bad.put("s", "a", other, properties=info.properties)
    again(world)
    repairer = Repairer(world.providers, world.manifest, RepairLog(world.engine), sources=lambda _: {"1"})
    assert repairer.repair("s", "a").repaired == 1
    assert bad.info("s", "a").checksum() == info.checksum()
    assert QUARANTINE in bad.spaces()


def test_producers_are_not_stopped_by_calls_that_fail_once(two_copies: Any) -> None:
    world = two_copies
    again(world)
    producer = BitProducer(world.providers, world.manifest, world.queue("bits"), world.queue("reports"), world.clock)
    morsels = producer.morsels()
    assert [(morsel.store, morsel.space) for morsel in morsels] == [("1", "s"), ("2", "s")]
    assert [producer.next_chunk(morsel, 0).tasks for morsel in morsels] == [3, 3]


def test_policies_in_a_space_are_read_and_written_through_calls_that_fail_once(world: Any) -> None:
    place = SpaceLocation(FirstTimeAway(world.stores["1"]), "policies", world.clock)
    place.write("history/a", b"{}")
    assert (place.read("history/a"), place.names("history")) == (b"{}", ["a"])
