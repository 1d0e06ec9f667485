"""The sweep: every kind of damage is found, nothing else is, and the report says how much was looked at."""

from __future__ import annotations

import io
import os
import random
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from millstream.mill.integrity_decision import CheckVerdict
from millstream.mill.manifest import Manifest, ManifestEvent
from millstream.mill.reports.report import IntegrityReport, ReportResult
from millstream.pipeline.errors import PipelineError, PipelineInputError
from millstream.pipeline.jobs.integrity import Sweep, run_integrity
from millstream.pipeline.jobs.inventory import run_inventory
from millstream.pipeline.jobs.report import JudgedSweep, run_report
from millstream.pipeline.planning import binned_work
from millstream.pipeline.planning.binned_work import bin_name
from millstream.pipeline.planning.space_listing import INVENTORY_SCHEMA
from millstream.stores import LocalStore, all_entries
from millstream.testing.damage import flip_bit, remove
from millstream.testing.killed_programs import kill_at
from suite.engines import open_engine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

YESTERDAY = 1
ODD = ["plain.txt", "a/b/c.bin", "with space", "line\nbreak", "ünï/côdé", "..", "100%", "tab\there", "empty"]


class Copies:
    """Three local stores with the same items in a space, and the manifest that recorded them."""

    def __init__(self, folder: Path, count: int = 16) -> None:
        draw = random.Random(7)
        self.stores = {name: LocalStore(folder / name) for name in ("first", "second", "third")}
        self.manifest = Manifest(open_engine(f"sqlite:///{folder / 'node.db'}"))
        self.ids = sorted([*ODD, *(f"item-{number:04}" for number in range(count))])
        contents = {name: draw.randbytes(draw.randrange(1, 5000)) for name in self.ids}
        contents["empty"] = b""
        contents["item-0000"] = draw.randbytes(3 << 20)
        for store in self.stores:
            self.stores[store].create_space("docs")
            for name, content in contents.items():
                self.put(store, name, content)

    @property
    def urls(self) -> Mapping[str, str]:
        return {name: store.url for name, store in self.stores.items()}

    def put(self, store: str, name: str, content: bytes, *, record: bool = True) -> None:
        info = self.stores[store].put("docs", name, io.BytesIO(content))
        if record:
            self.manifest.writer.record([ManifestEvent(store, "docs", name, YESTERDAY, info.checksum(), info.size)])

    def path(self, store: str, name: str) -> Path:
        return self.stores[store].path_of("docs", name)

    def sweep(self, spark: SparkSession, jobs: Path, run: str = "run", **options: int) -> tuple[Sweep, JudgedSweep]:
        sweep = run_integrity(spark, jobs, run, self.urls, self.manifest.rows(), **options)
        return sweep, run_report(spark, jobs, sweep)


@pytest.fixture
def copies(tmp_path: Path) -> Iterator[Copies]:
    return Copies(tmp_path)


def reports(judged: JudgedSweep) -> dict[str, IntegrityReport]:
    return {space.report.store: space.report for space in judged.spaces()}


def test_whole_copies_are_all_found_whole(spark: SparkSession, tmp_path: Path, copies: Copies) -> None:
    sweep, judged = copies.sweep(spark, tmp_path / "jobs")
    assert list(judged.findings()) == []
    size = sum(entry.size for entry in all_entries(copies.stores["first"], "docs"))
    for report in reports(judged).values():
        assert (report.result, report.coverage) == (ReportResult.SUCCESS, 1.0)
        assert (report.listed, report.checked, report.bytes) == (len(copies.ids), len(copies.ids), size)
    assert sweep.record.bytes == 3 * size
    copies.manifest.writer.apply(judged.results())
    assert all(copies.manifest.rows().column("verified_at").is_valid().to_pylist())


@pytest.mark.smoke
def test_p9_every_kind_of_damage_is_found_and_nothing_else(spark: SparkSession, tmp_path: Path, copies: Copies) -> None:
    flip_bit(copies.path("second", "line\nbreak"))
    copies.path("first", "item-0003").write_bytes(b"")
    remove(copies.path("third", "item-0005"))
    copies.put("third", "stranger", b"not recorded", record=False)
    copies.put("second", "item-0007", b"overwritten", record=False)
    copies.manifest.writer.record([ManifestEvent("first", "docs", "item-0009", YESTERDAY + 1, deleted=True)])
    copies.manifest.writer.record([ManifestEvent("first", "docs", "never-there", YESTERDAY, deleted=True)])
    copies.manifest.writer.record([ManifestEvent("second", "docs", "lost", YESTERDAY, "0" * 64, 10)])
    for place in (("third", "stranger"), ("second", "item-0007"), ("first", "item-0009")):
        make_old(copies.path(*place))

    _, judged = copies.sweep(spark, tmp_path / "jobs")
    found = {(finding.store, finding.content_id): finding.kind for finding in judged.findings()}
    assert found == {
        ("second", "line\nbreak"): "checksum-mismatch",
        ("first", "item-0003"): "checksum-mismatch",
        ("third", "item-0005"): "missing",
        ("third", "stranger"): "unrecorded",
        ("second", "item-0007"): "manifest",
        ("first", "item-0009"): "undeleted",
        ("second", "lost"): "missing",
    }
    by_store = reports(judged)
    assert {store: report.failed for store, report in by_store.items()} == {"first": 2, "second": 3, "third": 2}
    assert {report.result for report in by_store.values()} == {ReportResult.FAILURE}
    assert by_store["third"].listed == len(copies.ids) + 1
    assert sum(len(report.findings) for report in by_store.values()) == len(found)


def make_old(path: Path) -> None:
    """Set the file's time back: what was stored today may not have reached the manifest yet, and is not a finding."""
    os.utime(path, (0, 0))


def test_p9_what_could_not_be_read_is_not_called_checked(spark: SparkSession, tmp_path: Path, copies: Copies) -> None:
    bad = copies.path("second", "item-0011")
    bad.unlink()
    bad.mkdir()
    (bad / "not a file").write_bytes(b"")
    _, judged = copies.sweep(spark, tmp_path / "jobs")
    report = reports(judged)["second"]
    assert report.result != ReportResult.SUCCESS
    assert report.checked + report.explained + report.outcomes.get(CheckVerdict.ERROR, 0) == report.listed
    assert any(finding.content_id == "item-0011" for finding in report.findings)


def test_p9_a_store_that_cannot_be_listed_is_never_called_whole(
    spark: SparkSession, tmp_path: Path, copies: Copies
) -> None:
    shutil.rmtree(tmp_path / "second")
    nobody = {"away": (tmp_path / "nowhere").as_uri()}
    sweep = run_integrity(spark, tmp_path / "jobs", "run", {**copies.urls, **nobody}, copies.manifest.rows())
    found = {space.report.store: space.report for space in run_report(spark, tmp_path / "jobs", sweep).spaces()}
    assert {store: report.result for store, report in found.items()} == {
        "away": ReportResult.INCOMPLETE,
        "first": ReportResult.SUCCESS,
        "second": ReportResult.INCOMPLETE,
        "third": ReportResult.SUCCESS,
    }
    assert found["second"].outcomes == {"ERROR": len(copies.ids)}
    assert (found["second"].coverage, len(found["second"].notes)) == (None, 1)
    assert (found["away"].listed, len(found["away"].notes)) == (0, 1)


def test_the_spaces_of_the_system_are_not_swept(spark: SparkSession, tmp_path: Path, copies: Copies) -> None:
    copies.stores["first"].create_space("x-quarantine")
    copies.stores["first"].put("x-quarantine", "not overwritten", io.BytesIO(b"x"))
    _, judged = copies.sweep(spark, tmp_path / "jobs")
    assert {space.report.space for space in judged.spaces()} == {"docs"}


def test_a_sweep_that_was_cut_short_goes_on_with_the_bins_that_are_left(
    spark: SparkSession,
    tmp_path: Path,
    copies: Copies,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, judged = copies.sweep(spark, tmp_path / "jobs", bin_bytes=1 << 20)
    bins = first.record.counts["bins"]
    assert bins > 4
    before, found = facts(first), len(list(judged.results()))
    (first.facts.parent.parent / "job.json").unlink()
    kept = first.facts / bin_name(0)
    stamp = kept.stat().st_mtime_ns
    spoiled, *lost = (first.facts / bin_name(number) for number in range(1, bins))
    spoiled.write_bytes(spoiled.read_bytes()[:-100])  # as by a failing disk: a bin is written whole or not at all
    for path in lost:
        path.unlink(missing_ok=True)
    monkeypatch.setattr(binned_work, "file_rows", lambda path: pytest.fail(f"the driver reads {path}"))
    second, again = copies.sweep(spark, tmp_path / "jobs", bin_bytes=64 << 20)
    assert f"{spoiled} is damaged (" in caplog.text
    assert second.record.counts["bins"] == bins
    assert second.record.counts["hashed_now"] < second.record.bytes == first.record.bytes
    assert kept.stat().st_mtime_ns == stamp
    assert facts(second) == before
    assert not again.reused
    assert len(list(again.results())) == found == 3 * len(copies.ids)


def test_facts_that_are_damaged_are_never_judged_and_read_anew_where_they_are_gone(
    spark: SparkSession, tmp_path: Path, copies: Copies
) -> None:
    jobs = tmp_path / "jobs"
    sweep = run_integrity(spark, jobs, "run", copies.urls, copies.manifest.rows())
    before, kept = facts(sweep), sorted(sweep.facts.glob("bin-*"))
    flip_bit(kept[0], seed=3)  # in a page
    with pytest.raises(
        PipelineError, match=rf"'report' failed: .*{kept[0].name}.*remove the file, and run its job again"
    ):
        run_report(spark, jobs, sweep)
    kept[0].unlink()
    stamps = {path: path.stat().st_mtime_ns for path in kept[1:]}
    again, judged = copies.sweep(spark, jobs)
    assert (again.reused, facts(again)) == (False, before)
    assert {path: path.stat().st_mtime_ns for path in kept[1:]} == stamps
    assert {report.result for report in reports(judged).values()} == {ReportResult.SUCCESS}


SWEEP = """
    import sys
    from pathlib import Path
    import pyarrow.parquet as pq
    from millstream.pipeline.jobs.integrity import run_integrity
    from millstream.pipeline.session import SparkOptions, spark_session

    folder, stores = Path(sys.argv[1]), dict(pair.split("=", 1) for pair in sys.argv[2:])
    with spark_session(folder / "work", SparkOptions(master="local[2]")) as spark:
        run_integrity(spark, folder / "jobs", "run", stores, pq.read_table(folder / "rows.parquet"), bin_bytes=1 << 16)
"""


@pytest.mark.crash
def test_p6_a_sweep_whose_driver_is_killed_loses_no_item_and_reads_no_bin_twice(
    spark: SparkSession, tmp_path: Path, copies: Copies
) -> None:
    pq.write_table(copies.manifest.rows(), tmp_path / "rows.parquet")
    stores = [f"{name}={url}" for name, url in copies.urls.items()]
    command = [sys.executable, "-c", textwrap.dedent(SWEEP), str(tmp_path), *stores]
    bins = "jobs/integrity-*/attempt-1/data/bin-*.parquet"
    kill_at(command, lambda: any(tmp_path.glob(bins)), "a bin")
    done = {path: path.stat().st_mtime_ns for path in tmp_path.glob(bins)}
    sweep, judged = copies.sweep(spark, tmp_path / "jobs")
    assert 0 < len(done) < sweep.record.counts["bins"]
    assert {path: path.stat().st_mtime_ns for path in done} == done
    assert sweep.record.rows_out == 3 * len(copies.ids)
    assert {report.result for report in reports(judged).values()} == {ReportResult.SUCCESS}


def facts(sweep: Sweep) -> list[dict[str, object]]:
    columns = ["store", "space", "content_id", "manifest", "provider", "content", "read"]
    table = pq.read_table(sweep.facts, columns=columns)
    return table.sort_by([(name, "ascending") for name in columns[:3]]).to_pylist()


def test_bins_are_of_about_equal_bytes(spark: SparkSession, tmp_path: Path, copies: Copies) -> None:
    sweep, _ = copies.sweep(spark, tmp_path / "jobs", bin_bytes=4 << 20)
    sizes = [sum(pq.read_table(path).column("size").to_pylist()) for path in sweep.facts.glob("*.parquet")]
    assert sorted(size >= 3 << 20 for size in sizes)[-3:] == [True] * 3
    for path in sweep.facts.glob("*.parquet"):  # nothing waits behind what is large
        own = pq.read_table(path).column("size").to_pylist()
        assert own == sorted(own)
    assert max(sizes) < 4 << 20


def test_all_tasks_of_a_sweep_together_ask_a_store_no_more_often_than_its_url_says(
    spark: SparkSession, tmp_path: Path
) -> None:
    store, count, rate = LocalStore(tmp_path / "store", create=True), 24, 24
    store.create_space("docs")
    for number in range(count):
        store.put("docs", f"item-{number}", io.BytesIO(b"x"))
    manifest = Manifest(open_engine("sqlite://", poolclass=sa.pool.StaticPool)).rows()
    stores = {"slow": f"{store.url}?requests={rate}"}
    sweep = run_integrity(spark, tmp_path / "jobs", "run", stores, manifest, bin_bytes=12 << 16)
    times = sorted(pq.read_table(sweep.facts)["checked_at"].to_pylist())
    assert len(times) == count
    requests = 2 * count - 2 * len(list(sweep.facts.glob("*.parquet")))  # the first of a task are free, and come before
    assert times[-1] - times[0] >= 0.9 * 1_000_000 * requests / rate


def test_a_finished_sweep_is_told_again_and_not_made_again(spark: SparkSession, tmp_path: Path, copies: Copies) -> None:
    sweep, judged = copies.sweep(spark, tmp_path / "jobs")
    flip_bit(copies.path("first", "plain.txt"))
    again, same = copies.sweep(spark, tmp_path / "jobs")
    assert (again.reused, same.reused) == (True, True)
    assert (again.record, same.record) == (sweep.record, judged.record)
    _, fresh = copies.sweep(spark, tmp_path / "jobs", "another run")
    assert [finding.content_id for finding in fresh.findings()] == ["plain.txt"]


def test_nothing_listed_and_nothing_recorded_is_an_empty_sweep(spark: SparkSession, tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "empty")
    manifest = Manifest(open_engine("sqlite://")).rows()
    sweep = run_integrity(spark, tmp_path / "jobs", "run", {"empty": store.url}, manifest)
    assert (sweep.record.rows_out, run_report(spark, tmp_path / "jobs", sweep).spaces()) == (0, [])


def test_a_sweep_of_one_space_leaves_the_others_alone(spark: SparkSession, tmp_path: Path, copies: Copies) -> None:
    copies.stores["first"].create_space("other")
    copies.stores["first"].put("other", "x", io.BytesIO(b"x"))
    sweep = run_integrity(spark, tmp_path / "jobs", "run", copies.urls, copies.manifest.rows(), spaces=["other"])
    (space,) = run_report(spark, tmp_path / "jobs", sweep).spaces()
    assert (space.report.space, space.report.listed) == ("other", 1)


def test_the_inventory_is_the_listing_of_every_space(spark: SparkSession, tmp_path: Path, copies: Copies) -> None:
    copies.stores["second"].create_space("bare")
    inventory = run_inventory(spark, tmp_path / "jobs", "today", copies.urls)
    table = pq.read_table(inventory.data, schema=INVENTORY_SCHEMA)
    found = sorted(map(tuple, (row.values() for row in table.to_pylist())))
    assert found == sorted(
        (name, "docs", entry.content_id, entry.size, entry.modified, None)
        for name, store in copies.stores.items()
        for entry in all_entries(store, "docs")
    )
    assert (inventory.record.rows_in, inventory.record.rows_out) == (4, 3 * len(copies.ids))
    assert run_inventory(spark, tmp_path / "jobs", "today", copies.urls).reused


def test_folders_may_have_names_that_spark_reads_as_patterns(
    spark: SparkSession, tmp_path: Path, copies: Copies
) -> None:
    _, judged = copies.sweep(spark, tmp_path / "jobs [a-b] {c,d} *?%20")
    assert len(list(judged.results())) == 3 * len(copies.ids)


def test_an_inventory_of_no_store_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PipelineInputError, match="no store"):
        run_inventory(spark, tmp_path, "today", {})


def test_a_copy_elsewhere_is_counted_by_its_sum(spark: SparkSession, tmp_path: Path, copies: Copies) -> None:
    copies.manifest.writer.record([ManifestEvent("third", "docs", "plain.txt", YESTERDAY + 1, "1" * 64, 1)])
    copies.put("first", "alone", b"only here")
    sweep = run_integrity(spark, tmp_path / "jobs", "run", copies.urls, copies.manifest.rows())
    table = pq.read_table(sweep.facts, columns=["store", "content_id", "elsewhere"])
    wanted = table.filter(pa.compute.is_in(table.column("content_id"), pa.array(["plain.txt", "alone", "empty"])))
    found = {(row["store"], row["content_id"]): row["elsewhere"] for row in wanted.to_pylist()}
    assert found == {
        ("first", "plain.txt"): True,
        ("second", "plain.txt"): True,
        ("third", "plain.txt"): False,
        ("first", "alone"): False,
        ("first", "empty"): True,
        ("second", "empty"): True,
        ("third", "empty"): True,
    }
