"""The eleven rows of the document, from damage to real tables and objects to what is written down and put right."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from millstream.mill.audit.audit_log import AuditLog
from millstream.mill.audit.audit_lookup import AuditLookup
from millstream.mill.audit.audit_processor import AuditProcessor
from millstream.mill.audit.audit_queue import AuditQueue
from millstream.mill.integrity.acceptance import NotAcceptedError, accept_bytes
from millstream.mill.integrity.bit_log import BitLog
from millstream.mill.integrity.check_processor import BitCheckProcessor
from millstream.mill.integrity.checker import BitChecker
from millstream.mill.item_ref import ItemRef
from millstream.mill.policies.repository import Policies
from millstream.mill.remedies import OUTCOMES, outcome_of
from millstream.mill.repair.bit_errors import BitErrorProcessor
from millstream.mill.repair.repair_log import RepairLog
from millstream.mill.repair.repairer import Repairer, RepairProcessor
from millstream.mill.task_processor import ProcessorRegistry
from millstream.mill.tasks import Audit, BitCheck, BitError, QueueName, Repair, encode_task
from millstream.mill.workers.manager import WorkerManager, WorkerSettings
from millstream.mill.workers.result_sink import ResultSink
from millstream.queue.dead_letters import common_cause
from millstream.queue.protocol import WorkQueue
from millstream.stores import LocalStore, hash_stream
from millstream.stores.audit import AuditedStore, AuditOutbox
from millstream.testing.damage import flip_bit, remove
from millstream.testing.faulty_store import UnavailableStore

BODY = b"what was put there"
WRONG = "f" * 64


class Mill:
    """Store "1" is audited and the source of "2"; the item "copied" is in both, the item "alone" only in "1"."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.outbox, self.log = AuditOutbox(world.engine, world.clock), AuditLog(world.engine)
        self.bit_log = BitLog(world.engine)
        self.inner = world.stores["1"]
        world.stores["1"] = AuditedStore(self.inner, self.outbox, "1", account="acme", user="ann")
        self.queues: dict[str, WorkQueue] = {name: world.queue(name) for name in QueueName}
        self.queues[QueueName.AUDIT] = AuditQueue(world.queue(QueueName.AUDIT), self.outbox)
        world.stores["1"].create_space("s")
        for name in ("copied", "alone"):
            world.stores["1"].put("s", name, io.BytesIO(BODY), mimetype="text/plain")
        world.put(ItemRef("2", "s", "copied"), BODY)
        self.work()
        self.sum = hash_stream(io.BytesIO(BODY)).sha256

    def work(self, *names: QueueName) -> None:
        world = self.world
        trail = AuditLookup(self.log, self.outbox, ["1"])
        checker = BitChecker(world.providers, world.manifest, trail)
        repairer = Repairer(
            world.providers, world.manifest, RepairLog(world.engine), sources=lambda _: {"1"}, audit_lookup=trail
        )
        registry = ProcessorRegistry(
            {
                Audit: AuditProcessor(self.outbox, lambda: Policies({})),
                BitCheck: BitCheckProcessor(checker),
                BitError: BitErrorProcessor(checker, repairer, trail),
                Repair: RepairProcessor(repairer),
            }
        )
        sink = ResultSink(world.manifest, self.queues, (self.log, self.outbox), self.bit_log)
        chosen = [self.queues[name] for name in names or (QueueName.AUDIT,)]
        WorkerManager(chosen, registry, sink, world.clock, WorkerSettings(threads=1, linger=0)).run_until_drained()

    def check(self, name: str) -> tuple[str, str]:
        """The row and the verdict that a check comes to, all retries used."""
        began = self.world.clock.now()
        self.queues[QueueName.BIT_INTEGRITY].put([encode_task(BitCheck("1", "s", name))])
        self.work(QueueName.BIT_INTEGRITY)
        self.waited = (self.world.clock.now() - began) / 1_000_000
        (found,) = (one for one in self.bit_log.results("1", "s") if one.content_id == name)
        return found.row, found.verdict.value

    def settle(self) -> None:
        """Let everything that was found take its course, and its effects on the audit."""
        self.work(QueueName.BIT_ERROR, QueueName.REPAIR, QueueName.AUDIT)

    def open_tasks(self) -> dict[str, int]:
        return {name: queue.depth().open for name, queue in self.queues.items() if queue.depth().open}

    def accept(self, store: str, name: str, *, told: bool = True) -> None:
        """A person says that the bytes are right."""
        world, lookup = self.world, AuditLookup(self.log, self.outbox, ["1"] if told else [])
        place, audit = ItemRef(store, "s", name), (lookup, self.outbox)
        accept_bytes(world.providers, world.manifest, place, sources={"1"}, audit=audit)

    def change(self, statement: str, **values: Any) -> None:
        with self.world.engine.begin() as connection:
            assert connection.execute(sa.text(statement), values).rowcount == 1

    def last_event(self, name: str) -> Any:
        return self.log.last("1", "s", [name]).get(name)

    def causes(self) -> list[str]:
        return [dead.cause for dead in self.queues[QueueName.BIT_ERROR].dead()]

    def is_in_order(self, name: str) -> bool:
        self.world.clock.advance(1)
        return self.check(name) == ("B1", "SUCCESS") and self.last_event(name).sha256 is not None


@pytest.fixture
def mill(new_world: Any, tmp_path: Path) -> Mill:
    return Mill(new_world({name: LocalStore(tmp_path / name) for name in "12"}))


def test_row_1_all_went_as_planned(mill: Mill) -> None:
    assert mill.check("copied") == ("B1", "SUCCESS")
    assert (mill.open_tasks(), mill.waited) == ({}, 0)


def test_row_2_corrupt_content_is_a_failure_and_repaired_from_the_copy(mill: Mill) -> None:
    flip_bit(mill.inner.path_of("s", "copied"))
    assert mill.check("copied") == ("B3", "FAILURE")
    assert mill.open_tasks() == {QueueName.REPAIR: 1}
    mill.settle()
    assert mill.is_in_order("copied")


def test_row_2_corrupt_content_without_a_copy_is_for_people(mill: Mill) -> None:
    flip_bit(mill.inner.path_of("s", "alone"))
    assert mill.check("alone") == ("B3", "FAILURE")
    assert mill.open_tasks() == {QueueName.BIT_ERROR: 1}
    mill.settle()
    (cause,) = mill.causes()
    assert cause.startswith(f"UnresolvedError: B3 checksum-mismatch: {ItemRef('1', 's', 'alone')}: ")
    assert outcome_of(common_cause(cause)) == OUTCOMES["B3"] and "no copy has the recorded checksum" in cause


def test_row_3_a_wrong_checksum_of_the_provider_is_for_people_to_ask_the_provider(mill: Mill, tmp_path: Path) -> None:
    for path in (tmp_path / "1" / ".millstream" / "sidecars").rglob("*"):
        if path.is_file() and b'"copied"' in path.read_bytes():
            line = path.read_bytes().split(b"\n")[0].replace(mill.sum.encode(), WRONG.encode())
            path.write_bytes(line + b"\n" + hash_stream(io.BytesIO(line)).sha256.encode() + b"\n")
    assert mill.check("copied") == ("B7", "FAILURE")
    assert mill.waited >= 300
    mill.settle()
    (cause,) = mill.causes()
    assert "B7 store-checksum" in cause and "ask the storage provider" in cause


def test_row_4_content_that_cannot_be_had_is_tried_again_and_then_an_error(mill: Mill) -> None:
    mill.world.stores["1"] = UnavailableStore(mill.world.stores["1"], when=lambda call: call.method == "open")
    assert mill.check("alone") == ("B4", "ERROR")
    assert mill.waited >= 300
    assert mill.open_tasks() == {QueueName.BIT_ERROR: 1}


def test_row_4_content_that_still_cannot_be_read_is_repaired_from_the_copy(mill: Mill) -> None:
    real = mill.world.stores["1"]
    mill.world.stores["1"] = unreadable = UnavailableStore(real, when=lambda call: call.method == "open")
    assert (mill.check("copied"), mill.waited >= 300) == (("B4", "ERROR"), True)
    assert mill.open_tasks() == {QueueName.REPAIR: 1}
    unreadable.when = lambda _: False
    mill.settle()
    assert (mill.open_tasks(), mill.is_in_order("copied")) == ({}, True)


def test_row_5_a_corrupted_or_lost_index_row_is_put_right_from_the_three_others(mill: Mill) -> None:
    mill.change("UPDATE mill_manifest SET sha256 = :sum WHERE store = '1' AND content_id = 'alone'", sum=WRONG)
    assert mill.check("alone") == ("A5", "FAILURE")
    assert mill.world.manifest.get("1", "s", "alone").sha256 == mill.sum
    assert mill.is_in_order("alone")
    mill.change("DELETE FROM mill_manifest WHERE store = '1' AND content_id = 'alone'")
    mill.world.clock.advance(1)
    assert mill.check("alone") == ("A5", "FAILURE")
    assert mill.is_in_order("alone")
    assert mill.open_tasks() == {}


def test_row_6_an_audit_log_that_is_out_of_sync_is_resolved_by_a_new_event(mill: Mill) -> None:
    mill.change("UPDATE mill_audit_log SET sha256 = :sum WHERE content_id = 'alone'", sum=WRONG)
    assert mill.check("alone") == ("A6", "FAILURE")
    assert mill.open_tasks() == {QueueName.BIT_ERROR: 1}
    mill.settle()
    assert (mill.last_event("alone").sha256, mill.last_event("alone").user) == (mill.sum, "mill")
    assert mill.world.manifest.get("1", "s", "alone").mimetype == "text/plain"
    assert mill.is_in_order("alone") and not mill.causes()


@pytest.mark.parametrize("damage", ["DELETE FROM mill_audit_log", "UPDATE mill_audit_log SET sha256 = NULL"])
def test_row_7_what_the_audit_log_has_lost_goes_through_the_audit_queue_again(mill: Mill, damage: str) -> None:
    mill.change(f"{damage} WHERE content_id = 'alone'")
    assert mill.check("alone") == ("A7", "FAILURE")
    assert mill.open_tasks() == {QueueName.AUDIT: 1}
    mill.settle()
    assert mill.last_event("alone").sha256 == mill.sum
    assert mill.is_in_order("alone")


def test_row_8_a_vanished_object_is_tried_again_and_repaired_from_the_copy(mill: Mill) -> None:
    remove(mill.inner.path_of("s", "copied"))
    assert mill.check("copied") == ("B18", "FAILURE")
    assert mill.waited >= 300
    assert mill.world.manifest.get("1", "s", "copied").missing
    mill.settle()
    assert mill.is_in_order("copied")


def test_row_9_an_object_that_nobody_recorded_is_recorded_and_told_to_the_audit(mill: Mill) -> None:
    mill.inner.put("s", "new", io.BytesIO(b"past the audit"))
    assert mill.check("new") == ("B15", "FAILURE")
    assert mill.waited >= 300
    assert mill.open_tasks() == {QueueName.AUDIT: 1}
    mill.settle()
    assert mill.is_in_order("new")


def test_row_10_an_object_that_was_changed_past_the_audit_is_recorded_once_a_person_accepts_it(mill: Mill) -> None:
    mill.inner.put("s", "alone", io.BytesIO(b"changed past the audit"))
    assert mill.check("alone") == ("B9", "FAILURE")
    assert mill.waited >= 300
    mill.settle()
    assert (mill.world.manifest.get("1", "s", "alone").sha256, mill.last_event("alone").sha256) == (mill.sum, mill.sum)
    (cause,) = mill.causes()
    assert "B9 manifest" in cause and "or record the present content (`millstream mill accept`)" in cause
    mill.accept("1", "alone")
    mill.settle()
    assert mill.last_event("alone").sha256 != mill.sum
    assert mill.is_in_order("alone")


def test_row_10_the_bytes_of_a_copy_are_not_accepted_in_the_place_of_those_of_its_source(mill: Mill) -> None:
    mill.world.stores["2"].put("s", "copied", io.BytesIO(b"forged"))
    with pytest.raises(NotAcceptedError, match="because its source is in store '1': accept the content there"):
        mill.accept("2", "copied")
    flip_bit(mill.inner.path_of("s", "alone"))
    with pytest.raises(NotAcceptedError, match="does not match the checksum of its provider"):
        mill.accept("1", "alone")
    assert mill.world.manifest.get("1", "s", "alone").sha256 == mill.sum


def test_row_10_an_old_version_with_its_old_checksum_is_not_taken_for_an_event_that_the_manifest_missed(
    mill: Mill,
) -> None:
    mill.world.clock.advance(1)
    mill.inner.put("s", "alone", io.BytesIO(b"the next version"))
    mill.accept("1", "alone", told=False)  # the audit log still has the old version as the last
    next_sum = mill.world.manifest.get("1", "s", "alone").sha256
    mill.inner.put("s", "alone", io.BytesIO(BODY))
    assert mill.check("alone") == ("B9", "FAILURE")
    assert mill.world.manifest.get("1", "s", "alone").sha256 == next_sum


@pytest.mark.parametrize("name", ["alone", "copied"])
def test_row_9_an_object_whose_row_was_lost_is_not_recorded_with_other_bytes_than_our_records_have(
    mill: Mill, name: str
) -> None:
    mill.change("DELETE FROM mill_manifest WHERE store = '1' AND content_id = :name", name=name)
    if name == "copied":  # what the audit log has lost, the row of the copy still knows
        mill.change("DELETE FROM mill_audit_log WHERE content_id = :name", name=name)
    mill.inner.put("s", name, io.BytesIO(b"forged"))
    assert mill.check(name) == ("B25", "FAILURE")
    mill.settle()
    assert mill.world.manifest.get("1", "s", name) is None
    (cause,) = mill.causes()
    assert "the manifest does not list this object, and the audit log, or the manifest for another store, has" in cause


def test_row_10_a_change_that_a_copy_contradicts_is_never_recorded_by_itself(mill: Mill) -> None:
    mill.inner.put("s", "copied", io.BytesIO(b"changed past the audit"))
    assert mill.check("copied") == ("B9", "FAILURE")
    mill.settle()
    assert mill.world.manifest.get("1", "s", "copied").sha256 == mill.sum
    (cause,) = mill.causes()
    assert "was rewritten: record the change instead" in cause


def test_row_11_a_delete_that_is_fully_processed_is_nothing(mill: Mill) -> None:
    mill.world.stores["1"].delete("s", "alone")
    mill.work()
    assert mill.check("alone") == ("B21", "IGNORE")
    mill.change("DELETE FROM mill_manifest WHERE store = '1' AND content_id = 'alone'")
    mill.world.clock.advance(1)
    assert mill.check("alone") == ("B20", "IGNORE")
    assert mill.open_tasks() == {}


def test_an_audit_that_is_behind_accuses_nobody(mill: Mill) -> None:
    mill.world.stores["1"].put("s", "alone", io.BytesIO(b"new, and not processed yet"))
    now = mill.world.clock.now() * 1000
    os.utime(mill.inner.path_of("s", "alone"), ns=(now, now))
    assert mill.check("alone") == ("B11", "IGNORE")
    mill.settle()
    assert mill.is_in_order("alone")
