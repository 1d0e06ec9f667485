"""The record of a change in an audit (reference mill §1.7)."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec


class AuditAction(enum.StrEnum):
    """The changes that are audited; reading is not."""

    CREATE_SPACE = "CREATE_SPACE"
    DELETE_SPACE = "DELETE_SPACE"
    ADD_CONTENT = "ADD_CONTENT"
    COPY_CONTENT = "COPY_CONTENT"
    DELETE_CONTENT = "DELETE_CONTENT"
    SET_CONTENT_PROPERTIES = "SET_CONTENT_PROPERTIES"
    SET_SPACE_ACLS = "SET_SPACE_ACLS"


NEW_BYTES = (AuditAction.ADD_CONTENT, AuditAction.COPY_CONTENT)
"""The changes after which an item has the bytes of the event."""

CONTENT_CHANGES = (*NEW_BYTES, AuditAction.DELETE_CONTENT)
"""The changes after which an item has other bytes, or none."""


class AuditEvent(msgspec.Struct, frozen=True, gc=False):
    """A change that was made.

    ``number`` is unique in its database and grows (0 until it is known); ``at`` is in microseconds since the epoch,
    UTC, and grows with it. ``sha256`` (hex), ``size`` and ``mimetype`` are those of the item, of a deleted one as it
    was before. ``properties`` are those that came with the bytes, of the source of a copy, or the new ones. A copy
    names what it was taken from. ``acls`` is the new access list of a space.
    """

    action: AuditAction
    user: str
    at: int
    account: str
    store: str
    store_type: str
    space: str
    content_id: str = ""
    sha256: str | None = None
    size: int | None = None
    mimetype: str | None = None
    properties: Mapping[str, str] | None = None
    source_space: str | None = None
    source_content_id: str | None = None
    number: int = 0
    acls: Mapping[str, str] | None = None
