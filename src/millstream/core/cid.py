"""Content identifiers (multiformats specifications "CID" and "multihash"): a file is named by the hash of its bytes.

The form of Millstream is CIDv1, raw codec, SHA-256, base32: any SHA-256 tool can check the file.
The two forms of IPFS (:mod:`millstream.core.unixfs`) are for networks whose files live there.
"""

from __future__ import annotations

import base64
import enum
import hashlib
import re

from millstream.core.errors import InputError
from millstream.core.unixfs import UnixfsHasher

_RAW_PREFIX = bytes([0x01, 0x55, 0x12, 0x20])  # CID version 1, raw codec, sha2-256, 32 bytes
_DAG_PB_PREFIX = bytes([0x01, 0x70, 0x12, 0x20])
_V1_PATTERN = re.compile(r"b[a-z2-7]{58}")
_V0_PATTERN = re.compile(r"Qm[1-9A-HJ-NP-Za-km-z]{44}")
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


class CidError(InputError):
    """Not a content identifier of a kind that is used here."""


class CidForm(enum.StrEnum):
    """How files are named: ``raw`` by the SHA-256 of all their bytes, the others as IPFS names them.

    ``unixfs-v1`` differs from ``raw`` in files of more than 262,144 bytes alone.
    """

    RAW = "raw"
    UNIXFS_V0 = "unixfs-v0"
    UNIXFS_V1 = "unixfs-v1"


class CidHasher:
    """The identifier of bytes that come in pieces."""

    def __init__(self, form: CidForm = CidForm.RAW) -> None:
        self._raw = hashlib.sha256() if form == CidForm.RAW else None
        self._tree = UnixfsHasher(0 if form == CidForm.UNIXFS_V0 else 1)

    def update(self, data: bytes) -> None:
        """The bytes continue with *data*."""
        if self._raw is not None:
            self._raw.update(data)
        else:
            self._tree.update(data)

    def cid(self) -> str:
        """The identifier of what came so far."""
        if self._raw is not None:
            return cid_from_digest(self._raw.digest())
        root = self._tree.root()
        return _base32(root) if root[0] == 1 else _base58(root)


def cid_of(data: bytes, form: CidForm = CidForm.RAW) -> str:
    """The CID of *data*."""
    hasher = CidHasher(form)
    hasher.update(data)
    return hasher.cid()


def cid_from_digest(digest: bytes) -> str:
    """The raw CID of the content whose SHA-256 is *digest* (32 bytes)."""
    if len(digest) != 32:
        raise CidError(f"a SHA-256 digest must have 32 bytes, not {len(digest)}")
    return _base32(_RAW_PREFIX + digest)


def digest_from_cid(cid: str) -> bytes:
    """The SHA-256 digest (32 bytes) inside the raw *cid*. Raises :class:`CidError` where it is no such CID."""
    if form_of(cid) != CidForm.RAW:
        raise CidError(f"invalid CID {cid[:80]!r}: use a CIDv1 of raw bytes with SHA-256, 'bafkrei…' of 59 characters")
    return _from_base32(cid)[4:]


def form_of(cid: str) -> CidForm:
    """A form in which *cid* is the name of a file; ``raw`` where it is one of two. Raises :class:`CidError`."""
    if _V0_PATTERN.fullmatch(cid) and _from_base58(cid)[:2] == b"\x12\x20":
        return CidForm.UNIXFS_V0
    if _V1_PATTERN.fullmatch(cid):
        raw = _from_base32(cid)
        if _base32(raw) == cid and raw[:4] in (_RAW_PREFIX, _DAG_PB_PREFIX):
            return CidForm.RAW if raw[:4] == _RAW_PREFIX else CidForm.UNIXFS_V1
    raise CidError(
        f"invalid CID {cid[:80]!r}: use a CID with SHA-256, 'bafkrei…' or 'bafybei…' of 59 characters, or 'Qm…' of 46"
    )


def is_cid(text: str) -> bool:
    """Whether *text* is a CID of one of the forms."""
    try:
        form_of(text)
    except CidError:
        return False
    return True


def is_raw_cid(text: str) -> bool:
    """Whether *text* is a CID that :func:`digest_from_cid` accepts."""
    return is_cid(text) and form_of(text) == CidForm.RAW


def _base32(data: bytes) -> str:
    return "b" + base64.b32encode(data).decode("ascii").lower().rstrip("=")


def _from_base32(cid: str) -> bytes:
    return base64.b32decode(cid[1:].upper() + "=" * (-len(cid[1:]) % 8))


def _base58(data: bytes) -> str:
    """*data*, which must not begin with a zero byte, in the alphabet of Bitcoin."""
    number, digits = int.from_bytes(data), list[str]()
    while number:
        number, digit = divmod(number, 58)
        digits.append(_BASE58[digit])
    return "".join(reversed(digits))


def _from_base58(text: str) -> bytes:
    number = 0
    for character in text:
        number = number * 58 + _BASE58.index(character)
    return number.to_bytes((number.bit_length() + 7) // 8)
