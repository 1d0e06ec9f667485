"""The rows of the bit check: their names, their codes, and what each says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec


class CheckRow:
    """The code of each row, by its name. Reports, manifests and bit logs contain the codes, so no code ever changes.

    Rows ``…_AT_FIRST`` and ``…_AGAIN`` are those of an attempt that is not the last. ``B`` as in the reference table,
    ``A`` where the audit log stands alone (rows 5 to 7 of the document).
    """

    INTACT: Final = "B1"
    INTACT_UNREAD: Final = "B2"
    CONTENT_DIFFERS: Final = "B3"
    VANISHED_MEANWHILE: Final = "B3V"
    UNREADABLE: Final = "B4"
    STORE_DIFFERS_AT_FIRST: Final = "B5"
    STORE_DIFFERS_AGAIN: Final = "B6"
    STORE_DIFFERS: Final = "B7"
    MANIFEST_DIFFERS_AT_FIRST: Final = "B8"
    MANIFEST_DIFFERS: Final = "B9"
    ALL_DIFFER: Final = "B10"
    FRESH: Final = "B11"
    UNRECORDED_AT_FIRST: Final = "B14"
    UNRECORDED: Final = "B15"
    UNRECORDED_DIFFERS: Final = "B16"
    MISSING_AT_FIRST: Final = "B17"
    MISSING: Final = "B18"
    NO_CHECKSUM: Final = "B19"
    GONE: Final = "B20"
    DELETED: Final = "B21"
    UNREACHABLE: Final = "B22"
    UNDELETED: Final = "B24"
    CONTRADICTED: Final = "B25"
    CHANGED: Final = "B26"
    DAMAGED_RECORD: Final = "B27"
    SHARED_FILE: Final = "B28"
    PROPERTIES_DIFFER: Final = "B29"
    VANISHED: Final = "B30"
    LEFT_OUT: Final = "B31"
    REFUSED: Final = "B32"
    MANIFEST_OUTDATED: Final = "A5"
    AUDIT_DIFFERS: Final = "A6"
    UNAUDITED: Final = "A7"


class RowText(msgspec.Struct, frozen=True):
    """The content of a row: the kind and text of a finding, the row in the seed document's table, and the remedy."""

    kind: str
    detail: str
    document: int | None = None
    todo: str = ""


_RESTORE = "restore the recorded content (`millstream mill repair`, or `store put`)"
_FORGET = "run `millstream protect` and record its deletion (`millstream mill forget STORE SPACE --vanished`)"
_WAYS_OUT = f"{_RESTORE}, or record the present content (`millstream mill accept`)"

_REPAIR = (
    "repair the item in the console, or with `millstream mill repair`; without a good copy, restore it from a backup"
)
_DECIDE = "compare the copies, then restore the right content (`millstream mill repair`) or record the present "
_DECIDE += "content (`millstream mill accept`)"
_PUT_AGAIN = "compare the copies, then restore the right content (`millstream mill repair`) or put the item again "
_PUT_AGAIN += "(`millstream store put`)"
_RUN = "nothing: the next check corrects the records; if it does not, read the log of the process"

ROWS: Mapping[str, RowText] = {
    CheckRow.INTACT: RowText("intact", "bytes, provider and manifest agree", 1),
    CheckRow.INTACT_UNREAD: RowText("intact", "provider and manifest agree; bytes are not read on this store", 1),
    CheckRow.CONTENT_DIFFERS: RowText(
        "checksum-mismatch", "the content does not match the recorded checksum", 2, todo=_REPAIR
    ),
    CheckRow.VANISHED_MEANWHILE: RowText(
        "vanished",
        "the object vanished while it was checked",
        todo="check again (`millstream mill check`); if the item is missing, repair it",
    ),
    CheckRow.UNREADABLE: RowText(
        "unreadable", "the bytes could not be read", todo=f"look for disk errors; then {_REPAIR}"
    ),
    CheckRow.STORE_DIFFERS_AT_FIRST: RowText(
        "store-checksum", "the provider's checksum differs from bytes and manifest", 3
    ),
    CheckRow.STORE_DIFFERS_AGAIN: RowText(
        "store-checksum", "the provider's checksum differs from bytes and manifest", 3
    ),
    CheckRow.STORE_DIFFERS: RowText(
        "store-checksum",
        "the provider's checksum differs from bytes and manifest: ask the provider",
        3,
        todo="ask the provider to correct its checksum; the bytes and the manifest agree",
    ),
    CheckRow.MANIFEST_DIFFERS_AT_FIRST: RowText("manifest", "the manifest differs from the provider's checksum", 4),
    CheckRow.MANIFEST_DIFFERS: RowText(
        "manifest", f"the store has other content than the manifest records: {_WAYS_OUT}", 10, todo=_DECIDE
    ),
    CheckRow.ALL_DIFFER: RowText("neither", f"bytes, provider and manifest all differ: {_RESTORE}", todo=_REPAIR),
    CheckRow.FRESH: RowText("fresh", "changed less than a day ago: the manifest may not be updated yet"),
    CheckRow.UNRECORDED_AT_FIRST: RowText("unrecorded", "the manifest does not list this object", 9),
    CheckRow.UNRECORDED: RowText("unrecorded", "the manifest does not list this object", 9, todo=_RUN),
    CheckRow.UNRECORDED_DIFFERS: RowText(
        "neither",
        "the manifest does not list this object, and its bytes do not match the provider's checksum",
        todo=_PUT_AGAIN,
    ),
    CheckRow.MISSING_AT_FIRST: RowText("missing", "listed in the manifest but missing from the store", 8),
    CheckRow.MISSING: RowText("missing", "listed in the manifest but missing from the store", 8, todo=_REPAIR),
    CheckRow.NO_CHECKSUM: RowText(
        "no-checksum",
        "the provider keeps no checksum of this object",
        todo="check again; if the bytes differ from the manifest, repair the item",
    ),
    CheckRow.GONE: RowText("gone", "neither the store nor the manifest has the object", 11),
    CheckRow.DELETED: RowText("gone", "deleted, as recorded", 11),
    CheckRow.UNREACHABLE: RowText(
        "unreachable",
        "the provider did not answer",
        todo="check the store's disk or server, then check again (`millstream mill check`)",
    ),
    CheckRow.UNDELETED: RowText(
        "undeleted",
        "deleted in the manifest and still in the store",
        todo="delete the item in that store, or let `millstream mill duplicate` delete the copy",
    ),
    CheckRow.CONTRADICTED: RowText(
        "contradicted",
        "the manifest does not list this object, and the audit log, or the manifest for another store, has another "
        f"checksum of it: {_RESTORE}, or delete this object",
        todo=_DECIDE,
    ),
    CheckRow.CHANGED: RowText("changed", "changed since it was adopted: the next `millstream protect` adopts it"),
    CheckRow.DAMAGED_RECORD: RowText(
        "damaged-record",
        "the record beside the object (sidecar, metadata) is damaged: run `millstream mill repair`",
        todo=_REPAIR,
    ),
    CheckRow.SHARED_FILE: RowText(
        "shared-file",
        "a hard link to the file of another store: damage to one is damage to both",
        todo="repair the item (`millstream mill repair`): the copy gets a file of its own",
    ),
    CheckRow.PROPERTIES_DIFFER: RowText(
        "properties",
        "the properties of a copy are not those of its original",
        todo="run `millstream protect`, which sets the properties of the copy",
    ),
    CheckRow.VANISHED: RowText(
        "vanished",
        f"vanished from the source since it was adopted: put it back, or {_FORGET}",
        todo="put the item back at the source, or record its deletion "
        "(`millstream mill forget STORE SPACE --vanished`)",
    ),
    CheckRow.LEFT_OUT: RowText("left-out", "left out of what is protected (`--exclude`); its copies are kept"),
    CheckRow.REFUSED: RowText(
        "not-read",
        "the store does not give out the content: it is archived, or there is no right to read it",
        todo="restore the object from the archive, or give the account that runs Millstream the right to read it; then "
        "check again (`millstream mill check`)",
    ),
    CheckRow.MANIFEST_OUTDATED: RowText(
        "manifest", "the manifest differs from bytes, provider and audit log", 5, todo=_RUN
    ),
    CheckRow.AUDIT_DIFFERS: RowText("audit", "the audit log differs from bytes, provider and manifest", 6, todo=_RUN),
    CheckRow.UNAUDITED: RowText("audit", "the audit log has no event of this object", 7, todo=_RUN),
}
"""Every row by its number: B as in the reference table, A where the audit log stands alone (document rows 5–7).

``docs/mill.md`` has them as a table. B28 and B29 are no answers of one store: who compares two stores finds them.
"""
