"""What a restore takes from copies beside which the record is damaged."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.mill.item_ref import ItemRef
from millstream.mill.restore.listing import RestorableItem
from millstream.mill.restore.restorer import RestoredItem, RestoreOutcome, Restorer
from millstream.mill.restore.targets import StoreTarget
from millstream.stores import LocalStore
from millstream.testing.damage import flip_bit

BODY = b"the right bytes"


@pytest.fixture
def world(new_world: Callable[..., Any], tmp_path: Path) -> Any:
    """Two local stores with the same item, and one to restore to."""
    made = new_world({name: LocalStore(tmp_path / name) for name in ("1", "2", "target")})
    for store in "12":
        made.put(ItemRef(store, "s", "a"), BODY, owner="ann")
    made.stores["target"].create_space("s")
    return made


def damage_record(folder: Path) -> None:
    digest = hashlib.sha256(b"a").hexdigest()
    (folder / ".millstream" / "sidecars" / "s" / digest[0] / f"{digest}.json").write_bytes(b"{}")


def restore(world: Any) -> RestoredItem:
    item = RestorableItem(
        content_id="a",
        sha256=hashlib.sha256(BODY).hexdigest(),
        size=len(BODY),
        mimetype="text/plain",
        copies=tuple(ItemRef(store, "s", "a") for store in "12"),
    )
    (done,) = Restorer(world.providers, StoreTarget(world.stores["target"], "s")).run([item])
    return done


def test_a_whole_copy_is_taken_before_one_whose_record_is_damaged(world: Any, tmp_path: Path) -> None:
    damage_record(tmp_path / "1")
    done = restore(world)
    assert (done.outcome, done.store, done.reason) == (RestoreOutcome.RESTORED, "2", "")
    assert [copy.store for copy in done.bad] == ["1"]
    assert world.stores["target"].info("s", "a").properties == {"owner": "ann"}


def test_the_bytes_of_a_copy_whose_record_is_damaged_are_restored_if_there_is_no_other(
    world: Any, tmp_path: Path
) -> None:
    damage_record(tmp_path / "1")
    damage_record(tmp_path / "2")
    done = restore(world)
    assert (done.outcome, done.store, [copy.store for copy in done.bad]) == (RestoreOutcome.RESTORED, "1", ["2"])
    assert done.reason == "its record in store 1 is damaged, so that it has no properties"
    info = world.stores["target"].info("s", "a")
    assert (world.read(ItemRef("target", "s", "a")), info.mimetype, info.properties) == (BODY, "text/plain", {})
    assert restore(world).outcome == RestoreOutcome.PRESENT


def test_damaged_bytes_beside_a_damaged_record_are_not_restored(world: Any, tmp_path: Path) -> None:
    for store in "12":
        flip_bit(world.stores[store].path_of("s", "a"))
        damage_record(tmp_path / store)
    done = restore(world)
    assert (done.outcome, done.reason) == (RestoreOutcome.FAILED, "no copy of the item can be used")


def test_what_was_restored_to_a_store_and_has_rotted_since_is_not_there_already(world: Any) -> None:
    assert restore(world).outcome == RestoreOutcome.RESTORED
    assert restore(world).outcome == RestoreOutcome.PRESENT
    flip_bit(world.stores["target"].path_of("s", "a"))
    done = restore(world)
    assert (done.outcome, done.reason) == (
        RestoreOutcome.DIFFERENT, "a different file exists there (--overwrite replaces it)",
    )  # fmt: skip
