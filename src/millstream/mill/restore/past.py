"""The items of a space as they were at a time, by the audit log, and the copies that still have their bytes."""

from __future__ import annotations

import heapq
import itertools
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from millstream.core.errors import InputError
from millstream.core.timestamps import format_timestamp
from millstream.mill.audit.audit_log import AuditLog
from millstream.mill.errors import MillError
from millstream.mill.item_ref import ItemRef
from millstream.mill.manifest import Manifest, ManifestRow
from millstream.mill.merge_join import groups
from millstream.mill.restore.listing import GROUP, ItemListing, RestorableItem
from millstream.stores.audit import AuditAction, AuditEvent


class PastUnknownError(MillError, InputError):
    """The audit log does not say what the space held at that time."""


class PastListing:
    """The items of *space* by the last events of *log* in the stores *audited*, and the copies in *manifest*."""

    def __init__(
        self, log: AuditLog, manifest: Manifest, listing: ItemListing, space: str, *, audited: Collection[str]
    ) -> None:
        self._log, self._manifest, self._listing, self._space = log, manifest, listing, space
        self._audited = sorted(audited)

    def items(self, at: int, prefix: str = "") -> Iterator[RestorableItem]:
        """Every item that was there at *at* (microseconds since the epoch) and whose id begins with *prefix*.

        First, in the order of their ids, those of which a copy should have the bytes of then; after them those whose
        bytes are only found under another name, or nowhere. Raises :class:`PastUnknownError` where the log begins
        later.
        """
        first = min((at for store in self._audited for at in self._first(store)), default=None)
        if first is None or first > at:
            why = "the audit log has no events of this space: omit --as-of"
            if first is not None:
                why = f"the audit log begins at {format_timestamp(first)}: give that time or a later one with --as-of"
            raise PastUnknownError(
                f"the content of space {self._space!r} at {format_timestamp(at)} is unknown, because {why}"
            )
        replaced: list[AuditEvent] = []
        for events in groups(self._alive(at, prefix), GROUP):
            for event, item in zip(events, self._with_copies(events), strict=True):
                if item is None:
                    replaced.append(event)
                else:
                    yield item
        yield from self._renamed(replaced)

    def _first(self, store: str) -> Iterator[int]:
        return (event.at for event in itertools.islice(self._log.events(store, self._space), 1))

    def _alive(self, at: int, prefix: str) -> Iterator[AuditEvent]:
        """The last event of each item up to *at*, in whichever store it was, if it is no deletion."""
        by_id = operator.attrgetter("content_id")
        streams = [self._log.last_events(store, self._space, until=at) for store in self._audited]
        for name, events in itertools.groupby(heapq.merge(*streams, key=by_id), key=by_id):
            last = max(events, key=lambda event: (event.at, event.number))
            if last.action != AuditAction.DELETE_CONTENT and name.startswith(prefix):
                yield last

    def _with_copies(self, events: Sequence[AuditEvent]) -> Iterator[RestorableItem | None]:
        """Each item with those of its copies that have the bytes of then; None where there is none."""
        wanted = {event.content_id: event.sha256 for event in events}
        rows: dict[str, dict[str, ManifestRow]] = {name: {} for name in wanted}
        for row in self._manifest.replicas_of(self._space, list(wanted)):
            if not row.deleted and row.sha256 is not None and row.sha256 == wanted[row.content_id]:
                rows[row.content_id][row.store] = row
        for event in events:
            name = event.content_id
            copies = self._listing.order([ItemRef(store, self._space, name) for store in rows[name]], rows[name])
            yield _item(event, copies) if copies else None

    def _renamed(self, events: Sequence[AuditEvent]) -> Iterator[RestorableItem]:
        """Items whose bytes may be found under another name, looked for in one pass over the manifest."""
        names = self._find_by_sum({event.sha256 for event in events if event.sha256 is not None})
        for event in events:
            copies = names.get(event.sha256 or "", ())
            yield _item(event, self._listing.order(copies, {}))

    def _find_by_sum(self, sums: Collection[str]) -> Mapping[str, Sequence[ItemRef]]:
        found: dict[str, list[ItemRef]] = {}
        if not sums:
            return found
        wanted = pa.array(sorted(sums))
        columns = ("store", "content_id", "sha256")
        for batch in self._manifest.batches(space=self._space, columns=columns, live_only=True):
            kept = batch.filter(pc.is_in(batch["sha256"], wanted))
            for row in kept.to_pylist():
                found.setdefault(row["sha256"], []).append(ItemRef(row["store"], self._space, row["content_id"]))
        return found


def _item(event: AuditEvent, copies: tuple[ItemRef, ...]) -> RestorableItem:
    reason = "" if copies else f"its bytes of then (sha256 {event.sha256}) were replaced or deleted since"
    return RestorableItem(
        content_id=event.content_id,
        sha256=event.sha256 or "",
        size=event.size or 0,
        mimetype=event.mimetype,
        copies=copies,
        reason=reason,
    )
