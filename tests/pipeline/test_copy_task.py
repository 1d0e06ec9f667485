"""What a copying task of the job duplication does without the manifest, without Spark."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millstream.mill.policies.policy import Pair
from millstream.pipeline.planning.binned_work import bin_name
from millstream.pipeline.tasks.copy_task import LEFT, copy_part
from millstream.stores import LocalStore

BODY = b"as planned"
SUM = hashlib.sha256(BODY).hexdigest()


@pytest.fixture
def stores(tmp_path: Path) -> dict[str, LocalStore]:
    """The stores "a", with an item, and "b", with the empty space."""
    made = {name: LocalStore(tmp_path / name) for name in ("a", "b")}
    for store in made.values():
        store.create_space("docs")
    made["a"].put("docs", "x", io.BytesIO(BODY))
    return made


def copied(stores: dict[str, LocalStore], folder: Path, audited: str | None = None, **more: Any) -> dict[str, Any]:
    """The row of the item "x" after a task had it to copy."""
    plan = pa.RecordBatch.from_pylist([{"bin": 0, "content_id": "x", "audited": audited, "size": len(BODY)}])
    plan = plan.cast(pa.schema([("bin", pa.int32()), ("content_id", pa.string()), ("audited", pa.string()),
                                ("size", pa.int64())]))  # fmt: skip
    urls = {name: store.url for name, store in stores.items()}
    list(copy_part([plan], urls, Pair("a", "b"), "docs", folder, **more))
    (row,) = pq.read_table(folder / bin_name(0)).to_pylist()
    return row


def there(store: LocalStore) -> list[str]:
    return [entry.content_id for entry in store.entries("docs")]


def test_what_is_missing_is_copied(stores: dict[str, LocalStore], tmp_path: Path) -> None:
    row = copied(stores, tmp_path, SUM, filled={"a"})
    assert (row["summary"][:3], row["error"], row["bytes"], there(stores["b"])) == ("D12", None, len(BODY), ["x"])
    assert copied(stores, tmp_path)["summary"].startswith("D7 nothing")


def test_p8_a_copy_that_was_made_since_the_plan_is_not_replaced(stores: dict[str, LocalStore], tmp_path: Path) -> None:
    stores["b"].put("docs", "x", io.BytesIO(b"the good copy"))
    row = copied(stores, tmp_path)
    assert (row["summary"], row["error"], row["bytes"]) == (LEFT, None, 0)
    assert stores["b"].info("docs", "x").size == len(b"the good copy")


def test_a_source_that_was_changed_behind_its_audit_is_left_to_the_workers(
    stores: dict[str, LocalStore], tmp_path: Path
) -> None:
    assert copied(stores, tmp_path, "0" * 64)["summary"] == LEFT
    assert there(stores["b"]) == []


def test_nothing_is_written_below_the_mount_point_of_a_store_that_should_have_items(
    stores: dict[str, LocalStore], tmp_path: Path
) -> None:
    stores["b"].delete_space("docs")
    row = copied(stores, tmp_path, filled={"b"})
    assert "is its disk mounted?" in row["error"]
    assert stores["b"].spaces() == []
