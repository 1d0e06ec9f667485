"""Authentication of callers by signatures of access keys, and the permissions of each key."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec

from millstream.messaging.broker.settings import KeySettings
from millstream.messaging.errors import BrokerCredentialsError, StatusError
from millstream.messaging.protocol import v2

_HEADER: Final = re.compile(r"MQv2-HMAC-SHA1\s+Credential=([^,\s]*),\s*SignedHeaders=x-mq-date-time,\s*Signature=(\S+)")
_NO_KEY: Final = (
    "the call is not signed with a key that this broker knows, or its signature or session token is wrong: check the "
    "access key and the secret of the client"
)
_MOST_SECRET_BYTES: Final = 4096


class CallerPermissions(msgspec.Struct, frozen=True):
    """The permissions of a caller; ``name`` is the access key, empty without access control. See
    :class:`KeySettings`."""

    name: str = ""
    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    admin: bool = False

    def may_publish(self, topic: str) -> bool:
        """Whether messages may go to *topic* (its full name)."""
        return _matches(self.publish, topic)

    def may_subscribe(self, topic: str) -> bool:
        """Whether messages of *topic* (its full name) may be received."""
        return _matches(self.subscribe, topic)

    def may_use(self, group: str) -> bool:
        """Whether the caller may be a consumer of *group* (its full name)."""
        return _matches(self.groups, group)


UNRESTRICTED: Final = CallerPermissions("", ("*",), ("*",), ("*",), admin=True)
"""The permissions of all callers of a broker without keys."""


class AccessKey(msgspec.Struct, frozen=True):
    """A secret, its session token (empty: none), and the permissions of a caller with both."""

    secret: str
    access: CallerPermissions
    token: str = ""

    def __repr__(self) -> str:
        return f"<Key of {self.access.name}>"


class Keyring:
    """Access keys by name. Without any, everybody may do everything."""

    def __init__(self, keys: Mapping[str, AccessKey] | None = None) -> None:
        self._keys = dict(keys or {})
        self._verified = lru_cache(maxsize=1024)(self._verify)

    def __len__(self) -> int:
        return len(self._keys)

    def access(self, headers: Mapping[str, str | bytes]) -> CallerPermissions:
        """The permissions of a call with these *headers*. Raises UNAUTHORIZED.

        Only the header ``x-mq-date-time`` is signed, and clients write the time of their own zone into it: so its age
        is meaningless and is not checked.
        """
        if not self._keys:
            return UNRESTRICTED
        names = ("authorization", "x-mq-date-time", "x-mq-session-token")
        return self._verified(*(str(headers.get(name, "")) for name in names))

    def _verify(self, authorization: str, time: str, token: str) -> CallerPermissions:
        found = _HEADER.fullmatch(authorization)
        name = found[1] if found else ""
        key = self._keys.get(name) or self._keys.get(name.rsplit("/", 2)[0])  # Go's client writes NAME//Rocketmq
        proof = hmac.new((key.secret if key else "").encode(), time.encode(), hashlib.sha1).hexdigest()
        signed = hmac.compare_digest(proof.encode(), found[2].lower().encode() if found else b"")
        if key is None or not signed or not hmac.compare_digest(key.token.encode(), token.encode()):
            raise StatusError(v2.UNAUTHORIZED, _NO_KEY)
        return key.access


def read_keyring(settings: Mapping[str, KeySettings]) -> Keyring:
    """The keys of *settings*. Raises :class:`BrokerCredentialsError` where a secret cannot be read."""
    return Keyring({name: _read_key(name, key) for name, key in settings.items()})


def admin_key(settings: Mapping[str, KeySettings]) -> tuple[str, AccessKey]:
    """The first key of *settings* that may administer, after its name. Raises :class:`BrokerCredentialsError`."""
    for name, key in settings.items():
        if key.admin:
            return name, _read_key(name, key)
    raise BrokerCredentialsError(
        "no access key of broker.keys may administer topics and groups: set admin = true for one of them"
    )


def _read_key(name: str, settings: KeySettings) -> AccessKey:
    if not re.fullmatch(r"[^,\s]{1,256}", name):
        raise BrokerCredentialsError(
            f"setting broker.keys: invalid access key {name[:80]!r}: use 1 to 256 characters without spaces and commas"
        )
    secret = _read_secret(settings.secret_file, f"broker.keys.{name}.secret_file")
    token = _read_secret(settings.token_file, f"broker.keys.{name}.token_file") if settings.token_file else ""
    access = CallerPermissions(name, settings.publish, settings.subscribe, settings.groups, settings.admin)
    return AccessKey(secret, access, token)


def _read_secret(path: str, setting: str) -> str:
    try:
        with Path(path).expanduser().open("rb") as file:
            secret = file.read(_MOST_SECRET_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "the file is not UTF-8 text"
        raise BrokerCredentialsError(f"setting {setting}: cannot read {path}: {reason}") from error
    if not secret:
        raise BrokerCredentialsError(f"setting {setting}: the file {path} is empty; write the secret into the file")
    return secret


@lru_cache(maxsize=8192)
def _matches(patterns: tuple[str, ...], name: str) -> bool:
    return any(re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name) for pattern in patterns)
