"""Making the tables of the mill again from one another, where one of them was lost or damaged.

The audit log can make the content index again, the stores what the audit log has lost, and the notes of the last
checks, which stand beside the index, the bit log. Nothing is taken for deleted because it is not listed (promise P8).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from millstream.mill.audit.audit_log import AuditLog
from millstream.mill.audit.audit_lookup import AuditLookup
from millstream.mill.audit.audit_processor import manifest_event
from millstream.mill.bit_check_table import Verdict
from millstream.mill.duplication.source_recorder import record_space
from millstream.mill.integrity.bit_log import BitLog
from millstream.mill.item_ref import ItemRef
from millstream.mill.manifest import CheckResult, Manifest, ManifestRow
from millstream.mill.manifest_table import last_check
from millstream.mill.merge_join import groups, outer_join
from millstream.mill.providers import Providers
from millstream.stores.audit import AuditAction, AuditEvent, AuditOutbox

_GROUP = 1000


class RebuildCounts(msgspec.Struct, frozen=True):
    """What was looked at in a space, and how many rows were written; rows of the content index
    that were right already count as written.

    ``left_out`` are items of which the provider recorded no checksum, or that vanished meanwhile.
    """

    store: str
    space: str
    looked_at: int
    written: int
    left_out: int = 0


def rebuild_content_index(
    providers: Providers, manifest: Manifest, log: AuditLog, store: str, space: str, *, audited: bool
) -> RebuildCounts:
    """Write the rows of a space again: from the audit log where it is *audited*, else from what the provider recorded.

    A row that is newer than the last event of its item stays.
    """
    if not audited:
        recorded = record_space(providers, manifest, store, space)
        listed, left_out = recorded.listed, recorded.without_checksum
        return RebuildCounts(store, space, listed, listed - left_out, left_out)
    looked_at = written = 0
    for events in groups(log.last_events(store, space), _GROUP):
        rows = [row for row in map(manifest_event, events) if row is not None]
        manifest.writer.record(rows)
        looked_at, written = looked_at + len(events), written + len(rows)
    return RebuildCounts(store, space, looked_at, written)


def rebuild_audit_log(
    providers: Providers, log: AuditLog, outbox: AuditOutbox, audit_lookup: AuditLookup, *, store: str, space: str
) -> RebuildCounts:
    """Put an event on its way for every listed item that the log does not know, with the sum its provider recorded."""
    looked_at = written = left_out = 0
    for group in groups(outer_join(providers.entries(store, space), log.last_events(store, space)), _GROUP):
        looked_at += len(group)
        unknown = [one.content_id for one in group if one.left is not None and not _is_known(one.right)]
        pending = outbox.pending(store, space, unknown)
        events = [
            _added(providers, audit_lookup, ItemRef(store, space, name)) for name in unknown if name not in pending
        ]
        left_out += events.count(None)
        written += outbox.add([event for event in events if event is not None])
    return RebuildCounts(store, space, looked_at, written, left_out)


def rebuild_bit_log(manifest: Manifest, bit_log: BitLog, store: str, space: str, *, since: int) -> RebuildCounts:
    """Write the checks from after *since* (microseconds: when the last report of the space ended) into the bit log."""
    looked_at = written = 0
    for rows in groups(manifest.scan(store, space), _GROUP):
        checks = list(_checks(rows, since))
        bit_log.append(checks)
        looked_at, written = looked_at + len(rows), written + len(checks)
    return RebuildCounts(store, space, looked_at, written)


def _is_known(event: AuditEvent | None) -> bool:
    return event is not None and event.action != AuditAction.DELETE_CONTENT


def _added(providers: Providers, audit_lookup: AuditLookup, place: ItemRef) -> AuditEvent | None:
    info = providers.find(place)
    if info is None or info.checksum() is None:
        return None
    found = CheckResult(
        store=place.store,
        space=place.space,
        content_id=place.content_id,
        verdict=Verdict.ERROR,
        row="–",
        kind="unchecked",
        detail="",
        checked_at=providers.clock.now(),
        size=info.size,
        provider=info.checksum(),
        content=info.checksum(),
    )
    return audit_lookup.missing_event(found, info.mimetype)


def _checks(rows: list[ManifestRow], since: int) -> Iterator[CheckResult]:
    """What the notes say that the last check of each item found, of those that were checked after *since*."""
    for row in rows:
        noted = last_check(row)
        if noted is not None and noted.checked_at > since:
            yield noted
