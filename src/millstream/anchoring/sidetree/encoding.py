"""Hashes of canonical JSON and their text form (Sidetree v1.0, "Common Functions").

A multihash here is ``0x12 0x20`` and 32 bytes of SHA-256; its text form is base64url without padding, 46 characters.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from typing import Any

from millstream.anchoring.sidetree.errors import RequestError
from millstream.core.canonical import CanonicalError, canonical_json

_PREFIX = b"\x12\x20"  # sha2-256, 32 bytes
_ALPHABET = re.compile(r"[A-Za-z0-9_-]*")


def encode(data: bytes) -> str:
    """*data* in base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def decode(text: str) -> bytes:
    """The bytes of *text*, base64url without padding. Raises :class:`RequestError`."""
    if not is_base64url(text):
        raise RequestError("not_base64url", f"{text[:60]!r} has characters that base64url has not")
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error as error:
        raise RequestError("not_base64url", f"{text[:60]!r} is not base64url: {error}") from error


def is_base64url(text: str) -> bool:
    """Whether *text* has only the characters of base64url."""
    return _ALPHABET.fullmatch(text) is not None


def canonical(value: Any) -> bytes:
    """The canonical JSON (RFC 8785) of *value*. Raises :class:`RequestError` where it has none."""
    try:
        return canonical_json(value)
    except CanonicalError as error:
        raise RequestError("not_canonical", str(error)) from error


def hash_bytes(data: bytes) -> str:
    """The encoded multihash of *data*."""
    return encode(_PREFIX + hashlib.sha256(data).digest())


def hash_of(value: Any) -> str:
    """The encoded multihash of the canonical JSON of *value*: suffixes, delta hashes, reveal values."""
    return hash_bytes(canonical(value))


def commitment_to(public_key: Any) -> str:
    """The commitment to the JWK *public_key*: the multihash of its SHA-256, taken without a prefix."""
    return hash_bytes(hashlib.sha256(canonical(public_key)).digest())


def commitment_of(reveal_value: str) -> str:
    """The commitment that *reveal_value* opens."""
    return hash_bytes(multihash_digest(reveal_value))


def multihash_digest(text: str) -> bytes:
    """The 32 bytes of SHA-256 inside the encoded multihash *text*. Raises :class:`RequestError`."""
    data = decode(text)
    if len(data) != 34 or data[:2] != _PREFIX:
        raise RequestError("not_multihash", f"{text[:60]!r} is no SHA-256 multihash in base64url (46 characters)")
    return data[2:]


def check_multihash(value: object, what: str) -> str:
    """*value*, which must be an encoded multihash; *what* says in the error where it stood."""
    if not isinstance(value, str) or len(value) > 100:
        raise RequestError("not_multihash", f"{what} must be a multihash in base64url")
    try:
        multihash_digest(value)
    except RequestError as error:
        raise RequestError("not_multihash", f"{what}: {error}") from error
    return value


def hashes_to(value: Any, multihash: str) -> bool:
    """Whether the canonical JSON of *value* has the encoded *multihash*."""
    return hashlib.sha256(canonical(value)).digest() == multihash_digest(multihash)
