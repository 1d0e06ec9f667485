"""What was changed behind the audit of a source, or has a damaged record, spreads to no copy."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.mill.audit.audit_log import AuditLog
from millstream.mill.audit.audit_lookup import AuditLookup
from millstream.mill.duplication.duplicator import DuplicationProcessor
from millstream.mill.duplication.source_recorder import record_space
from millstream.mill.errors import DuplicationError
from millstream.mill.item_ref import ItemRef
from millstream.mill.tasks import Duplicate
from millstream.stores import LocalStore
from millstream.stores.audit import AuditedStore, AuditOutbox
from millstream.testing.damage import forge, garble_sidecar

SOURCE, COPY, TASK = ItemRef("1", "s", "a"), ItemRef("2", "s", "a"), Duplicate("1", "2", "s", "a")


class Audited:
    """The source "1" is audited and holds the item "a" with the bytes "good"; so does its copy in "2"."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.outbox, self.log = AuditOutbox(world.engine, world.clock), AuditLog(world.engine)
        self.inner: LocalStore = world.stores["1"]
        world.stores["1"] = AuditedStore(self.inner, self.outbox, "1")
        world.stores["1"].create_space("s")
        self.put(b"good")
        world.put(COPY, b"good")
        world.record(SOURCE, self.inner.info("s", "a").checksum(), size=4)

    def put(self, body: bytes) -> None:
        """Through the audit, as far as its log."""
        self.world.clock.advance(1)
        self.world.stores["1"].put("s", "a", io.BytesIO(body))
        events = self.outbox.events()
        self.log.append(events)
        self.outbox.remove(event.number for event in events)

    @property
    def processor(self) -> DuplicationProcessor:
        lookup = AuditLookup(self.log, self.outbox, ["1"])
        return DuplicationProcessor(self.world.providers, self.world.manifest, audit_lookup=lookup)

    def duplicate(self) -> str:
        group = self.processor.process_group([TASK])[0]
        return (group or self.processor.process(TASK, 1)).summary.split()[0]


@pytest.fixture
def audited(new_world: Callable[..., Any], tmp_path: Path) -> Audited:
    return Audited(new_world({name: LocalStore(tmp_path / name) for name in "12"}))


@pytest.mark.parametrize("has_copy", [True, False])
def test_a_source_that_was_forged_behind_its_audit_is_not_copied(audited: Audited, has_copy: bool) -> None:
    if not has_copy:
        audited.world.stores["2"].delete("s", "a")
    forge(audited.inner, "s", "a", b"evil")
    record_space(audited.world.providers, audited.world.manifest, "1", "s")
    with pytest.raises(DuplicationError, match="D25: the item was changed at the source without the node"):
        audited.duplicate()
    assert audited.world.has(COPY) == has_copy
    assert not has_copy or audited.world.read(COPY) == b"good"
    row = audited.world.manifest.get("1", "s", "a")
    assert row is not None and row.sha256 != audited.inner.info("s", "a").checksum(), "nor is it recorded"


def test_a_change_that_the_audit_knows_is_copied(audited: Audited) -> None:
    audited.put(b"better")
    assert audited.duplicate() == "D11"
    assert audited.world.read(COPY) == b"better"


def test_a_copy_whose_sidecar_is_damaged_is_made_again(audited: Audited) -> None:
    garble_sidecar(audited.world.stores["2"], "s", "a")
    assert audited.duplicate() == "D11"
    assert audited.world.stores["2"].info("s", "a").checksum() == audited.inner.info("s", "a").checksum()


def test_a_source_whose_sidecar_is_damaged_is_named_at_once_and_left_alone(audited: Audited) -> None:
    garble_sidecar(audited.inner, "s", "a")
    with pytest.raises(DuplicationError, match=r"D13: .* is damaged") as caught:
        audited.duplicate()
    assert not caught.value.transient
    assert audited.world.read(COPY) == b"good"
