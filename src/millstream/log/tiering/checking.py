"""Checking the sealed objects of a log: that each is there, and on demand every byte of it."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from millstream.log.backend import Head
from millstream.log.tiering.reading import TierReader
from millstream.log.tiering.seal import ABSENT, find_fault, find_fault_of_parquet, size_fault
from millstream.log.tiering.sealed_objects import SealedObject


class CheckedObject(msgspec.Struct, frozen=True):
    """One object that was examined, and what is wrong with it."""

    row: SealedObject
    problem: str | None


def check_objects(tier: TierReader, log: str, head: Head, *, deep: bool) -> Iterator[CheckedObject]:
    """Look at every object of *log*: its size, and with *deep* its bytes from first to last."""
    expected = head.first_id
    for row in tier.rows(head.first_id, tier.last_id):
        where = f"the object {row.name} (ids {row.first_id} to {row.last_id})"
        if row.first_id > expected:
            yield CheckedObject(row, f"ids {expected} to {row.first_id - 1} are not in any object")
        expected = row.last_id + 1
        fault = find_fault(tier.places.of(row), log, row) if deep else _missing(tier, row)
        yield CheckedObject(row, None if fault is None else f"{where} is missing or damaged: {fault}")
        fault = find_fault_of_parquet(tier.places.of(row), row.parquet) if deep and row.parquet is not None else None
        if fault is not None:
            problem = f"the Parquet file beside {row.name} is missing or damaged: {fault}. The object itself is intact"
            yield CheckedObject(row, problem)


def _missing(tier: TierReader, row: SealedObject) -> str | None:
    size = tier.places.of(row).size(row.name)
    if size is None:
        return ABSENT
    return None if size == row.size else size_fault(size, row.size)
