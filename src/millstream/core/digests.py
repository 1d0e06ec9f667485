"""SHA-256 of many short values."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256


def sha256_after(prefix: bytes = b"") -> Callable[[bytes], bytes]:
    """A function that gives the SHA-256 (32 bytes) of *prefix* and of what it is called with, one after the other.

    A copy of a hash that has begun takes half the time of a new one: OpenSSL looks each new one up by its name.
    """
    begun = sha256(prefix)

    def digest(data: bytes) -> bytes:
        own = begun.copy()
        own.update(data)
        return own.digest()

    return digest
