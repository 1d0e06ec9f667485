"""The manifest: events in any order, bulk results, and what it gives to others."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy.pool import StaticPool

from millstream.core.clock import VirtualClock
from millstream.mill.integrity_decision import BitCheckOutcome, CheckVerdict, ManifestAction
from millstream.mill.manifest import MANIFEST_SCHEMA, CheckResult, Manifest, ManifestEvent
from millstream.mill.manifest_table import IntactItems
from suite.engines import open_engine

A, B = "a" * 64, "b" * 64


def memory_manifest() -> Manifest:
    return Manifest(open_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False}))


def add(at: int, sha256: str = A, content_id: str = "c", store: str = "1") -> ManifestEvent:
    return ManifestEvent(store, "s", content_id, at, sha256, size=at)


def delete(at: int, content_id: str = "c") -> ManifestEvent:
    return ManifestEvent("1", "s", content_id, at, deleted=True)


def found(verdict: CheckVerdict, **more: Any) -> CheckResult:
    values: dict[str, Any] = {"manifest": A, "provider": A, "content": A, "size": 5} | more
    return CheckResult("1", "s", "c", verdict, "B0", "kind", "detail", checked_at=99, **values)


EVENTS = [
    # events, expected (sha256, deleted) of the row
    ([add(1)], (A, False)),
    ([delete(1)], (None, True)),
    ([add(2, A), add(1, B)], (A, False)),
    ([add(2, A), add(2, B)], (B, False)),
    ([add(1, A), add(2, B)], (B, False)),
    ([add(1), delete(2)], (A, True)),
    ([add(2), delete(1)], (A, False)),
    ([delete(1), add(2)], (A, False)),
    ([delete(2), add(1)], (None, True)),
    ([add(1), delete(2), add(3, B)], (B, False)),
]


@pytest.mark.parametrize(("events", "expected"), EVENTS)
def test_an_event_older_than_the_row_is_ignored_and_one_of_equal_or_later_time_wins(
    events: list[ManifestEvent], expected: tuple[str | None, bool]
) -> None:
    one_by_one, at_once = memory_manifest(), memory_manifest()
    for event in events:
        one_by_one.writer.record([event])
    at_once.writer.record(events)
    row = one_by_one.get("1", "s", "c")
    assert row is not None
    assert (row.sha256, row.deleted) == expected
    other = at_once.get("1", "s", "c")
    assert other is not None
    assert other.deleted == row.deleted
    assert other.modified == row.modified


@settings(max_examples=40)
@given(st.lists(st.tuples(st.booleans(), st.sampled_from([A, B]), st.sampled_from("xyz")), max_size=12))
def test_the_last_event_in_time_decides_in_whatever_order_events_arrive(drawn: list[tuple[bool, str, str]]) -> None:
    events = [
        ManifestEvent("1", "s", content_id, at, None if deleted else sha256, deleted=deleted)
        for at, (deleted, sha256, content_id) in enumerate(drawn)
    ]
    last = {event.content_id: event for event in events}
    for shuffled in (events, events[::-1], events[1::2] + events[::2]):
        manifest = memory_manifest()
        for event in shuffled:
            manifest.writer.record([event])
        rows = {row["content_id"]: row for row in manifest.rows("1", "s").to_pylist()}
        assert rows.keys() == last.keys()
        for content_id, event in last.items():
            assert rows[content_id]["deleted"] == event.deleted
            assert event.deleted or rows[content_id]["sha256"] == event.sha256


def test_what_a_check_found_stays_while_the_checksum_stays_the_same() -> None:
    manifest = memory_manifest()
    manifest.writer.record([add(1)])
    manifest.writer.apply([found(CheckVerdict.SUCCESS)])
    manifest.writer.record([add(2)])
    row = manifest.get("1", "s", "c")
    assert row is not None
    assert (row.verified_at, row.outcome, row.detail) == (99, "SUCCESS", "B0 kind: detail")
    manifest.writer.record([add(3, B)])
    row = manifest.get("1", "s", "c")
    assert row is not None
    assert (row.verified_at, row.checked_at, row.outcome) == (None, None, None)


def test_only_bytes_that_match_count_as_verified() -> None:
    manifest = memory_manifest()
    manifest.writer.record([add(1)])
    manifest.writer.apply([found(CheckVerdict.SUCCESS, content="not-read")])
    row = manifest.get("1", "s", "c")
    assert row is not None
    assert (row.verified_at, row.checked_at) == (None, 99)


def test_a_result_about_an_item_that_was_deleted_meanwhile_changes_nothing() -> None:
    manifest = memory_manifest()
    manifest.writer.record([add(1), delete(2)])
    before = manifest.get("1", "s", "c")
    manifest.writer.apply(
        [found(CheckVerdict.FAILURE, action=ManifestAction.MARK_MISSING), found(CheckVerdict.SUCCESS)]
    )
    assert manifest.get("1", "s", "c") == before


def test_a_result_about_a_version_that_is_gone_changes_nothing() -> None:
    manifest = memory_manifest()
    manifest.writer.record([add(1, B)])
    manifest.writer.apply(
        [found(CheckVerdict.FAILURE, manifest=A, provider="c" * 64, action=ManifestAction.SET_TO_STORE)]
    )
    row = manifest.get("1", "s", "c")
    assert row is not None
    assert (row.sha256, row.outcome) == (B, None)


HOUR = 3600 * 1_000_000
DAY = 24 * HOUR


@pytest.mark.parametrize(
    ("recorded", "checked_at", "is_written"),
    [
        (-2 * DAY, -2 * DAY, True),  # written twice
        (-2 * DAY, -3 * DAY, False),  # of a sweep that was resumed
        (0, -DAY, False),
        (60_000_000, 0, True),  # checked just now; the clock of the other member is ahead
        (60_000_000, -DAY, False),  # an old result, too
        (2 * DAY, -DAY, True),  # a clock that was wrong
        (2 * DAY, 0, True),
    ],
)
def test_p9_an_older_result_does_not_replace_the_last_check(recorded: int, checked_at: int, is_written: bool) -> None:
    clock = VirtualClock()
    for is_intact in (False, True):
        manifest = Manifest(
            open_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False}), clock
        )
        manifest.writer.record([add(1)])
        damaged = msgspec.structs.replace(found(CheckVerdict.FAILURE, content=B), checked_at=clock.now() + recorded)
        manifest.writer.apply([damaged])
        good, at = found(CheckVerdict.SUCCESS), clock.now() + checked_at
        if is_intact:
            outcome = BitCheckOutcome("B1", CheckVerdict.SUCCESS, "intact", "all agree")
            manifest.writer.apply_intact(IntactItems("1", "s", at, outcome, ["c"], [A], [5]))
        else:
            manifest.writer.apply([msgspec.structs.replace(good, checked_at=at)])
        row = manifest.get("1", "s", "c")
        assert row is not None
        expected = ("SUCCESS", at, at) if is_written else ("FAILURE", damaged.checked_at, None)
        assert (row.outcome, row.checked_at, row.verified_at) == expected


def test_an_outcome_changes_the_row_as_it_asks() -> None:
    manifest = memory_manifest()
    manifest.writer.record([add(1)])
    manifest.writer.apply([found(CheckVerdict.FAILURE, action=ManifestAction.MARK_MISSING)])
    row = manifest.get("1", "s", "c")
    assert row is not None and row.missing
    manifest.writer.apply([found(CheckVerdict.FAILURE, provider=B, action=ManifestAction.SET_TO_STORE)])
    row = manifest.get("1", "s", "c")
    assert row is not None
    assert (row.sha256, row.size, row.missing) == (B, 5, False)


def test_an_unrecorded_item_gets_a_row_from_the_provider_unless_it_has_one_by_now() -> None:
    manifest = memory_manifest()
    manifest.writer.apply([found(CheckVerdict.FAILURE, manifest=None, provider=B, action=ManifestAction.CREATE)])
    row = manifest.get("1", "s", "c")
    assert row is not None
    assert (row.sha256, row.size, row.outcome) == (B, 5, "FAILURE")
    manifest.writer.apply([found(CheckVerdict.FAILURE, manifest=None, provider=A, action=ManifestAction.CREATE)])
    row = manifest.get("1", "s", "c")
    assert row is not None and row.sha256 == B


def test_a_retry_is_not_written_down() -> None:
    manifest = memory_manifest()
    manifest.writer.record([add(1)])
    manifest.writer.apply([found(CheckVerdict.RETRY)])
    row = manifest.get("1", "s", "c")
    assert row is not None and row.outcome is None


def test_rows_come_as_an_arrow_table_in_order_of_their_keys() -> None:
    manifest = memory_manifest()
    names = ["ä", "b", "a/b", "\U0001f600", "Z", "\ue000"]
    manifest.writer.record([add(n, content_id=name, store=store) for store in "21" for n, name in enumerate(names)])
    manifest.writer.record([delete(99, "b")])
    table = manifest.rows()
    assert table.schema == MANIFEST_SCHEMA
    keys = list(zip(*(table.column(name).to_pylist() for name in ("store", "space", "content_id")), strict=True))
    assert keys == sorted(itertools.product("12", ["s"], names), key=lambda key: tuple(map(str.encode, key)))
    assert manifest.rows("1", "s", live_only=True).num_rows == len(names) - 1
    assert manifest.rows("3").num_rows == 0
    assert manifest.count("1") == len(names) - 1
    assert manifest.spaces() == [("1", "s"), ("2", "s")]


def test_rows_can_be_walked_in_pages_and_looked_up_in_any_number() -> None:
    manifest = memory_manifest()
    names = [f"{n:05d}" for n in range(2500)]
    manifest.writer.record(add(1, content_id=name) for name in names)
    assert [row.content_id for row in manifest.scan("1", "s")] == names
    assert list(manifest.get_many("1", "s", [*names, "absent"])) == names


def test_the_replicas_of_an_item_are_its_rows_in_every_store() -> None:
    manifest = memory_manifest()
    manifest.writer.record([add(1, store=store) for store in "321"])
    manifest.writer.record([ManifestEvent("2", "s", "c", 5, deleted=True)])
    assert [(row.store, row.deleted) for row in manifest.replicas("s", "c")] == [
        ("1", False),
        ("2", True),
        ("3", False),
    ]


def test_the_schema_has_the_fields_of_a_row() -> None:
    row = memory_manifest()
    row.writer.record([add(1)])
    first = row.get("1", "s", "c")
    assert first is not None
    assert row.rows().to_pylist() == [msgspec.to_builtins(first)]
