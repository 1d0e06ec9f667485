"""The time stamps of a ledger, found again in content-addressed storage after the node's database was lost."""

from __future__ import annotations

import hashlib
from typing import Protocol

import msgspec

from millstream.anchoring.cas import Cas
from millstream.anchoring.errors import CasError, NoteError, TimestampError
from millstream.anchoring.timestamps.renewal import RenewalDocument, TimestampTree, parse_renewal
from millstream.anchoring.timestamps.timestamp_tables import TimestampRecord, TimestampTable
from millstream.anchoring.timestamps.token import DIGESTS, MAX_TOKEN_BYTES, TimestampToken, parse_token
from millstream.anchoring.transparency.checkpoint import Checkpoint, parse_checkpoint
from millstream.anchoring.transparency.signed_note import MAX_NOTE_BYTES, parse_note


class RootedTree(Protocol):
    """The tree of a ledger, as far as its checkpoints are recognized; see ``LedgerTree``."""

    @property
    def size(self) -> int: ...

    def root(self, size: int | None = None) -> bytes:
        """The root (32 bytes) of the first *size* entries."""
        ...


class _StampedFile(msgspec.Struct, frozen=True):
    """The ``token`` in the file ``cid``, and the ``document`` in the file ``document_cid`` that it stamps."""

    cid: str
    token: TimestampToken
    document_cid: str
    document: Checkpoint | RenewalDocument


def find_timestamps(cas: Cas, tree: RootedTree, table: TimestampTable) -> None:
    """Add to *table*, which must be empty, the time stamps in *cas* of the ledger with this *tree*.

    All files of *cas* are read. A renewal is recognized by the root over the older time stamps of the ledger. Raises
    :class:`TimestampError`.
    """
    if table.records():
        raise TimestampError(
            f"the node's database already lists time stamps of the ledger {table.ledger}: omit --find to list them. If "
            "older ones are missing because the database was lost, stop the node, delete the rows of this ledger from "
            "the table anchor_timestamps, and repeat the command (docs/how-to/timestamps.md)"
        )
    records: list[TimestampRecord] = []
    for file in sorted(_stamped_files(cas), key=_order):
        record = _record(len(records) + 1, file)
        if isinstance(file.document, Checkpoint):
            belongs = file.document.size <= tree.size and tree.root(file.document.size) == file.document.root
        else:
            belongs = _covers(file.document, records, cas)
        if belongs:
            records.append(table.add(record))


def _order(file: _StampedFile) -> tuple[int, bool, str]:
    """By time; a renewal comes after the other time stamps of the same second, which it may cover."""
    return file.token.time, isinstance(file.document, RenewalDocument), file.cid


def _covers(document: RenewalDocument, records: list[TimestampRecord], cas: Cas) -> bool:
    if not records or document.count > len(records):
        return False
    try:
        return TimestampTree(document.digest, records[: document.count], cas).document == document
    except CasError:
        return False


def _record(number: int, file: _StampedFile) -> TimestampRecord:
    token, document = file.token, file.document
    return TimestampRecord(
        number=number,
        authority=token.authority,  # its URL is not known any more
        name=token.authority,
        size=document.size if isinstance(document, Checkpoint) else None,
        renews=document.count if isinstance(document, RenewalDocument) else None,
        time=token.time,
        ends_at=token.ends_at,
        digest=token.digest,
        document=file.document_cid,
        token=file.cid,
        received_at=token.time,
    )


def _stamped_files(cas: Cas) -> list[_StampedFile]:
    """The tokens in *cas* whose documents are there, too."""
    tokens: dict[str, TimestampToken] = {}
    documents: dict[bytes, tuple[str, Checkpoint | RenewalDocument]] = {}
    for cid in cas.cids():
        try:
            data = cas.get(cid, MAX_NOTE_BYTES)
        except CasError:  # too large to be one of them, or damaged
            continue
        if data.startswith(b"\x30") and len(data) <= MAX_TOKEN_BYTES:
            try:
                tokens[cid] = parse_token(data)
            except TimestampError:
                continue
        elif (document := _document(data)) is not None:
            documents |= {hashlib.new(digest, data).digest(): (cid, document) for digest in DIGESTS.values()}
    return [
        _StampedFile(cid, token, *documents[token.imprint])
        for cid, token in tokens.items()
        if token.imprint in documents
    ]


def _document(data: bytes) -> Checkpoint | RenewalDocument | None:
    try:
        return parse_renewal(data)
    except TimestampError:
        pass
    try:
        return parse_checkpoint(parse_note(data))
    except NoteError:
        return None
