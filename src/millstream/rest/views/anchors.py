"""Anchors: the ledger, what is under an anchor, and the files themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from millstream.anchoring.content import read_manifest
from millstream.anchoring.cut_manifest import MAX_FILE_BYTES, CutManifest
from millstream.anchoring.errors import AnchoringError, CasUnavailableError
from millstream.anchoring.ledger import LedgerEntry
from millstream.core.cid import is_cid
from millstream.core.errors import InputError, NotFoundError
from millstream.rest.app_context import AppContext
from millstream.rest.endpoint import ApiRequest, EndpointRegistry, FileDownload, Limit, Listing, Name, Number

endpoints = EndpointRegistry()

Which = Literal["records", "registry"]
"""The ledger of event batches, or that of the registry of identifiers."""


class UnknownAnchorError(NotFoundError):
    """The ledger has no entry of this number."""


class UnreadableManifestError(AnchoringError):
    """The manifest of the anchor is missing or damaged, so its files are not known."""


class InvalidCidError(InputError):
    """This is not a content id."""


class AnchorsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Entries of a ledger with numbers below ``before``; with ``only=bad``, only those of the ledger ``records`` with
    invalid content.
    """

    ledger: Which = "records"
    before: Number | None = None
    only: Literal["all", "bad"] = "all"
    limit: Limit = 50


class AnchorQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Entry ``number`` of the ledger of event batches."""

    number: Annotated[int, msgspec.Meta(ge=1, le=2**53 - 1)]


class FileQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file of the content id ``cid``."""

    cid: Name


class AnchorRow(msgspec.Struct, frozen=True):
    """A ledger entry, and the observer's result (None before the observer has read it)."""

    number: int
    time: int
    anchor_string: str
    hash: str
    log: str | None = None
    batches: int | None = None
    messages: int | None = None
    rejects: int | None = None
    reason: str | None = None


class AnchorDetail(msgspec.Struct, frozen=True):
    """A ledger entry with the manifest that it names. ``trouble`` is the reason why the manifest cannot be read."""

    entry: LedgerEntry
    found: AnchorRow
    manifest_cid: str | None
    manifest: CutManifest | None
    refused: Mapping[str, str]
    trouble: str | None = None


class FileRow(msgspec.Struct, frozen=True):
    """A file of an anchor: its ``kind`` (``manifest``, ``batches`` or ``rejects``), content and size in bytes."""

    kind: str
    cid: str
    batches: int | None
    messages: int
    bytes: int | None


class Refused(msgspec.Struct, frozen=True):
    """A batch of an invalid anchor, with the reason."""

    batch: str
    reason: str


@endpoints.get("/anchors", AnchorsQuery)
def anchors(app: AppContext, request: ApiRequest[AnchorsQuery, Any]) -> Listing[AnchorRow]:
    """List the entries of a ledger, the last one first."""
    query = request.query
    if query.only == "bad" and query.ledger == "registry":
        raise InputError("only=bad lists invalid entries of the ledger records: leave out ledger=registry")
    ledger = app.node.registry.ledger if query.ledger == "registry" else app.node.anchoring.ledger
    head = ledger.head()
    total = head.number if head else 0
    index = None if query.ledger == "registry" else app.node.anchoring.observer.index
    if query.only == "bad" and index is not None:
        numbers = sorted({number for number, _, _ in index.invalid()}, reverse=True)
        total = len(numbers)
        numbers = [number for number in numbers if query.before is None or number < query.before]
        entries = (ledger.entry(number) for number in numbers[: query.limit])
        chosen = [entry for entry in entries if entry is not None]
        more = len(numbers) > query.limit
    else:
        last = total if query.before is None else min(total, query.before - 1)
        first = max(1, last - query.limit + 1)
        chosen = list(ledger.entries(first, last))[::-1]
        more = first > 1
    rows = [_row(app, entry, known=index is not None) for entry in chosen]
    return Listing(rows, str(rows[-1].number) if rows and more else None, total=total)


@endpoints.get("/anchors/{number}", AnchorQuery)
def anchor(app: AppContext, request: ApiRequest[AnchorQuery, Any]) -> AnchorDetail:
    """Show a ledger entry with its manifest and files."""
    number, node = request.query.number, app.node
    entry = _entry(app, number)
    row, refused = _row(app, entry, known=True), node.anchoring.observer.index.refused(number)
    try:
        cid, manifest = read_manifest(node.anchoring.cas, entry.anchor_string)
    except AnchoringError as error:
        return AnchorDetail(entry, row, None, None, refused, str(error))
    return AnchorDetail(entry, row, cid, manifest, refused)


@endpoints.get("/anchors/{number}/files", AnchorQuery)
def anchor_files(app: AppContext, request: ApiRequest[AnchorQuery, Any]) -> Listing[FileRow]:
    """List the files of one ledger entry: the manifest, and those that it names."""
    entry = _entry(app, request.query.number)
    try:
        cid, manifest = read_manifest(app.node.anchoring.cas, entry.anchor_string)
    except CasUnavailableError:
        raise
    except AnchoringError as error:
        raise UnreadableManifestError(f"the manifest of anchor {entry.number} cannot be read: {error}") from error
    rows = [FileRow("manifest", cid, manifest.count, manifest.messages, None)]
    rows += [FileRow("batches", one.uri, one.batches, one.messages, one.bytes) for one in manifest.files]
    rows += [FileRow("rejects", one.uri, None, one.count, one.bytes) for one in manifest.rejects.files]
    return Listing(rows, total=len(rows))


@endpoints.get("/anchors/{number}/refused", AnchorQuery)
def anchor_refused(app: AppContext, request: ApiRequest[AnchorQuery, Any]) -> Listing[Refused]:
    """List the invalid batches of one ledger entry, with reasons."""
    rows = [Refused(batch, reason) for batch, reason in anchor(app, request).refused.items()]
    return Listing(rows, total=len(rows))


@endpoints.get("/files/{cid}", FileQuery)
def file(app: AppContext, request: ApiRequest[FileQuery, Any]) -> FileDownload:
    """Get a content-addressed file, verified against its name."""
    if not is_cid(request.query.cid):
        raise InvalidCidError(
            f"invalid content id {request.query.cid[:100]!r}: give the CID of a stored file (bafkrei…)"
        )
    return FileDownload(
        f"{request.query.cid}.json",
        app.node.anchoring.cas.get(request.query.cid, MAX_FILE_BYTES),
        "application/octet-stream",
    )


def _entry(app: AppContext, number: int) -> LedgerEntry:
    entry = app.node.anchoring.ledger.entry(number)
    if entry is None:
        raise UnknownAnchorError(f"the ledger of anchors has no entry {number}; `/anchors` lists its entries")
    return entry


def _row(app: AppContext, entry: LedgerEntry, *, known: bool) -> AnchorRow:
    facts = (entry.number, entry.time, entry.anchor_string, entry.hash)
    found = app.node.anchoring.observer.index.anchor(entry.number) if known else None
    if found is None:
        return AnchorRow(*facts)
    return AnchorRow(*facts, found.log, found.batches, found.messages, found.rejects, found.reason)
