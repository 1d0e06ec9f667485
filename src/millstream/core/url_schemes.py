"""The schemes of the URLs of servers that settings and commands take: ports, and what a client is installed with."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

import msgspec


class UrlScheme(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of server: ``port`` is its default one, ``extra`` what its client has to be installed with."""

    port: int = 0
    extra: str = ""


URL_SCHEMES: Mapping[str, UrlScheme] = {
    "mysql": UrlScheme(port=3306, extra="mysql"),
    "mariadb": UrlScheme(port=3306, extra="mysql"),
    "postgresql": UrlScheme(port=5432, extra="postgresql"),
    "amqp": UrlScheme(port=5672, extra="rabbitmq"),
    "amqps": UrlScheme(port=5671, extra="rabbitmq"),
    "rocketmq": UrlScheme(port=8081, extra="messaging"),
    "mqtt": UrlScheme(port=1883, extra="mqtt"),
    "mqtts": UrlScheme(port=8883, extra="mqtt"),
    "http": UrlScheme(port=80),
    "https": UrlScheme(port=443),
}
"""The schemes of servers; those of storage providers are in ``stores/provider_schemes.py``."""

_UNKNOWN = UrlScheme()


def scheme_of(url: str | SplitResult) -> UrlScheme:
    """The row of the scheme of *url*; an empty row for an unknown scheme."""
    return URL_SCHEMES.get((urlsplit(url) if isinstance(url, str) else url).scheme, _UNKNOWN)
