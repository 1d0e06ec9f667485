"""The state of a space at a time: what the audit log says of it, and what the copies still have."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.mill.audit.audit_log import AuditLog
from millstream.mill.audit.audit_lookup import AuditLookup
from millstream.mill.item_ref import ItemRef
from millstream.mill.restore.listing import ItemListing, RestorableItem
from millstream.mill.restore.past import PastListing, PastUnknownError
from millstream.mill.restore.restorer import RestoreOutcome, Restorer
from millstream.stores.audit import AuditAction, AuditEvent, AuditOutbox

ADD, DELETE = AuditAction.ADD_CONTENT, AuditAction.DELETE_CONTENT


class Past:
    """Stores "1" (audited) and "2" (a copy), and what was done to them at small numbers of microseconds."""

    def __init__(self, world: Any) -> None:
        self.world, self.log, self.count = world, AuditLog(world.engine), 0
        lookup = AuditLookup(self.log, AuditOutbox(world.engine, world.clock), ["1"])
        listing = ItemListing(world.providers, world.manifest, "s", sources=["1"], audit_lookup=lookup)
        self.past = PastListing(self.log, world.manifest, listing, "s", audited=["1"])

    def add(self, at: int, name: str, body: bytes) -> None:
        sha256 = self.world.put(ItemRef("1", "s", name), body)
        self.world.put(ItemRef("2", "s", name), body)
        self._told(ADD, at, name, sha256)

    def delete(self, at: int, name: str) -> None:
        self._told(DELETE, at, name, None)

    def _told(self, action: AuditAction, at: int, name: str, sha256: str | None) -> None:
        self.count += 1
        event = AuditEvent(action, "ann", at, "local", "1", "", "s", name, sha256, 1, number=self.count)
        self.log.append([event])

    def items(self, at: int, prefix: str = "") -> dict[str, RestorableItem]:
        return {item.content_id: item for item in self.past.items(at, prefix)}


@pytest.fixture
def past(world: Any) -> Past:
    return Past(world)


def test_items_that_were_added_later_are_left_out_and_deleted_ones_come_back(past: Past) -> None:
    past.add(10, "a", b"a")
    past.add(20, "b", b"b")
    past.delete(30, "a")
    assert list(past.items(15)) == ["a"]
    assert list(past.items(25)) == ["a", "b"]
    assert list(past.items(35)) == ["b"]
    assert list(past.items(25, "b")) == ["b"]
    assert {copy.store for copy in past.items(25)["a"].copies} == {"1", "2"}


def test_bytes_that_were_replaced_since_are_listed_as_lost(past: Past) -> None:
    past.add(10, "a", b"old")
    past.add(20, "a", b"new")
    assert past.items(25)["a"].copies
    item = past.items(15)["a"]
    assert (item.copies, "replaced or deleted since" in item.reason) == ((), True)
    (result,) = Restorer(past.world.providers, None).run([item])
    assert (result.outcome, result.reason) == (RestoreOutcome.FAILED, item.reason)


def test_bytes_that_are_kept_under_another_name_are_taken_from_there(past: Past) -> None:
    past.add(10, "before", b"one")
    past.add(20, "after", b"one")
    past.world.clock.sleep(1)
    for store in "12":
        past.world.record(ItemRef(store, "s", "before"), None, deleted=True)
    past.delete(20, "before")
    item = past.items(15)["before"]
    assert [copy.content_id for copy in item.copies] == ["after", "after"]
    (result,) = Restorer(past.world.providers, None).run([item])
    assert (result.content_id, result.outcome) == ("before", RestoreOutcome.VERIFIED)


def test_a_time_before_the_first_event_is_refused(past: Past) -> None:
    with pytest.raises(PastUnknownError, match="has no events"):
        past.items(5)
    past.add(10, "a", b"a")
    with pytest.raises(PastUnknownError, match=r"begins at .* with --as-of"):
        past.items(9)


def test_items_with_records_that_differ_are_decided_by_the_source(world: Any) -> None:
    lookup = AuditLookup(AuditLog(world.engine), AuditOutbox(world.engine, world.clock), [])
    for name, (one, two) in {"same": (b"x", b"x"), "newer": (b"new", b"old")}.items():
        world.put(ItemRef("1", "s", name), one)
        world.put(ItemRef("2", "s", name), two)

    def listed(*sources: str) -> dict[str, RestorableItem]:
        listing = ItemListing(world.providers, world.manifest, "s", sources=sources, audit_lookup=lookup)
        return {item.content_id: item for item in listing.items()}

    assert [copy.store for copy in listed("1")["newer"].copies] == ["1"]
    assert len(listed("1")["same"].copies) == 2
    assert (listed()["newer"].copies, "our records differ" in listed()["newer"].reason) == ((), True)
