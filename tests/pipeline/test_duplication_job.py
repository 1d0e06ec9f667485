"""Duplication planned on Spark: what the mill's own planner finds, and copies as its workers make them."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from millstream.cli.main import run
from millstream.core.clock import SystemClock
from millstream.mill.audit.audit_log import AuditLog
from millstream.mill.audit.audit_lookup import AuditLookup
from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.duplication.differences import ItemDifference, count_differences
from millstream.mill.duplication.planning import plan_space_duplication
from millstream.mill.manifest import Manifest, ManifestEvent
from millstream.mill.policies.policy import Pair
from millstream.mill.tasks import Duplicate, decode_task
from millstream.node import Node
from millstream.node.spark import SparkPart
from millstream.pipeline.errors import UnlistedSpaceError
from millstream.pipeline.jobs import duplication
from millstream.pipeline.jobs.duplication import (
    DuplicationPlan,
    copies_cut_short,
    copy_missing,
    enqueue,
    plan_duplication,
)
from millstream.settings import Settings
from millstream.stores import LocalStore, all_entries
from millstream.stores.audit import AuditAction, AuditEvent, AuditOutbox
from suite.engines import open_engine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PAIR = Pair("a", "b")
LATER = 2**60
"""A time after any file of a test was made."""


class Stores:
    """Two stores whose copies of a space differ in every way, and a manifest that knows some of it."""

    def __init__(self, folder: Path, seed: int, count: int = 120) -> None:
        self.stores = {name: LocalStore(folder / name) for name in ("a", "b")}
        engine = open_engine(f"sqlite:///{folder / 'manifest.db'}")
        self.manifest, self.outbox, self.log = Manifest(engine), AuditOutbox(engine), AuditLog(engine)
        self.providers = ConfiguredStores(self.stores, SystemClock())
        draw = random.Random(seed)
        for store in self.stores.values():
            store.create_space("docs")
        for number in range(count):
            self.add(f"{draw.choice(['', 'ü/', 'x y/'])}item-{number:03}", draw)

    def add(self, name: str, draw: random.Random) -> None:
        body = draw.randbytes(draw.randrange(200))
        shown = draw.choice([("a", "b"), ("a", "b"), ("a",), ("b",)])
        for store in shown:
            changed = store == "b" and draw.random() < 0.2
            info = self.stores[store].put("docs", name, io.BytesIO(b"other" if changed else body))
            if draw.random() < 0.8:
                time = draw.choice([1, LATER, LATER])
                self.manifest.writer.record([ManifestEvent(store, "docs", name, time, info.checksum(), info.size)])
        if "a" not in shown and draw.random() < 0.3:
            deleted = AuditEvent(
                AuditAction.DELETE_CONTENT, "ann", draw.choice([1, LATER, LATER]), "me", "a", "file", "docs", name
            )
            self.outbox.add([deleted])
        elif "a" not in shown and draw.random() < 0.5:
            self.manifest.writer.record([ManifestEvent("a", "docs", name, LATER, deleted=True)])

    @property
    def urls(self) -> dict[str, str]:
        return {name: store.url for name, store in self.stores.items()}

    def plan(self, spark: SparkSession, folder: Path, run: str = "run") -> DuplicationPlan:
        return plan_duplication(
            spark, folder / "jobs", run, self.urls, self.manifest, pair=PAIR, space="docs", outbox=self.outbox
        )


class Tasks:
    """A queue that keeps what is put on it."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def put(self, bodies: Sequence[bytes]) -> None:
        tasks = [decode_task(body) for body in bodies]
        self.names += [task.content_id for task in tasks if isinstance(task, Duplicate)]


@pytest.mark.smoke
@pytest.mark.parametrize("seed", [2, 3])
def test_the_plan_and_its_tasks_are_those_of_the_planner_in_process(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    stores = Stores(tmp_path, seed)
    planned = stores.plan(spark, tmp_path)
    wanted = count_differences(stores.providers, stores.manifest, PAIR, "docs", outbox=stores.outbox)
    recorded = count_differences(stores.providers, stores.manifest, PAIR, "docs")
    assert wanted.deletes > recorded.deletes  # some wait in the outbox
    assert plain(planned.plan) == plain(wanted)
    assert min(planned.record.counts.values()) > 0
    ours, theirs = Tasks(), Tasks()
    enqueue(planned, ours)  # type: ignore[arg-type]
    planner = (stores.providers, stores.manifest, PAIR, "docs")
    plan_space_duplication(*planner, theirs, outbox=stores.outbox)  # type: ignore[arg-type]
    assert ours.names == theirs.names
    assert stores.plan(spark, tmp_path).reused


def test_deletions_that_wait_are_merged_with_the_manifest_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duplication, "_ASKED", 3)
    monkeypatch.setattr(duplication, "_GROUP_BATCHES", 1)
    engine = open_engine(f"sqlite:///{tmp_path / 'node.db'}")
    manifest, outbox = Manifest(engine), AuditOutbox(engine)
    names = [f"{letter}{number:02}" for letter in ("a", "ü") for number in range(20)]
    known = names[5:35:2]
    manifest.writer.record([ManifestEvent("a", "docs", name, 5, "0" * 64, 1) for name in known])
    for name in [*names[:10], *names[25:]]:
        outbox.add([AuditEvent(AuditAction.DELETE_CONTENT, "ann", LATER, "me", "a", "file", "docs", name)])
    deleted = {*names[:10], *names[25:]}
    monkeypatch.setattr(outbox, "pending", None)  # all names at once
    file = tmp_path / "manifest.parquet"
    with file.open("wb") as target, duplication._waiting_deletions(outbox, "a", "docs") as deletions:
        duplication._write_manifest(target, manifest, PAIR, "docs", deletions)
    rows = pq.read_table(file).to_pylist()
    assert sorted((row["store"], row["content_id"], row["deleted"]) for row in rows) == sorted(
        ("a", name, name in deleted) for name in {*known, *deleted}
    )
    groups = pq.ParquetFile(file).metadata
    assert max(groups.row_group(number).num_rows for number in range(groups.num_row_groups)) <= len(known)


def plain(plan: object) -> dict[str, object]:
    import msgspec

    found: dict[str, object] = msgspec.structs.asdict(plan)  # type: ignore[arg-type]
    return found


def test_a_bulk_copy_makes_first_copies_alone_and_records_them(spark: SparkSession, tmp_path: Path) -> None:
    stores = Stores(tmp_path, 3)
    before = {name: read(stores.stores["b"], name) for name in listed(stores.stores["b"])}
    planned = stores.plan(spark, tmp_path)
    missing = set(planned.names(ItemDifference.COPY))
    gone, replaced, unaudited = sorted(missing)[:3]
    stores.stores["a"].delete("docs", gone)  # gone since: nothing says that this is right
    stores.stores["b"].put("docs", replaced, io.BytesIO(b"a copy that was made since"))
    before[replaced] = b"a copy that was made since"
    stores.log.append([AuditEvent(AuditAction.ADD_CONTENT, "ann", 1, "me", "a", "file", "docs", unaudited, "0" * 64)])
    lookup = AuditLookup(stores.log, stores.outbox, {"a"})
    copied = copy_missing(spark, planned, stores.urls, stores.manifest, audit_lookup=lookup)
    assert (copied.record.rows_in, copied.record.rows_out) == (len(missing), len(missing) - 2)
    assert sorted(copied.left()) == [replaced, unaudited]
    tasks = Tasks()
    enqueue(planned, tasks, copied=copied)  # type: ignore[arg-type]
    assert missing & {*tasks.names} == {replaced, unaudited}
    for name in missing - {gone, replaced, unaudited}:
        assert read(stores.stores["b"], name) == read(stores.stores["a"], name)
        row = stores.manifest.get("b", "docs", name)
        assert row is not None
        assert row.sha256 == stores.stores["b"].info("docs", name).checksum()
    assert {name: read(stores.stores["b"], name) for name in before} == before
    assert copy_missing(spark, planned, stores.urls, stores.manifest).record == copied.record
    again = stores.plan(spark, tmp_path, "another")
    assert set(again.names(ItemDifference.COPY)) == {unaudited}


def test_p6_bulk_copies_that_were_cut_short_go_on_with_the_bins_that_are_left(
    spark: SparkSession, tmp_path: Path
) -> None:
    stores = Stores(tmp_path, 5)
    big = random.Random(5).randbytes(1 << 20)
    stores.stores["a"].put("docs", "big", io.BytesIO(big))
    planned = stores.plan(spark, tmp_path)
    missing = set(planned.names(ItemDifference.COPY))
    whole = copy_missing(spark, planned, stores.urls, stores.manifest, bin_bytes=1 << 19)
    bins = list(planned.folder.glob("copies-*/attempt-*/data/bin-*.parquet"))
    contents = {path: pq.read_table(path)["content_id"].to_pylist() for path in bins}
    assert sorted(itertools.chain(*contents.values())) == sorted(missing)
    (last,) = (path for path, names in contents.items() if names[-1] == "big")  # nobody waits behind what is large
    assert 1 < len(bins) <= whole.record.counts["bins"]
    assert copies_cut_short(tmp_path / "jobs", PAIR, "docs") is None

    (record,) = planned.folder.glob("copies-*/job.json")
    record.unlink()
    lost = min(path for path in contents if path != last)
    names = set(contents[lost])
    lost.write_bytes(lost.read_bytes()[:-1])
    for name in names:
        stores.stores["b"].delete("docs", name)
    stamps = {path: path.stat().st_mtime_ns for path in bins if path != lost}
    assert copies_cut_short(tmp_path / "jobs", PAIR, "docs") == "run"
    assert copies_cut_short(tmp_path / "jobs", PAIR, "other") is None
    again = copy_missing(spark, planned, stores.urls, stores.manifest, bin_bytes=1 << 30)
    assert (again.record.rows_out, again.failures) == (len(missing), ())
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    assert {name: read(stores.stores["b"], name) for name in missing} == {
        name: read(stores.stores["a"], name) for name in missing
    }
    assert all(stores.manifest.get("b", "docs", name) is not None for name in missing)


def test_p8_a_store_that_cannot_be_listed_makes_no_plan(spark: SparkSession, tmp_path: Path) -> None:
    stores = Stores(tmp_path, 4, count=3)
    urls = stores.urls | {"a": (tmp_path / "nowhere").as_uri()}
    with pytest.raises(UnlistedSpaceError, match=r"cannot list .*, so nothing was planned"):
        plan_duplication(spark, tmp_path / "jobs", "run", urls, stores.manifest, pair=PAIR, space="docs")


def test_a_plan_for_which_a_store_could_not_be_listed_is_made_by_its_name_when_the_store_is_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    stores = Stores(tmp_path, 4, count=3)
    (tmp_path / "a").rename(tmp_path / "away")
    with pytest.raises(UnlistedSpaceError):
        plan_duplication(spark, tmp_path / "jobs", "run", stores.urls, stores.manifest, pair=PAIR, space="docs")
    (tmp_path / "away").rename(tmp_path / "a")
    planned = plan_duplication(spark, tmp_path / "jobs", "run", stores.urls, stores.manifest, pair=PAIR, space="docs")
    again = plan_duplication(spark, tmp_path / "jobs", "run", stores.urls, stores.manifest, pair=PAIR, space="docs")
    assert (planned.reused, again.reused) == (False, True)


def listed(store: LocalStore) -> list[str]:
    return [entry.content_id for entry in all_entries(store, "docs")]


def read(store: LocalStore, name: str) -> bytes:
    with store.open("docs", name) as file:
        return file.read()


def test_the_command_copies_by_policy_and_holds_what_goes_too_far(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    @contextlib.contextmanager
    def shared(_: SparkPart, **_options: bool) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(SparkPart, "session", shared)
    copies = LocalStore(tmp_path / "copies", create=True)
    config = tmp_path / "millstream.toml"
    source = LocalStore(tmp_path / "stores" / "primary")
    config.write_text(f'[stores.primary]\nurl = "{source.url}"\n[stores.second]\nurl = "{copies.url}"\n')
    options = ["--data", str(tmp_path), "--config", str(config), "--json"]
    policy = {"spaceDuplicationStorePolicies": {"docs": [{"srcStoreId": "primary", "destStoreId": "second"}]}}
    with Node.open(Settings(data=str(tmp_path)), create=True) as node:
        store = node.stores.providers["primary"]
        store.create_space("docs")
        for number in range(20):
            store.put("docs", f"item-{number}", io.BytesIO(b"%d" % number))
        folder, account = node.settings.policy_folder, node.settings.mill.account
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{account}-duplication-policy.json").write_text(json.dumps(policy))
    (folder / "duplication-accounts.json").write_text(json.dumps([account]))
    assert run(["pipeline", "duplication", "--dry-run", *options]) == 0
    assert told(capfd)["copies"] == 20
    assert run(["pipeline", "duplication", "--execute", *options]) == 0
    assert listed(copies) == listed(source)
    capfd.readouterr()
    assert run(["pipeline", "duplication", *options]) == 0
    assert told(capfd)["same"] == 20
    for entry in list(all_entries(copies, "docs")):
        source.delete("docs", entry.content_id)
    assert run(["pipeline", "duplication", "--dry-run", *options]) == 5
    assert told(capfd)["hold_reason"]
    assert run(["pipeline", "duplication", *options]) == 5
    assert told(capfd)["hold"]


def told(capfd: pytest.CaptureFixture[str]) -> dict[str, object]:
    found: dict[str, object] = json.loads(capfd.readouterr().out.splitlines()[-1])
    return found
