"""The URL of an S3 store, parsed and written."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

import msgspec

from millstream.stores.protocol import StoreInputError

_OPTIONS = ("endpoint", "region", "profile", "credentials", "space")
_FORM = "write s3://BUCKET/PREFIX?endpoint=URL&region=NAME&profile=NAME (or credentials=NAME)"


class S3Address(msgspec.Struct, frozen=True):
    """A bucket, the ``prefix`` of all keys in it (empty, or ending with "/"), and how to get there.

    Without ``endpoint`` it is Amazon's. ``profile`` is a section of the AWS configuration files; ``credentials`` is the
    beginning of the names of the environment variables ``…_ACCESS_KEY_ID``, ``…_SECRET_ACCESS_KEY`` and
    ``…_SESSION_TOKEN``. Without either, boto3 looks where it always looks. An address holds no secret. With ``space``
    it is a bucket that other programs write: all objects below the prefix are the items of that space, but for those
    that a glob of ``exclude`` leaves out.
    """

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    profile: str | None = None
    credentials: str | None = None
    space: str | None = None
    exclude: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        """The URL that :func:`parse_address` reads."""
        options = [(name, getattr(self, name)) for name in _OPTIONS]
        options += [("exclude", glob) for glob in self.exclude]
        query = "&".join(f"{name}={quote(value, safe=':/')}" for name, value in options if value)
        return f"s3://{self.bucket}/{quote(self.prefix.rstrip('/'))}".rstrip("/") + (f"?{query}" if query else "")

    def __str__(self) -> str:
        """For messages: the bucket, and the endpoint where it is not Amazon's."""
        return f"s3://{self.bucket}" + (f" at {self.endpoint}" if self.endpoint else "")


def parse_address(url: str) -> S3Address:
    """The address that *url* writes. Raises :class:`StoreInputError`, in which a password is never repeated."""
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise StoreInputError(
            f"the URL of bucket {parts.netloc.rpartition('@')[2]!r} contains credentials: "
            "remove these, and refer to credentials with profile=NAME or credentials=NAME"
        )
    pairs, exclude = _split_exclude(parts)
    options = _options(parts, pairs)
    if parts.scheme != "s3" or not parts.netloc or parts.fragment or ":" in parts.netloc:
        raise StoreInputError(
            f"invalid S3 URL {_shown(parts)!r}: it needs the scheme s3 and a bucket name, "
            f"without port or fragment: {_FORM}"
        )
    prefix = unquote(parts.path).strip("/")
    return S3Address(
        bucket=parts.netloc,
        prefix=f"{prefix}/" if prefix else "",
        endpoint=options.get("endpoint"),
        region=options.get("region"),
        profile=options.get("profile"),
        credentials=options.get("credentials"),
        space=options.get("space"),
        exclude=exclude,
    )


def _split_exclude(parts: SplitResult) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
    """The options that are given once, and the globs, of which there may be many."""
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    exclude = tuple(value for name, value in pairs if name == "exclude" and value)
    options = [(name, value) for name, value in pairs if name != "exclude" or not value]
    if exclude and not any(name == "space" for name, _ in options):
        raise StoreInputError(
            f"invalid S3 URL {_shown(parts)!r}: exclude is for buckets that other programs write, and also requires "
            "space=NAME"
        )
    return options, exclude


def _options(parts: SplitResult, pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in pairs:
        if name not in _OPTIONS or not value or name in options:
            raise StoreInputError(
                f"invalid S3 URL {_shown(parts)!r}: option {name!r} is unknown, empty or given twice; {_FORM}"
            )
        options[name] = value
    if "profile" in options and "credentials" in options:
        raise StoreInputError(f"invalid S3 URL {_shown(parts)!r}: remove either profile or credentials")
    _check_endpoint(parts, options.get("endpoint"))
    return options


def _check_endpoint(parts: SplitResult, endpoint: str | None) -> None:
    if endpoint is None:
        return
    there = urlsplit(endpoint)
    if there.scheme not in ("http", "https") or not there.hostname or "@" in there.netloc or there.query:
        raise StoreInputError(
            f"invalid S3 URL {_shown(parts)!r}: the endpoint must be an http or https URL without credentials "
            "or a query, such as https://host:8080"
        )


def _shown(parts: SplitResult) -> str:
    """The URL for a message, without its query, which may contain a secret by mistake."""
    return f"{parts.scheme}://{parts.netloc}{parts.path}"
