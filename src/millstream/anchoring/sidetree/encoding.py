"""Hashes of canonical JSON and their text form (Sidetree v1.0, "Common Functions").

A multihash here is ``0x12 0x20`` and 32 bytes of SHA-256; its text form is base64url without padding, 46 characters.
"""

from __future__ import annotations

import binascii
import hashlib
import re
from functools import lru_cache
from typing import Any

from millstream.anchoring.sidetree.errors import RequestError
from millstream.anchoring.sidetree.javascript import MAX_DEPTH, TooDeepError, decode_base64url, stringify
from millstream.core.amounts import counted
from millstream.core.canonical import plain_json

_PREFIX = b"\x12\x20"  # sha2-256, 32 bytes
_TO_JSON = b'"toJSON":'
_TO_JSON_MEMBER = re.compile(rb'[{,]"toJSON":')  # text has a backslash before such a quote
_ALPHABET = re.compile(r"[A-Za-z0-9_-]*")
_MULTIHASH = re.compile(r"Ei[A-D][A-Za-z0-9_-]{43}")  # 34 bytes that begin with the prefix
_TO_URL = bytes.maketrans(b"+/", b"-_")


def encode(data: bytes) -> str:
    """*data* in base64url without padding."""
    return binascii.b2a_base64(data, newline=False).translate(_TO_URL, b"=").decode("ascii")


def decode(text: str) -> bytes:
    """The bytes of *text*, base64url without padding. Raises :class:`RequestError`."""
    try:
        return decode_base64url(text)
    except ValueError as error:
        if not is_base64url(text):
            raise RequestError("not_base64url", f"{text[:60]!r} contains characters that are not base64url") from error
        raise RequestError(
            "not_base64url",
            f"{text[:60]!r} is not valid base64url: it has {counted(len(text), 'character')}, but the length cannot be "
            "1 more than a multiple of 4: characters are missing or added",
        ) from error


def is_multihash(text: str) -> bool:
    """Whether *text* is an encoded SHA-256 multihash; the last of its bits, which stand for nothing, may be any."""
    return _MULTIHASH.fullmatch(text) is not None


def is_base64url(text: str) -> bool:
    """Whether *text* has only the characters of base64url."""
    return _ALPHABET.fullmatch(text) is not None


def canonical(value: Any, *, depth: int = MAX_DEPTH) -> bytes:
    """The canonical JSON (RFC 8785) of *value*, with numbers and text as JavaScript writes them.

    Raises :class:`RequestError` for what is nested more than *depth* levels deep, unless it is a
    :func:`plain_canonical` value.
    """
    data = plain_canonical(value)
    if data is not None:
        return data
    try:
        return stringify(value, depth=depth)
    except (TooDeepError, TypeError) as error:
        raise RequestError("not_canonical", str(error)) from error


def plain_canonical(value: Any) -> bytes | None:
    """The canonical JSON of *value* if it has no numbers, no text beyond ASCII and no member ``toJSON``; else None."""
    data = plain_json(value)
    return None if data is None or has_to_json(data) else data


def has_to_json(data: bytes) -> bool:
    """Whether an object in the JSON *data* without blanks has a member ``toJSON``: it is hashed in another order."""
    return _TO_JSON in data and _TO_JSON_MEMBER.search(data) is not None


def hash_bytes(data: bytes) -> str:
    """The encoded multihash of *data*."""
    return multihash_of(hashlib.sha256(data).digest())


def multihash_of(digest: bytes) -> str:
    """The encoded multihash of a SHA-256 *digest* (32 bytes)."""
    return encode(_PREFIX + digest)


def hash_of(value: Any) -> str:
    """The encoded multihash of the canonical JSON of *value*: suffixes, delta hashes, reveal values."""
    return hash_bytes(canonical(value))


def commitment_to(public_key: Any) -> str:
    """The commitment to the JWK *public_key*: the multihash of its SHA-256, taken without a prefix."""
    return hash_bytes(hashlib.sha256(canonical(public_key)).digest())


@lru_cache(maxsize=16_384)
def commitment_of(reveal_value: str) -> str:
    """The commitment that *reveal_value* opens. An operation is asked for it whenever it is looked at."""
    return hash_bytes(multihash_digest(reveal_value))


def multihash_digest(text: str) -> bytes:
    """The 32 bytes of SHA-256 inside the encoded multihash *text*. Raises :class:`RequestError`."""
    return decode(check_multihash(text, "this"))[2:]


def check_multihash(value: object, what: str) -> str:
    """*value*, which must be an encoded multihash; *what* says in the error where it stood."""
    if not isinstance(value, str) or not is_multihash(value):
        shown = repr(value)[:60]
        raise RequestError(
            "not_multihash", f"{what} must be a SHA-256 multihash in base64url (46 characters), not {shown}"
        )
    return value


def hashes_to(value: Any, multihash: str) -> bool:
    """Whether *multihash* is how the hash of the canonical JSON of *value* is written. Raises :class:`RequestError`."""
    return bytes_hash_to(canonical(value), multihash)


def bytes_hash_to(data: bytes, multihash: str) -> bool:
    """Whether *multihash* is how the hash of *data* is written: readers compare the text, not its bytes."""
    return multihash == hash_bytes(data)
