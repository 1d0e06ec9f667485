"""The results of jobs as DataFrames with stable schemas (``docs/reference/tables.md``), for queries of users.

They are read from the Parquet files of committed runs, and from the ledger and the logs of batches; a data source in
Python would hand each row from Java to Python and back, and could not leave out columns.
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the name the Spark world uses)
from pyspark.sql.types import DataType
from sqlalchemy.engine import make_url

from millstream.anchoring.cas import Cas
from millstream.anchoring.content import read_manifest
from millstream.anchoring.errors import BatchFormatError, CasError, LedgerError
from millstream.anchoring.ledger import LedgerEntry, decode_entry, is_entry
from millstream.anchoring.log_ledger import LEDGER_LOG
from millstream.batching.batch_log_origin import BatchLogOrigin, read_origin
from millstream.core.clock import SystemClock
from millstream.log import LogSpec, system_log
from millstream.mill.integrity_decision import CheckVerdict
from millstream.pipeline.errors import PipelineError, PipelineInputError
from millstream.pipeline.jobs.report import RESULT_SCHEMA
from millstream.pipeline.output.job_folder import JobFolder, JobRecord, read_record
from millstream.pipeline.schema import read_parquet, spark_schema
from millstream.pipeline.source import read_log
from millstream.pipeline.task_rates import task_url
from millstream.pipeline.tasks.audit_task import ANCHOR_SCHEMA, ENTRY_SCHEMA, open_cas, read_part
from millstream.pipeline.tasks.shard_task import BATCH_SCHEMA
from millstream.pipeline.tasks.sweep_task import FACT_SCHEMA
from millstream.stores.tiers import open_log_store

_HEADER = ("source", "start", "end", "closed_at", "cut", "kind", "amends", "ids")

BATCHES = pa.schema(
    [
        pa.field("log", pa.string()),
        pa.field("batch", pa.string()),
        *(BATCH_SCHEMA.field(name).with_nullable(True) for name in _HEADER),
        pa.field("messages", pa.int32()),
        pa.field("root", pa.string()),
        pa.field("run", pa.string()),
    ]
)
REJECTS = pa.schema(
    [
        pa.field("log", pa.string()),
        pa.field("id", pa.int64()),
        pa.field("reason", pa.string()),
        pa.field("source", pa.string()),
        pa.field("received_at", pa.int64()),
        pa.field("run", pa.string()),
    ]
)
ANCHORS = pa.schema(
    [
        pa.field("number", pa.int64()),
        pa.field("anchored_at", pa.int64()),
        pa.field("anchor_string", pa.string()),
        pa.field("manifest", pa.string()),
        pa.field("log", pa.string()),
        pa.field("batches", pa.int64()),
        pa.field("messages", pa.int64()),
        pa.field("rejects", pa.int64()),
        pa.field("files", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("root", pa.string()),
        pa.field("previous", pa.string()),
        pa.field("hash", pa.string()),
        pa.field("error", pa.string()),
    ]
)
ANCHORED_BATCHES = pa.schema([ANCHOR_SCHEMA.field(name) for name in ("number", "ordinal", "log", "batch", "ids")])
FACTS = pa.schema([pa.field("sweep", pa.string()), *FACT_SCHEMA])
FINDINGS = pa.schema([pa.field("sweep", pa.string()), *RESULT_SCHEMA])

_ROWS = pa.schema([BATCH_SCHEMA.field(name) for name in ("batch", *_HEADER, "root", "reason")])
"""What is read of the output of a batch job: the lines of its messages are not."""

_BODY = (
    "batch string, source string, start long, end long, closed_at long, cut string, kind string, "
    "amends array<string>, events array<long>, rejected long, reason string"
)


def read_batches(
    spark: SparkSession, jobs: Path | str, store_url: str, log: str, *, stream: str = "", run: str = ""
) -> DataFrame:
    """The batches of *log* (:data:`BATCHES`), each once: those of committed runs of ``pipeline batch`` under *jobs*.

    The newest run decides on the messages of its range; batches of earlier runs with one of these messages, and batches
    that an amendment replaces, are left out. *stream* is the log of batches of a batch service or stream: its batches
    follow those of the run that handed over to it, if one did. *run* is the folder of the only run to read.
    Raises :class:`PipelineInputError` where there is no such run, and :class:`PipelineError` where one is damaged.
    """
    rows, replaced = _batch_rows(spark, Path(jobs), store_url, log, stream=stream, run=run)
    batches = rows.where("batch is not null").withColumn("kind", F.coalesce("kind", F.lit("batch")))
    if replaced:
        amended = batches.select(F.explode("amends").alias("batch")).distinct()
        batches = batches.join(amended, "batch", "left_anti")
    whole = batches.withColumn("amends", F.coalesce("amends", F.array().cast("array<string>")))
    return _as(whole.withColumns({"log": F.lit(log), "messages": F.size("ids")}), BATCHES)


def read_rejects(
    spark: SparkSession, jobs: Path | str, store_url: str, log: str, *, stream: str = "", run: str = ""
) -> DataFrame:
    """The messages of *log* that are in no batch, with the reason (:data:`REJECTS`).

    Arguments and errors: :func:`read_batches`.
    """
    rows, _ = _batch_rows(spark, Path(jobs), store_url, log, stream=stream, run=run)
    rejects = rows.where("reason is not null")
    columns = {"log": F.lit(log), "id": F.get("ids", F.lit(0)), "received_at": F.col("start")}
    return _as(rejects.withColumns(columns), REJECTS)


def read_anchors(spark: SparkSession, store_url: str, cas: str) -> DataFrame:
    """The anchors in the ledger of the log store at *store_url*, with what their manifests at *cas* say.

    *cas* is ``cas:///folder``, or the URL of the storage provider with the space ``cas``. Tasks read the ledger and one
    manifest an anchor; one that cannot be read has an ``error``. An entry that was changed fails the query.
    """
    return _ledger(spark, store_url).mapInArrow(partial(anchors_part, cas=task_url(spark, cas)), spark_schema(ANCHORS))


def read_anchored_batches(spark: SparkSession, store_url: str, cas: str) -> DataFrame:
    """Which batch is in which anchor (:data:`ANCHORED_BATCHES`): tasks read and check all files of each anchor.

    Arguments: :func:`read_anchors`. Anchors whose files cannot be read are left out: the job ``audit`` names them.
    """
    entries = _ledger(spark, store_url).mapInArrow(entries_part, spark_schema(ENTRY_SCHEMA))
    rows = entries.mapInArrow(partial(read_part, cas=task_url(spark, cas)), spark_schema(ANCHOR_SCHEMA))
    return _as(rows.where("ordinal >= 0"), ANCHORED_BATCHES)


def read_facts(spark: SparkSession, jobs: Path | str, *, sweep: str = "") -> DataFrame:
    """What committed runs of ``pipeline integrity`` under *jobs* saw (:data:`FACTS`): a row an item and sweep.

    *sweep* names the only sweep. Raises :class:`PipelineInputError` where it has no committed run.
    """
    runs = [run for run in _runs(Path(jobs), "integrity") if sweep in ("", run.record.inputs["sweep"])]
    return _of_sweeps(spark, Path(jobs), sweep, [(run, run.record.inputs["sweep"]) for run in runs], FACTS)


def read_findings(spark: SparkSession, jobs: Path | str, *, sweep: str = "") -> DataFrame:
    """The items that committed sweeps under *jobs* found neither in order nor explained (:data:`FINDINGS`).

    Arguments and errors: :func:`read_facts`.
    """
    named = [(run, run.record.inputs["sweep"]["sweep"]) for run in _runs(Path(jobs), "report")]
    chosen = [(run, name) for run, name in named if sweep in ("", name)]
    fine = [CheckVerdict.SUCCESS.value, CheckVerdict.IGNORE.value]
    return _of_sweeps(spark, Path(jobs), sweep, chosen, FINDINGS).where(~F.col("verdict").isin(fine))


class _Run(NamedTuple):
    """A committed run, in *folder*; *committed_at* is the time of its record, in nanoseconds."""

    folder: Path
    record: JobRecord
    committed_at: int

    @property
    def span(self) -> tuple[int, int]:
        """The first and the last message of a batch job."""
        return self.record.inputs["first_id"], self.record.inputs["last_id"]

    def read(self, spark: SparkSession, schema: pa.Schema) -> DataFrame:
        """The rows of the run. Raises :class:`PipelineError` where they are not those that it wrote."""
        folder = JobFolder(self.folder.parent, self.record.job, self.record.inputs)
        if folder.path != self.folder or folder.committed() is None:
            raise PipelineError(
                f"the results in {self.folder} differ from what the run wrote: run the job again, or remove the folder"
            )
        return read_parquet(spark, folder.data, schema)


def _runs(jobs: Path, job: str) -> list[_Run]:
    """The committed runs of *job* under *jobs*, the newest first. Raises :class:`PipelineInputError`."""
    if not jobs.is_dir():
        raise PipelineInputError(
            f"there is no folder {jobs}: give the job folder, which is 'jobs' in the data folder of the node or "
            "the folder in pipeline.results"
        )
    runs = []
    for path in jobs.glob(f"{job}-*/job.json"):
        record = read_record(path)
        if record is not None and record.job == job:
            runs.append(_Run(path.parent, record, path.stat().st_mtime_ns))
    return sorted(runs, key=lambda run: (run.committed_at, run.folder.name), reverse=True)


def _batch_rows(
    spark: SparkSession, jobs: Path, store_url: str, log: str, *, stream: str, run: str
) -> tuple[DataFrame, bool]:
    """The rows of batch jobs (:data:`_ROWS` and ``run``) without those of ranges that a newer run decides on.

    Also says whether some of the batches may be replaced by others of them.
    """
    public = make_url(store_url).render_as_string(hide_password=True)
    runs = [
        one for one in _runs(jobs, "batch") if (one.record.inputs["store"], one.record.inputs["log"]) == (public, log)
    ]
    if run:
        runs = [one for one in runs if one.folder.name == run]
    if stream:
        runs = _before(runs, store_url, log, stream, jobs)
    elif not runs:
        named = f"run {run!r}" if run else "run"
        remedy = "check the name of the run" if run else f"run `millstream pipeline batch {log}`"
        raise PipelineInputError(
            f"{jobs} has no committed {named} of `pipeline batch` for log {log!r} of {public}: {remedy}"
        )
    frames, decided, replaced = [], list[tuple[int, int]](), bool(stream)
    for one in runs:
        first, last = one.span
        if any(low <= first and last <= high for low, high in decided):
            continue
        rows = one.read(spark, _ROWS)
        for low, high in decided:
            if low <= last and first <= high:
                rows = rows.where(f"not exists(ids, id -> id between {low} and {high})")
        frames.append(rows.withColumn("run", F.lit(one.folder.name)))
        decided.append((first, last))
        replaced = replaced or bool(one.record.counts.get("replaced"))
    if stream:
        frames.append(_stream_rows(spark, store_url, stream))
    return functools.reduce(DataFrame.unionByName, frames), replaced


def _before(runs: Sequence[_Run], store_url: str, log: str, stream: str, jobs: Path) -> list[_Run]:
    """The run that handed over to the log of batches *stream*; none where *stream* has all batches of *log*."""
    with open_log_store(store_url, clock=SystemClock(), create=False) as store:
        origin = read_origin(store.log(LogSpec(stream), create=False))
    if origin is None:
        return []
    if origin.log != log:
        raise PipelineInputError(
            f"log {stream!r} contains the batches of {origin.log!r}, not of {log!r}: give {origin.log!r} as the source "
            "log"
        )
    for run in runs:
        if _handed_over(run, origin):
            return [run]
    raise PipelineInputError(
        f"log {stream!r} has the batches of log {log!r} only after message {origin.position}. The run of `pipeline "
        f"batch` that ended at this message is not in {jobs}: give the job folder that contains this run"
    )


def _handed_over(run: _Run, origin: BatchLogOrigin) -> bool:
    inputs = run.record.inputs
    return not inputs["flush"] and (inputs["last_id"], inputs["received_to"]) == (origin.position, origin.clock)


def _stream_rows(spark: SparkSession, store_url: str, stream: str) -> DataFrame:
    """The messages of the log of batches *stream*, as rows of :data:`_ROWS` and ``run``."""
    body = F.from_json(F.col("body").cast("string"), _BODY)
    rows = read_log(spark, store_url, stream, columns=["body"]).select(body.alias("b")).select("b.*")
    ids = F.coalesce("events", F.array("rejected"))
    null = F.lit(None).cast("string")
    return _as(rows.withColumns({"ids": ids, "root": null, "run": null}), _ROWS.append(pa.field("run", pa.string())))


def _of_sweeps(
    spark: SparkSession, jobs: Path, sweep: str, runs: Sequence[tuple[_Run, str]], schema: pa.Schema
) -> DataFrame:
    """The rows of *runs*, each with the name of its sweep."""
    if sweep and not runs:
        raise PipelineInputError(
            f"there is no finished sweep {sweep!r} under {jobs}: run `millstream pipeline integrity --name "
            f"{shlex.quote(sweep)}`"
        )
    own = pa.schema([field for field in schema if field.name != "sweep"])
    frames = [run.read(spark, own).withColumn("sweep", F.lit(name)) for run, name in runs]
    if not frames:
        return spark.createDataFrame([], spark_schema(schema))
    return _as(functools.reduce(DataFrame.unionByName, frames), schema)


def _ledger(spark: SparkSession, store_url: str) -> DataFrame:
    return read_log(spark, store_url, system_log(LEDGER_LOG, "ledger").name, columns=["body"])


def entries_part(parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The messages of a ledger that are entries, as rows of ``ENTRY_SCHEMA``."""
    for part in parts:
        entries = [msgspec.json.encode(entry) for entry in _entries(part)]
        yield pa.RecordBatch.from_arrays([pa.array(entries, pa.binary())], schema=ENTRY_SCHEMA)


def anchors_part(parts: Iterable[pa.RecordBatch], cas: str) -> Iterator[pa.RecordBatch]:
    """The entries in *parts* of a ledger as rows of :data:`ANCHORS`, with what their manifests at *cas* say."""
    files = open_cas(cas)
    for part in parts:
        yield pa.RecordBatch.from_pylist([_anchor_row(files, entry) for entry in _entries(part)], ANCHORS)


def _entries(part: pa.RecordBatch) -> Iterator[LedgerEntry]:
    for body in part.column("body").to_pylist():
        if is_entry(body):
            try:
                yield decode_entry(body)
            except LedgerError as error:
                name = system_log(LEDGER_LOG, "ledger").name
                raise LedgerError(f"log {name!r}: {error}; restore the log from a backup") from error


def _anchor_row(cas: Cas, entry: LedgerEntry) -> dict[str, Any]:
    row = dict.fromkeys(ANCHORS.names) | msgspec.structs.asdict(entry) | {"anchored_at": entry.time}
    try:
        row["manifest"], manifest = read_manifest(cas, entry.anchor_string)
    except (BatchFormatError, CasError) as error:
        return row | {"error": str(error)}
    return row | {
        "log": manifest.log,
        "batches": manifest.count,
        "messages": manifest.messages,
        "rejects": manifest.rejects.count,
        "files": len(manifest.uris),
        "bytes": sum(file.bytes for file in manifest.files) + sum(file.bytes for file in manifest.rejects.files),
        "root": manifest.root,
    }


def _as(rows: DataFrame, schema: pa.Schema) -> DataFrame:
    """The columns of *schema* of *rows*, in its order and types."""
    types: list[tuple[str, DataType]] = [(field.name, field.dataType) for field in spark_schema(schema)]
    return rows.select(*(F.col(name).cast(kind).alias(name) for name, kind in types))
