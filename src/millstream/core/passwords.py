"""Passwords of users as written into settings: hashed with scrypt (RFC 7914), each with its own salt."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets

from millstream.core.errors import InputError

MIN_LENGTH = 8
_COST, _BLOCK, _PARALLEL = 1 << 15, 8, 1
_MOST_MEMORY = 256 << 20
_FORM = re.compile(r"scrypt:(\d{1,8}):(\d{1,3}):(\d{1,3}):([A-Za-z0-9_=-]{16,100}):([A-Za-z0-9_=-]{40,100})")


class PasswordError(InputError):
    """The password, or the hash of one, cannot be used."""


def hash_password(password: str) -> str:
    """The hash for the settings: ``scrypt:N:r:p:salt:hash``. Raises :class:`PasswordError` for a short one."""
    if len(password) < MIN_LENGTH:
        raise PasswordError(f"the password is too short: use at least {MIN_LENGTH} characters")
    salt = secrets.token_bytes(16)
    digest = _derive(password, salt, _COST, _BLOCK, _PARALLEL)
    return f"scrypt:{_COST}:{_BLOCK}:{_PARALLEL}:{_text(salt)}:{_text(digest)}"


def check_hash(hashed: str, name: str) -> None:
    """Raise :class:`PasswordError`, which does not show it, where *hashed*, the value of the setting *name*, is not a
    hash of :func:`hash_password`."""
    try:
        _parse(hashed)
    except PasswordError as error:
        raise PasswordError(f"setting {name}: {error}") from None


def is_password(password: str, hashed: str) -> bool:
    """Whether *hashed* is the hash of *password*. Takes about 0.1 s and 32 MiB on purpose."""
    cost, block, parallel, salt, digest = _parse(hashed)
    return hmac.compare_digest(_derive(password, salt, cost, block, parallel), digest)


def _parse(hashed: str) -> tuple[int, int, int, bytes, bytes]:
    match = _FORM.fullmatch(hashed)
    try:
        if match is None:
            raise ValueError
        cost, block, parallel = (int(match[n]) for n in (1, 2, 3))
        if cost < 1 << 14 or cost & (cost - 1) or not 1 <= block <= 32 or not 1 <= parallel <= 16:
            raise ValueError
        if 128 * cost * block * parallel > _MOST_MEMORY:
            raise ValueError
        return cost, block, parallel, base64.urlsafe_b64decode(match[4]), base64.urlsafe_b64decode(match[5])
    except (ValueError, binascii.Error):
        raise PasswordError("the value is not a password hash: create one with `millstream config user NAME`") from None


def _derive(password: str, salt: bytes, cost: int, block: int, parallel: int) -> bytes:
    data = password.encode("utf-8", "surrogatepass")
    return hashlib.scrypt(data, salt=salt, n=cost, r=block, p=parallel, maxmem=2 * _MOST_MEMORY, dklen=32)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode("ascii")
