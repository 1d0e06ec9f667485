"""Hashlinks: the hash of a file, and optionally its URLs (draft-sporny-hashlink-07, as Orb writes them).

``hl:`` + the multihash + optionally ``:`` + the links, each part ``u`` and base64url. The links are CBOR (RFC 8949): a
map of one entry, from 15 to a list of URLs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from millstream.anchoring.sidetree.encoding import decode, encode, hash_bytes, multihash_digest
from millstream.anchoring.sidetree.errors import RequestError
from millstream.core.cid import cid_from_digest

MAX_LENGTH = 2_000
_SCHEME = "hl:"
_URLS = 15  # the key of the list of URLs
_MAP, _LIST, _TEXT, _BYTES = 0xA0, 0x80, 0x60, 0x40


class HashLink(msgspec.Struct, frozen=True):
    """A file by the encoded multihash of its bytes, and *links*: URLs at which it should be available."""

    multihash: str
    links: Sequence[str] = ()

    @property
    def bare(self) -> str:
        """The hashlink without links."""
        return f"{_SCHEME}u{self.multihash}"

    @property
    def text(self) -> str:
        """The hashlink with its links."""
        return f"{self.bare}:u{encode(_cbor(self.links))}" if self.links else self.bare

    @property
    def cid(self) -> str:
        """The raw CID of the same file."""
        return cid_from_digest(multihash_digest(self.multihash))

    def names(self, data: bytes) -> bool:
        """Whether *data* are the bytes of the file."""
        return hashlib.sha256(data).digest() == multihash_digest(self.multihash)


def link_to(data: bytes, links: Sequence[str] = ()) -> HashLink:
    """The hashlink of *data*."""
    return HashLink(hash_bytes(data), tuple(links))


def parse_hashlink(text: str) -> HashLink:
    """The hashlink *text*. Raises :class:`RequestError` with the code ``hashlink``."""
    if len(text) > MAX_LENGTH:
        raise RequestError(
            "hashlink", f"the hashlink {text[:80]!r} has {len(text):,} characters; the limit is {MAX_LENGTH:,}"
        )
    parts = text.removeprefix(_SCHEME).split(":")
    if not text.startswith(_SCHEME) or len(parts) > 2 or not all(p[:1] == "u" for p in parts):
        raise RequestError(
            "hashlink", f"invalid hashlink {text[:80]!r}: it must be hl:u<multihash>, optionally with :u<links>"
        )
    try:
        multihash_digest(parts[0][1:])
        links = _urls(decode(parts[1][1:])) if len(parts) == 2 else ()
    except (RequestError, UnicodeDecodeError) as error:
        raise RequestError("hashlink", f"invalid hashlink {text[:80]!r}: {error}") from error
    return HashLink(parts[0][1:], links)


def is_hashlink(text: str) -> bool:
    """Whether *text* says that it is a hashlink."""
    return text.startswith(_SCHEME)


def _cbor(links: Sequence[str]) -> bytes:
    items = b"".join(_head(_TEXT, len(link.encode())) + link.encode() for link in links)
    return bytes([_MAP | 1, _URLS]) + _head(_LIST, len(links)) + items


def _head(kind: int, length: int) -> bytes:
    if length < 24:
        return bytes([kind | length])
    return bytes([kind | 24, length]) if length < 256 else bytes([kind | 25]) + length.to_bytes(2)


def _urls(data: bytes) -> Sequence[str]:
    """The URLs in *data*. Raises :class:`RequestError` and UnicodeDecodeError."""
    if data[:2] != bytes([_MAP | 1, _URLS]):
        raise RequestError(
            "hashlink",
            "the metadata of a hashlink must be a CBOR map with only the key 15, whose value is a list of URLs",
        )
    count, at = _length(data, 2, {_LIST})
    links = list[str]()
    for _ in range(count):
        size, at = _length(data, at, {_TEXT, _BYTES})
        links.append(data[at : at + size].decode("utf-8"))
        at += size
    if at != len(data):
        raise RequestError("hashlink", "the list of URLs is truncated, or has data after its end")
    return tuple(links)


def _length(data: bytes, at: int, kinds: set[int]) -> tuple[int, int]:
    """The length that stands at *at*, of one of *kinds*, and where its content begins."""
    if at >= len(data):
        raise RequestError("hashlink", "the list of URLs is truncated")
    kind, short = data[at] & 0xE0, data[at] & 0x1F
    if kind not in kinds or short > 25:
        raise RequestError("hashlink", "the links are not a CBOR list of strings")
    if short < 24:
        return short, at + 1
    size = short - 23
    if len(data) < at + 1 + size:
        raise RequestError("hashlink", "the list of URLs is truncated")
    return int.from_bytes(data[at + 1 : at + 1 + size]), at + 1 + size
