"""The action of duplication for one item or space: the decision table D1–D24 as a pure total function.

The task does not say what to do; the states of both ends and of the manifest do (seed document duracloud-mill,
"Duplication Task Processor"). A stale task is therefore harmless. No action ever writes to the source (promise P8).

What differs from the reference table on purpose:

- D2 creates the space and lets an error show.
- D14 fails at once instead of downloading three times.
- D18: without a manifest row nothing is deleted. A delete on a copy needs a tombstone (promise P8); the item is
  held, with the reason, until its deletion is recorded or it is put back.
- D25: nothing is copied from an audited source that was changed behind its audit.
- D23: only a copy creates the destination space, so that a late delete task does not bring a deleted space back.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import Final

import msgspec


class EndState(enum.StrEnum):
    """The state at one end."""

    ITEM = "item"
    NO_ITEM = "no-item"  # the space is there, the item is not
    EMPTY_SPACE = "empty-space"
    FILLED_SPACE = "filled-space"
    NO_SPACE = "no-space"
    UNREACHABLE = "unreachable"  # the provider did not answer, all retries used


class SourceRecord(enum.StrEnum):
    """The manifest's record of the item at the source."""

    NONE = "none"
    LIVE = "live"
    DELETED = "deleted"


class ObservedEnd(msgspec.Struct, frozen=True):
    """One end of a duplication: its state and, for an item, its checksum (hex or None) and properties."""

    end: EndState
    sha256: str | None = None
    properties: Mapping[str, str] = {}


class DuplicationRow:
    """The code of each row of the table, by its name; results of tasks contain the codes."""

    NO_SPACE_NAMED: Final = "D1"
    CREATE_SPACE: Final = "D2"
    DELETE_EMPTY_SPACE: Final = "D3"
    KEEP_FULL_SPACE: Final = "D4"
    NO_SPACE: Final = "D5"
    SPACE_UNREACHABLE: Final = "D6"
    SAME: Final = "D7"
    PROPERTIES_DIFFER: Final = "D8"
    CHECKSUMS_DIFFER: Final = "D11"
    ABSENT_AT_DESTINATION: Final = "D12"
    NO_CHECKSUM: Final = "D13"
    NO_CHECKSUM_ABSENT: Final = "D14"
    NO_TOMBSTONE: Final = "D18"
    TOMBSTONE: Final = "D19"
    MISSING_AT_SOURCE: Final = "D20"
    NOWHERE: Final = "D21"
    UNREACHABLE: Final = "D22"
    UNAUDITED: Final = "D25"


class DuplicationAct(enum.StrEnum):
    """The action at the destination."""

    NOTHING = "nothing"
    CREATE_SPACE = "create-space"
    DELETE_SPACE = "delete-space"
    SET_PROPERTIES = "set-properties"
    COPY = "copy"
    DELETE = "delete"
    FAIL = "fail"
    RETRY = "retry"


class DuplicationAction(msgspec.Struct, frozen=True, gc=False):
    """The action, the row of the table, and the reason."""

    row: str
    act: DuplicationAct
    reason: str


class DuplicationFailure(msgspec.Struct, frozen=True):
    """The reason why a task fails, and the remedy."""

    reason: str
    todo: str


_SILENT = DuplicationFailure("a provider did not answer", "check the store's disk or server, then redrive the task")
_NO_CHECKSUM = DuplicationFailure(
    "the source's provider has no checksum of the item",
    "put the item again through the node (`millstream store put`), or let the provider keep checksums; then redrive "
    "the task",
)
_RECORD_DELETION = (
    "put the item back at the source, or record its deletion (`millstream mill forget STORE SPACE ID`); then redrive "
    "the task"
)

FAILURES: Mapping[str, DuplicationFailure] = {
    DuplicationRow.NO_SPACE_NAMED: DuplicationFailure(
        "the task names no space", "discard the task: it can never succeed"
    ),
    DuplicationRow.SPACE_UNREACHABLE: _SILENT,
    DuplicationRow.NO_CHECKSUM: _NO_CHECKSUM,
    DuplicationRow.NO_CHECKSUM_ABSENT: _NO_CHECKSUM,
    DuplicationRow.NO_TOMBSTONE: DuplicationFailure(
        "the source does not have the item, and the manifest does not record its deletion, or the copy may be another "
        "item",
        f"{_RECORD_DELETION}; if it is held again and nobody needs it, delete the copy itself (`millstream store "
        "delete STORE SPACE ID`)",
    ),
    DuplicationRow.MISSING_AT_SOURCE: DuplicationFailure(
        "the item is missing from the source, and the manifest lists it there", _RECORD_DELETION
    ),
    DuplicationRow.UNREACHABLE: _SILENT,
    DuplicationRow.UNAUDITED: DuplicationFailure(
        "the item was changed at the source without the node: the audit log has another checksum",
        "find out who changed the source; put the right content there (`millstream store put`), then redrive the task",
    ),
}
"""The reason why a task fails, by the row of the table."""


def _failed(row: str, act: DuplicationAct = DuplicationAct.FAIL) -> DuplicationAction:
    return DuplicationAction(row, act, FAILURES[row].reason)


UNAUDITED = _failed(DuplicationRow.UNAUDITED)
"""What stands in the place of a copy whose source is not what the audit of its store has recorded."""


def is_unaudited(source: str | None, audited: str | None) -> bool:
    """Whether the source's checksum is another one than the audit of its store has recorded (hex, or an answer)."""
    return source is not None and audited is not None and _SHA256.fullmatch(audited) is not None and source != audited


_SHA256 = re.compile("[0-9a-f]{64}")

CALCULATED = frozenset(
    name.lower()
    for name in (
        "content-md5",
        "content-checksum",
        "content-modified",
        "content-size",
        "Content-Length",
        "Content-Type",
        "Last-Modified",
        "Date",
        "ETag",
    )
)
"""Properties that a provider calculates; they are neither compared nor copied (reference mill §2.1, "clean set")."""


def clean_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """*properties* without those that providers calculate."""
    return {name: value for name, value in properties.items() if name.lower() not in CALCULATED}


def decide_duplication(
    space: str, content_id: str, source: ObservedEnd, destination: ObservedEnd, record: SourceRecord
) -> DuplicationAction:
    """The action for one duplication task; an empty *content_id* asks about the space itself."""
    if not space:
        return _failed(DuplicationRow.NO_SPACE_NAMED)
    if EndState.UNREACHABLE in (source.end, destination.end):
        row = DuplicationRow.UNREACHABLE if content_id else DuplicationRow.SPACE_UNREACHABLE
        return _failed(row, DuplicationAct.RETRY)
    if not content_id:
        return _decide_space(source.end, destination.end)
    if source.end == EndState.ITEM:
        return _decide_present(source, destination)
    if destination.end != EndState.ITEM:
        return DuplicationAction(DuplicationRow.NOWHERE, DuplicationAct.NOTHING, "neither end has it")
    return _decide_absent(record)


def _decide_space(source: EndState, destination: EndState) -> DuplicationAction:
    if source != EndState.NO_SPACE:
        return DuplicationAction(DuplicationRow.CREATE_SPACE, DuplicationAct.CREATE_SPACE, "the source has the space")
    if destination == EndState.NO_SPACE:
        return DuplicationAction(DuplicationRow.NO_SPACE, DuplicationAct.NOTHING, "neither end has the space")
    if destination == EndState.EMPTY_SPACE:
        return DuplicationAction(
            DuplicationRow.DELETE_EMPTY_SPACE,
            DuplicationAct.DELETE_SPACE,
            "the source has no such space and the copy is empty",
        )
    return DuplicationAction(
        DuplicationRow.KEEP_FULL_SPACE,
        DuplicationAct.NOTHING,
        "the source has no such space, and the copy still holds items",
    )


def _decide_present(source: ObservedEnd, destination: ObservedEnd) -> DuplicationAction:
    copied = destination.end == EndState.ITEM
    if source.sha256 is None:
        return _failed(DuplicationRow.NO_CHECKSUM if copied else DuplicationRow.NO_CHECKSUM_ABSENT)
    if not copied:
        return DuplicationAction(
            DuplicationRow.ABSENT_AT_DESTINATION, DuplicationAct.COPY, "it is missing at the destination"
        )
    if destination.sha256 != source.sha256:
        return DuplicationAction(DuplicationRow.CHECKSUMS_DIFFER, DuplicationAct.COPY, "the checksums differ")
    if clean_properties(source.properties) != clean_properties(destination.properties):
        return DuplicationAction(
            DuplicationRow.PROPERTIES_DIFFER, DuplicationAct.SET_PROPERTIES, "the properties differ"
        )
    return DuplicationAction(DuplicationRow.SAME, DuplicationAct.NOTHING, "both ends agree")


def _decide_absent(record: SourceRecord) -> DuplicationAction:
    if record == SourceRecord.DELETED:
        return DuplicationAction(DuplicationRow.TOMBSTONE, DuplicationAct.DELETE, "its deletion is recorded")
    if record == SourceRecord.LIVE:
        return _failed(DuplicationRow.MISSING_AT_SOURCE)
    return _failed(DuplicationRow.NO_TOMBSTONE)
