"""Which rows of a batch job make up which cut: planned by names alone, and read where cuts are packed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.anchoring.batch_records import BatchHeader, EncodedBatch
from millstream.pipeline.result_parts import task_location
from millstream.pipeline.schema import open_parquet

ENCODED = ("batch", "source", "start", "end", "closed_at", "cut", "kind", "root", "ids", "lines")
"""The columns of ``BATCH_SCHEMA`` that an encoded batch is made of."""

RowNumbers = npt.NDArray[np.int64]


class NamedBatches(msgspec.Struct, frozen=True):
    """Some batches of a batch job: the path or location of their file, their rows in it (from 0 on, ascending), ids and
    Merkle roots (hex)."""

    path: str
    rows: RowNumbers
    names: Sequence[str]
    roots: Sequence[str]


class FileRows(msgspec.Struct, frozen=True, array_like=True):
    """Rows of a Parquet file, by its path or location: their numbers from 0 on, ascending, as int64 in the machine's
    order."""

    path: str
    numbers: bytes


class CutRows(msgspec.Struct, frozen=True, array_like=True):
    """A cut to be: where its batches lie, in their order, and how many they are."""

    rows: tuple[FileRows, ...]
    batches: int


def plan_cuts(
    named: Iterable[NamedBatches], size: int, is_new: Callable[[Sequence[str], Sequence[str]], npt.NDArray[np.bool_]]
) -> Iterator[CutRows]:
    """Cuts of *size* batches, the last one of fewer, of those of *named* that *is_new* (of names and roots) tells."""
    held: list[tuple[str, RowNumbers]] = []
    count = 0
    for some in named:
        rows = some.rows[is_new(some.names, some.roots)]
        while len(rows):
            taken, rows = rows[: size - count], rows[size - count :]
            held.append((some.path, taken))
            count += len(taken)
            if count == size:
                yield _plan(held)
                held, count = [], 0
    if held:
        yield _plan(held)


def task_plan(plan: CutRows, tasks: int) -> CutRows:
    """*plan* for one of *tasks* tasks, which share the rate of requests of a storage provider."""
    return CutRows(tuple(FileRows(task_location(rows.path, tasks), rows.numbers) for rows in plan.rows), plan.batches)


def read_plan(plan: CutRows) -> Iterator[EncodedBatch]:
    """The batches of *plan*; a row group of its files is in memory at a time. Raises :class:`PipelineError`."""
    for rows in plan.rows:
        numbers = np.frombuffer(rows.numbers, np.int64)
        with open_parquet(rows.path) as file:
            first = 0
            for group in range(file.num_row_groups):
                end = first + file.metadata.row_group(group).num_rows
                begin, stop = np.searchsorted(numbers, (first, end))
                if begin < stop:
                    found = file.read_row_group(group, columns=list(ENCODED), use_threads=False)
                    yield from encoded_batches(found.take(pa.array(numbers[begin:stop] - first)).combine_chunks())
                first = end


def encoded_batches(rows: Any) -> Iterator[EncodedBatch]:
    """The batches in *rows* (an Arrow table or record batch of one chunk, with the columns :data:`ENCODED`)."""
    columns = [_flat(rows.column(name)) for name in ENCODED]
    *plain, ids, lines = columns
    offsets, numbers = ids.offsets.to_pylist(), ids.values.to_pylist()
    values = zip(*(column.to_pylist() for column in plain), itertools.pairwise(offsets), lines.to_pylist(), strict=True)
    for batch, source, start, end, closed_at, cut, kind, root, (begin, stop), own in values:
        header = BatchHeader(
            batch=batch,
            closed_at=closed_at,
            count=stop - begin,
            cut=cut,
            end=end,
            kind=kind,
            root=root,
            source=source,
            start=start,
        )
        yield EncodedBatch(header, own, tuple(numbers[begin:stop]))


def _plan(held: Iterable[tuple[str, RowNumbers]]) -> CutRows:
    rows = [
        (path, np.concatenate([numbers for _, numbers in group]))
        for path, group in itertools.groupby(held, key=itemgetter(0))
    ]
    return CutRows(tuple(FileRows(path, own.tobytes()) for path, own in rows), sum(len(own) for _, own in rows))


def _flat(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
