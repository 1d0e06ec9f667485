"""The URL of a database with the account that connects, and its form without the password."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar, TypeVar
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

import msgspec

from millstream.core.decoding import prepared
from millstream.core.secrets import HIDDEN, read_password, safe_url
from millstream.log.errors import LogInputError

_DATABASE = re.compile(r"[A-Za-z0-9_$-]{1,63}")
_MOST_PASSWORD_BYTES = 4096
_QUOTING = ", and write special characters of user and password as %XX"


class DatabaseAddress(msgspec.Struct, frozen=True):
    """A database of a server, and the account that uses it. Shows itself without the password.

    ``password_file`` holds the password where the URL does not; ``tls_ca`` is a file of certificates that the server's
    must be signed by, and makes the connection encrypted.
    """

    scheme: ClassVar[str]
    port_by_default: ClassVar[int]
    options: ClassVar[Sequence[str]] = ("password_file", "tls_ca")

    host: str
    port: int
    user: str
    password: str
    database: str
    password_file: str = ""
    tls_ca: str = ""

    @property
    def url(self) -> str:
        """The URL that people may see; it opens the same database again, unless the password stood in it."""
        secret = f":{HIDDEN}" if self.password and not self.password_file else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        options = "&".join(
            f"{name}={quote(value, safe='/')}" for name in self.options if (value := getattr(self, name))
        )
        account = quote(self.user, safe="") + secret
        return f"{self.scheme}://{account}@{host}:{self.port}/{self.database}{'?' * bool(options)}{options}"

    def __repr__(self) -> str:
        return f"<DatabaseAddress {self.url}>"

    __str__ = __repr__


AddressT = TypeVar("AddressT", bound=DatabaseAddress)


def parse_database(url: str, kind: type[AddressT]) -> AddressT:
    """The place of *kind* that *url* names. Raises :class:`LogInputError`, which never shows the password."""
    try:
        parts = urlsplit(url)
        port = parts.port or kind.port_by_default
        options = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
    except ValueError as error:
        raise _refusal(url, kind, _QUOTING) from error
    database = parts.path.removeprefix("/")
    if parts.scheme != kind.scheme or not parts.hostname or not parts.username or parts.fragment:
        raise _refusal(url, kind, _QUOTING)
    if not _DATABASE.fullmatch(database):
        raise _refusal(url, kind, " with a database name of 1 to 63 letters, digits, '_', '$' and '-'")
    if unknown := sorted(set(options) - set(kind.options)):
        raise _refusal(url, kind, f"; unknown options: {', '.join(unknown)}; allowed: {', '.join(kind.options)}")
    fields = {"host": parts.hostname, "port": port, "user": unquote(parts.username), "database": database, **options}
    password = _password(url, parts, options.get("password_file"))
    try:
        return msgspec.convert({**fields, "password": password}, prepared(kind))
    except msgspec.ValidationError as error:
        raise _refusal(url, kind, f"; {error}") from error


def _password(url: str, parts: SplitResult, file: str | None) -> str:
    password = unquote(parts.password or "")
    if password == HIDDEN:
        raise LogInputError(
            f"the password in {safe_url(url)} is masked: write the password itself, or put the password in a "
            "file and add ?password_file=/path"
        )
    if file is None:
        return password
    if password:
        raise LogInputError(
            f"invalid database URL {safe_url(url)[:200]!r}: it has both a password and a password_file; remove "
            "one of them"
        )
    try:
        return read_password(file)
    except (OSError, ValueError) as error:
        raise LogInputError(f"cannot read the password file {file} of {safe_url(url)}: {error}") from error


def _refusal(url: str, kind: type[DatabaseAddress], advice: str) -> LogInputError:
    form = f"{kind.scheme}://user:password@host:port/database"
    return LogInputError(f"invalid database URL {safe_url(url)[:200]!r}: use {form}{advice}")
