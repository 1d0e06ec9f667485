"""Parquet files by their row groups: ranges of a column's values, and what of the files bears on each.

A listing comes in the order of its ids, and so does the manifest. So each row group holds a narrow range of them, which
its statistics tell, and a range can be read by itself: no row is dealt out, sorted or shuffled. Files in another order
give the same rows, more slowly: every range then reads most of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from millstream.pipeline.result_parts import locations
from millstream.pipeline.schema import open_parquet

GROUP_BYTES = 8 << 20
"""Row groups that are to be read by ranges are written about this large, before compression."""


class RowGroup(msgspec.Struct, frozen=True):
    """Row group *number* of the file at *path*, which may be the location of an object: its rows, and its least and
    greatest value ("" and None: anything)."""

    path: str
    number: int
    rows: int
    least: str = ""
    greatest: str | None = None


class ValueRange(msgspec.Struct, frozen=True):
    """Values from ``begin`` on and below ``end``; None: no end."""

    begin: str = ""
    end: str | None = None

    def holds(self, group: RowGroup) -> bool:
        """Whether *group* holds no others."""
        below = self.end is None or (group.greatest is not None and group.greatest < self.end)
        return below and group.least >= self.begin


def row_groups(path: Path, column: str) -> Iterator[RowGroup]:
    """The row groups of the Parquet file, or of all Parquet files in the folder, *path* by the text *column*."""
    for file in locations(path) if path.is_dir() else [str(path)]:
        with open_parquet(file) as parquet:
            found = parquet.metadata
        place = found.schema.names.index(column)
        for number in range(found.num_row_groups):
            group = found.row_group(number)
            told = group.column(place).statistics
            known = told is not None and told.has_min_max
            bounds = (told.min, told.max) if known else ("", None)
            yield RowGroup(file, number, group.num_rows, *bounds)


def cut_spans(groups: Iterable[RowGroup], rows: int) -> list[ValueRange]:
    """Spans that begin where row groups do, one after the other, each with about *rows* of the rows of *groups*."""
    cuts, filled = [""], 0
    for group in sorted(groups, key=attrgetter("least")):
        if filled >= rows and group.least > cuts[-1]:
            cuts.append(group.least)
            filled = 0
        filled += group.rows
    return [ValueRange(begin, end) for begin, end in zip(cuts, [*cuts[1:], None], strict=True)]


def deal(groups: Iterable[RowGroup], spans: Sequence[ValueRange]) -> list[tuple[RowGroup, ...]]:
    """For each of *spans*, one after the other, those of *groups* that may hold values of it."""
    begins = [span.begin for span in spans]
    dealt: list[list[RowGroup]] = [[] for _ in spans]
    for group in groups:
        first = bisect_right(begins, group.least) - 1
        last = len(spans) if group.greatest is None else bisect_right(begins, group.greatest)
        for own in dealt[first:last]:
            own.append(group)
    return list(map(tuple, dealt))


def read_span(groups: Sequence[RowGroup], span: ValueRange, schema: pa.Schema, column: str) -> pa.Table:
    """The rows of *groups* whose text *column* is in *span*, the columns of *schema*, in the order of the files."""
    parts = [schema.empty_table()]
    for path, own in groupby(groups, key=attrgetter("path")):
        with open_parquet(path) as file:
            for group in own:
                rows = file.read_row_group(group.number, columns=schema.names, use_threads=False)
                parts.append(_within(rows.cast(schema), group, span, column))
    return pa.concat_tables(parts).combine_chunks()


def _within(rows: pa.Table, group: RowGroup, span: ValueRange, column: str) -> pa.Table:
    if span.holds(group):
        return rows
    mask: Any = pc.greater_equal(rows[column], span.begin)
    if span.end is not None:
        mask = pc.and_(mask, pc.less(rows[column], span.end))
    return rows.filter(mask)
