"""Making the tables of the mill again from one another, where one of them was lost or damaged.

The audit log can make the content index again, the stores what the audit log has lost, and the notes of the last
checks, which stand beside the index, the bit log. Nothing is taken for deleted because it is not listed (promise P8).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from millstream.mill.audit.audit_log import AuditLog
from millstream.mill.audit.audit_lookup import AuditLookup, add_missed
from millstream.mill.audit.audit_processor import manifest_event
from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.duplication.source_recorder import record_space
from millstream.mill.integrity.bit_log import BitLog
from millstream.mill.item_ref import ItemRef
from millstream.mill.manifest import CheckResult, Manifest, ManifestRow
from millstream.mill.manifest_table import last_check
from millstream.mill.merge_join import groups, outer_join
from millstream.stores.audit import AuditAction, AuditEvent, AuditOutbox

_GROUP = 1000
_UNKNOWN = "the audit log does not know them: `millstream mill rebuild audit-log` enters them"


class RebuildCounts(msgspec.Struct, frozen=True):
    """The result for a space: rows that were ``written``, rows that were ``right`` already, and items that were
    ``left_out`` for a ``reason``; in the content index a row that was right counts as written.
    """

    store: str
    space: str
    looked_at: int
    written: int
    left_out: int = 0
    right: int = 0
    reason: str = "no checksum was recorded of them, or they are gone"


def rebuild_content_index(
    providers: ConfiguredStores, manifest: Manifest, log: AuditLog, store: str, space: str, *, audited: bool
) -> RebuildCounts:
    """Write the rows of a space again: from the audit log where it is *audited*, else from what the provider recorded.

    A row that is newer than the last event of its item stays. What an audited store lists and the log does not know is
    left out.
    """
    if not audited:
        recorded = record_space(providers, manifest, store, space)
        listed, left_out = recorded.listed, recorded.without_checksum
        return RebuildCounts(store, space, listed, listed - left_out, left_out)
    looked_at = written = 0
    for group in groups(outer_join(providers.entries(store, space), log.last_events(store, space)), _GROUP):
        rows = [row for one in group if one.right is not None and (row := manifest_event(one.right)) is not None]
        manifest.writer.record(rows)
        looked_at, written = looked_at + len(group), written + len(rows)
    return RebuildCounts(store, space, looked_at, written, looked_at - written, reason=_UNKNOWN)


def rebuild_audit_log(
    providers: ConfiguredStores,
    log: AuditLog,
    outbox: AuditOutbox,
    audit_lookup: AuditLookup,
    *,
    store: str,
    space: str,
) -> RebuildCounts:
    """Put an event on its way for every listed item that the log does not know, with the sum its provider recorded."""
    looked_at = written = left_out = right = 0
    for group in groups(outer_join(providers.entries(store, space), log.last_events(store, space)), _GROUP):
        looked_at += len(group)
        unknown = [one.content_id for one in group if one.left is not None and not _is_known(one.right)]
        pending = outbox.pending(store, space, unknown)
        events = [
            _added(providers, audit_lookup, ItemRef(store, space, name)) for name in unknown if name not in pending
        ]
        left_out, right = left_out + events.count(None), right + len(group) - len(events)
        written += add_missed(outbox, log, [event for event in events if event is not None])
    return RebuildCounts(store, space, looked_at, written, left_out, right)


def rebuild_bit_log(manifest: Manifest, bit_log: BitLog, store: str, space: str, *, since: int) -> RebuildCounts:
    """Write the checks from after *since* (microseconds: when the last report of the space ended) into the bit log."""
    noted = 0
    for rows in groups(manifest.scan(store, space), _GROUP):
        checks = list(_checks(rows, since))
        bit_log.append(checks)
        noted += len(checks)
    return RebuildCounts(store, space, noted, noted)


def _is_known(event: AuditEvent | None) -> bool:
    return event is not None and event.action != AuditAction.DELETE_CONTENT


def _added(providers: ConfiguredStores, audit_lookup: AuditLookup, place: ItemRef) -> AuditEvent | None:
    info = providers.find(place)
    if info is None or info.checksum() is None:
        return None
    return audit_lookup.added_event(
        place, providers.clock.now(), sha256=info.checksum(), size=info.size, mimetype=info.mimetype
    )


def _checks(rows: list[ManifestRow], since: int) -> Iterator[CheckResult]:
    """The recorded results of the last check of each item that was checked after *since*."""
    for row in rows:
        noted = last_check(row)
        if noted is not None and noted.checked_at > since:
            yield noted
