"""The schemes of the URLs that settings and commands take: what each names, in one table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal
from urllib.parse import SplitResult, urlsplit

import msgspec


class UrlScheme(msgspec.Struct, frozen=True, kw_only=True):
    """What a scheme names. ``port`` is the default one of a server, ``extra`` what its client has to be installed with.

    The rest is of storage providers: ``provider`` says that it is one, ``in_folder`` that its items are in a folder of
    this machine, ``is_remote`` that each call is a request over a network, ``takes_copies`` that copies may be kept and
    restored there, ``has_options`` that the query of the URL is the store's own. ``is_source`` says whether other
    programs write there: never, always, or where the URL names the space.
    """

    port: int = 0
    extra: str = ""
    provider: bool = False
    in_folder: bool = False
    is_remote: bool = False
    takes_copies: bool = False
    has_options: bool = False
    is_source: Literal["never", "always", "with-space"] = "never"


URL_SCHEMES: Mapping[str, UrlScheme] = {
    "file": UrlScheme(provider=True, in_folder=True, takes_copies=True),
    "folder": UrlScheme(provider=True, in_folder=True, has_options=True, is_source="always"),
    "cas": UrlScheme(provider=True, in_folder=True),
    "s3": UrlScheme(
        extra="s3", provider=True, is_remote=True, takes_copies=True, has_options=True, is_source="with-space"
    ),
    "memory": UrlScheme(provider=True),
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
"""Every scheme but those of log stores in files (``log/store.py``)."""

_UNKNOWN = UrlScheme()


def scheme_of(url: str | SplitResult) -> UrlScheme:
    """What the scheme of *url* names; a scheme that is not in the table names nothing."""
    return URL_SCHEMES.get((urlsplit(url) if isinstance(url, str) else url).scheme, _UNKNOWN)
