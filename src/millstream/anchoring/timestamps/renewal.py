"""Renewal of time stamps (the idea of RFC 4998): the head of a tree over all older tokens is stamped.

A token holds only as long as the certificate of its authority, and its digest. A later token over both it and what it
stamped shows that it existed while it still held.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from millstream.anchoring.cas import CasReader
from millstream.anchoring.errors import MerklePathError, NoteError, TimestampError
from millstream.anchoring.merkle import inclusion_path, merkle_root, root_of_path
from millstream.anchoring.timestamps.token import MAX_TOKEN_BYTES
from millstream.anchoring.transparency.signed_note import MAX_NOTE_BYTES, decode_base64, encode_base64
from millstream.core.cid import digest_from_cid

if TYPE_CHECKING:
    from millstream.anchoring.timestamps.timestamp_tables import TimestampRecord

_HEADER = "timestamp-renewal/v1"
_DIGEST_BYTES = {"sha256": 32, "sha512": 64}
_COUNT = re.compile(r"[1-9][0-9]{0,9}")


class RenewalDocument(msgspec.Struct, frozen=True):
    """The data that a renewal stamps: the ``root`` of the tree by ``digest`` over the first ``count`` time stamps."""

    digest: str
    count: int
    root: bytes

    def encode(self) -> bytes:
        """The text that is stamped."""
        return "".join(f"{line}\n" for line in (_HEADER, self.digest, self.count, encode_base64(self.root))).encode()

    def require(self, index: int, leaf: bytes, path: Sequence[bytes]) -> None:
        """Raise :class:`TimestampError` where *path* does not lead from *leaf* at *index* (from 0) to the root."""
        if any(len(step) != len(self.root) for step in path):
            raise TimestampError(
                f"the Merkle path of a time stamp to its renewal contains a hash that does not have the "
                f"{len(self.root)} bytes of {self.digest}"
            )
        try:
            found = root_of_path(leaf, index, self.count, path, partial(_hash, self.digest, b"\x01"))
        except MerklePathError as error:
            raise TimestampError(f"the renewal does not cover the time stamp: {error}") from error
        if found != self.root:
            raise TimestampError(
                "the renewal does not cover the time stamp: the Merkle path does not lead to the root of the renewal"
            )


def parse_renewal(data: bytes) -> RenewalDocument:
    """The document *data*. Raises :class:`TimestampError`."""
    lines = data.decode("utf-8", "replace").split("\n")
    if (
        len(lines) != 5
        or lines[0] != _HEADER
        or lines[1] not in _DIGEST_BYTES
        or not _COUNT.fullmatch(lines[2])
        or lines[4]
    ):
        raise TimestampError(
            f"invalid renewal document: expected four lines: {_HEADER}, the digest ({' or '.join(_DIGEST_BYTES)}), "
            "the number of time stamps, and the root hash in base64"
        )
    try:
        root = decode_base64(lines[3], "the root of the renewal")
    except NoteError as error:
        raise TimestampError(f"invalid renewal document: {error}") from error
    if len(root) != _DIGEST_BYTES[lines[1]]:
        size = _DIGEST_BYTES[lines[1]]
        raise TimestampError(
            f"invalid renewal document: its root hash has {len(root):,} bytes, but a hash by {lines[1]} has {size}"
        )
    return RenewalDocument(lines[1], int(lines[2]), root)


def timestamp_leaf(digest: str, document: bytes, token: bytes) -> bytes:
    """The leaf of the time stamp whose *token* is for *document*: both are covered, so that a digest may retire."""
    return _leaf(digest, _hash(digest, b"", document), _hash(digest, b"", token))


class TimestampTree:
    """The tree over *records*, all time stamps of a ledger up to some number, by *digest*; files are read from *cas*.

    Its leaves are in the order of the CIDs of the tokens, which can be found again without the node's database. Raises
    :class:`~millstream.anchoring.errors.CasError` where a file cannot be read.
    """

    def __init__(self, digest: str, records: Sequence[TimestampRecord], cas: CasReader) -> None:
        self._digest = digest
        self._node = partial(_hash, digest, b"\x01")
        ordered = sorted(records, key=lambda record: record.token)
        self._places = {record.number: place for place, record in enumerate(ordered)}
        self._leaves = [self._leaf(record, cas) for record in ordered]

    @property
    def document(self) -> RenewalDocument:
        """The time stamp over all of them."""
        return RenewalDocument(self._digest, len(self._leaves), merkle_root(self._leaves, self._node))

    def path(self, number: int) -> tuple[int, list[bytes]]:
        """The index (from 0) of time stamp *number*, and the path from there to the root."""
        index = self._places[number]
        return index, inclusion_path(self._leaves, index, self._node)

    def _leaf(self, record: TimestampRecord, cas: CasReader) -> bytes:
        if self._digest == "sha256":  # which the names of the files have already
            return _leaf(self._digest, digest_from_cid(record.document), digest_from_cid(record.token))
        return timestamp_leaf(
            self._digest, cas.get(record.document, MAX_NOTE_BYTES), cas.get(record.token, MAX_TOKEN_BYTES)
        )


def _leaf(digest: str, document: bytes, token: bytes) -> bytes:
    return _hash(digest, b"\x00", document + token)


def _hash(digest: str, prefix: bytes, data: bytes) -> bytes:
    return hashlib.new(digest, prefix + data).digest()
