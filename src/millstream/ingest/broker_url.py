"""The ``mqtt://`` URL of a broker with the account that connects, and its form without the password."""

from __future__ import annotations

from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

import msgspec

from millstream.core.secrets import HIDDEN, read_password
from millstream.core.url_schemes import scheme_of
from millstream.ingest.errors import IngestInputError

_SCHEMES = ("mqtt", "mqtts")
_OPTIONS = ("password_file", "tls_ca", "tls_certificate", "tls_key")
_FORM = "mqtt://user:password@host:port or mqtts://…?tls_ca=/path"
_MOST_PASSWORD_BYTES = 4096


class BrokerAddress(msgspec.Struct, frozen=True):
    """A broker, and the account that uses it. Shows itself without the password.

    ``tls`` encrypts the connection; the broker's certificate must then be signed by those in the file ``tls_ca`` (by
    those that the system trusts where it is empty), and ``tls_certificate`` with ``tls_key`` is our own.
    """

    host: str
    port: int
    tls: bool
    user: str = ""
    password: str = ""
    password_file: str = ""
    tls_ca: str = ""
    tls_certificate: str = ""
    tls_key: str = ""

    @property
    def url(self) -> str:
        """The URL that people may see."""
        secret = f":{HIDDEN}" if self.password and not self.password_file else ""
        account = f"{quote(self.user, safe='')}{secret}@" if self.user else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        options = "&".join(f"{name}={quote(value, safe='/')}" for name in _OPTIONS if (value := getattr(self, name)))
        return f"mqtt{'s' * self.tls}://{account}{host}:{self.port}{'?' * bool(options)}{options}"

    def __repr__(self) -> str:
        return f"<BrokerAddress {self.url}>"

    __str__ = __repr__


def parse_broker(url: str) -> BrokerAddress:
    """The place of *url*. Raises :class:`IngestInputError`, which never shows the password."""
    try:
        parts = urlsplit(url)
        port = parts.port or scheme_of(parts).port
        options = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
    except ValueError as error:
        raise _refusal(
            "a port must be 1 to 65535, each option NAME=VALUE, and special characters in user and password must be "
            "written as %XX"
        ) from error
    if parts.scheme not in _SCHEMES:
        raise _refusal(f"the scheme is {parts.scheme[:40]!r}, not {' or '.join(_SCHEMES)}")
    if not parts.hostname:
        raise _refusal("the host is missing")
    if parts.path not in ("", "/") or parts.fragment:
        raise _refusal("topics are a separate option, and not part of the URL")
    if unknown := sorted(set(options) - set(_OPTIONS)):
        raise _refusal(f"unknown options: {', '.join(unknown)}; allowed: {', '.join(_OPTIONS)}")
    tls = parts.scheme == "mqtts"
    if not tls and any(name.startswith("tls") for name in options):
        raise _refusal("TLS options require mqtts://")
    if bool(options.get("tls_certificate")) != bool(options.get("tls_key")):
        raise _refusal("tls_certificate and tls_key must be given together")
    password = _password(parts, options.get("password_file"))
    return BrokerAddress(parts.hostname, port, tls, unquote(parts.username or ""), password, **options)


def _password(parts: SplitResult, file: str | None) -> str:
    password = unquote(parts.password or "")
    if password and not parts.username:
        raise _refusal("a password requires a user")
    if file is None:
        return password
    if password:
        raise _refusal("give either the password or a password_file")
    try:
        return read_password(file)
    except (OSError, ValueError) as error:
        raise IngestInputError(f"cannot read the password file {file}: {error}") from error


def _refusal(advice: str) -> IngestInputError:
    return IngestInputError(f"invalid broker URL: write {_FORM}; {advice}")
