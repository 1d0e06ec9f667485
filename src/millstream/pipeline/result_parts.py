"""Results of jobs as objects of a storage provider, for clusters whose hosts share nothing but the network.

A result table is a folder of the driver. Either its Parquet files lie in it, and all hosts mount it, or the file
``parts.json`` in it says which objects of the space ``x-results`` are its parts. Each attempt of a task writes a
separate object; the driver lists those whose attempts Spark took, which commits them, and deletes the others.
"""

from __future__ import annotations

import contextlib
import functools
import io
import secrets
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import SparkSession

from millstream.core.canonical import canonical_json
from millstream.core.decoding import prepared
from millstream.core.durable import write_durably
from millstream.pipeline.errors import PipelineError
from millstream.pipeline.settings import RESULTS_SETTING
from millstream.stores import Store, all_entries, open_provider
from millstream.stores.protocol import ItemNotFoundError
from millstream.stores.throttled import shared_rate

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

SPACE = "x-results"
"""The space of result parts: one of the system's own, which no policy copies and no sweep reads."""

LISTING = "parts.json"
"""The file of a result table whose parts are objects."""

PART_SCHEMA = pa.schema(
    [
        pa.field("name", pa.string(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("figures", pa.string(), nullable=False),
    ]
)
"""One row a part that a task has stored: its name, its size, and what the task counted in it (JSON: ``rows``, …)."""

_TEMPORARY = "_temporary"
"""The subfolder of parts until the table is committed; Spark's own writer uses the same name."""

_MARK = "://"
"""The mark of an object's location, which a path never has: ``Path`` makes one slash of two."""


class ParquetLayout(msgspec.Struct, frozen=True):
    """The layout of a result: the size of row groups before compression, and the columns without a dictionary.

    ``distinct`` are columns, as Parquet names them, of which hardly a value comes twice.
    """

    group_bytes: int | None = None
    distinct: tuple[str, ...] = ()

    @property
    def spark_options(self) -> dict[str, str]:
        """The same for Spark's own writer."""
        size = {} if self.group_bytes is None else {"parquet.block.size": str(self.group_bytes)}
        return {**size, **{f"parquet.enable.dictionary#{column}": "false" for column in self.distinct}}


class TaskWork(msgspec.Struct, frozen=True):
    """The processing of a task's rows before it stores them: ``make`` transforms them, and ``count`` counts in the
    result."""

    make: Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]] = lambda parts: parts
    count: Callable[[pa.RecordBatch], Mapping[str, int]] = lambda _: {}


class ResultPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One part of a table: the name of its object below the table's prefix, and its size in bytes."""

    name: str
    bytes: int


class StoredTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A result table at the storage provider of ``url``, below its own ``prefix``; without parts until it is done.

    A URL of a storage provider holds no secret, so that a table may be part of a plan of Spark.
    """

    url: str
    prefix: str
    parts: tuple[ResultPart, ...] = ()

    def location(self, name: str) -> str:
        """The location of the part *name*, for :func:`open_location`."""
        return f"{self.url}#{self.prefix}/{name}"

    def at(self, url: str) -> StoredTable:
        """The same table by another *url* of its storage provider."""
        return StoredTable(url, self.prefix, self.parts)

    def put(self, name: str, file: BinaryIO) -> ResultPart:
        """Store *file*, from its beginning, as the part *name*."""
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        store = _store(self.url)
        store.create_space(SPACE)
        store.put(SPACE, f"{self.prefix}/{name}", file)
        return ResultPart(name, size)

    def stored(self) -> dict[str, int]:
        """The size of each object below the prefix, by the name of the part that it is."""
        store = _store(self.url)
        if not store.has_space(SPACE):
            return {}
        entries = all_entries(store, SPACE, prefix=f"{self.prefix}/")
        return {entry.content_id.removeprefix(f"{self.prefix}/"): entry.size or 0 for entry in entries}

    def discard(self, names: Iterable[str]) -> None:
        """Delete the objects of these parts."""
        for name in names:
            with contextlib.suppress(ItemNotFoundError):
                _store(self.url).delete(SPACE, f"{self.prefix}/{name}")


class FolderTable(msgspec.Struct, frozen=True):
    """A result table in the folder at the path ``folder``, which all hosts share."""

    folder: str

    def put(self, name: str, file: BinaryIO) -> ResultPart:
        """Write *file*, from its beginning, as the part *name*, which is in no table before :meth:`commit`."""
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        with (Path(self.folder) / _TEMPORARY / name).open("xb") as target:
            shutil.copyfileobj(file, target, _COPIED_BYTES)
        return ResultPart(name, size)

    def begin(self) -> FolderTable:
        """Make the folder, which must not exist."""
        Path(self.folder).mkdir(parents=True)
        (Path(self.folder) / _TEMPORARY).mkdir()
        return self

    def commit(self, parts: Iterable[ResultPart]) -> None:
        """Let the table have *parts*, and delete what other attempts of tasks left.

        Raises :class:`PipelineError` where one of them is not there as its task wrote it.
        """
        folder = Path(self.folder)
        for part in parts:
            path = folder / _TEMPORARY / part.name
            size = path.stat().st_size if path.exists() else None
            if size != part.bytes:
                raise PipelineError(
                    f"{_misfit(part, size, str(folder))}: mount the same shared folder at {folder} on every host"
                )
            path.replace(folder / part.name)
        shutil.rmtree(folder / _TEMPORARY)


_COPIED_BYTES = 1 << 20


def results_url(spark: SparkSession) -> str:
    """The URL of the storage provider for the results of *spark*; empty where they go to folders."""
    return str(spark.conf.get(RESULTS_SETTING, "") or "")


def read_table(data: Path) -> StoredTable | None:
    """The table in the folder *data*, where its parts are objects. Raises :class:`PipelineError`: it is damaged."""
    try:
        return msgspec.json.decode((data / LISTING).read_bytes(), type=prepared(StoredTable))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except msgspec.DecodeError as error:
        raise PipelineError(
            f"{data / LISTING} is damaged ({error}): remove {data.parent} and run the job again"
        ) from error


def begin_table(data: Path, url: str) -> StoredTable:
    """A new table in the folder *data*, whose parts go to *url*; those of one that was there are deleted."""
    discard_tables(data)
    data.mkdir(parents=True, exist_ok=True)
    table = StoredTable(url, f"{data.parent.parent.name}/{secrets.token_hex(8)}")
    write_durably(data / LISTING, canonical_json(msgspec.to_builtins(table)))
    return table


def commit_table(data: Path, table: StoredTable, parts: Iterable[ResultPart]) -> StoredTable:
    """Say that *parts* are those of the *table* in *data*, and delete what other attempts of tasks left below it.

    Raises :class:`PipelineError` where one of them is not there as its task stored it.
    """
    done = StoredTable(table.url, table.prefix, tuple(sorted(parts, key=lambda part: part.name)))
    stored = table.stored()
    if missing := _missing(done, stored):
        raise PipelineError(
            f"{missing}: set pipeline.results (--results) to a storage provider that all hosts can reach, and run "
            "the job again"
        )
    table.discard(stored.keys() - {part.name for part in done.parts})
    write_durably(data / LISTING, canonical_json(msgspec.to_builtins(done)))
    return done


def why_incomplete(folder: Path) -> str | None:
    """The reason why the tables below *folder* cannot be used (a part is missing or has another size); None if they
    can."""
    tables = (read_table(listing.parent) for listing in sorted(folder.rglob(LISTING)))
    reasons = (_missing(table, table.stored()) for table in tables if table is not None and table.parts)
    return next((reason for reason in reasons if reason), None)


def discard_tables(folder: Path) -> None:
    """Delete the parts of all tables below *folder*, whatever attempt wrote them. Raises what the store raises."""
    for listing in sorted(folder.rglob(LISTING)):
        if (table := read_table(listing.parent)) is not None:
            table.discard(table.stored())


def locations(data: Path) -> list[str]:
    """The locations of the Parquet files of the table in *data*, by name, for :func:`open_location`."""
    table = read_table(data)
    if table is None:
        return [str(path) for path in sorted(data.glob("*.parquet"))]
    return [table.location(part.name) for part in table.parts]


def shown_place(data: Path) -> str:
    """The displayed location of the table in *data*: the folder, or the storage provider, the space and the prefix."""
    table = read_table(data)
    return str(data) if table is None else f"{table.url} {SPACE}/{table.prefix}"


def task_location(location: str, tasks: int) -> str:
    """*location* for one of *tasks* tasks, which share the rate of requests of a storage provider."""
    if _MARK not in location:
        return location
    url, _, name = location.rpartition("#")
    return f"{shared_rate(url, tasks)}#{name}"


@contextlib.contextmanager
def open_location(location: str) -> Iterator[BinaryIO | str]:
    """The source for pyarrow for *location*: the path itself, or a file that reads the ranges of an object."""
    if _MARK not in location:
        yield location
        return
    url, _, name = location.rpartition("#")
    with _ObjectFile(_store(url), name) as file:
        yield file  # type: ignore[misc]  # pyarrow reads any raw file


def write_part(
    parts: Iterable[pa.RecordBatch], table: StoredTable | FolderTable, layout: ParquetLayout, work: TaskWork
) -> Iterator[pa.RecordBatch]:
    """Store what *work* makes of *parts*, the rows of this task of Spark, as the part of this attempt.

    Yields its :data:`PART_SCHEMA`.
    """
    context = TaskContext.get()
    assert context is not None
    name, figures = part_name(f"part-{context.partitionId():05}", context.taskAttemptId()), Counter[str]()

    def counted() -> Iterator[pa.RecordBatch]:
        for rows in work.make(parts):
            figures.update({"rows": rows.num_rows, **work.count(rows)})
            yield rows

    if (part := store_part(counted(), table, name, layout)) is not None:
        row = msgspec.structs.asdict(part) | {"figures": canonical_json(dict(figures)).decode()}
        yield pa.RecordBatch.from_pylist([row], PART_SCHEMA)


def part_name(name: str, attempt: int) -> str:
    """The name of what one *attempt* of a task makes of the part *name*."""
    return f"{name}-{attempt}.parquet"


def store_part(
    parts: Iterable[pa.RecordBatch], table: StoredTable | FolderTable, name: str, layout: ParquetLayout
) -> ResultPart | None:
    """Store *parts* as the part *name* of *table*; None where there is no row, and no part."""
    with tempfile.TemporaryFile() as file:
        if not _write_parquet(parts, file, layout):
            return None
        return table.put(name, file)


def _write_parquet(parts: Iterable[pa.RecordBatch], file: BinaryIO, layout: ParquetLayout) -> int:
    rows = 0
    writer: pq.ParquetWriter | None = None
    for group in _groups(parts, layout.group_bytes or _GROUP_BYTES):
        if writer is None:
            coded = [column for column in _leaves(group.schema) if column not in layout.distinct]
            writer = pq.ParquetWriter(
                file, group.schema, compression="zstd", use_dictionary=coded, write_page_checksum=True
            )
        writer.write_table(group, row_group_size=max(1, group.num_rows))
        rows += group.num_rows
    if writer is not None:
        writer.close()
    return rows


_GROUP_BYTES = 16 << 20
"""Bytes of a row group before compression, where a result names none."""


def _groups(parts: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.Table]:
    """*parts* in tables of at most *size* bytes, or of one row."""
    waiting: list[pa.RecordBatch] = []
    filled = 0
    for part in parts:
        rows = max(1, part.num_rows * size // max(part.nbytes, size))
        for start in range(0, part.num_rows, rows):
            piece = part.slice(start, rows)
            if waiting and filled + piece.nbytes > size:
                yield pa.Table.from_batches(waiting)
                waiting, filled = [], 0
            waiting.append(piece)
            filled += piece.nbytes
    if waiting:
        yield pa.Table.from_batches(waiting)


def _leaves(schema: pa.Schema) -> list[str]:
    """The columns of *schema* as Parquet names them: those of lists by their elements."""
    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink)
    found = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    return [found.column(place).path for place in range(len(found))]


def _missing(table: StoredTable, stored: dict[str, int]) -> str | None:
    for part in table.parts:
        size = stored.get(part.name)
        if size != part.bytes:
            return _misfit(part, size, f"{SPACE}/{table.prefix} of {table.url}")
    return None


def _misfit(part: ResultPart, size: int | None, folder: str) -> str:
    problem = "is missing" if size is None else f"has {size:,} bytes, but its task wrote {part.bytes:,}"
    return f"result file {part.name} in {folder} {problem}"


@functools.lru_cache(maxsize=8)
def _store(url: str) -> Store:
    return open_provider(url, create=True)


class _ObjectFile(io.RawIOBase):
    """The object *name* of *store*, of which only the ranges are fetched that are read."""

    def __init__(self, store: Store, name: str) -> None:
        super().__init__()
        self._store, self._name, self._position = store, name, 0
        self._size = store.info(SPACE, name).size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer)[: max(0, self._size - self._position)]
        if len(view):
            with self._store.open(SPACE, self._name, start=self._position, length=len(view)) as file:
                data = file.read(len(view))
            if len(data) != len(view):
                raise PipelineError(f"{self._name!r} in {SPACE} of {self._store.url} ends early: run the job again")
            view[:] = data
            self._position += len(data)
        return len(view)
