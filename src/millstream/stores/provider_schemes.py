"""The schemes of the URLs of storage providers, and what is known of a store by its URL alone: one table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import msgspec


class ProviderScheme(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of storage provider. ``extra`` is what its client has to be installed with.

    ``in_folder`` says that its items are in a folder of this machine, ``is_remote`` that each call is a request over a
    network, ``in_bucket`` that its items are objects of a bucket below the path of its URL, ``takes_copies`` that
    copies may be kept and restored there, ``has_options`` that the query of the URL is the store's own.
    ``server_option`` is the option of the URL that names its server, ``recorded_checksums`` are the algorithms whose
    checksum of an item it may know beside SHA-256. ``is_source`` says whether other programs write there: never,
    always, or where the URL names the space.
    """

    extra: str = ""
    in_folder: bool = False
    is_remote: bool = False
    in_bucket: bool = False
    server_option: str = ""
    recorded_checksums: tuple[str, ...] = ()
    takes_copies: bool = False
    has_options: bool = False
    is_source: Literal["never", "always", "with-space"] = "never"


PROVIDER_SCHEMES: Mapping[str, ProviderScheme] = {
    "file": ProviderScheme(in_folder=True, takes_copies=True),
    "folder": ProviderScheme(in_folder=True, has_options=True, is_source="always"),
    "cas": ProviderScheme(in_folder=True),
    "s3": ProviderScheme(
        extra="s3",
        is_remote=True,
        in_bucket=True,
        server_option="endpoint",
        recorded_checksums=("sha1", "crc32"),
        takes_copies=True,
        has_options=True,
        is_source="with-space",
    ),
    "memory": ProviderScheme(),
}
"""Every scheme that :func:`~millstream.stores.providers.open_provider` opens."""

_UNKNOWN = ProviderScheme()


def provider_scheme(url: str | SplitResult) -> ProviderScheme:
    """The row of the scheme of *url*; an empty row if it is not a storage provider's."""
    return PROVIDER_SCHEMES.get((urlsplit(url) if isinstance(url, str) else url).scheme, _UNKNOWN)


class ObjectPrefix(NamedTuple):
    """The objects whose keys begin with ``prefix`` (empty, or ending with "/") in a ``bucket``, which is named by the
    scheme, its name and its server; the server is empty for the default one."""

    bucket: tuple[str, str, str]
    prefix: str

    def lies_in(self, other: ObjectPrefix) -> bool:
        """Whether all these objects are also objects of *other*."""
        return self.bucket == other.bucket and self.prefix.startswith(other.prefix)

    def overlaps(self, other: ObjectPrefix) -> bool:
        """Whether objects may be in both."""
        return self.lies_in(other) or other.lies_in(self)


def object_prefix(url: str, space: str = "") -> ObjectPrefix:
    """The objects of the store at *url*, or of a *space* of it. Options such as a region, a profile or credentials only
    say how its bucket is reached."""
    parts = urlsplit(url)
    server = dict(parse_qsl(parts.query)).get(provider_scheme(parts).server_option, "")
    prefix = f"{unquote(parts.path).strip('/')}/{space}".strip("/")
    return ObjectPrefix((parts.scheme, parts.netloc, server.rstrip("/")), f"{prefix}/" if prefix else "")
