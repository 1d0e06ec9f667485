"""Spaces that are copied to two stores, in order and not, and their status."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from millstream.mill.adoption.catalog import AdoptedFiles, AdoptedSpace, AdoptionCatalog, AdoptionFinding
from millstream.mill.adoption.status import OpenWork, ProtectionStatus, SpaceStatus
from millstream.mill.integrity_decision import CheckVerdict, ManifestAction
from millstream.mill.manifest import CheckResult, Manifest
from millstream.mill.manifest_table import AddedItems
from millstream.mill.policies.policy import parse_policy
from millstream.mill.policies.repository import Policies

SUM = "a" * 64
ITEMS = [f"item {number}" for number in range(30)]


def policies() -> Policies:
    """Everything in `one` is copied to `two` and to `three`."""
    pairs = [{"srcStoreId": "one", "destStoreId": store} for store in ("two", "three")]
    policy, _, _ = parse_policy(json.dumps({"defaultPolicies": pairs}), "me")
    return Policies({"me": policy})


def add_spaces(engine: sa.Engine, first: int, end: int, *, case: Callable[[str], str] = str.lower) -> None:
    """Add spaces s*first* to s*end* - 1 of four sorts: in order, with damage and items without copies, and both of
    adopted ones."""
    manifest, catalog = Manifest(engine), AdoptionCatalog(engine)
    for number in range(first, end):
        space, sort = case(f"s{number}"), number % 4
        names = ITEMS[: 22 + number % 7]
        count = len(names)
        if sort >= 2:
            versions = [str(1_700_000_000_000_000_000 + number)] * count
            files = AdoptedFiles("one", space, 7, names, [1] * count, versions, [SUM] * count, ["text/plain"] * count)
            catalog.save_files(files)
            catalog.save_space(AdoptedSpace("one", space, "hold", 1, 20 + number, sort - 2))
        else:
            items = AddedItems("one", space, 5, names, [SUM] * count, [1] * count, ["text/plain"] * count)
            manifest.writer.record_added(items)
        copied = names[: count - number % 5] if sort % 2 else names
        for store in ("two", "three"):
            copies = AddedItems(store, space, 6, copied, [SUM] * len(copied), [1] * len(copied), ["a/b"] * len(copied))
            manifest.writer.record_added(copies)
        if sort % 2:
            manifest.writer.apply([_failure(store, space, names[2 + number % 3]) for store in ("one", "two")])
            of = [("one", "unreadable"), ("two", "checksum-mismatch"), ("two", "unreadable")]
            for store in ("one", "two"):
                found = [
                    AdoptionFinding(
                        store=store, space=space, content_id=names[1], kind=kind, detail=space, found_at=number
                    )
                    for where, kind in of
                    if where == store
                ]
                catalog.replace_findings(store, space, found)
        if sort == 3:
            adopted = catalog.get_many("one", space, names[:3]).values()
            catalog.save([msgspec.structs.replace(one, vanished_at=9) for one in adopted])


def _failure(store: str, space: str, item: str) -> CheckResult:
    """A check that found *item* damaged."""
    found = CheckVerdict.FAILURE, "B3", "corrupt", "the bytes differ", 9, 1, SUM, None, None, ManifestAction.KEEP
    return CheckResult(store, space, item, *found)


def space_statuses(engine: sa.Engine, *, names: bool = True, now: int = 100) -> list[SpaceStatus]:
    """The status of all spaces at *now* (microseconds), without reports."""

    def no_reports(_spaces: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], Any]:
        return {}

    return list(ProtectionStatus(engine, policies(), OpenWork(), no_reports, now, names=names).spaces())
