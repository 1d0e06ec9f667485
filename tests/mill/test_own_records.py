"""What our own records are worth in a repair: the manifest and the audit log, and not what stands beside a copy."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from millstream.mill.audit.audit_log import AuditLog
from millstream.mill.audit.audit_lookup import AuditLookup
from millstream.mill.audit.audit_processor import manifest_event
from millstream.mill.configured_stores import QUARANTINE
from millstream.mill.errors import ChangePendingError
from millstream.mill.item_ref import ItemRef
from millstream.mill.repair.repair_log import RepairLog
from millstream.mill.repair.repairer import Repairer
from millstream.mill.repair.vote import RepairDecision
from millstream.stores import LocalStore
from millstream.stores.audit import AuditAction, AuditedStore, AuditEvent, AuditOutbox
from millstream.testing.damage import flip_bit

GOOD, FORGED = b"what was put there", b"what a forger put there"


class Copies:
    """Item "a" in the audited stores "1" (the source), "2" and "3", whose audit is processed."""

    def __init__(self, world: Any) -> None:
        self.world, self.inner = world, dict(world.stores)
        self.outbox, self.log = AuditOutbox(world.engine, world.clock), AuditLog(world.engine)
        for name, store in self.inner.items():
            world.stores[name] = AuditedStore(store, self.outbox, name, account="acme", user="ann")
        for name in self.inner:
            self.write(name, GOOD)
        self.process()

    def write(self, store: str, body: bytes) -> None:
        self.world.stores[store].create_space("s")
        self.world.stores[store].put("s", "a", io.BytesIO(body))

    def process(self) -> None:
        """Record what waits in the outbox, as the workers do."""
        events = self.outbox.events()
        self.log.append(events)
        self.world.manifest.writer.record([row for row in map(manifest_event, events) if row is not None])
        self.outbox.remove(event.number for event in events)

    def forge(self, *stores: str) -> None:
        """Other bytes with a sidecar that fits them, past the audit."""
        for store in stores:
            self.inner[store].put("s", "a", io.BytesIO(FORGED))

    def change(self, statement: str, store: str) -> None:
        with self.world.engine.begin() as connection:
            assert connection.execute(sa.text(f"{statement} WHERE store = '{store}'")).rowcount == 1

    def repairer(self) -> Repairer:
        world, lookup = self.world, AuditLookup(self.log, self.outbox, ["1", "2", "3"])
        log = RepairLog(world.engine)
        return Repairer(world.providers, world.manifest, log, sources=lambda _: {"1"}, audit_lookup=lookup)

    def bodies(self) -> list[bytes]:
        return [self.world.read(ItemRef(store, "s", "a")) for store in "123"]


@pytest.fixture
def copies(new_world: Callable[..., Any], tmp_path: Path) -> Copies:
    return Copies(new_world({name: LocalStore(tmp_path / name) for name in "123"}))


def test_two_copies_that_were_forged_alike_are_repaired_from_the_third(copies: Copies) -> None:
    copies.forge("2", "3")
    result = copies.repairer().repair("s", "a")
    assert (result.repaired, result.refused, copies.bodies()) == (2, (), [GOOD] * 3)


def test_a_forged_source_and_copy_do_not_outvote_the_third_and_the_source_stays_as_it_is(copies: Copies) -> None:
    copies.forge("1", "2")
    result = copies.repairer().repair("s", "a")
    assert [event.store for event in result.events if event.healed] == ["2"]
    assert "store 1 is the source, and the item was rewritten" in result.refused[0].reason
    assert copies.bodies() == [FORGED, GOOD, GOOD]


def test_a_person_may_have_a_rewritten_source_restored_and_its_bytes_are_kept(copies: Copies) -> None:
    copies.forge("1")
    refused = copies.repairer().repair("s", "a").refused
    assert "--restore-source" in refused[0].reason
    (event,) = copies.repairer().repair("s", "a", restore_source=True).events
    assert (event.store, event.healed, copies.bodies()) == ("1", True, [GOOD] * 3)
    assert copies.world.read(ItemRef("1", QUARANTINE, event.quarantined or "")) == FORGED


def test_copies_whose_records_are_all_damaged_are_repaired_from_the_bytes_that_our_records_agree_with(
    copies: Copies, tmp_path: Path
) -> None:
    for store in "23":
        for sidecar in (tmp_path / store / ".millstream" / "sidecars" / "s").rglob("*.json"):
            sidecar.write_bytes(b"garbage")
    copies.inner["1"].path_of("s", "a").write_bytes(b"rot")
    result = copies.repairer().repair("s", "a", restore_source=True)
    assert (result.repaired, result.refused, copies.bodies()) == (3, (), [GOOD] * 3)
    assert [copies.inner[store].info("s", "a").checksum() for store in "123"] == [result.plan.sha256] * 3


def test_bytes_that_only_the_copies_themselves_vouch_for_are_never_chosen(copies: Copies) -> None:
    copies.forge("1", "2", "3")
    plan = copies.repairer().plan("s", "a")
    assert (plan.decision, plan.sha256) == (RepairDecision.REFUSE, None)
    assert "all copies have the same content, but the manifest has another checksum" in plan.reasons[0]


@pytest.mark.parametrize(
    "damage", ["DELETE FROM mill_manifest", "UPDATE mill_manifest SET modified = modified + 1, sha256 = 'f'"]
)
def test_the_audit_log_is_the_evidence_where_the_manifest_row_of_a_rotted_copy_was_lost_or_damaged(
    copies: Copies, damage: str
) -> None:
    copies.change(damage, "2")
    flip_bit(copies.inner["2"].path_of("s", "a"))
    result = copies.repairer().repair("s", "a")
    assert (result.repaired, result.refused, copies.bodies()) == (1, (), [GOOD] * 3)
    copies.process()
    row = copies.world.manifest.get("2", "s", "a")
    assert row.sha256 == copies.world.manifest.get("1", "s", "a").sha256


def test_a_change_that_waits_in_the_outbox_is_not_undone(copies: Copies) -> None:
    copies.write("1", b"the next version")
    flip_bit(copies.inner["1"].path_of("s", "a"))
    assert "run `millstream mill duplicate` first" in copies.repairer().plan("s", "a").reasons[0]
    copies.world.stores["2"].delete("s", "a")
    copies.world.stores["3"].delete("s", "a")
    assert "no copy has the recorded checksum" in copies.repairer().plan("s", "a").reasons[0]


def test_nothing_is_decided_while_it_is_not_known_whether_a_change_happened(copies: Copies) -> None:
    intent = copies.outbox.begin(AuditEvent(AuditAction.ADD_CONTENT, "ann", 0, "acme", "2", "file", "s", "a"))
    with pytest.raises(ChangePendingError, match="store '2' has started and is not recorded as ended") as raised:
        copies.repairer().plan("s", "a")
    assert raised.value.transient
    copies.outbox.cancel(intent.event.number)
    assert copies.repairer().plan("s", "a").decision == RepairDecision.HEALTHY
