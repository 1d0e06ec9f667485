"""The table of the manifest, and what is written into it and read out of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import pyarrow as pa
import sqlalchemy as sa

from millstream.core.column_types import CONTENT_ID, EXACT_LONG_TEXT, NAME
from millstream.mill.integrity_decision import BitCheckOutcome, CheckVerdict, ManifestAction

MANIFEST_SCHEMA = pa.schema(
    [
        pa.field("store", pa.string(), nullable=False),
        pa.field("space", pa.string(), nullable=False),
        pa.field("content_id", pa.string(), nullable=False),
        pa.field("sha256", pa.string()),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("mimetype", pa.string(), nullable=False),
        pa.field("modified", pa.int64(), nullable=False),
        pa.field("deleted", pa.bool_(), nullable=False),
        pa.field("missing", pa.bool_(), nullable=False),
        pa.field("checked_at", pa.int64()),
        pa.field("verified_at", pa.int64()),
        pa.field("outcome", pa.string()),
        pa.field("detail", pa.string()),
    ]
)
"""The manifest as an Arrow table. Times are microseconds since the epoch, UTC; ``sha256`` is lower-case hex."""

metadata = sa.MetaData()

manifest_table = sa.Table(
    "mill_manifest",
    metadata,
    sa.Column("store", NAME, primary_key=True),
    sa.Column("space", NAME, primary_key=True),
    sa.Column("content_id", CONTENT_ID, primary_key=True),
    sa.Column("sha256", EXACT_LONG_TEXT),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("mimetype", EXACT_LONG_TEXT, nullable=False),
    sa.Column("modified", sa.BigInteger, nullable=False),
    sa.Column("deleted", sa.Boolean, nullable=False),
    sa.Column("missing", sa.Boolean, nullable=False),
    sa.Column("checked_at", sa.BigInteger),
    sa.Column("verified_at", sa.BigInteger),
    sa.Column("outcome", EXACT_LONG_TEXT),
    sa.Column("detail", EXACT_LONG_TEXT),
    sa.Index("mill_manifest_item", "space", "content_id"),
    sqlite_with_rowid=False,
)


class ManifestEvent(msgspec.Struct, frozen=True, gc=False):
    """A content item was added (or changed, or copied) or deleted at ``at`` (microseconds since the epoch, UTC)."""

    store: str
    space: str
    content_id: str
    at: int
    sha256: str | None = None
    size: int = 0
    mimetype: str = "application/octet-stream"
    deleted: bool = False


class AddedItems(NamedTuple):
    """Content items of one space of a store that were added together, *at* one time (microseconds), in columns."""

    store: str
    space: str
    at: int
    content_ids: Sequence[str]
    sums: Sequence[str]
    sizes: Sequence[int]
    mimetypes: Sequence[str]


class ManifestRow(msgspec.Struct, frozen=True, gc=False):
    """The manifest row of one content item in one store; the fields are those of :data:`MANIFEST_SCHEMA`.

    ``verified_at`` is when its bytes last matched ``sha256``; ``outcome`` and ``detail`` are of the last check.
    """

    store: str
    space: str
    content_id: str
    sha256: str | None
    size: int
    mimetype: str
    modified: int
    deleted: bool
    missing: bool
    checked_at: int | None = None
    verified_at: int | None = None
    outcome: str | None = None
    detail: str | None = None


class ComparisonRow(msgspec.Struct, frozen=True, gc=False):
    """The columns that a comparison needs: a loop over a space reads many rows."""

    content_id: str
    sha256: str | None
    size: int
    modified: int
    deleted: bool


COMPARISON_COLUMNS = ComparisonRow.__struct_fields__
"""The columns that a comparison needs, the id first."""


class CheckResult(msgspec.Struct, frozen=True, gc=False):
    """The result of a check, for the manifest, a report and a repair.

    ``manifest``, ``provider`` and ``content`` are the observed sums (hex) or answers; ``size`` is in bytes,
    ``checked_at`` in microseconds since the epoch, UTC; ``row`` and ``kind`` are those of the outcome.
    """

    store: str
    space: str
    content_id: str
    verdict: CheckVerdict
    row: str
    kind: str
    detail: str
    checked_at: int
    size: int = 0
    manifest: str | None = None
    provider: str | None = None
    content: str | None = None
    action: ManifestAction = ManifestAction.KEEP

    @property
    def note(self) -> str:
        """The text for a row of the manifest."""
        return check_note(self.row, self.kind, self.detail)


class IntactItems(NamedTuple):
    """Items of one space of a store that were found intact together, in columns: all sources agree on ``sums``.

    ``outcome`` is what the table says of each of them, ``checked_at`` in microseconds; sizes are in bytes.
    """

    store: str
    space: str
    checked_at: int
    outcome: BitCheckOutcome
    content_ids: list[str]
    sums: list[str]
    sizes: list[int]

    @property
    def note(self) -> str:
        """The texts for rows of the manifest."""
        return check_note(self.outcome.row, self.outcome.kind, self.outcome.detail)


def check_note(row: str, kind: str, detail: str) -> str:
    return f"{row} {kind}: {detail}"


def last_check(row: ManifestRow) -> CheckResult | None:
    """The last check of an item as far as its *row* tells of it; None where it was never checked."""
    if row.checked_at is None or row.outcome is None:
        return None
    name, _, detail = (row.detail or "").partition(": ")
    number, _, kind = name.partition(" ")
    intact = row.sha256 if row.outcome == CheckVerdict.SUCCESS else None
    return CheckResult(
        store=row.store,
        space=row.space,
        content_id=row.content_id,
        verdict=CheckVerdict(row.outcome),
        row=number,
        kind=kind,
        detail=detail,
        checked_at=row.checked_at,
        size=row.size,
        manifest=row.sha256,
        provider=intact,
        content=intact,
    )
