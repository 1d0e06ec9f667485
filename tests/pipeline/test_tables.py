"""Results of jobs as tables: the schemas and recipes of their page, and each batch once."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pytest
import sqlalchemy as sa

from millstream.batching import BatchConfig
from millstream.core.clock import SystemClock
from millstream.core.documents import FileDocument
from millstream.core.message import Message
from millstream.log import LogSpec, open_store
from millstream.mill.manifest import Manifest, ManifestEvent
from millstream.node import Node
from millstream.pipeline import tables
from millstream.pipeline.errors import PipelineError, PipelineInputError
from millstream.pipeline.jobs.anchor import anchor_history
from millstream.pipeline.jobs.batch import BatchJob, hand_over, run_batch
from millstream.pipeline.jobs.integrity import run_integrity
from millstream.pipeline.jobs.report import run_report
from millstream.pipeline.schema import spark_schema
from millstream.pipeline.settings import RESULTS_SETTING
from millstream.settings import AnchoringSettings, LogSettings, Settings
from millstream.stores import LocalStore
from millstream.testing.swift import ENVIRONMENT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from millstream.testing.s3 import S3Server

Untidy = Callable[..., list[Message]]
WriteLog = Callable[..., list[Message]]

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "tables.md").read_text("utf-8")
RULES = BatchConfig(window=50, max_delay=20)
SCHEMAS = {
    "batches": tables.BATCHES,
    "rejects": tables.REJECTS,
    "anchors": tables.ANCHORS,
    "anchored_batches": tables.ANCHORED_BATCHES,
    "facts": tables.FACTS,
    "findings": tables.FINDINGS,
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_page_has_the_columns_and_types_of_each_table(name: str) -> None:
    section = PAGE.partition(f"## `{name}`\n")[2].partition("\n## ")[0]
    written = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section, re.MULTILINE)
    assert written == described(SCHEMAS[name])


def described(schema: pa.Schema) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in spark_schema(schema)]


@pytest.mark.spark
@pytest.mark.served
def test_the_recipes_of_the_page_run_on_results_of_jobs_at_a_url(
    spark: SparkSession,
    tmp_path: Path,
    log_url: str,
    untidy: Untidy,
    write_log: WriteLog,
    swift: S3Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_log(log_url, "weather", untidy(1, 300))
    jobs = tmp_path / "jobs"
    for name, value in ENVIRONMENT.items():
        monkeypatch.setitem(spark.sparkContext.environment, name, value)
    spark.conf.set(RESULTS_SETTING, swift.new_url())
    try:
        job = run_batch(spark, jobs, log_url, "weather", RULES)
        sweep(spark, tmp_path, jobs)
    finally:
        spark.conf.unset(RESULTS_SETTING)  # tables say by themselves where their rows are
    assert list(jobs.rglob("part-*.parquet")) == []
    settings = Settings(
        data=str(tmp_path / "node"), log=LogSettings(store=log_url), anchoring=AnchoringSettings(cas=swift.new_url())
    )
    with Node.open(settings, create=True) as node:
        anchoring = node.anchoring
        anchor_history(job, "weather", anchoring.batch_writer, msgspec.to_builtins(RULES))
        cas = anchoring.cas_url
    python, *_ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    for example, own in (
        ("mysql://reader@db.example/logs", log_url),
        ("cas:///data/millstream/cas", cas),
        ("/data/millstream/jobs", str(jobs)),
    ):
        assert example in python
        python = python.replace(example, own)
    exec(python, {"spark": spark})
    for name, schema in SCHEMAS.items():
        fields = [(field.name, field.dataType.simpleString()) for field in spark.table(name).schema]
        assert fields == described(schema), name
    recipes = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    per_source, unanchored, anchor, sweeps, last_read = (spark.sql(recipe).collect() for recipe in recipes)
    counts = job.record.counts
    assert sum(row["messages"] for row in per_source) == counts["batched"]
    assert sum(row["rejected"] for row in per_source) == counts["rejected"]
    assert unanchored == []
    assert anchor[0]["anchor"] in (1, None)
    assert spark.sql("select sum(batches), sum(messages), count(error) from anchors").first() == (
        counts["batches"], counts["batched"], 0,
    )  # fmt: skip
    assert [(row["sweep"], row["store"], row["bytes"], row["findings"]) for row in sweeps] == [("nightly", "a", 4, 1)]
    assert [row["content_id"] for row in last_read] == ["unrecorded"]


def sweep(spark: SparkSession, folder: Path, jobs: Path) -> None:
    """Sweep a store with an item that the manifest does not know, and without one that it knows."""
    store = LocalStore(folder / "store")
    store.create_space("docs")
    store.put("docs", "unrecorded", io.BytesIO(b"body"))
    manifest = Manifest(sa.create_engine(f"sqlite:///{folder / 'manifest.db'}"))
    manifest.writer.record([ManifestEvent("a", "docs", "gone", 5, "0" * 64, 4)])
    run_report(spark, jobs, run_integrity(spark, jobs, "nightly", {"a": store.url}, manifest.rows()))


@pytest.mark.spark
@pytest.mark.parametrize("first", ["part", "whole"])
def test_runs_that_overlap_give_a_message_once_and_the_newest_run_decides(
    spark: SparkSession, tmp_path: Path, log_url: str, untidy: Untidy, write_log: WriteLog, first: str
) -> None:
    write_log(log_url, "in", untidy(2, 300, twice=0))
    ends = {"part": 150, "whole": None}
    older, newer = (
        run_batch(spark, tmp_path, log_url, "in", RULES, last_id=ends[name])
        for name in (["part", "whole"] if first == "part" else ["whole", "part"])
    )
    begun = tmp_path / "batch-0123456789" / "attempt-1" / "data"
    begun.mkdir(parents=True)
    (begun / "part-00000.parquet").write_bytes(b"what a killed run left")
    rows = tables.read_batches(spark, tmp_path, log_url, "in").collect()
    ids = [number for row in rows for number in row["ids"]]
    assert len(ids) == len(set(ids)) > 0
    decided = {row["batch"] for row in rows if row["run"] == newer.data.parents[1].name}
    assert decided == {batch.batch for batch in newer.batches()}
    if first == "part":
        assert len(rows) == len(decided)
    else:
        kept = {batch.batch for batch in older.batches() if min(batch.ids) > 150}
        assert {row["batch"] for row in rows} == decided | kept
        rejected = [row["id"] for row in tables.read_rejects(spark, tmp_path, log_url, "in").collect()]
        assert len(rejected) == len(set(rejected)) > 0
        assert not set(rejected) & set(ids)


@pytest.mark.spark
def test_batches_of_history_and_of_the_log_that_goes_on_from_it_are_one_table(
    spark: SparkSession, tmp_path: Path, log_url: str, untidy: Untidy, write_log: WriteLog
) -> None:
    write_log(log_url, "in", untidy(3, 200))
    job = run_batch(spark, tmp_path, log_url, "in", RULES, flush=False)
    amended = next(job.batches())
    body = {"batch": "ab", "source": "s", "start": 5, "end": 6, "closed_at": 7, "cut": "window", "events": [1000]}
    with open_store(log_url, clock=SystemClock()) as store:
        output = store.log(LogSpec("out", kind="batches"))
        hand_over(job, output, FileDocument(tmp_path / "state.json"))
        with output.writer() as writer:
            bodies = [body | {"kind": "amendment", "amends": [amended.batch]}, {"rejected": 1001, "reason": "late"}]
            writer.append([Message(msgspec.json.encode(each)) for each in bodies])
    run_batch(spark, tmp_path, log_url, "in", RULES)  # a newer run did not hand over, and does not count here
    rows = tables.read_batches(spark, tmp_path, log_url, "in", stream="out")
    assert described_frame(rows) == described(tables.BATCHES)
    found = {row["batch"]: row for row in rows.collect()}
    assert set(found) == {"ab"} | {batch.batch for batch in job.batches()} - {amended.batch}
    assert found["ab"].asDict() == {
        "log": "in", "batch": "ab", "source": "s", "start": 5, "end": 6, "closed_at": 7, "cut": "window",
        "kind": "amendment", "amends": [amended.batch], "ids": [1000], "messages": 1, "root": None, "run": None,
    }  # fmt: skip
    refused = tables.read_rejects(spark, tmp_path, log_url, "in", stream="out").where("id = 1001").collect()
    assert [(row["reason"], row["run"]) for row in refused] == [("late", None)]


def described_frame(frame: DataFrame) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in frame.schema]


@pytest.mark.spark
def test_a_table_of_no_run_or_of_a_damaged_one_is_an_error_that_says_so(
    spark: SparkSession, tmp_path: Path, log_url: str, write_log: WriteLog
) -> None:
    with pytest.raises(PipelineInputError, match=r"no folder .*absent: give the job folder"):
        tables.read_facts(spark, tmp_path / "absent")
    assert tables.read_findings(spark, tmp_path).collect() == []
    with pytest.raises(PipelineInputError, match="no finished sweep 'nightly'"):
        tables.read_facts(spark, tmp_path, sweep="nightly")
    with pytest.raises(PipelineInputError, match=r"no committed run of `pipeline batch` for log 'in'.*batch in`"):
        tables.read_batches(spark, tmp_path, log_url, "in")
    write_log(log_url, "in", [Message(b"", "k", "s", 1000, 1000)])
    job: BatchJob = run_batch(spark, tmp_path, log_url, "in", RULES)
    assert tables.read_batches(spark, str(tmp_path), log_url, "in", run=job.data.parents[1].name).count() == 1
    next(job.data.glob("*.parquet")).unlink()
    with pytest.raises(PipelineError, match="differ from what the run wrote"):
        tables.read_batches(spark, tmp_path, log_url, "in")
