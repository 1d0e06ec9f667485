"""Whether tasks on other hosts see the files that the driver names: the same ones, not others at the same path.

Nothing is written for it, since some of these paths are sources: a task compares the inodes that it finds with those
that the driver found. Local disks of two hosts differ in them, and a file system that both mount does not.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import Row, SparkSession

from millstream.core.secrets import safe_url
from millstream.log.backend_schemes import store_files
from millstream.pipeline.errors import PipelineInputError
from millstream.pipeline.schema import spark_schema
from millstream.stores.sources import local_folder

FileIdentity = tuple[int | str, ...]
"""The identity of a file or folder, which differs from that of another one at the same path of another host; empty if
it does not exist."""

HostWork = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_SEEN = pa.schema([pa.field("host", pa.string()), pa.field("apart", pa.string())])
_TASKS_A_CORE = 4
_MOST_PATHS = 100


def on_this_host(spark: SparkSession) -> bool:
    """Whether all tasks of *spark* run on the host of the driver."""
    return bool(spark.sparkContext.master.startswith("local"))


def ask_hosts(spark: SparkSession, work: HostWork, answer: pa.Schema) -> list[Row]:
    """The rows of *answer* that *work* makes in tasks, some a core, so that each host of *spark* has one."""
    tasks = _TASKS_A_CORE * spark.sparkContext.defaultParallelism
    rows: list[Row] = spark.range(tasks, numPartitions=tasks).mapInArrow(work, spark_schema(answer)).collect()
    return rows


def check_reachable(spark: SparkSession, store_url: str) -> None:
    """Raise :class:`PipelineInputError` where executors of *spark* do not see the files of the log store *store_url*.

    A store on a server has none; one that is not there yet must be in a folder that they see.
    """
    files = store_files(store_url)
    if files is not None:
        _require_same(spark, [_existing(files)], f"the log store {store_url} is", "a log store that all hosts reach")


def check_provider(spark: SparkSession, url: str) -> None:
    """Raise :class:`PipelineInputError` where executors of *spark* do not see the folder of the provider at *url*."""
    folder = local_folder(url)
    if folder is not None:
        _require_same(spark, [_existing(folder)], f"the store {url} is", "a store that all hosts reach, such as s3://…")


def check_files(spark: SparkSession, paths: Sequence[str]) -> None:
    """Raise :class:`PipelineInputError` where executors of *spark* do not see the files at *paths*, some of many."""
    some = [Path(path) for path in paths[:: len(paths) // _MOST_PATHS + 1]]
    _require_same(spark, some, "the files to read are", "a folder that all hosts mount at the same path")


def identity_of(path: Path) -> FileIdentity:
    """The identity of *path* on this host: its inode and, as that of a mounted folder says little, that of a folder in
    it."""
    try:
        inode = path.stat().st_ino
        if not path.is_dir():
            return (inode,)
        with os.scandir(path) as entries:
            folder = next((one for one in entries if one.name[0] != "." and _is_text(one.name) and one.is_dir()), None)
        return (inode,) if folder is None else (inode, folder.name, folder.inode())
    except OSError:
        return ()


def _is_text(name: str) -> bool:
    """Whether *name* can be sent to another host: bytes that are no UTF-8 are surrogates in a name."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def is_same(path: Path, known: FileIdentity) -> bool:
    """Whether *path* of this host is what *known* says of that of another one."""
    try:
        inode, *entry = known or (None,)
        here = path.stat().st_ino == inode
        return here and (not entry or (path / str(entry[0])).lstat().st_ino == entry[1])
    except OSError:
        return not known


def store_identity(store_url: str) -> FileIdentity:
    """The identity of the files of the log store at *store_url* on this host; empty for a store on a server."""
    files = store_files(store_url)
    return () if files is None else identity_of(files)


def require_identity(store_url: str, known: FileIdentity) -> None:
    """Raise :class:`PipelineInputError` where the files of the store on this host are not those of the driver."""
    files = store_files(store_url)
    if files is not None and known and not is_same(files, known):
        raise PipelineInputError(
            f"host {socket.gethostname()} cannot read the log store {safe_url(store_url)}: the path has no files "
            "there, or other files than on the driver's host; run with --master local[*], or copy the log to a store "
            "that all hosts can reach (`millstream log copy`)"
        )


def compare_part(parts: Iterable[pa.RecordBatch], expected: dict[str, FileIdentity]) -> Iterator[pa.RecordBatch]:
    """The first path of *expected* that is another one on this host, or null."""
    for _ in parts:
        apart = next((path for path, known in expected.items() if not is_same(Path(path), known)), None)
        yield pa.RecordBatch.from_pylist([{"host": socket.gethostname(), "apart": apart}], _SEEN)


def _require_same(spark: SparkSession, paths: Sequence[Path], what: str, instead: str) -> None:
    if on_this_host(spark):
        return
    work = partial(compare_part, expected={str(path): identity_of(path) for path in paths})
    apart = {row["host"]: row["apart"] for row in ask_hosts(spark, work, _SEEN) if row["apart"] is not None}
    if apart:
        hosts, path = ", ".join(sorted(apart)), min(apart.values())
        raise PipelineInputError(
            f"{what} on this host, but Spark runs on {spark.sparkContext.master}, and {path} is missing or different "
            f"on its hosts ({hosts}): run with --master local[*], or use {instead}"
        )


def _existing(path: Path) -> Path:
    """*path*, or the nearest folder above it that exists."""
    return next((each for each in (path, *path.parents) if each.exists()), path)
