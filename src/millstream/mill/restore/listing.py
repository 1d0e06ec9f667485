"""Which items of a space can be restored, to which bytes, and which stores should have those bytes."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from millstream.mill.audit.audit_lookup import AuditLookup
from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.errors import ChangePendingError
from millstream.mill.integrity_decision import CheckVerdict
from millstream.mill.item_ref import ItemRef
from millstream.mill.manifest import Manifest, ManifestRow
from millstream.mill.merge_join import groups
from millstream.mill.repair.own_records import OwnRecords
from millstream.stores.protocol import DEFAULT_MIMETYPE
from millstream.stores.sources import is_source_url, local_folder

GROUP = 500
"""Items whose records are read together."""


class RestorableItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item of a space and the bytes that it is to be restored to (``sha256`` in hex, ``size`` in bytes).

    ``copies`` should have those bytes, the best one first. Where there is none, ``reason`` says why. ``mimetype`` is
    that of our own records, None where they do not say.
    """

    content_id: str
    sha256: str = ""
    size: int = 0
    mimetype: str | None = None
    copies: tuple[ItemRef, ...] = ()
    reason: str = ""


class ItemListing:
    """The items of *space* by our own records: the manifest, the audit log and its outbox.

    *sources* are the stores that policies name as sources of the space. An item that was deleted there is left out,
    also where copies of it still exist.
    """

    def __init__(
        self,
        providers: ConfiguredStores,
        manifest: Manifest,
        space: str,
        *,
        sources: Collection[str],
        audit_lookup: AuditLookup,
    ) -> None:
        self._providers, self._manifest, self._space = providers, manifest, space
        self._sources = frozenset(sources)
        self._audit = audit_lookup
        self._records = OwnRecords(providers, manifest, audit_lookup)
        self._urls = {name: store.url for name, store in providers.items()}
        self._ranks = {store: rank for rank, store in enumerate(sorted(providers, key=self._distance))}

    def items(self, prefix: str = "", only: str | None = None) -> Iterator[RestorableItem]:
        """Every item whose id begins with *prefix*, in the order of the ids' bytes, read as they are taken.

        With *only* the items of that store alone, as they were recorded there.
        """
        for ids in groups(self._ids(prefix, only), GROUP):
            rows: dict[str, list[ManifestRow]] = {name: [] for name in ids}
            for row in self._manifest.replicas_of(self._space, ids):
                if row.store in self._providers:
                    rows[row.content_id].append(row)
            simple = self._agreed(rows) if only is None else {}
            for name in ids:
                item = simple.get(name) or self._examine(name, rows[name], only)
                if item is not None:
                    yield item

    def order(self, places: Iterable[ItemRef], rows: Mapping[str, ManifestRow]) -> tuple[ItemRef, ...]:
        """*places*, the best copy first: found good by its last check, in a store near by, not the source."""

        def rank(place: ItemRef) -> tuple[bool, int]:
            row = rows.get(place.store)
            return row is not None and row.outcome not in (None, CheckVerdict.SUCCESS), self._ranks[place.store]

        return tuple(sorted(places, key=rank))

    def _distance(self, store: str) -> tuple[bool, bool, str]:
        """The extra cost of reading from *store*; a source is read last, because other programs use it."""
        url = self._urls[store]
        return is_source_url(url), local_folder(url) is None, store

    def _ids(self, prefix: str, only: str | None) -> Iterator[str]:
        stores = sorted(self._providers) if only is None else [only]
        seen = [self._recorded(store, prefix) for store in stores]
        merged = heapq.merge(*seen)
        return (name for name, _ in itertools.groupby(merged))

    def _recorded(self, store: str, prefix: str) -> Iterator[str]:
        """The ids that *store* should have or had by manifest and audit log, in order; some of them twice."""
        if prefix and self._manifest.get(store, self._space, prefix) is not None:
            yield prefix
        rows = (row.content_id for row in self._manifest.scan(store, self._space, after=prefix))
        lost = (place.content_id for place in self._audit.unrecorded(store, self._space, after=prefix))
        yield from itertools.takewhile(lambda name: name.startswith(prefix), heapq.merge(rows, lost))

    def _agreed(self, rows: Mapping[str, Sequence[ManifestRow]]) -> Mapping[str, RestorableItem]:
        """Those of the items of which all records say the same; the others need a closer look."""
        sums: dict[str, str] = {}
        for name, copies in rows.items():
            found = {row.sha256 for row in copies}
            if len(found) == 1 and None not in found and not any(row.deleted for row in copies):
                sums[name] = found.pop() or ""
        for store in self._audit.audited:
            here = [name for name in sums if any(row.store == store for row in rows[name])]
            for name, known in self._audit.sums(store, self._space, here).items():
                if known != sums[name]:
                    del sums[name]
        return {
            name: self._item(name, sha256, rows[name], [r.store for r in rows[name]]) for name, sha256 in sums.items()
        }

    def _examine(self, name: str, rows: Sequence[ManifestRow], only: str | None) -> RestorableItem | None:
        """An item of which records differ, or are not all there; None where it was deleted."""
        try:
            recorded = self._records.sums(self._space, name, self._sources or frozenset(self._providers))
        except ChangePendingError as error:
            return RestorableItem(content_id=name, reason=str(error))
        if only is not None:
            recorded = {store: sums for store, sums in recorded.items() if store == only}
        elif self._is_deleted_at_source(recorded, rows):
            return None
        if not recorded:
            return None
        at_source = [sums for store, sums in recorded.items() if store in self._sources]
        winners = frozenset.intersection(*(at_source or recorded.values()))
        if len(winners) != 1:
            return RestorableItem(content_id=name, reason=_explain(recorded))
        (winner,) = winners
        return self._item(name, winner, rows, [store for store, sums in recorded.items() if winner in sums])

    def _is_deleted_at_source(self, recorded: Collection[str], rows: Sequence[ManifestRow]) -> bool:
        deleted = any(row.deleted for row in rows if row.store in self._sources)
        return deleted and not self._sources & {*recorded}

    def _item(self, name: str, sha256: str, rows: Sequence[ManifestRow], stores: Sequence[str]) -> RestorableItem:
        copies = self.order([ItemRef(store, self._space, name) for store in stores], {row.store: row for row in rows})
        row = next((row for row in rows if row.sha256 == sha256), None)
        if row is None:
            return RestorableItem(content_id=name, sha256=sha256, copies=copies)
        types = [row.mimetype for row in rows if row.sha256 == sha256]
        mimetype = next((one for one in types if one != DEFAULT_MIMETYPE), DEFAULT_MIMETYPE)
        return RestorableItem(content_id=name, sha256=sha256, size=row.size, mimetype=mimetype, copies=copies)


def _explain(recorded: Mapping[str, frozenset[str]]) -> str:
    if not any(recorded.values()):
        return "no checksum was recorded for it, so the right content is not known"
    described = ", ".join(f"{store}: {' or '.join(sorted(sums)) or 'none'}" for store, sums in sorted(recorded.items()))
    return f"our records differ ({described}): choose a store with --from"
