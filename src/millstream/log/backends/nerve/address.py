"""Addresses of queues in the nerve layout: a database, and how many tables a queue has in it."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec

from millstream.core.secrets import safe_url
from millstream.log.backends.mysql.address import MysqlAddress, parse_address
from millstream.log.errors import LogInputError

_OPTIONS = {"shards": 999, "pointers": 999, "rps": 1_000_000}  # and the most that each may be
LAYOUT = "nerve"


class NerveAddress(msgspec.Struct, frozen=True):
    """A database and, of the queues in it, the number of tables for rows (``shards``) and for ``pointers``.

    0 takes what is there, and for a new queue nerve's defaults: four tables for rows, one for pointers. ``rps`` is the
    maximum of commits per second for each table (0: unlimited); it does not limit reads.
    """

    database: MysqlAddress
    shards: int = 0
    pointers: int = 0
    rps: int = 0

    @property
    def url(self) -> str:
        """The URL that people may see; it opens the same place again, unless the password stood in it."""
        url = self.database.url
        own = {"layout": LAYOUT, **{name: value for name in _OPTIONS if (value := getattr(self, name))}}
        return f"{url}{'&' if '?' in url else '?'}{urlencode(own)}"

    def __repr__(self) -> str:
        return f"<NerveAddress {self.url}>"

    __str__ = __repr__


def is_nerve(url: str) -> bool:
    """Whether *url* asks for the nerve layout."""
    return url.startswith("mysql:") and "layout=" in url.partition("?")[2]


def parse_nerve(url: str) -> NerveAddress:
    """The place of *url*. Raises :class:`LogInputError`, which never shows the password."""
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, strict_parsing=True))
    except ValueError as error:
        raise _refusal(url) from error
    if options.pop("layout", "") != LAYOUT:
        raise _refusal(url)
    numbers = {name: _number(url, name, options.pop(name, "0")) for name in _OPTIONS}
    return NerveAddress(parse_address(urlunsplit(parts._replace(query=urlencode(options)))), **numbers)


def _number(url: str, name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > _OPTIONS[name]:
        raise _refusal(url)
    return int(text)


def _refusal(url: str) -> LogInputError:
    return LogInputError(
        f"invalid log store URL {safe_url(url)[:200]!r}: use "
        "mysql://user:password@host:port/database?layout=nerve, with the options "
        f"{', '.join(f'{name}=0 to {most:,}' for name, most in _OPTIONS.items())}"
    )
