"""Items that lie in a copy's store without a record: they are compared by their bytes before any is replaced.

A node that lost its folder, or rows of its database, has copies without a record. What equals the adopted item is taken
over. Where one differs, our own records decide, if there are any; else either may be the good one, so the item is
reported, and neither is replaced until an operator decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec

from millstream.core.errors import NotFoundError
from millstream.mill.adoption.adoption_run import AdoptionTarget, seen_event
from millstream.mill.adoption.catalog import AdoptedItem, AdoptionFinding
from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.duplication.transfer import quarantine
from millstream.mill.integrity_outcomes import ROWS, CheckRow
from millstream.mill.item_ref import ItemRef
from millstream.mill.manifest import ManifestEvent
from millstream.mill.merge_join import groups, outer_join
from millstream.mill.reports.report import CopyFinding
from millstream.stores.protocol import READ_REFUSALS, Entry, StoreError

_GROUP = 1000
_TOGETHER = 100
_UNREADABLE = ROWS[CheckRow.UNREADABLE].kind
_REFUSED = ROWS[CheckRow.REFUSED].kind

WAYS_OUT = "either may be right: name another --space, or have the copy replaced with --replace"

_TO_READ = "restore it from the archive or grant the right to read it, or have the copy replaced with --replace"


class UnknownCopies(msgspec.Struct):
    """The unrecorded items of one store, by what follows from them: see :func:`examine_unknown`.

    ``same`` equal what was adopted. Our records say that ``outdated`` ones are not what was copied. Of ``differing``
    ones there is no record, or the store does not give out their content.
    """

    same: list[str] = msgspec.field(default_factory=list)
    outdated: list[CopyFinding] = msgspec.field(default_factory=list)
    differing: list[AdoptionFinding] = msgspec.field(default_factory=list)


def record_source(target: AdoptionTarget, space: str) -> int:
    """Record again what was adopted and has no live row in the manifest; returns how many.

    The row was lost; or it is the tombstone of an item that is back, which must not delete the copies later.
    """
    joined = outer_join(target.catalog.scan(target.store, space), target.manifest.scan(target.store, space))
    events = (
        seen_event(one.left, one.right)
        for one in joined
        if one.left is not None and one.left.is_there and (one.right is None or one.right.deleted)
    )
    count = 0
    for group in groups(events, _GROUP):
        target.manifest.writer.record(group)
        count += len(group)
    return count


def examine_unknown(
    target: AdoptionTarget, providers: ConfiguredStores, space: str, destination: str, *, threads: int = 4
) -> UnknownCopies:
    """Read the items of *destination* that the manifest does not know there, and compare them with the adopted ones.

    Nothing is written. Raises :class:`~millstream.stores.StoreError` where the store cannot be listed or does not
    answer.
    """
    found = UnknownCopies()
    known = {one.content_id for one in target.catalog.findings(destination, space)}
    is_ours = target.manifest.count(destination, space) > 0
    listed = outer_join(providers.entries(destination, space), target.manifest.scan(destination, space))
    unknown = (one.left for one in listed if one.left is not None and one.right is None)
    with ThreadPoolExecutor(threads, thread_name_prefix="mill-examine") as pool:
        for group in groups(unknown, _GROUP):
            adopted = target.catalog.get_many(target.store, space, [entry.content_id for entry in group])
            pairs = [(entry, item) for entry in group if (item := adopted.get(entry.content_id)) and item.is_there]
            for some in pool.map(partial(_compare, providers, destination, space), groups(pairs, _TOGETHER)):
                for item, sha256 in some:
                    if sha256 == item.sha256:
                        found.same.append(item.content_id)
                    elif is_ours and sha256 != _REFUSED and item.content_id not in known and _is_recorded(target, item):
                        found.outdated.append(_outdated(item, sha256))
                    else:
                        found.differing.append(_finding(target, destination, item, sha256))
    return found


def take_over(target: AdoptionTarget, space: str, destination: str, found: UnknownCopies) -> None:
    """Record what is the same, and what people have to look at; that comes first, so that it is never forgotten."""
    target.catalog.replace_findings(destination, space, found.differing)
    now = target.clock.now()
    for names in groups(found.same, _GROUP):
        items = target.catalog.get_many(target.store, space, names).values()
        target.manifest.writer.record([_event(destination, item, now) for item in items])


def set_aside_outdated(providers: ConfiguredStores, space: str, destination: str, found: UnknownCopies) -> None:
    """Keep what will be replaced, and can be read, in quarantine. Raises :class:`~millstream.stores.StoreError`."""
    for one in found.outdated:
        if one.kind == _UNREADABLE:
            continue
        quarantine(providers, ItemRef(destination, space, one.content_id), one.detail)


def _is_recorded(target: AdoptionTarget, item: AdoptedItem) -> bool:
    """Whether these bytes were recorded before this run, and every store that has a record of the item has the same."""
    begun_at = target.catalog.space(target.store, item.space).begun_at
    if begun_at is None or item.adopted_at >= begun_at:
        return False
    live = [row for row in target.manifest.replicas(item.space, item.content_id) if not row.deleted]
    return all(row.sha256 == item.sha256 for row in live)


def _compare(
    providers: ConfiguredStores, store: str, space: str, pairs: Sequence[tuple[Entry, AdoptedItem]]
) -> list[tuple[AdoptedItem, str]]:
    """The items of *pairs* that are there, each with what its copy hashes to, or with a word in place of that."""
    alike = [item.content_id for entry, item in pairs if entry.size == item.size]
    together = providers.hash_many(store, space, alike)
    sums = {name: read.sha256 for name, read in zip(alike, together, strict=True) if read is not None}
    compared = []
    for entry, item in pairs:
        sha256: str | None = f"{entry.size:,} bytes"
        if entry.size == item.size:
            sha256 = sums.get(item.content_id) or _hash(providers, ItemRef(store, space, item.content_id))
        if sha256 is not None:
            compared.append((item, sha256))
    return compared


def _hash(providers: ConfiguredStores, place: ItemRef) -> str | None:
    """The SHA-256 of a copy, or that it cannot be read or is not given out; None where it has vanished."""
    try:
        return providers.hash(place).sha256
    except NotFoundError:
        return None
    except READ_REFUSALS:
        return _REFUSED
    except StoreError as error:
        if error.transient:
            raise
        return _UNREADABLE
    except OSError:
        return _UNREADABLE


def _event(store: str, item: AdoptedItem, at: int) -> ManifestEvent:
    return ManifestEvent(store, item.space, item.content_id, at, item.sha256, item.size, item.mimetype)


def _outdated(item: AdoptedItem, sha256: str) -> CopyFinding:
    kind = _UNREADABLE if sha256 == _UNREADABLE else ROWS[CheckRow.CONTENT_DIFFERS].kind
    detail = f"its record was lost, and it is not what was copied: {sha256} instead of {item.sha256}"
    return CopyFinding(item.content_id, kind, detail)


def _finding(target: AdoptionTarget, destination: str, item: AdoptedItem, sha256: str) -> AdoptionFinding:
    kind = ROWS[CheckRow.CONTRADICTED].kind
    detail = f"it differs from the source, and this node has no record of it: {WAYS_OUT}"
    if sha256 == _REFUSED:
        kind, detail = _REFUSED, f"this node has no record of it, and {ROWS[CheckRow.REFUSED].detail}: {_TO_READ}"
    return AdoptionFinding(
        store=destination,
        space=item.space,
        content_id=item.content_id,
        kind=kind,
        detail=detail,
        version=sha256,
        found_at=target.clock.now(),
    )


def as_copy_findings(found: Sequence[AdoptionFinding]) -> Iterator[CopyFinding]:
    """*found* as a report on a copy names them."""
    return (CopyFinding(one.content_id, one.kind, one.detail) for one in found)
