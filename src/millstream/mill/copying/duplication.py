"""What duplication has to do for one item or space: the decision table D1–D24 as a pure total function.

The task does not say what to do; the states of both ends and of the manifest do (seed document duracloud-mill,
"Duplication Task Processor"). A stale task is therefore harmless. No action ever writes to the source (promise P8).

What differs from the reference table on purpose:

- D2 creates the space and lets an error show.
- D14 fails at once instead of downloading three times.
- D18: without a manifest row nothing is deleted. A delete on a copy needs a tombstone (promise P8); the item is
  held, with the reason, until its deletion is recorded or it is put back.
- D23: only a copy creates the destination space, so that a late delete task does not bring a deleted space back.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec


class End(enum.StrEnum):
    """What was found at one end."""

    ITEM = "item"
    NO_ITEM = "no-item"  # the space is there, the item is not
    EMPTY_SPACE = "empty-space"
    FILLED_SPACE = "filled-space"
    NO_SPACE = "no-space"
    UNREACHABLE = "unreachable"  # the provider did not answer, all retries used


class Record(enum.StrEnum):
    """What the manifest says of the item at the source."""

    NONE = "none"
    LIVE = "live"
    DELETED = "deleted"


class Side(msgspec.Struct, frozen=True):
    """One end of a duplication: its state and, for an item, its checksum (hex or None) and properties."""

    end: End
    sha256: str | None = None
    properties: Mapping[str, str] = {}


class Act(enum.StrEnum):
    """What is to be done at the destination."""

    NOTHING = "nothing"
    CREATE_SPACE = "create-space"
    DELETE_SPACE = "delete-space"
    SET_PROPERTIES = "set-properties"
    COPY = "copy"
    DELETE = "delete"
    FAIL = "fail"
    RETRY = "retry"


class Action(msgspec.Struct, frozen=True, gc=False):
    """What to do, by which row of the table, and why."""

    row: str
    act: Act
    reason: str


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


def decide(space: str, content_id: str, source: Side, destination: Side, record: Record) -> Action:
    """The action for one duplication task; an empty *content_id* asks about the space itself."""
    if not space:
        return Action("D1", Act.FAIL, "the task names no space")
    if End.UNREACHABLE in (source.end, destination.end):
        return Action("D22" if content_id else "D6", Act.RETRY, "a provider did not answer")
    if not content_id:
        return _decide_space(source.end, destination.end)
    if source.end == End.ITEM:
        return _decide_present(source, destination)
    if destination.end != End.ITEM:
        return Action("D21", Act.NOTHING, "neither end has it")
    return _decide_absent(record)


def _decide_space(source: End, destination: End) -> Action:
    if source != End.NO_SPACE:
        return Action("D2", Act.CREATE_SPACE, "the source has the space")
    if destination == End.NO_SPACE:
        return Action("D5", Act.NOTHING, "neither end has the space")
    if destination == End.EMPTY_SPACE:
        return Action("D3", Act.DELETE_SPACE, "the source has no such space and the copy is empty")
    return Action("D4", Act.NOTHING, "the source has no such space, and the copy still holds items")


def _decide_present(source: Side, destination: Side) -> Action:
    copied = destination.end == End.ITEM
    if source.sha256 is None:
        return Action("D13" if copied else "D14", Act.FAIL, "the source's provider has no checksum of it")
    if not copied:
        return Action("D12", Act.COPY, "the destination has not got it")
    if destination.sha256 != source.sha256:
        return Action("D11", Act.COPY, "the checksums differ")
    if clean_properties(source.properties) != clean_properties(destination.properties):
        return Action("D8", Act.SET_PROPERTIES, "the properties differ")
    return Action("D7", Act.NOTHING, "both ends agree")


def _decide_absent(record: Record) -> Action:
    if record == Record.DELETED:
        return Action("D19", Act.DELETE, "the manifest has its tombstone")
    if record == Record.LIVE:
        return Action("D20", Act.FAIL, "the source appears to be missing content that the manifest has")
    return Action(
        "D18", Act.FAIL, "the source has not got it and the manifest has no tombstone of it: record its deletion first"
    )
