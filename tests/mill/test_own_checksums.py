"""A wrong checksum beside good bytes: our own is written again (B27), and a provider is asked about its own (B7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millstream.mill.audit.audit_log import AuditLog
from millstream.mill.audit.audit_lookup import AuditLookup
from millstream.mill.integrity.check_processor import BitCheckProcessor
from millstream.mill.integrity.checker import BitChecker
from millstream.mill.integrity.sweep import check_space
from millstream.mill.integrity_decision import LAST_ATTEMPT
from millstream.mill.item_ref import ItemRef
from millstream.mill.repair.bit_errors import BitErrorProcessor
from millstream.mill.repair.repair_log import RepairLog
from millstream.mill.repair.repairer import Repairer, RepairProcessor, RepairResult
from millstream.mill.repair.vote import RepairDecision
from millstream.mill.reports.report import ReportResult
from millstream.mill.task_processor import TaskResult
from millstream.mill.tasks import BitCheck, BitError, QueueName, Repair
from millstream.stores import ChecksumOrigin
from millstream.stores.audit import AuditAction, AuditedStore, AuditOutbox
from support.wrong_checksums import WRONG, WrongChecksums

BODY = b"the right bytes"
COPY = ItemRef("2", "s", "a")


@pytest.fixture
def new_copies(new_world: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a world in which the item is in each of some *stores*; the checksum in the last of them is wrong."""

    def make(stores: str = "12", origin: ChecksumOrigin = ChecksumOrigin.USER) -> Any:
        world = new_world()
        world.stores = {name: world.stores[name] for name in stores}
        for name in stores:
            world.put(ItemRef(name, "s", "a"), BODY, color="blue")
        world.stores[stores[-1]] = WrongChecksums(world.stores[stores[-1]], origin)
        return world

    return make


def check(world: Any, attempt: int = LAST_ATTEMPT) -> TaskResult:
    processor = BitCheckProcessor(BitChecker(world.providers, world.manifest))
    return processor.process(BitCheck(COPY.store, COPY.space, COPY.content_id), attempt)


def repairer(world: Any, source: str = "1", **more: Any) -> Repairer:
    return Repairer(world.providers, world.manifest, RepairLog(world.engine), sources=lambda _: {source}, **more)


def repair(world: Any) -> RepairResult:
    return repairer(world).repair("s", "a", "found by a check")


def test_a_wrong_checksum_of_our_own_is_found_as_a_damaged_record_and_written_again(
    new_copies: Callable[..., Any],
) -> None:
    world = new_copies()
    assert [check(world, attempt).again for attempt in (1, 2)] == [0.0, 300.0]
    found = check(world)
    assert found.tasks == ((QueueName.REPAIR, Repair("s", "a", "2: B27 damaged-record")),)
    assert (found.checks[0].manifest, found.checks[0].provider) == (found.checks[0].content, WRONG)
    done = RepairProcessor(repairer(world)).process(Repair("s", "a", "2: B27 damaged-record"), 1)
    assert (done.summary, done.tasks) == ("repair: 1 copies repaired", ())
    assert (world.read(COPY), world.providers.find(COPY).properties) == (BODY, {"color": "blue"})
    assert [result.row for result in check(world).checks] == ["B1"]
    assert world.manifest.get("2", "s", "a").outcome == "SUCCESS"


def test_a_sweep_finds_it_too_and_is_clean_after_the_repair(new_copies: Callable[..., Any]) -> None:
    world = new_copies()
    tally = check_space(world.providers, world.manifest, "2", "s")
    assert [(finding.row, finding.kind) for finding in tally.findings] == [("B27", "damaged-record")]
    (event,) = repair(world).events
    assert (event.store, event.healed, event.good, event.quarantined) == ("2", True, "1", None)
    assert check_space(world.providers, world.manifest, "2", "s").result == ReportResult.SUCCESS


def test_a_wrong_checksum_of_the_provider_is_for_people_as_before(new_copies: Callable[..., Any]) -> None:
    world = new_copies(origin=ChecksumOrigin.PROVIDER)
    ((queue, task),) = check(world).tasks
    assert isinstance(task, BitError) and (queue, task.row) == (QueueName.BIT_ERROR, "B7")
    world.seal("2")
    assert repair(world).plan.decision == RepairDecision.HEALTHY


def test_a_copy_without_another_is_written_again_from_its_own_bytes(new_copies: Callable[..., Any]) -> None:
    world = new_copies("2")
    ((queue, task),) = check(world).tasks
    assert isinstance(task, BitError) and (queue, task.row) == (QueueName.BIT_ERROR, "B27")
    processor = BitErrorProcessor(BitChecker(world.providers, world.manifest), repairer(world))
    assert processor.process(task, 1).summary == f"{COPY}: 1 copies repaired"
    assert [result.row for result in check(world).checks] == ["B1"]


def test_a_source_is_written_only_if_a_person_asks_for_it(new_copies: Callable[..., Any]) -> None:
    world = new_copies()
    (refused,) = repairer(world, source="2").repair("s", "a").refused
    assert "store 2 is the source, and its own record of the item is damaged" in refused.reason
    assert repairer(world, source="2").repair("s", "a", restore_source=True).repaired == 1
    assert [result.row for result in check(world).checks] == ["B1"]


def test_the_repair_of_an_audited_copy_is_an_event_of_the_audit(new_copies: Callable[..., Any]) -> None:
    world = new_copies()
    outbox = AuditOutbox(world.engine, world.clock)
    world.stores["2"] = AuditedStore(world.stores["2"], outbox, "2", account="acme", user="mill")
    assert (
        repairer(world, audit_lookup=AuditLookup(AuditLog(world.engine), outbox, ["2"])).repair("s", "a").repaired == 1
    )
    (event,) = outbox.waiting("2", "s", "a")
    assert (event.action, event.sha256) == (AuditAction.ADD_CONTENT, world.manifest.get("2", "s", "a").sha256)
