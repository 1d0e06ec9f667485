"""Content identifiers: CIDv1, raw codec, SHA-256, base32 (multiformats specifications "CID" and "multihash").

The identifier of a file is the hash of its bytes, so whoever holds the file can check it with any SHA-256 tool.
"""

from __future__ import annotations

import base64
import hashlib
import re

from millstream.core.errors import InputError

_PREFIX = bytes([0x01, 0x55, 0x12, 0x20])  # CID version 1, raw codec, sha2-256, 32 bytes
_PATTERN = re.compile(r"b[a-z2-7]{58}")


class CidError(InputError):
    """Not a CIDv1 of raw bytes under SHA-256 (59 characters that begin with "bafkrei")."""


def cid_of(data: bytes) -> str:
    """The CID of *data*."""
    return cid_from_digest(hashlib.sha256(data).digest())


def cid_from_digest(digest: bytes) -> str:
    """The CID of the content whose SHA-256 is *digest* (32 bytes)."""
    if len(digest) != 32:
        raise CidError(f"a SHA-256 digest has 32 bytes, not {len(digest)}")
    return "b" + base64.b32encode(_PREFIX + digest).decode("ascii").lower().rstrip("=")


def digest_from_cid(cid: str) -> bytes:
    """The SHA-256 digest (32 bytes) inside *cid*. Raises :class:`CidError` where it is no such CID."""
    if not _PATTERN.fullmatch(cid):
        raise CidError(f"{cid[:80]!r} is not a CIDv1 of raw bytes under SHA-256 (59 characters, 'bafkrei…')")
    raw = base64.b32decode(cid[1:].upper() + "=" * (-len(cid[1:]) % 8))
    if raw[:4] != _PREFIX or cid_from_digest(raw[4:]) != cid:
        raise CidError(f"{cid!r} is a CID of another kind; only CIDv1 raw sha2-256 in base32 is used here")
    return raw[4:]


def is_cid(text: str) -> bool:
    """Whether *text* is a CID that :func:`digest_from_cid` accepts."""
    try:
        digest_from_cid(text)
    except CidError:
        return False
    return True
