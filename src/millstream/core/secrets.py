"""Secrets: the types of settings that hold one, and texts and URLs without them.

A setting is secret if its type is one of these. Every place that shows settings, and every log line, follows from that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NewType
from urllib.parse import urlsplit

Secret = NewType("Secret", str)
"""A text that is never shown, such as the hash of a password."""

SecretUrl = NewType("SecretUrl", str)
"""A URL that is a secret, such as a webhook's; its scheme and its host may be shown."""

SecretCommand = NewType("SecretCommand", tuple[str, ...])
"""A program and its arguments, which are secret; the program may be shown."""

HIDDEN = "***"
"""The text that replaces a secret in output."""

LEAST_LENGTH = 6
"""A shorter secret is not searched for in texts: it would be found in words that have nothing to do with it."""

_NAMES = (
    "password|passwd|passphrase|secret|token|credentials?|api[._-]?key|secret[._-]?key|secret_access_key|private[._-]?key|"
    "authorization|sig|signature|x-amz-signature|x-amz-security-token"
)
_URL_PASSWORD = re.compile(r"(://[^\s:/@]*:)[^\s/]+@")
_WEB_USER = re.compile(r"(?i)(\bhttps?://)[^\s/:@]+@")
_NAMED_SECRET = re.compile(
    rf"""(?ix)
    (\b \w{{0,40}} (?:{_NAMES}) \b
     ["']? \s* [=:] \s* ["']? (?:bearer\s|basic\s)?)
    [^\s"',;&]+"""
)
_SECRET_KEY = re.compile(r"(?i)password|passwd|secret|token|credential|(?:api|access|private)[._-]?key")
_IN_A_FILE = re.compile(r"(?i)(?:file|path|location)$")


_MOST_PASSWORD_BYTES = 1 << 16


def read_password(path: str | Path) -> str:
    """The password in the file *path*, without the end of its line. Raises ValueError, which does not name the file."""
    try:
        with Path(path).open("rb") as file:
            return file.read(_MOST_PASSWORD_BYTES).decode("utf-8").rstrip("\r\n")
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise ValueError("the file is not text in UTF-8") from error


def password_in(url: str) -> str | None:
    """The password in *url* as it is written there, whatever characters it has; None if there is none."""
    account, at, _ = url.rpartition("@")
    _, separator, account = account.partition("://")
    _, colon, password = account.partition(":")
    return password if at and separator and colon else None


def safe_url(url: str) -> str:
    """*url* with its password, whatever form it has, and the tokens of its query, hidden; other texts as they are."""
    if (password := password_in(url)) is not None:
        before, at, rest = url.rpartition("@")
        url = f"{before.removesuffix(password)}{HIDDEN}{at}{rest}"
    return without_secrets(url)


def without_secrets(text: str, known: Iterable[str] = ()) -> str:
    """*text* with three stars in place of passwords in URLs, of what stands behind names of secrets, such as
    ``token=``, and of the secrets that are *known*."""
    for secret in sorted(known, key=len, reverse=True):  # one may be a part of another
        if len(secret) >= LEAST_LENGTH:
            text = text.replace(secret, HIDDEN)
    return _NAMED_SECRET.sub(rf"\1{HIDDEN}", _WEB_USER.sub(rf"\1{HIDDEN}@", _URL_PASSWORD.sub(rf"\1{HIDDEN}@", text)))


def public_url(url: SecretUrl) -> str:
    """The scheme and the host of *url*, with three stars for the rest of it."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return HIDDEN
    where = f"[{host}]" if host and ":" in host else host
    return f"{parts.scheme}://{where}{f':{port}' if port else ''}/{HIDDEN}" if parts.scheme and where else HIDDEN


def is_secret_name(name: str) -> bool:
    """Whether something called *name* is a secret by its name, and not a file that holds one: for tables whose names
    other programs define."""
    return _SECRET_KEY.search(name) is not None and _IN_A_FILE.search(name) is None
