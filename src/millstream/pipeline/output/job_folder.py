"""A job's folder: its output is complete and has a record, or the job is repeated.

``inputs.json`` is written first and ``job.json`` last. A folder without the latter is what a killed run left behind.
Spark may continue writing for a moment after its driver was killed, so each attempt writes to its own folder,
``attempt-N``; the highest number is valid.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from millstream.core.canonical import canonical_json
from millstream.core.decoding import prepared
from millstream.core.durable import sync_folder, write_durably
from millstream.core.errors import BusyError
from millstream.pipeline.errors import PipelineError
from millstream.pipeline.job_log import LOGGER
from millstream.pipeline.result_parts import discard_tables, locations, why_incomplete
from millstream.pipeline.schema import open_parquet
from millstream.pipeline.spark_errors import spark_errors_explained
from millstream.stores.protocol import StoreError

_logger = logging.getLogger(LOGGER)


_SOURCES = "sources.json"
"""The file of an attempt that says with which results of other jobs it began."""


class JobBusyError(PipelineError, BusyError):
    """Another process is at this job."""


class JobFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of the output: its name in :attr:`JobFolder.data` and its size in bytes."""

    name: str
    bytes: int


class JobRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The record of a finished job.

    ``inputs`` are what the result depends on; ``rows_in``, ``rows_out`` and ``bytes`` (of the content that was
    worked on) its size; ``seconds`` how long it ran; ``counts`` further figures of this kind of job.
    """

    job: str
    inputs: dict[str, Any]
    rows_in: int
    rows_out: int
    bytes: int = 0
    seconds: float = 0.0
    counts: dict[str, int] = {}
    files: tuple[JobFile, ...] = ()


class JobFolder:
    """The folder of one job with one set of inputs.

    *root* holds the folders of all jobs; *job* is the kind; *inputs* is plain JSON data and decides which folder.
    *sources* are the folders of the jobs whose results it reads: where one of these was run again, so is this one.
    """

    def __init__(self, root: Path, job: str, inputs: Mapping[str, Any], *, sources: Sequence[JobFolder] = ()) -> None:
        self.job = job
        self.inputs = dict(inputs)
        self._sources = tuple(sources)
        identity = hashlib.sha256(canonical_json({"inputs": self.inputs, "job": job})).hexdigest()
        self.path = root / f"{job}-{identity[:20]}"

    @property
    def attempt(self) -> Path:
        """The folder of the latest attempt."""
        return latest_attempt(self.path)

    @property
    def data(self) -> Path:
        """The output of the latest attempt."""
        return self.attempt / "data"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes away from the folder, and say in one line what Spark says in many.

        Raises :class:`JobBusyError` where another process is at it, :class:`PipelineError` for what Spark raises.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "lock").open("wb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise JobBusyError(
                    f"another process is running the job in {self.path}: wait until the job ends, or stop that process"
                ) from error
            try:
                write_durably(self.path / "inputs.json", canonical_json(self.inputs))
                with spark_errors_explained(self.job):
                    yield
            finally:
                fcntl.flock(lock, fcntl.LOCK_UN)  # a child forked meanwhile shares the file: closing is not enough

    def committed(self) -> JobRecord | None:
        """The record of the finished job; None where it never finished, or where its files are not what it wrote."""
        record = read_record(self.path / "job.json")
        if record is None or record.inputs != self.inputs:
            return None
        for file in record.files:
            path = self.data / file.name
            if _size(path) != file.bytes:
                _logger.warning(
                    "%s is missing or does not have the %d bytes that were written: the job is run again",
                    path,
                    file.bytes,
                )
                return None
        if incomplete := why_incomplete(self.attempt):
            _logger.warning("%s: the job is run again", incomplete)
            return None
        if not self.is_current():
            _logger.warning("the results that %s was made from were made again: the job is run again", self.path)
            return None
        return record

    def is_current(self) -> bool:
        """Whether the latest attempt began with the present results of its sources; as far as it says so, which those
        of earlier releases do not."""
        if not self._sources:
            return True
        try:
            known = msgspec.json.decode((self.attempt / _SOURCES).read_bytes(), type=prepared(list[str]))
        except FileNotFoundError:
            return True
        except msgspec.DecodeError:
            return False
        return known == self._stamps()

    def _stamps(self) -> list[str]:
        """A text for each source, which changes when the job is run again."""
        return [_stamp(source.path / "job.json") for source in self._sources]

    def begin(self) -> None:
        """Begin a new attempt, and remove the output of earlier ones."""
        (self.path / "job.json").unlink(missing_ok=True)
        earlier = _attempts(self.path)
        (self.path / f"attempt-{max(earlier, default=0) + 1}").mkdir(parents=True)
        if self._sources:
            write_durably(self.attempt / _SOURCES, canonical_json(self._stamps()))
        for folder in (*earlier.values(), self.path / "data"):
            discard_tables(folder)
            shutil.rmtree(folder, ignore_errors=True)

    def files(self) -> tuple[JobFile, ...]:
        """The files of the output by name, without the droppings of Spark and Hadoop."""
        paths = [path for path in sorted(self.data.iterdir()) if path.is_file() and path.name[0] not in "._"]
        return tuple(JobFile(path.name, path.stat().st_size) for path in paths)

    def record(
        self, *, rows_in: int, rows_out: int, bytes: int = 0, seconds: float = 0.0, counts: Mapping[str, int] = {}
    ) -> JobRecord:
        """The record of this job, with these figures."""
        whole = JobRecord(job=self.job, inputs=self.inputs, rows_in=rows_in, rows_out=rows_out)
        return msgspec.structs.replace(whole, bytes=bytes, seconds=seconds, counts=dict(counts))

    def commit(self, record: JobRecord) -> JobRecord:
        """Sync the output to the disk, then write *record*, with the list of files, and log it as one line."""
        record = msgspec.structs.replace(record, files=self.files())
        for file in record.files:
            sync_file(self.data / file.name)
        for folder in (self.data, self.attempt, self.path):
            sync_folder(folder)
        write_durably(self.path / "job.json", canonical_json(msgspec.to_builtins(record)))
        log_record(record)
        return record


def latest_attempt(job: Path) -> Path:
    """The folder of the latest attempt in the folder *job*: itself where no attempt has one, as in older versions."""
    attempts = _attempts(job)
    return attempts[max(attempts)] if attempts else job


def read_record(path: Path) -> JobRecord | None:
    """The record *path* of a finished job; None where there is none, or none that can be read: then it is not done."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=prepared(JobRecord))
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        _logger.warning("%s is damaged (%s): the job counts as one that has not finished", path, error)
        return None


def unfinished(jobs: Path, job: str) -> Iterator[dict[str, Any]]:
    """The inputs of the runs of *job* under *jobs* that began and have not finished."""
    for folder in sorted(jobs.glob(f"{job}-*")):
        if not (folder / "job.json").exists():
            yield from read_inputs(folder)


def read_inputs(folder: Path) -> Iterator[dict[str, Any]]:
    """The inputs of the run in *folder*; nothing where they are not there, or cannot be read."""
    try:
        yield msgspec.json.decode((folder / "inputs.json").read_bytes(), type=prepared(dict[str, Any]))
    except FileNotFoundError:
        return
    except msgspec.DecodeError as error:
        _logger.warning("%s is damaged (%s): the run is skipped", folder / "inputs.json", error)


def remove_old_jobs(jobs: Path, *, before: int) -> int:
    """Remove the folders under *jobs* that were last worked on *before* (microseconds), finished or not; how many.

    A folder that another process is at is left alone, and one that cannot be deleted, for example because its results
    lie at a storage provider that does not answer.
    """
    removed = 0
    for folder in sorted(jobs.glob("*-*")):
        try:
            removed += _remove_old_job(folder, before)
        except (FileNotFoundError, BlockingIOError):
            continue
        except (PipelineError, StoreError, OSError) as error:
            _logger.warning("%s is kept: its results cannot be deleted (%s)", folder, error)
    return removed


def _remove_old_job(folder: Path, before: int) -> bool:
    with (folder / "lock").open("r+b") as lock:  # for writing: NFS gives no exclusive lock to who only reads
        if (folder / "inputs.json").stat().st_mtime_ns // 1000 >= before:
            return False
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        discard_tables(folder)
        shutil.rmtree(folder)
        return True


def parquet_rows(data: Path, columns: list[str], *, rows: int = 8192) -> Iterator[pa.RecordBatch]:
    """*columns* of all Parquet files in *data*, file by file in the order of their names, up to *rows* at a time.

    Raises :class:`PipelineError` where the bytes of a page are not those that were written, by its checksum.
    """
    for location in locations(data):
        yield from file_rows(location, columns, rows=rows)


def file_rows(path: Path | str, columns: list[str] | None = None, *, rows: int = 8192) -> Iterator[pa.RecordBatch]:
    """*columns* (None: all) of the Parquet file *path*, up to *rows* at a time. Raises as :func:`parquet_rows`."""
    with open_parquet(path) as parquet:
        for group in range(parquet.num_row_groups):  # of all of them together, the whole file would be fetched at once
            yield from parquet.iter_batches(rows, row_groups=[group], columns=columns)


def log_record(record: JobRecord) -> None:
    """One canonical JSON line with the figures of a finished job, to the logger ``millstream.pipeline``."""
    line = {
        "bytes": record.bytes,
        "counts": record.counts,
        "inputs": record.inputs,
        "job": record.job,
        "rows_in": record.rows_in,
        "rows_out": record.rows_out,
        "seconds": record.seconds,
    }
    _logger.info("%s", canonical_json(line).decode("utf-8"))


def _attempts(job: Path) -> dict[int, Path]:
    """The folders of attempts in *job*, by number."""
    return {int(path.name.removeprefix("attempt-")): path for path in job.glob("attempt-*")}


def _stamp(path: Path) -> str:
    """The time and the content of the record *path*, hashed; empty where there is none."""
    try:
        return hashlib.sha256(b"%d %b" % (path.stat().st_mtime_ns, path.read_bytes())).hexdigest()
    except FileNotFoundError:
        return ""


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else -1


def sync_file(path: Path) -> None:
    """Sync the file at *path* to the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
