"""A sweep of what is due: the right items by age and risk, the most urgent within a budget, in the end all of them."""

from __future__ import annotations

import io
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from millstream.core.clock import SystemClock
from millstream.mill.integrity_decision import CheckVerdict
from millstream.mill.manifest import CheckResult, Manifest, ManifestEvent
from millstream.mill.reports.report import ReportResult
from millstream.pipeline.errors import PipelineError, PipelineInputError
from millstream.pipeline.jobs.integrity import Sweep, run_integrity
from millstream.pipeline.jobs.report import JudgedSweep, run_report
from millstream.pipeline.planning.due_items import HOUR, SOLE, DueRule, read_deferred, urgency
from millstream.stores import LocalStore
from millstream.testing.damage import flip_bit
from suite.engines import open_engine
from suite.sizes import sized

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

DAY = 24 * HOUR
Name = tuple[str, str]


class Kept:
    """Two stores with items that were checked at times drawn at random, and some that contradict the manifest."""

    def __init__(self, folder: Path, seed: int, count: int = 60) -> None:
        self.folder, self.draw, self.now = folder, random.Random(seed), SystemClock().now()
        self.stores = {name: LocalStore(folder / name) for name in ("first", "second")}
        self.manifest = Manifest(open_engine(f"sqlite:///{folder / 'node.db'}"))
        self.age: dict[Name, int | None] = {}
        self.sizes: dict[Name, int] = {}
        self.failed: set[Name] = set()
        self.contradicted: set[Name] = set()
        self.sole: set[Name] = set()
        for store in self.stores.values():
            store.create_space("docs")
        for number in range(count):
            self.add(f"item-{number:03}", copies=self.draw.choice([1, 2, 2]))

    def add(self, name: str, copies: int) -> None:
        content = self.draw.randbytes(self.draw.randrange(1, 4000))
        for store in list(self.stores)[:copies]:
            place = (store, name)
            info = self.stores[store].put("docs", name, io.BytesIO(content))
            self.manifest.writer.record([ManifestEvent(store, "docs", name, 1, info.checksum(), info.size)])
            path = self.stores[store].path_of("docs", name)
            self.sizes[place] = info.size
            self.sole |= {place} if copies == 1 else set()
            self.check(place, info.checksum() or "")
            if self.draw.random() < 0.05:
                path.write_bytes(content + b"grown")
                self.sizes[place] += 5
                self.contradicted.add(place)
            os.utime(path, (0, 0))  # before any check

    def check(self, place: Name, checksum: str) -> None:
        """Write down a check, or none."""
        self.age[place] = None
        kind = self.draw.choice(["never", "failed", "whole", "whole", "whole", "whole"])
        at = self.now - self.draw.randrange(60 * 24) * HOUR - HOUR // 2
        if kind == "never":
            return
        self.age[place] = self.now - at
        result = CheckResult(place[0], "docs", place[1], CheckVerdict.SUCCESS, "B1", "", "", at, 1, *[checksum] * 3)
        self.manifest.writer.apply([result])
        if kind == "failed":
            self.failed.add(place)
            again = CheckResult(
                place[0], "docs", place[1], CheckVerdict.FAILURE, "B3", "checksum-mismatch", "", at + 1, 1, checksum
            )
            self.manifest.writer.apply([again])

    def urgency(self, place: Name, older_than: int) -> int:
        """The plain model: -1 is not due."""
        if place in self.contradicted or place in self.failed:
            return 1 << 30
        age = self.age[place]
        if age is None:
            return 1 << 29
        age *= SOLE if place in self.sole else 1
        return age // HOUR if age >= older_than else -1

    def sweep(self, spark: SparkSession, run: str, rule: DueRule, **more: Any) -> tuple[Sweep, JudgedSweep]:
        urls = {name: store.url for name, store in self.stores.items()}
        jobs = self.folder / "jobs"
        sweep = run_integrity(spark, jobs, run, urls, self.manifest.rows(), due=rule, bin_bytes=1 << 20, **more)
        return sweep, run_report(spark, jobs, sweep)


@pytest.fixture(params=sized(ci=[1], long=[1, 2]))
def kept(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Kept]:
    return Kept(tmp_path, request.param)


def read_by(sweep: Sweep) -> list[Name]:
    rows = pq.read_table(sweep.facts, columns=["store", "content_id"]).to_pylist()
    return [(row["store"], row["content_id"]) for row in rows]


@pytest.mark.long
def test_what_is_due_is_what_a_plain_model_says(spark: SparkSession, kept: Kept) -> None:
    rule = DueRule(older_than=30 * DAY)
    sweep, judged = kept.sweep(spark, "run", rule)
    due = {place for place in kept.sizes if kept.urgency(place, rule.older_than) >= 0}
    assert sorted(read_by(sweep)) == sorted(due)
    assert 0 < len(due) < len(kept.sizes)
    for space in judged.spaces():
        report = space.report
        own = [place for place in kept.sizes if place[0] == report.store]
        assert report.listed == len(own)
        assert report.kinds["not due"] == len(set(own) - due)
        assert (report.coverage, report.failed > 0) == (1.0, any(place in kept.contradicted for place in own))


@pytest.mark.long
def test_a_budget_takes_the_most_urgent_first(spark: SparkSession, kept: Kept) -> None:
    rule = DueRule(older_than=20 * DAY, budget=30_000)
    sweep, judged = kept.sweep(spark, "run", rule)
    chosen = set(read_by(sweep))
    left = {place for place in kept.sizes if kept.urgency(place, rule.older_than) >= 0} - chosen
    size = sum(kept.sizes[place] for place in chosen)
    assert chosen
    assert left
    assert size <= 30_000 < size + 4096 + max(kept.sizes.values())
    least = min(kept.urgency(place, rule.older_than) for place in chosen)
    assert max(kept.urgency(place, rule.older_than) for place in left) <= least
    reports = [space.report for space in judged.spaces()]
    assert sum(report.kinds.get("over budget", 0) for report in reports) == len(left)
    assert all(report.result != ReportResult.SUCCESS for report in reports if "over budget" in report.kinds)
    again, same = kept.sweep(spark, "run", rule)
    assert (again.reused, again.left, same.left) == (True, sweep.left, sweep.left)


def test_sweeps_within_a_budget_read_everything_in_the_end_and_nothing_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    kept = Kept(tmp_path, 3, count=25)
    read: list[Name] = []
    rule = DueRule(older_than=DAY, budget=sum(kept.sizes.values()) // 3)
    for turn in range(8):
        sweep, judged = kept.sweep(spark, f"run-{turn}", rule)
        kept.manifest.writer.apply(judged.results())
        found = [place for place in read_by(sweep) if place not in kept.contradicted]
        if not found:
            break
        read += found
    due = {place for place in kept.sizes if kept.urgency(place, DAY) >= 0} - kept.contradicted
    assert sorted(read) == sorted(due)


def test_an_item_larger_than_the_budget_is_read_alone(spark: SparkSession, tmp_path: Path) -> None:
    kept = Kept(tmp_path, 4, count=0)
    kept.add("large", copies=2)
    sweep, _ = kept.sweep(spark, "run", DueRule(budget=1))
    assert len(read_by(sweep)) == 1


def test_what_was_never_due_gets_no_report_and_what_rots_meanwhile_is_found_when_it_is_due(
    spark: SparkSession, tmp_path: Path
) -> None:
    kept = Kept(tmp_path, 5, count=0)
    kept.add("only", copies=2)
    urls = {name: store.url for name, store in kept.stores.items()}
    sweep = run_integrity(spark, tmp_path / "jobs", "first", urls, kept.manifest.rows())
    kept.manifest.writer.apply(run_report(spark, tmp_path / "jobs", sweep).results())
    flip_bit(kept.stores["second"].path_of("docs", "only"))
    _, judged = kept.sweep(spark, "soon", DueRule(older_than=DAY))
    assert judged.spaces() == []
    _, judged = kept.sweep(spark, "later", DueRule(older_than=1))
    assert [(found.store, found.kind) for found in judged.findings()] == [("second", "checksum-mismatch")]


def test_a_check_that_is_dated_later_than_now_is_of_a_clock_that_was_wrong_and_its_item_is_due(
    spark: SparkSession,
) -> None:
    rows = spark.sql(
        "select id as verified_at, 'SUCCESS' as outcome, 'a' as manifest, true as listed, false as deleted, "
        "true as elsewhere, 1L as listed_size, 1L as recorded_size, 0L as listed_modified from range(4)"
    )
    found = rows.select("verified_at", urgency(DueRule(older_than=2), 2).alias("urgency")).collect()
    assert {row["verified_at"]: row["urgency"] for row in found} == {0: 0, 1: -1, 2: -1, 3: 1 << 29}


@pytest.mark.parametrize(("age", "budget"), [(-1, None), (0, 0)])
def test_a_rule_that_cannot_be_kept_is_refused(age: int, budget: int | None) -> None:
    with pytest.raises(PipelineInputError, match="at least"):
        DueRule(age, budget)


def test_a_note_of_what_was_left_out_that_is_gone_or_damaged_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"left\.parquet is missing: run the job again"):
        read_deferred(tmp_path / "left.parquet")
    (tmp_path / "left.parquet").write_bytes(b"PAR1")
    with pytest.raises(PipelineError, match=r"left\.parquet is damaged \("):
        read_deferred(tmp_path / "left.parquet")
