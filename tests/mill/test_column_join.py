"""Streams in columns: joined as item by item, however they are cut, and compared as item by item."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from millstream.mill.column_join import ItemColumns, join_columns
from millstream.mill.duplication.differences import (
    ComparedItem,
    ItemDifference,
    compare,
    count_differences,
    differences,
)
from millstream.mill.duplication.source_recorder import record_space
from millstream.mill.manifest import ManifestEvent
from millstream.mill.policies.policy import Pair

PAIR = Pair("1", "2")
SIDE = st.dictionaries(st.text("abcdé", max_size=3), st.integers(0, 9), max_size=12)


def runs(side: dict[str, int], cuts: list[int]) -> Iterator[ItemColumns]:
    """*side* with its values in two columns, cut at *cuts*."""
    keys = sorted(side)
    ends = sorted({0, len(keys), *(cut for cut in cuts if cut < len(keys))})
    for start, end in zip(ends, [*ends[1:], len(keys)], strict=True):
        some = keys[start:end]
        yield ItemColumns(some, ([side[key] for key in some], [-side[key] for key in some]))


@given(SIDE, SIDE, st.lists(st.integers(0, 12)), st.lists(st.integers(0, 12)))
def test_a_join_has_every_id_once_in_order_with_the_columns_of_both(
    left: dict[str, int], right: dict[str, int], left_cuts: list[int], right_cuts: list[int]
) -> None:
    found = [
        row
        for run in join_columns(runs(left, left_cuts), runs(right, right_cuts), 2, 2)
        for row in zip(run.keys, *run.columns, strict=True)
    ]
    negative = lambda side, key: -side[key] if key in side else None  # noqa: E731
    assert found == [
        (key, left.get(key), negative(left, key), right.get(key), negative(right, key))
        for key in sorted({*left, *right})
    ]


ITEM = st.fixed_dictionaries(
    {
        "source": st.sampled_from([None, b"old", b"new", b"longer"]),
        "copy": st.sampled_from([None, b"old", b"longer"]),
        "row": st.sampled_from([None, b"old", b"new", "deleted"]),
        "copied": st.sampled_from([None, b"old", b"new", "deleted"]),
        "late": st.booleans(),
    }
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(ITEM, max_size=6), st.booleans())
def test_differences_are_those_that_single_items_have(
    new_world: Callable[..., Any], items: list[dict[str, Any]], record: bool
) -> None:
    world = new_world()
    try:
        for number, item in enumerate(items):
            put(world, f"{number}", item)
        for number in range(10, 15):  # plainly the same
            put(world, f"{number}", {"source": b"old", "copy": b"old", "row": b"old", "copied": b"old", "late": False})
        world.clock.advance(10)
        if record:
            first = record_space(world.providers, world.manifest, "1", "s")
            assert first.listed == len(world.stores["1"].entries("s"))
            assert record_space(world.providers, world.manifest, "1", "s").recorded == 0
        every = list(differences(world.providers, world.manifest, PAIR, "s"))
        assert every == one_by_one(world)
        unlike = [one for one in every if one.kind != ItemDifference.SAME]
        assert list(differences(world.providers, world.manifest, PAIR, "s", same=False)) == unlike
        plan = count_differences(world.providers, world.manifest, PAIR, "s")
        assert (plan.same, plan.copies, plan.copied) == (
            len(every) - len(unlike),
            sum(one.kind == ItemDifference.COPY for one in every),
            sum(one.kind != ItemDifference.COPY for one in every),
        )
        whole = count_differences(world.providers, world.manifest, PAIR, "s", everything=True)
        assert whole.bytes == sum(one.size for one in every)
    finally:
        world.close()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(ITEM, max_size=6))
@example([{"source": b"longer", "copy": b"longer", "row": b"old", "copied": b"old", "late": True}])
@example([{"source": b"longer", "copy": b"longer", "row": b"old", "copied": b"old", "late": False}])
def test_what_is_recorded_on_the_way_is_what_is_recorded_before(
    new_world: Callable[..., Any], items: list[dict[str, Any]]
) -> None:
    plans, rows = [], []
    for on_the_way in (False, True):
        world = new_world()
        try:
            for number, item in enumerate(items):
                put(world, f"{number}", item)
            world.clock.advance(10)
            if not on_the_way:
                record_space(world.providers, world.manifest, "1", "s")
            plans.append(count_differences(world.providers, world.manifest, PAIR, "s", record=on_the_way))
            rows.append(list(world.manifest.scan("1", "s")))
        finally:
            world.close()
    assert plans[0] == plans[1]
    assert [msgspec.structs.replace(row, modified=0) for row in rows[0]] == [
        msgspec.structs.replace(row, modified=0) for row in rows[1]
    ]


def put(world: Any, name: str, item: dict[str, Any]) -> None:
    for store, bytes_of, row_of in (("1", "source", "row"), ("2", "copy", "copied")):
        world.stores[store].create_space("s")
        if item[bytes_of] is not None:
            world.stores[store].put("s", name, io.BytesIO(item[bytes_of]))
        row = item[row_of]
        if row is not None:
            at = world.clock.now() - (1 if item["late"] else 0)
            deleted = row == "deleted"
            sha256 = None if deleted else row.hex()
            world.manifest.writer.record([ManifestEvent(store, "s", name, at, sha256, 3, deleted=deleted)])


def one_by_one(world: Any) -> list[ComparedItem]:
    ends = [{entry.content_id: entry for entry in world.stores[store].entries("s")} for store in "12"]
    rows = [world.manifest.get_many(store, "s", [f"{n}" for n in range(20)]) for store in "12"]
    found = []
    for name in sorted({*ends[0], *ends[1]}):
        source, copy = (end.get(name) for end in ends)
        kind, replaces = compare(source, copy, rows[0].get(name), rows[1].get(name), world.clock.now())
        found.append(ComparedItem(name, kind, source.size if source else 0, replaces))
    return found
