"""The rot drill: every kind of damage, on a real S3 server and on local folders, is found, named, and repaired."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from millstream.mill.duplication.duplicator import DuplicationProcessor
from millstream.mill.duplication.planning import plan_space_duplication
from millstream.mill.duplication.source_recorder import record_space
from millstream.mill.integrity.check_processor import BitCheckProcessor
from millstream.mill.integrity.checker import BitChecker
from millstream.mill.integrity.sweep import check_space
from millstream.mill.item_ref import ItemRef
from millstream.mill.manifest import CheckResult
from millstream.mill.policies.policy import Pair
from millstream.mill.repair.repair_log import RepairLog
from millstream.mill.repair.repairer import Repairer
from millstream.mill.reports.report import ReportResult
from millstream.mill.tasks import BitCheck, QueueName, Repair, decode_task
from millstream.stores import ItemNotFoundError, LocalStore
from millstream.stores.bulk import SMALL
from millstream.stores.s3 import S3Limits, S3Store, parse_address
from millstream.testing import services
from millstream.testing.damage import flip_bit
from millstream.testing.s3 import S3Server
from millstream.testing.swift import data_files
from suite.sizes import sized

pytestmark = [pytest.mark.served, pytest.mark.timeout(1800)]  # at its long size each test copies 2,000 items

MIB = 1024 * 1024
LIMITS = S3Limits(single=5 * MIB, part=5 * MIB)
DAMAGE = ("flipped", "truncated", "deleted", "replaced", "recoated", "parts")


class Drill:
    """Store "1" is a local folder and the source; "2" is a local folder, "3" a bucket on Swift."""

    def __init__(self, world: Any, server: services.Server, count: int) -> None:
        self.world, self.folder = world, server.folder
        self.s3: S3Store = world.stores["3"]
        self.client = S3Server(server.url).client
        draw = random.Random(self.s3.url)  # no two drills have bytes in common: damage would reach both
        self.bodies = {f"items/{number:05d}": draw.randbytes(3000) for number in range(count)}
        self.bodies |= {f"bad/{name}": draw.randbytes(5000) for name in DAMAGE} | {"bad/parts": draw.randbytes(6 * MIB)}

    def fill(self) -> None:
        for content_id, body in self.bodies.items():
            self.world.put(ItemRef("1", "s", content_id), body, record=False, creator="mill")
        record_space(self.world.providers, self.world.manifest, "1", "s")
        for destination in "23":
            self.duplicate(destination)

    def duplicate(self, destination: str) -> list[str]:
        """What was done, by the rows of the table, to bring *destination* in line."""
        queue, providers = self.world.queue(f"to-{destination}"), self.world.providers
        plan_space_duplication(providers, self.world.manifest, Pair("1", destination), "s", queue, everything=True)
        processor, rows = DuplicationProcessor(providers, self.world.manifest), []
        with ThreadPoolExecutor(8) as pool:  # a server takes its time for each
            while leases := queue.lease(100, visibility=1000):
                tasks = [decode_task(lease.body) for lease in leases]
                results = list(pool.map(lambda task: processor.process(task, 1), tasks))
                self.world.manifest.writer.record([event for result in results for event in result.events])
                queue.ack(leases)
                rows += [result.summary.split()[0] for result in results]
        return rows

    def sweep(self, store: str) -> dict[str, CheckResult]:
        """What is not in order, by item."""
        found: dict[str, CheckResult] = {}
        tally = check_space(
            self.world.providers, self.world.manifest, store, "s", threads=4,
            on_checked=lambda group: found.update(
                {one.result.content_id: one.result for one in group.others if one.result.row not in ("B1", "B2")}
            ),
        )  # fmt: skip
        assert tally.listed >= len(self.bodies) - 1
        assert (tally.result == ReportResult.SUCCESS) == (not found)
        return found

    def key(self, name: str) -> dict[str, str]:
        address = parse_address(self.s3.url)
        return {"Bucket": address.bucket, "Key": f"{address.prefix}s/bad/{name}"}

    def damage_bucket(self) -> None:
        (flipped,), (parts,) = self.files("flipped"), data_files(self.folder, self.bodies["bad/parts"][: 5 * MIB])
        flip_bit(flipped)
        flip_bit(parts, seed=3)
        (truncated,) = self.files("truncated")
        with truncated.open("r+b") as file:
            file.truncate(100)
        self.client.delete_object(**self.key("deleted"))
        self.client.put_object(**self.key("replaced"), Body=b"!" * len(self.bodies["bad/replaced"]))
        self.s3.set_properties("s", "bad/recoated", {"creator": "somebody"})

    def damage_folder(self, store: str) -> None:
        for name in DAMAGE:
            path = self.world.stores[store].path_of("s", f"bad/{name}")
            if name == "truncated":
                path.write_bytes(path.read_bytes()[:100])
            elif name == "deleted":
                path.unlink()
            elif name == "replaced":
                path.write_bytes(b"!" * path.stat().st_size)
            elif name == "recoated":
                self.world.stores[store].set_properties("s", f"bad/{name}", {"creator": "somebody"})
            else:
                flip_bit(path)

    def files(self, name: str) -> list[Path]:
        return list(data_files(self.folder, self.bodies[f"bad/{name}"]))

    def repair(self, found: dict[str, CheckResult]) -> None:
        log = RepairLog(self.world.engine)
        repairer = Repairer(self.world.providers, self.world.manifest, log, sources=lambda _: {"1"})
        for content_id in found:
            result = repairer.repair("s", content_id)
            assert (result.repaired, result.refused) == (1, ()), content_id

    def copies(self, store: str) -> dict[str, bytes]:
        return {name: self.world.read(ItemRef(store, "s", name)) for name in self.bodies}


@pytest.fixture(scope="module")
def server() -> Iterator[services.Server]:
    with services.private("swift") as server:
        yield server


@pytest.fixture
def drill(new_world: Callable[..., Any], server: services.Server, tmp_path: Path) -> Drill:
    bucket = S3Server(server.url).new_store(limits=LIMITS)
    world = new_world({"1": LocalStore(tmp_path / "1"), "2": LocalStore(tmp_path / "2"), "3": bucket})
    drill = Drill(world, server, sized(ci=8, long=2000))
    drill.fill()
    return drill


FOUND = {
    "2": {"flipped": "B3", "truncated": "B3", "deleted": "B18", "replaced": "B3", "parts": "B3"},
    # Swift sets aside what it sees to be short, breaks off in a rotted part, and keeps no checksum that we did not send
    "3": {"flipped": "B3", "truncated": "B18", "deleted": "B18", "replaced": "B19", "parts": "B4"},
}


@pytest.mark.long
@pytest.mark.parametrize("store", ["2", "3"])
def test_p6_every_fault_is_found_named_and_repaired_and_no_good_copy_touched(drill: Drill, store: str) -> None:
    assert all(drill.sweep(name) == {} for name in "123")
    drill.damage_bucket() if store == "3" else drill.damage_folder(store)
    found = drill.sweep(store)
    assert {name.removeprefix("bad/"): result.row for name, result in found.items()} == FOUND[store]
    drill.repair(found)
    assert sorted(set(drill.duplicate(store))) == ["D7", "D8"]  # the changed property, and nothing else
    assert drill.s3.info("s", "bad/recoated").properties == {"creator": "mill"}
    for name in "123":
        assert drill.sweep(name) == {}
        assert drill.copies(name) == drill.bodies


def test_an_etag_says_nothing_of_the_bytes_and_a_listing_nothing_of_what_can_be_read(drill: Drill) -> None:
    (path,) = drill.files("flipped")
    etag = drill.client.head_object(**drill.key("flipped"))["ETag"]
    flip_bit(path)
    assert drill.client.head_object(**drill.key("flipped"))["ETag"] == etag
    bad = drill.client.get_object(**drill.key("flipped"))["Body"].read()
    assert len(bad) == 5000 and bad != drill.bodies["bad/flipped"]
    assert "bad/flipped" in [entry.content_id for entry in drill.s3.entries("s")]
    found = drill.sweep("3")
    assert {name: result.row for name, result in found.items()} == {"bad/flipped": "B18"}
    drill.repair(found)
    assert drill.sweep("3") == {}


def test_p6_a_damaged_object_that_can_be_read_only_once_is_named_by_tasks_done_together(drill: Drill) -> None:
    (path,) = drill.files("flipped")
    flip_bit(path)
    processor = BitCheckProcessor(BitChecker(drill.world.providers, drill.world.manifest))
    tasks = [BitCheck("3", "s", name) for name in drill.bodies]
    results = dict(zip((task.content_id for task in tasks), processor.process_group(tasks), strict=True))
    with pytest.raises(ItemNotFoundError):  # Swift has set the object aside
        drill.s3.info("s", "bad/flipped")
    found = results["bad/flipped"]
    assert found is not None
    assert [(one.row, one.content is not None) for one in found.checks] == [("B3", True)]
    assert found.tasks == ((QueueName.REPAIR, Repair("s", "bad/flipped", "3: B3 checksum-mismatch")),)
    small = {name for name, body in drill.bodies.items() if len(body) <= SMALL}
    assert {name for name, result in results.items() if result is not None} == small


def test_p8_an_emptied_source_takes_no_copy_with_it(drill: Drill) -> None:
    for content_id in drill.bodies:
        drill.world.stores["1"].delete("s", content_id)
    for destination in "23":
        plan = plan_space_duplication(
            drill.world.providers, drill.world.manifest, Pair("1", destination), "s", None, everything=True
        )
        assert (plan.tasks, plan.held) == (0, len(drill.bodies))
        assert drill.duplicate(destination) == []
        assert drill.copies(destination) == drill.bodies
