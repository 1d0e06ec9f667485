"""Which items a sweep reads when it need not read all: those that are due by age and risk, as far as a budget goes.

Nothing is sorted as a whole and nothing is collected: two tallies, by urgency and then by a hash of the name, find
where the budget ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (the name the Spark world uses)

from millstream.core.durable import replacing
from millstream.mill.integrity_decision import CheckVerdict
from millstream.pipeline.errors import PipelineInputError
from millstream.pipeline.schema import open_parquet

HOUR = 3_600_000_000
"""Microseconds; ages are compared by the hour."""

SOLE = 2
"""An item of which no other store has a copy ages so many times as fast: nothing could repair it."""

_UNVERIFIED, _CONTRADICTED = 1 << 29, 1 << 30
_KEY = ("store", "space", "content_id")
_SHARES = 4096
"""The items that are equally urgent are taken in shares, by a hash of their name, the same in every run."""


class DueRule(msgspec.Struct, frozen=True):
    """What is due: what was last found whole *older_than* microseconds ago or more; and how many bytes may be read.

    What listing and manifest contradict each other about, what failed its last check and what was never found whole is
    due whatever its age, and goes first in that order. *budget* None is without a limit. Raises
    :class:`PipelineInputError` for an age below 0 or a budget below 1.
    """

    older_than: int = 0
    budget: int | None = None

    def __post_init__(self) -> None:
        if self.older_than < 0:
            raise PipelineInputError(f"invalid older_than {self.older_than}: use at least 0 microseconds")
        if self.budget is not None and self.budget < 1:
            raise PipelineInputError(f"invalid budget {self.budget}: use at least 1 byte")


EVERYTHING = DueRule()


class DeferredItems(msgspec.Struct, frozen=True):
    """Items that a sweep leaves out in one space: items that are not due, and items (of ``bytes``) over the budget."""

    store: str
    space: str
    not_due: int
    postponed: int
    bytes: int


DEFERRED_SCHEMA = pa.schema(
    [
        pa.field("store", pa.string(), nullable=False),
        pa.field("space", pa.string(), nullable=False),
        *(pa.field(name, pa.int64(), nullable=False) for name in ("not_due", "postponed", "bytes")),
    ]
)


def urgency(rule: DueRule, now: int) -> Column:
    """How urgent an item is that has the columns of :func:`millstream.pipeline.jobs.integrity.join_sides`; -1: not due.

    *now* is in microseconds since the epoch, UTC. A check that is dated later is of a clock that was wrong: its item
    counts as never verified.
    """
    contradicted = (
        ~F.col("listed")
        | F.col("deleted")
        | F.col("manifest").isNull()
        | (F.col("listed_size") != F.col("recorded_size"))
        | (F.col("listed_modified") > F.col("verified_at"))
    )
    failed = F.col("outcome").isNotNull() & (F.col("outcome") != CheckVerdict.SUCCESS.value)
    age = (F.lit(now) - F.col("verified_at")) * F.when(F.col("elsewhere"), 1).otherwise(SOLE)
    by_age = F.when(age >= rule.older_than, F.greatest(F.floor(age / HOUR), F.lit(0))).otherwise(-1)
    return (
        F.when(F.coalesce(contradicted, F.lit(False)) | failed, F.lit(_CONTRADICTED))
        .when(F.col("verified_at").isNull() | (F.col("verified_at") > now), F.lit(_UNVERIFIED))
        .otherwise(F.least(by_age, F.lit(_UNVERIFIED - 1)))
        .cast("long")
    )


def within_budget(candidates: DataFrame, rule: DueRule) -> Column:
    """Which of *candidates* (with ``urgency``, ``listed``, ``size`` and the key) are read: a condition on its columns.

    The most urgent first, while their bytes are within the budget; where not even the first share is, the first of it,
    so that an item larger than the budget is read at some time. What is not listed costs nothing.
    """
    due = F.col("urgency") >= 0
    if rule.budget is None:
        return due
    listed = candidates.where(due & F.col("listed"))
    level, left = _border(_tally(listed, "urgency"), rule.budget)
    if level is None:
        return due
    border = listed.where(F.col("urgency") == level).withColumn("share", _share())
    share, rest = _border(_tally(border, "share"), left)
    within = (F.col("urgency") > level) | ((F.col("urgency") == level) & (_share() > (-1 if share is None else share)))
    if rest == rule.budget and share is not None:
        within |= _is_first(border.where(F.col("share") == share))
    return due & (within | ~F.col("listed"))


def write_deferred(path: Path, candidates: DataFrame, chosen: Column) -> None:
    """Tally by space what *chosen* leaves of *candidates*, into a small Parquet file."""
    over = ~chosen & (F.col("urgency") >= 0)
    rows = (
        candidates.where(~chosen)
        .groupBy("store", "space")
        .agg(
            F.count_if(F.col("urgency") < 0).alias("not_due"),
            F.count_if(over).alias("postponed"),
            F.sum(F.when(over, F.col("size")).otherwise(0)).alias("bytes"),
        )
        .toArrow()
    )
    with replacing(path) as file:
        pq.write_table(rows.cast(DEFERRED_SCHEMA), file)


def read_deferred(path: Path) -> tuple[DeferredItems, ...]:
    """The items that a sweep left out, by space. Raises :class:`PipelineError` if the record cannot be read."""
    with open_parquet(path) as parquet:
        rows = [DeferredItems(**row) for row in parquet.read().to_pylist()]
    return tuple(sorted(rows, key=lambda row: (row.store, row.space)))


def _share() -> Column:
    return F.pmod(F.xxhash64(*_KEY), F.lit(_SHARES))


def _tally(rows: DataFrame, column: str) -> Iterator[tuple[int, int]]:
    """The values of *column*, the highest first, and the bytes of each."""
    found = rows.groupBy(column).agg(F.sum("size").alias("size")).toArrow().sort_by([(column, "descending")])
    return zip(found[column].to_pylist(), found["size"].to_pylist(), strict=True)


def _border(tally: Iterator[tuple[int, int]], budget: int) -> tuple[int | None, int]:
    """The first value with which the bytes go over *budget*, and what is left of it before; None: all are within."""
    for value, size in tally:
        if size > budget:
            return value, budget
        budget -= size
    return None, budget


def _is_first(rows: DataFrame) -> Column:
    """Whether an item is the smallest of *rows*."""
    first = rows.orderBy("size", *_KEY).select(*_KEY).head()
    return F.lit(False) if first is None else F.struct(*_KEY) == F.struct(*(F.lit(first[name]) for name in _KEY))
