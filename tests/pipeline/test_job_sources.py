"""Jobs that read results of other jobs are run again where these were."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.mill.manifest import Manifest, ManifestEvent
from millstream.mill.policies.policy import Pair
from millstream.pipeline.jobs import duplication
from millstream.pipeline.jobs.duplication import BulkCopyResult, copy_missing, plan_duplication
from millstream.pipeline.jobs.integrity import run_integrity
from millstream.pipeline.jobs.report import run_report
from millstream.pipeline.output.job_folder import JobFolder
from millstream.stores import LocalStore
from millstream.testing.damage import flip_bit
from suite.engines import open_engine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def finish(folder: JobFolder) -> None:
    with folder.held():
        folder.begin()
        folder.data.mkdir()
        folder.commit(folder.record(rows_in=0, rows_out=0))


def test_a_job_is_finished_as_long_as_the_jobs_that_it_reads_are_not_run_again(tmp_path: Path) -> None:
    source = JobFolder(tmp_path, "source", {"run": "x"})
    reader = JobFolder(tmp_path, "reader", {"of": "x"}, sources=[source])
    for _ in range(2):
        finish(source)
        assert reader.committed() is None
        finish(reader)
        assert reader.committed() is not None
        assert JobFolder(tmp_path, "reader", {"of": "x"}).committed() is not None


def test_a_job_that_an_earlier_release_finished_is_not_run_again(tmp_path: Path) -> None:
    source = JobFolder(tmp_path, "source", {"run": "x"})
    finish(JobFolder(tmp_path, "reader", {"of": "x"}))
    finish(source)
    assert JobFolder(tmp_path, "reader", {"of": "x"}, sources=[source]).committed() is not None


class Stores:
    """Two stores, of which the first has items."""

    def __init__(self, folder: Path, count: int) -> None:
        self.stores = {name: LocalStore(folder / name) for name in ("a", "b")}
        self.urls = {name: store.url for name, store in self.stores.items()}
        self.manifest = Manifest(open_engine(f"sqlite:///{folder / 'manifest.db'}"))
        for store in self.stores.values():
            store.create_space("docs")
        for number in range(count):
            self.add(f"item-{number}")

    def add(self, name: str) -> None:
        info = self.stores["a"].put("docs", name, io.BytesIO(name.encode()))
        self.manifest.writer.record([ManifestEvent("a", "docs", name, 1, info.checksum(), info.size)])


@pytest.mark.spark
def test_a_sweep_of_which_a_part_was_read_again_is_judged_again(spark: SparkSession, tmp_path: Path) -> None:
    stores, jobs = Stores(tmp_path, 3), tmp_path / "jobs"
    urls = {"a": stores.urls["a"]}
    sweep = run_integrity(spark, jobs, "run", urls, stores.manifest.rows())
    assert list(run_report(spark, jobs, sweep).findings()) == []
    flip_bit(stores.stores["a"].path_of("docs", "item-0"))
    for path in sweep.facts.glob("*.parquet"):
        path.write_bytes(b"")
    again = run_integrity(spark, jobs, "run", urls, stores.manifest.rows())
    assert [found.content_id for found in run_report(spark, jobs, again).findings()] == ["item-0"]
    assert run_report(spark, jobs, again).reused


@pytest.mark.spark
@pytest.mark.parametrize("is_finished", [True, False])
def test_items_of_a_plan_that_was_made_again_are_copied(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_finished: bool
) -> None:
    stores, jobs = Stores(tmp_path, 3), tmp_path / "jobs"

    def copy() -> BulkCopyResult:
        planned = plan_duplication(spark, jobs, "run", stores.urls, stores.manifest, pair=Pair("a", "b"), space="docs")
        paths.extend([*planned.data.glob("*.parquet"), *planned.folder.glob("inventory-*/attempt-*/data/*.parquet")])
        return copy_missing(spark, planned, stores.urls, stores.manifest)

    paths: list[Path] = []
    if is_finished:
        assert copy().record.rows_out == 3
    else:
        with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
            patch.setattr(duplication, "_record_copies", lambda *_: 1 // 0)
            copy()
    stores.add("new")
    for path in paths:
        path.unlink()
    assert copy().failures == ()
    assert stores.stores["b"].info("docs", "new").size == 3
    assert all(stores.manifest.get("b", "docs", name) for name in ("item-0", "item-1", "item-2", "new"))
    assert copy().record.rows_out == 1
