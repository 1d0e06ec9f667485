"""The job ``ingest``: files into a log, in parallel, each file once by its content.

Tasks hash the files, then read those that are new and lay their messages down (``pipeline/staging.py``). The driver
writes the run down in the log ``LOG.files``, a message a file, and appends; rows that are no messages go to
``LOG.rejects``. A run that was written down and cut short is finished by the next one before that begins.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Self

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from millstream.core.clock import Clock, SystemClock
from millstream.core.message import Message
from millstream.log import LogSpec, LogStore, Writer
from millstream.pipeline.errors import PipelineInputError
from millstream.pipeline.jobs.file_parsing import ParsingRules, RefusedRow, parse_split, refused_message, staged
from millstream.pipeline.jobs.job_folder import JobRecord, log_record
from millstream.pipeline.jobs.source_files import SourceFile, Split, hash_part, splits_of
from millstream.pipeline.schema import spark_schema
from millstream.pipeline.source import check_reachable
from millstream.pipeline.spark_errors import spark_errors_explained
from millstream.pipeline.staging import StagedPart, Staging
from millstream.stores.tiers import open_store

FILES, REJECTS = "files", "rejects"
"""What the logs of a log's files and of its rejects are called: ``LOG.files``, ``LOG.rejects``."""

_PRODUCER = "ingest"
_PATHS = pa.schema([pa.field("path", pa.string())])
_HASHED = pa.schema([pa.field("path", pa.string()), pa.field("sha256", pa.string())])
_WORK = pa.schema([pa.field("split", pa.binary())])
_DONE = pa.schema([pa.field("done", pa.binary())])


class SplitResult(msgspec.Struct, frozen=True):
    """What came of a split: the parts of its messages and of its rejects."""

    split: int
    messages: StagedPart
    rejects: StagedPart


class FileRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A message of ``LOG.files``: a file, what came of it, in which run, and as which of it (both 1, 2, 3 …)."""

    path: str
    sha256: str
    bytes: int
    run: int
    place: int
    messages: tuple[StagedPart, ...]
    rejects: tuple[StagedPart, ...]

    @property
    def rows(self) -> int:
        """Messages that came of it."""
        return sum(part.rows for part in self.messages)

    @property
    def refused(self) -> int:
        """Rows that were put aside."""
        return sum(part.rows for part in self.rejects)


class IngestResult(msgspec.Struct, frozen=True):
    """What an ingest did: its figures, and the files that were new."""

    record: JobRecord
    files: tuple[FileRecord, ...]


def run_ingest(
    spark: SparkSession,
    store_url: str,
    log: str,
    files: Sequence[SourceFile],
    rules: ParsingRules,
    *,
    staging: str,
    clock: Clock | None = None,
) -> IngestResult:
    """Append what is in *files* to *log* by *rules*, file by file in their order; those that it has are passed over.

    *staging* is the URL of a storage provider that all hosts reach; they must reach the files as well. Raises
    :class:`PipelineInputError` for files that cannot be read, :class:`PipelineError`, and the errors of the log.
    """
    clock = clock or SystemClock()
    check_reachable(spark, store_url)
    began = clock.monotonic()
    with (
        open_store(store_url, clock=clock) as store,
        spark_errors_explained("ingest"),
        IngestLogs(store, log, staging).held() as work,
    ):
        work.finish()
        known = work.known()
        hashed = _hashed(spark, files)
        new = list({file.sha256: file for file in reversed(hashed) if file.sha256 not in known}.values())[::-1]
        records = _parse(spark, new, rules, staging, work) if new else []
        work.write_down(records)
        work.finish()
    return IngestResult(_record(log, hashed, records, round(clock.monotonic() - began, 3)), tuple(records))


class IngestLogs:
    """The three logs of an ingest, and what was written down in that of the files."""

    _writer: Writer

    def __init__(self, store: LogStore, log: str, staging: str) -> None:
        self._log, self._rejects = store.log(LogSpec(log)), store.log(LogSpec(f"{log}.{REJECTS}"))
        self._files = store.log(LogSpec(f"{log}.{FILES}"))
        self._staging = staging
        self.prefix = f"ingest-{log}"

    @contextlib.contextmanager
    def held(self) -> Iterator[Self]:
        """Keep other drivers away. Raises :class:`~millstream.log.WriterBusyError`."""
        with self._files.writer(_PRODUCER) as self._writer:
            yield self

    @property
    def last_run(self) -> int:
        """The last run that was written down (0: none)."""
        return self._writer.sequence

    def known(self) -> set[str]:
        """The SHA-256 of every file that is in the log."""
        batches = self._files.read(columns=["key"], gaps="none")
        return {name for batch in batches for name in batch.arrow.column("key").to_pylist()}

    def write_down(self, records: Sequence[FileRecord]) -> None:
        """Write down a run: from here on it will be finished."""
        if records:
            messages = [Message(msgspec.json.encode(record), record.sha256, record.path) for record in records]
            self._writer.append(messages, sequence=records[0].run)

    def finish(self) -> None:
        """Append what the last run that was written down has not appended yet."""
        run = self.last_run
        if not run:
            return
        staging, records = Staging(self._staging, self.prefix), list(self._records())
        messages = [part for record in records for part in record.messages]
        rejects = [part for record in records for part in record.rejects]
        staging.commit(self._log, "ingest", run, messages, keep=True)
        staging.commit(self._rejects, "ingest.rejects", run, rejects)

    def _records(self) -> Iterator[FileRecord]:
        """The files of the last run: they were appended together."""
        last = self._files.last_id
        (newest,) = self._files.read(last, last, gaps="none")
        (message,) = newest
        place = msgspec.json.decode(message.body, type=FileRecord).place
        for batch in self._files.read(last - place + 1, last, gaps="none"):
            for message in batch:
                yield msgspec.json.decode(message.body, type=FileRecord)


def parse_part(
    parts: Iterable[pa.RecordBatch], rules: ParsingRules, staging: str, prefix: str
) -> Iterator[pa.RecordBatch]:
    """Read the splits in the column ``split`` and lay down what is in them; ``done`` says what came of it."""
    place = Staging(staging, prefix)
    for part in parts:
        for data in part.column("split").to_pylist():
            done = _store_parts(place, msgspec.msgpack.decode(data, type=Split), rules)
            yield pa.RecordBatch.from_arrays([pa.array([msgspec.msgpack.encode(done)], pa.binary())], schema=_DONE)


def _store_parts(place: Staging, split: Split, rules: ParsingRules) -> SplitResult:
    with place.part_writer(split.number) as messages, place.part_writer(split.number) as rejects:
        for found in parse_split(split, rules):
            if isinstance(found, list):
                rejects.add(_refused(split.file, found))
            else:
                messages.add(found)
        return SplitResult(split.number, messages.store_part(), rejects.store_part())


def _refused(file: SourceFile, found: Sequence[RefusedRow]) -> pa.RecordBatch:
    return staged([refused_message(file, refused) for refused in found])


def _hashed(spark: SparkSession, files: Sequence[SourceFile]) -> list[SourceFile]:
    """*files* with the SHA-256 of each, read in parallel."""
    paths = pa.table([pa.array([file.path for file in files])], schema=_PATHS)
    frame = _spread(spark, paths).mapInArrow(hash_part, spark_schema(_HASHED))
    sums = {row["path"]: row["sha256"] for row in frame.toArrow().to_pylist()}
    return [msgspec.structs.replace(file, sha256=sums[file.path]) for file in files]


def _parse(
    spark: SparkSession, files: Sequence[SourceFile], rules: ParsingRules, staging: str, work: IngestLogs
) -> list[FileRecord]:
    splits = list(splits_of(files))
    rows = pa.table([pa.array([msgspec.msgpack.encode(split) for split in splits], pa.binary())], schema=_WORK)
    parsed = _spread(spark, rows).mapInArrow(
        partial(parse_part, rules=rules, staging=staging, prefix=work.prefix), spark_schema(_DONE)
    )
    found = [msgspec.msgpack.decode(data, type=SplitResult) for data in parsed.toArrow()["done"].to_pylist()]
    by_split = {done.split: done for done in found}
    if len(by_split) != len(splits):
        raise PipelineInputError(f"{len(splits)} pieces were to be read and {len(by_split)} were: please report this")
    own: dict[str, list[SplitResult]] = {file.path: [] for file in files}
    for split in splits:
        own[split.file.path].append(by_split[split.number])
    return [
        FileRecord(
            path=file.path,
            sha256=file.sha256,
            bytes=file.size,
            run=work.last_run + 1,
            place=place,
            messages=tuple(done.messages for done in own[file.path] if done.messages.rows),
            rejects=tuple(done.rejects for done in own[file.path] if done.rejects.rows),
        )
        for place, file in enumerate(files, 1)
    ]


def _spread(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """*rows* as a DataFrame whose tasks have one row each, as long as there are not too many."""
    return spark.createDataFrame(rows).repartition(max(1, min(len(rows), 10_000)))


def _record(log: str, found: Sequence[SourceFile], new: Sequence[FileRecord], seconds: float) -> JobRecord:
    rows, refused = sum(file.rows for file in new), sum(file.refused for file in new)
    counts = {"files": len(new), "passed_over": len(found) - len(new), "rejected": refused}
    record = JobRecord(
        job="ingest",
        inputs={"log": log},
        rows_in=rows + refused,
        rows_out=rows,
        bytes=sum(file.bytes for file in new),
        seconds=seconds,
        counts=counts,
    )
    log_record(record)
    return record


def default_staging(folder: Path) -> str:
    """The URL of the folder for staged parts below a node's *folder*."""
    return (folder / "staging").absolute().as_uri()
