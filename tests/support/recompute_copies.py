"""Outcomes of checks, reports, plans of copies and sizes of spaces, computed from what is there and what is recorded.

The rules are those of docs/mill.md ("What a check finds", "Stray and absent items"), docs/formats/report.md and
docs/formats/duplication-policy.md alone; nothing here imports Millstream.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from support.recompute_stores import DAMAGED, Copy, digest

Place = tuple[str, str, str]
"""Store, space, and id of an item."""


class Outcome(NamedTuple):
    """What a check says of one copy, and the bytes that it read."""

    store: str
    space: str
    content_id: str
    verdict: str
    row: str
    kind: str
    manifest: str | None
    provider: str
    content: str
    size: int


def outcomes_of(copies: Iterable[Copy]) -> list[Outcome]:
    """The outcome of each copy that is listed, or that the manifest says should be there."""
    return [_outcome(copy) for copy in copies if copy.content is not None or copy.manifest is not None]


def _outcome(copy: Copy) -> Outcome:
    manifest = copy.manifest
    content = "missing" if copy.content is None else digest(copy.content)
    provider = "missing" if copy.content is None else copy.provider or "no-checksum"
    if provider == DAMAGED:
        content = "not-read"
    verdict, row, kind = _decided(copy, manifest, provider, content)
    size = 0 if copy.content is None or content == "not-read" else len(copy.content)
    return Outcome(copy.store, copy.space, copy.content_id, verdict, row, kind, manifest, provider, content, size)


def _decided(copy: Copy, manifest: str | None, provider: str, content: str) -> tuple[str, str, str]:
    fresh = ("IGNORE", "B11", "fresh")
    rules: list[tuple[bool, tuple[str, str, str]]] = [
        (content == "missing", ("FAILURE", "B18", "missing")),
        (provider == DAMAGED, ("FAILURE", "B27", DAMAGED)),
        (copy.deleted, ("FAILURE", "B24", "undeleted")),
        (manifest is None and copy.fresh, fresh),
        (provider == "no-checksum" and content == manifest, ("SUCCESS", "B19", "no-checksum")),
        (provider == "no-checksum", ("FAILURE", "B19", "no-checksum")),
        (manifest is None and provider == content, ("FAILURE", "B15", "unrecorded")),
        (manifest is None, ("FAILURE", "B16", "neither")),
        (manifest == provider == content, ("SUCCESS", "B1", "intact")),
        (manifest == provider, ("FAILURE", "B3", "checksum-mismatch")),
        (manifest == content, ("FAILURE", "B7", "store-checksum")),
        (provider == content, ("FAILURE", "B9", "manifest")),
    ]
    return next((decided for applies, decided in rules if applies), ("FAILURE", "B10", "neither"))


def reports_of(copies: Sequence[Copy], pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], dict[str, Any]]:
    """What the report of each space in each store counts; *pairs* of stores have copies of the first in the second."""
    by_place = {(copy.store, copy.space, copy.content_id): copy for copy in copies}
    outcomes: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes_of(copies):
        outcomes.setdefault((outcome.store, outcome.space), []).append(outcome)
    reports = {}
    for (store, space), some in outcomes.items():
        verdicts = Counter(outcome.verdict for outcome in some)
        sources = [source for source, destination in pairs if destination == store]
        strays, absent = _differing(by_place, store, space, sources)
        failed = verdicts["FAILURE"]
        complete = not absent
        reports[store, space] = {
            "listed": len(some),
            "checked": verdicts["SUCCESS"] + failed,
            "explained": verdicts["IGNORE"],
            "failed": failed,
            "bytes": sum(outcome.size for outcome in some),
            "outcomes": dict(verdicts),
            "kinds": dict(Counter(f"{outcome.row} {outcome.kind}" for outcome in some)),
            "findings": sorted(_finding(outcome) for outcome in some if outcome.verdict == "FAILURE"),
            "strays": {"count": len(strays), "first": strays[:100]},
            "absent": {"count": len(absent), "first": absent[:100]},
            "sources": sources if strays or absent else [],
            "result": "FAILURE" if failed or strays else "SUCCESS" if complete else "INCOMPLETE",
        }
    return reports


def _finding(outcome: Outcome) -> tuple[str, str, str, str | None, str, str]:
    return outcome.content_id, outcome.row, outcome.kind, outcome.manifest, outcome.provider, outcome.content


def _differing(
    by_place: Mapping[Place, Copy], store: str, space: str, sources: Sequence[str]
) -> tuple[list[str], list[str]]:
    strays, absent = [], []
    for content_id in sorted({place[2] for place in by_place if place[1] == space}) if sources else []:
        here = by_place.get((store, space, content_id))
        origins = [by_place.get((source, space, content_id)) for source in sources]
        if here is not None and here.content is not None and not any(origins):
            strays.append(content_id)
        recorded = any(origin is not None and origin.manifest is not None for origin in origins)
        if recorded and (here is None or (here.content is None and here.manifest is None)):
            absent.append(content_id)
    return strays, absent


class Planned(NamedTuple):
    """What a plan of copies has of one item; items that are the same are in no plan."""

    content_id: str
    kind: str
    size: int
    replaces: bool


def plan_of(copies: Sequence[Copy], source: str, destination: str, space: str) -> tuple[list[Planned], dict[str, Any]]:
    """The plan of *space* from *source* to *destination*, ordered by id, and the figures that go with it."""
    ends: dict[str, dict[str, Copy]] = {}
    for copy in copies:
        if copy.space == space:
            ends.setdefault(copy.content_id, {})[copy.store] = copy
    nothing = Copy(store="", space=space, content_id="")
    decided = [
        _planned(content_id, end.get(source, nothing), end.get(destination, nothing))
        for content_id, end in ends.items()
    ]
    plan = sorted(one for one in decided if one is not None and one.kind != "same")
    kinds = Counter(one.kind for one in decided if one is not None)
    held = [one.content_id for one in plan if one.kind == "held"]
    return plan, {
        "copies": kinds["copy"],
        "changes": kinds["change"],
        "deletes": kinds["delete"],
        "held": kinds["held"],
        "same": kinds["same"],
        "replaced": sum(one.replaces for one in plan),
        "tasks": kinds["copy"] + kinds["change"] + kinds["delete"],
        "copied": kinds["change"] + kinds["delete"] + kinds["held"] + kinds["same"],
        "bytes": sum(one.size for one in plan),
        "held_examples": held[:10],
    }


def _planned(content_id: str, origin: Copy, here: Copy) -> Planned | None:
    """What is to be done with an item, as the listings and records of both ends say."""
    if origin.content is None:
        if here.content is None:
            return None
        if origin.deleted:
            return Planned(content_id, "delete", 0, False)
        return Planned(content_id, "held", 0, False)
    size = len(origin.content)
    if here.content is None:
        return Planned(content_id, "copy", size, False)
    alike = origin.manifest == here.manifest
    if alike and size == len(here.content) and _as_recorded(origin) and _as_recorded(here):
        return Planned(content_id, "same", 0, False)
    newer = origin.manifest is not None and (origin.fresh or not alike)
    return Planned(content_id, "change", size, newer and _as_recorded(here))


def _as_recorded(copy: Copy) -> bool:
    """Whether a listing (size and time) shows nothing that the record does not know."""
    return copy.manifest is not None and copy.content is not None and len(copy.content) == copy.size and not copy.fresh


class Sizes(NamedTuple):
    """What a listing says of a space, and how that differs from the listing before."""

    store: str
    space: str
    items: int
    bytes: int
    largest: int
    added: int
    removed: int
    changed: int
    grown: int


def sizes_of(before: Sequence[Copy], after: Sequence[Copy]) -> list[Sizes]:
    """The sizes of each space that has items *after*, or had them *before*, ordered by store and space."""
    old, new = (_listed(copies) for copies in (before, after))
    sizes = []
    for store, space in sorted({place[:2] for place in (*old, *new)}):
        was = {place: seen for place, seen in old.items() if place[:2] == (store, space)}
        now = {place: seen for place, seen in new.items() if place[:2] == (store, space)}
        counts = [size for size, _ in now.values()]
        sizes.append(
            Sizes(
                store, space, len(now), sum(counts), max(counts, default=0),
                added=len(now.keys() - was.keys()), removed=len(was.keys() - now.keys()),
                changed=sum(was[place] != now[place] for place in was.keys() & now.keys()),
                grown=sum(counts) - sum(size for size, _ in was.values()),
            )
        )  # fmt: skip
    return sizes


def _listed(copies: Sequence[Copy]) -> dict[Place, tuple[int, bool]]:
    return {
        (copy.store, copy.space, copy.content_id): (len(copy.content), copy.fresh)
        for copy in copies
        if copy.content is not None
    }
