"""The job ``ingest``: files into a log, in parallel, each file once by its content.

Tasks hash the files, then read those that are new and stage their messages (``pipeline/staging.py``). The driver
records the run in the log ``LOG.files``, a message a file, and appends. Rows that are not messages and files that
cannot be read go to ``LOG.rejects`` with the reason. A run that was interrupted is finished by the next one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  (the name the Spark world uses)

from millstream.core.clock import Clock, SystemClock
from millstream.core.decoding import prepared
from millstream.core.message import Message
from millstream.core.secrets import safe_url
from millstream.log import LogInputError, LogSpec, LogStore, Writer
from millstream.pipeline.errors import PipelineError, PipelineInputError, StagedPartGoneError, UnusableFileError
from millstream.pipeline.output.job_folder import JobRecord, log_record
from millstream.pipeline.planning.source_files import FileContent, SourceFile, Split, file_content, splits_of
from millstream.pipeline.reachable import check_files, check_provider, check_reachable
from millstream.pipeline.schema import spark_schema
from millstream.pipeline.source import read_log
from millstream.pipeline.spark_errors import spark_errors_explained
from millstream.pipeline.staging import StagedPart, Staging, is_started, staging_prefix
from millstream.pipeline.tasks.file_parsing import ParsingRules, RefusedRow, parse_split, refused_message, staged
from millstream.stores.tiers import open_log_store

FILES, REJECTS = "files", "rejects"
"""The suffixes of the names of the logs of files and rejects: ``LOG.files``, ``LOG.rejects``."""

LOST = "lost/"
"""Before the SHA-256 of a file, the key of a record which says that an earlier one of this file does not count."""

_PRODUCER = "ingest"
_MESSAGES_WRITE, _REJECTS_WRITE = "ingest", "ingest.rejects"
_WORK = pa.schema([pa.field("work", pa.binary())])
_DONE = pa.schema([pa.field("done", pa.binary())])


Work = TypeVar("Work")
Result = TypeVar("Result")


class SplitResult(msgspec.Struct, frozen=True):
    """The parts of a split's messages and of its rejects, or why its file is unusable."""

    split: int
    messages: StagedPart | None = None
    rejects: StagedPart | None = None
    unusable: str = ""


class FileRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A message of ``LOG.files``: a file, its parts, in which run, and as which of it (both 1, 2, 3 …).

    Of one that is ``unusable`` (why) nothing was taken, and the next run tries it again; its one reject says why. One
    whose staged rows were lost has none: its message has the key :data:`LOST` and the SHA-256.
    """

    path: str
    sha256: str
    bytes: int
    run: int
    place: int
    messages: tuple[StagedPart, ...]
    rejects: tuple[StagedPart, ...]
    unusable: str = ""

    @property
    def rows(self) -> int:
        """Messages that came of it."""
        return sum(part.rows for part in self.messages)

    @property
    def refused(self) -> int:
        """Rows that were put aside."""
        return 0 if self.unusable else sum(part.rows for part in self.rejects)


class IngestResult(msgspec.Struct, frozen=True):
    """The result of an ingest: its figures, and the new files."""

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
    check_provider(spark, staging)
    check_files(spark, [file.path for file in files])
    began = clock.monotonic()
    with (
        open_log_store(store_url, clock=clock) as store,
        spark_errors_explained("ingest"),
        IngestLogs(store, log, staging).held() as work,
    ):
        lost = work.finish_or_lost()
        found = _read(spark, files)
        contents = {file.sha256 for file, _ in found}
        if lost is not None:
            work.give_up(contents, lost)
        known = known_files(spark, store_url, f"{log}.{FILES}", contents)
        records = _parse(spark, _new(found, known), rules, staging, work)
        work.write_down(records)
        work.finish()
    return IngestResult(_record(log, files, records, round(clock.monotonic() - began, 3)), tuple(records))


class IngestLogs:
    """The three logs of an ingest, and what was written down in that of the files."""

    _writer: Writer

    def __init__(self, store: LogStore, log: str, staging: str) -> None:
        self._log, self._rejects = store.log(LogSpec(log)), store.log(LogSpec(f"{log}.{REJECTS}"))
        self._files = store.log(LogSpec(f"{log}.{FILES}"))
        self._staging, self._name = staging, f"ingest-{log}"
        self.prefix = staging_prefix(self._files, self._name)

    @contextlib.contextmanager
    def held(self) -> Iterator[Self]:
        """Keep other drivers away. Raises :class:`~millstream.log.WriterBusyError`."""
        with self._files.writer(_PRODUCER) as self._writer:
            yield self

    @property
    def last_run(self) -> int:
        """The last run that was written down (0: none)."""
        return self._writer.sequence

    def write_down(self, records: Sequence[FileRecord]) -> None:
        """Write down a run: from here on it will be finished.

        Raises :class:`StagedPartGoneError` where its parts are not there, as on hosts that do not share the folder.
        """
        if records:
            self._open_staging().check_stored(part for one in records for part in (*one.messages, *one.rejects))
            self._append((record, "" if record.unusable else record.sha256) for record in records)

    def finish(self) -> None:
        """Append what the last run that was written down has not appended yet.

        Raises :class:`StagedPartGoneError` where parts are gone and nothing of the run is in the logs,
        :class:`PipelineError` where something of it is.
        """
        run = self.last_run
        if not run:
            return
        staging, records = self._open_staging(), list(self._records())
        messages = [part for record in records for part in record.messages]
        rejects = [part for record in records for part in record.rejects]
        logs = (self._log, _MESSAGES_WRITE), (self._rejects, _REJECTS_WRITE)
        if not any(is_started(log, write, run) for log, write in logs):
            staging.check_stored([*messages, *rejects])
        staging.commit(self._log, _MESSAGES_WRITE, run, messages, keep=True)
        try:
            staging.commit(self._rejects, _REJECTS_WRITE, run, rejects)
        except StagedPartGoneError as error:  # not as a run that is lost: its messages would be appended twice
            if not is_started(self._log, _MESSAGES_WRITE, run):
                raise
            raise PipelineError(
                f"the rejects of the last run of the ingest into log {self._log.name!r} are not in "
                f"{safe_url(self._staging)}, and its messages are in the log already: use the --staging of "
                "that run"
            ) from error

    def finish_or_lost(self) -> StagedPartGoneError | None:
        """:meth:`finish`; where that is not possible since all of the run is lost, the error."""
        try:
            self.finish()
        except StagedPartGoneError as error:
            return error
        return None

    def give_up(self, contents: Set[str], error: StagedPartGoneError) -> None:
        """Write down that the last run, of which nothing is in the logs, does not count: its files are read again.

        Raises :class:`PipelineInputError` where they are not all among *contents* (SHA-256): they may be gone, and the
        parts with *error* may be elsewhere.
        """
        all_records = list(self._records())
        records = [record for record in all_records if not record.unusable]
        others = [record for record in records if record.sha256 not in contents]
        if others:
            raise PipelineInputError(
                f"{error}. It belongs to the last run of the ingest into log {self._log.name!r}: use the --staging of "
                f"that run, or ingest its {len(records):,} files again, all in one run; {len(others):,} of them are "
                f"not in this one, for example {others[0].path}"
            ) from error
        why = "its staged rows were lost before they were in the log"
        run = self.last_run + 1
        self._append(
            (
                msgspec.structs.replace(
                    record, run=run, place=place, messages=(), rejects=(), unusable=record.unusable or why
                ),
                "" if record.unusable else LOST + record.sha256,
            )
            for place, record in enumerate(all_records, 1)
        )

    def _append(self, records: Iterable[tuple[FileRecord, str]]) -> None:
        """Append *records* of one run, each with the key of its message."""
        rows = list(records)
        if rows:
            messages = [Message(msgspec.json.encode(record), key, record.path) for record, key in rows]
            self._writer.append(messages, sequence=rows[0][0].run)

    def _open_staging(self) -> Staging:
        return Staging(self._staging, self.prefix, earlier=self._name)

    def _records(self) -> Iterator[FileRecord]:
        """The files of the last run: they were appended together."""
        last = self._files.last_id
        (newest,) = self._files.read(last, last, gaps="none")
        (message,) = newest
        place = msgspec.json.decode(message.body, type=prepared(FileRecord)).place
        for batch in self._files.read(last - place + 1, last, gaps="none"):
            for message in batch:
                yield msgspec.json.decode(message.body, type=prepared(FileRecord))


def known_files(spark: SparkSession, store_url: str, files_log: str, wanted: Set[str]) -> set[str]:
    """Those of the SHA-256 *wanted* that are in the log *files_log* and not lost since; tasks look, however many files
    were ever taken."""
    names = [*wanted, *(LOST + name for name in wanted)]
    wanted_keys = spark.createDataFrame(pa.table({"key": pa.array(sorted(names), pa.string())}))
    keys = read_log(spark, store_url, files_log, columns=["id", "key"])
    found = keys.join(F.broadcast(wanted_keys), "key", "left_semi").groupBy("key").agg(F.max("id").alias("id"))
    last = {row["key"]: row["id"] for row in found.toArrow().to_pylist()}
    return {name for name in wanted if last.get(name, 0) > last.get(LOST + name, 0)}


def parse_part(
    parts: Iterable[pa.RecordBatch], rules: ParsingRules, staging: str, prefix: str
) -> Iterator[pa.RecordBatch]:
    """Stage the rows of the splits in the column ``work``; ``done`` has a :class:`SplitResult` for each."""
    place = Staging(staging, prefix)
    return _each(parts, Split, lambda split: _store_parts(place, split, rules))


def read_part(parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read the files in the column ``work`` once; ``done`` has a :class:`FileContent` for each."""
    return _each(parts, SourceFile, file_content)


def _each(
    parts: Iterable[pa.RecordBatch], kind: type[Work], task: Callable[[Work], msgspec.Struct]
) -> Iterator[pa.RecordBatch]:
    for part in parts:
        for data in part.column("work").to_pylist():
            done = msgspec.msgpack.encode(task(msgspec.msgpack.decode(data, type=prepared(kind))))
            yield pa.RecordBatch.from_arrays([pa.array([done], pa.binary())], schema=_DONE)


def _store_parts(place: Staging, split: Split, rules: ParsingRules) -> SplitResult:
    with place.part_writer(split.number) as messages, place.part_writer(split.number) as rejects:
        try:
            for found in parse_split(split, rules):
                if isinstance(found, list):
                    rejects.add(_refused(split.file, found))
                else:
                    messages.add(found)
        except UnusableFileError as error:
            return SplitResult(split.number, unusable=str(error))
        except LogInputError as error:
            return SplitResult(split.number, unusable=f"the log does not accept a row of {split.file.path}: {error}")
        return SplitResult(split.number, messages.store_part(), rejects.store_part())


def _refused(file: SourceFile, found: Sequence[RefusedRow]) -> pa.RecordBatch:
    return staged([refused_message(file, refused) for refused in found])


def _read(spark: SparkSession, files: Sequence[SourceFile]) -> list[tuple[SourceFile, FileContent]]:
    """Each of *files* with its SHA-256, and what a task found in it."""
    found = {content.path: content for content in _run(spark, files, read_part, FileContent)}
    return [(msgspec.structs.replace(file, sha256=found[file.path].sha256), found[file.path]) for file in files]


def _new(files: Sequence[tuple[SourceFile, FileContent]], known: set[str]) -> list[tuple[SourceFile, FileContent]]:
    """Those of *files* whose content is not *known*, the first of each content; and the unusable ones."""
    new: list[tuple[SourceFile, FileContent]] = []
    taken = set(known)
    for file, content in files:
        if content.unusable or file.sha256 not in taken:
            new.append((file, content))
            taken.add(file.sha256)
    return new


def _parse(
    spark: SparkSession,
    files: Sequence[tuple[SourceFile, FileContent]],
    rules: ParsingRules,
    staging: str,
    work: IngestLogs,
) -> list[FileRecord]:
    splits = list(splits_of((file, content.cuts) for file, content in files))
    parse = partial(parse_part, rules=rules, staging=staging, prefix=work.prefix)
    by_split = {done.split: done for done in _run(spark, splits, parse, SplitResult)}
    if len(by_split) != len(splits):
        raise PipelineInputError(
            f"the ingest divided {len(files):,} files into {len(splits):,} pieces, but tasks read {len(by_split):,}: "
            "please report this"
        )
    own: dict[str, list[SplitResult]] = {file.path: [] for file, _ in files}
    for split in splits:
        own[split.file.path].append(by_split[split.number])
    place = Staging(staging, work.prefix)
    return [
        _file_record(file, content.unusable, own[file.path], staging=place, run=work.last_run + 1, place=n)
        for n, (file, content) in enumerate(files, 1)
    ]


def _file_record(
    file: SourceFile, unusable: str, splits: Sequence[SplitResult], *, staging: Staging, run: int, place: int
) -> FileRecord:
    unusable = unusable or next((done.unusable for done in splits if done.unusable), "")
    messages, rejects = _filled(done.messages for done in splits), _filled(done.rejects for done in splits)
    if unusable:
        why = _refused(file, [RefusedRow("file", "file", unusable, b"")])
        messages, rejects = (), (staging.store_part(place, [why]),)
    return FileRecord(
        path=file.path,
        sha256=file.sha256,
        bytes=file.size,
        run=run,
        place=place,
        messages=messages,
        rejects=rejects,
        unusable=unusable,
    )


def _filled(parts: Iterable[StagedPart | None]) -> tuple[StagedPart, ...]:
    return tuple(part for part in parts if part is not None and part.rows)


def _run(
    spark: SparkSession,
    work: Sequence[msgspec.Struct],
    tasks: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    result: type[Result],
) -> list[Result]:
    """The result of *tasks* for each of *work*; each task has one of them, unless there are too many."""
    if not work:
        return []
    rows = pa.table([pa.array([msgspec.msgpack.encode(item) for item in work], pa.binary())], schema=_WORK)
    frame = spark.createDataFrame(rows).repartition(min(len(rows), 10_000))
    done = frame.mapInArrow(tasks, spark_schema(_DONE)).toArrow()["done"].to_pylist()
    return [msgspec.msgpack.decode(data, type=prepared(result)) for data in done]


def _record(log: str, found: Sequence[SourceFile], new: Sequence[FileRecord], seconds: float) -> JobRecord:
    taken = [file for file in new if not file.unusable]
    rows, refused = sum(file.rows for file in taken), sum(file.refused for file in taken)
    record = JobRecord(
        job="ingest",
        inputs={"log": log},
        rows_in=rows + refused,
        rows_out=rows,
        bytes=sum(file.bytes for file in taken),
        seconds=seconds,
        counts={
            "files": len(taken),
            "passed_over": len(found) - len(new),
            "rejected": refused,
            "unusable": len(new) - len(taken),
        },
    )
    log_record(record)
    return record


def default_staging(folder: Path) -> str:
    """The URL of the folder for staged parts below a node's *folder*."""
    return (folder / "staging").absolute().as_uri()
