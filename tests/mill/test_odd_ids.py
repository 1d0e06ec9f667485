"""Items whose ids are as odd and as long as providers allow pass all steps: copied, checked, reported on, repaired."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from test_report import unescape

from millstream.mill.configured_stores import QUARANTINE
from millstream.mill.duplication.duplicator import DuplicationProcessor
from millstream.mill.duplication.planning import plan_space_duplication
from millstream.mill.duplication.source_recorder import record_space
from millstream.mill.integrity.bit_log import BitLog
from millstream.mill.integrity.check_writer import CheckWriter
from millstream.mill.integrity.checker import BitChecker
from millstream.mill.integrity.space_reports import Reporter
from millstream.mill.integrity.sweep import check_space
from millstream.mill.item_ref import ItemRef
from millstream.mill.policies.policy import Pair
from millstream.mill.repair.repair_log import RepairLog
from millstream.mill.repair.repairer import Repairer
from millstream.mill.reports.archive import verify_chain
from millstream.mill.reports.folder import ReportFolder
from millstream.mill.reports.report import COLUMNS, ReportResult
from millstream.mill.tasks import decode_task, encode_task
from millstream.stores import LocalStore
from millstream.testing.damage import flip_bit
from millstream.testing.store_content import ODD_IDS

SPACE = "Räume: " + "\U0001f5c4" * 18
"""80 bytes of UTF-8."""

IDS = [
    *ODD_IDS, " ", ".hidden/.x", "c\rd", "e\u0301", "\u202eright to left", "\ufeff", "\uffff", "\U0010ffff",
    "a?b#c&d=e", "'\"; --", "\x7f\x01", "a", "a.json", "a/b", "aa", "\U0001f98a" * 256, "/".join(["d"] * 512),
    "y" * 255 + "/" + "y" * 255,
]  # fmt: skip


def test_items_of_odd_and_very_long_ids_are_copied_checked_reported_on_and_repaired(
    new_world: Callable[..., Any], tmp_path: Path
) -> None:
    assert len(SPACE.encode()) == 80
    world = new_world({"1": LocalStore(tmp_path / "1"), "2": LocalStore(tmp_path / "2")})
    bodies = {name: f"body of {number}".encode() for number, name in enumerate(IDS)}
    for name, body in bodies.items():
        world.put(ItemRef("1", SPACE, name), body, record=False)
    assert record_space(world.providers, world.manifest, "1", SPACE).recorded == len(IDS)
    assert duplicated(world) == {"D12"}
    assert duplicated(world) == set()
    for name in IDS:
        flip_bit(world.stores["2"].path_of(SPACE, name))
    bit_log, folder = BitLog(world.engine), ReportFolder(tmp_path / "reports")
    found = checked(world, bit_log, folder)
    assert {finding.content_id for finding in found.findings} == set(IDS)
    (table,) = folder.folder("2", SPACE).glob("*.tsv")
    lines = table.read_bytes().decode().split("\n")[1:-1]
    assert [unescape(line.split("\t")[COLUMNS.index("content-id")]) for line in lines] == sorted(IDS, key=str.encode)
    repairer = Repairer(world.providers, world.manifest, RepairLog(world.engine), sources=lambda _: {"1"})
    assert [repairer.repair(SPACE, name).repaired for name in IDS] == [1] * len(IDS)
    assert len(world.stores["2"].entries(QUARANTINE)) == len(IDS)
    assert {name: world.read(ItemRef("2", SPACE, name)) for name in IDS} == bodies
    assert checked(world, bit_log, folder).result == ReportResult.SUCCESS
    assert folder.spaces() == [("2", SPACE)] and verify_chain(folder, "2", SPACE) is not None


def duplicated(world: Any) -> set[str]:
    """The rows of the table by which the second store was brought in line."""
    queue, processor = world.queue(), DuplicationProcessor(world.providers, world.manifest)
    plan_space_duplication(world.providers, world.manifest, Pair("1", "2"), SPACE, queue)
    rows = set()
    while leases := queue.lease(1, visibility=600):
        task = decode_task(leases[0].body)
        assert decode_task(encode_task(task)) == task
        result = processor.process(task, 1)
        world.manifest.writer.record(result.events)
        queue.ack(leases)
        rows |= {result.summary.split()[0]} if task.content_id else set()
    return rows


def checked(world: Any, bit_log: BitLog, folder: ReportFolder) -> Any:
    """The report of a check of the second store."""
    since = world.clock.now()
    writer, checker = CheckWriter(world.manifest, bit_log), BitChecker(world.providers, world.manifest)
    tally = check_space(world.providers, world.manifest, "2", SPACE, checker=checker, writer=writer)
    world.clock.advance(1)
    reporter = Reporter(folder, bit_log)
    return reporter.keep(reporter.make(tally, "2", SPACE, since=since, until=world.clock.now()))
