"""The schemes of the URLs of log stores, and the backend that each opens: one table."""

from __future__ import annotations

from pathlib import Path

from millstream.core.clock import Clock
from millstream.core.secrets import safe_url
from millstream.log.backend import Backend
from millstream.log.backends.durability import Durability, FileDurability, file_durability, split_durability
from millstream.log.backends.nerve.address import is_nerve, parse_nerve
from millstream.log.backends.objects.bucket import OpenBucket
from millstream.log.errors import LogInputError


def _sqlite(path: Path, clock: Clock, *, create: bool, read_only: bool, durability: FileDurability) -> Backend:
    from millstream.log.backends.sqlite.backend import SqliteBackend

    return SqliteBackend(path, clock, create=create, read_only=read_only, durability=durability)


def _segments(path: Path, clock: Clock, *, create: bool, read_only: bool, durability: FileDurability) -> Backend:
    from millstream.log.backends.segments.backend import SegmentsBackend

    return SegmentsBackend(path, clock, create=create, read_only=read_only, durability=durability)


def _mysql(url: str, clock: Clock, *, create: bool, read_only: bool) -> Backend:
    from millstream.log.backends.mysql import MysqlBackend, parse_address

    return MysqlBackend(parse_address(url), clock, create=create, read_only=read_only)


def _nerve(url: str, clock: Clock, *, create: bool, read_only: bool) -> Backend:
    from millstream.log.backends.nerve import NerveBackend

    return NerveBackend(parse_nerve(url), clock, create=create, read_only=read_only)


def _postgresql(url: str, clock: Clock, *, create: bool, read_only: bool) -> Backend:
    from millstream.log.backends.postgres import PostgresBackend, parse_address

    return PostgresBackend(parse_address(url), clock, create=create, read_only=read_only)


def _objects(url: str, clock: Clock, open_bucket: OpenBucket | None, *, read_only: bool) -> Backend:
    from millstream.log.backends.objects.backend import ObjectsBackend

    if open_bucket is None:
        raise LogInputError(
            f"cannot open {safe_url(url)[:200]}: open log stores in a bucket with "
            "millstream.stores.tiers.open_log_store"
        )
    return ObjectsBackend(open_bucket(url), clock, read_only=read_only)


_FILES = {"sqlite": _sqlite, "segments": _segments}
"""Backends in files of this machine."""

_DATABASES = {"mysql": _mysql, "postgresql": _postgresql}
"""Backends on servers. Their clients are optional packages; as with files, each is imported when it is opened."""


def open_backend(
    url: str,
    clock: Clock,
    *,
    create: bool,
    read_only: bool,
    durability: Durability | None,
    open_bucket: OpenBucket | None = None,
) -> Backend:
    """The backend that *url* names; see :func:`millstream.log.store.open_store` for the URLs and the errors."""
    scheme, separator, rest = url.partition("://")
    if durability is not None and scheme in {"memory", "s3", *_DATABASES}:
        _check_durability(scheme, durability)
    if scheme == "memory" and separator and not rest:
        from millstream.log.backends.memory import MemoryBackend

        return MemoryBackend(clock)
    if scheme == "s3" and separator:
        return _objects(url, clock, open_bucket, read_only=read_only)
    if scheme in _DATABASES and separator:
        open_database = _nerve if is_nerve(url) else _DATABASES[scheme]
        return open_database(url, clock, create=create, read_only=read_only)
    open_files = _FILES.get(scheme)
    rest, stated = split_durability(rest)
    if open_files is not None and rest.startswith("/") and len(rest) > 1 and "\0" not in rest:
        chosen = file_durability(stated if durability is None else durability)
        return open_files(Path(rest[1:]), clock, create=create, read_only=read_only, durability=chosen)
    raise LogInputError(
        f"invalid log store URL {safe_url(url)[:200]!r}: use sqlite:///path/to/log.db or "
        "segments:///path/to/folder (four slashes for an absolute path), mysql:// or "
        "postgresql://user:password@host:port/database, s3://bucket/prefix, or memory://"
    )


def store_files(url: str) -> Path | None:
    """Where the log store at *url* has its files on this host; None for one in memory or on a server."""
    scheme, _, rest = url.partition("://")
    in_files = scheme in _FILES and rest.startswith("/")
    return Path(split_durability(rest)[0][1:]).absolute() if in_files else None


def is_database_store(url: str) -> bool:
    """Whether the log store at *url* is a database on a server."""
    return url.partition("://")[0] in _DATABASES


def _check_durability(scheme: str, durability: Durability) -> None:
    if scheme in _DATABASES:
        raise LogInputError(
            f"durability={durability!r} is not supported by log stores in a database: remove durability, and change "
            "the settings of the server instead; `millstream doctor --store URL` checks these settings"
        )
    if scheme == "s3":
        raise LogInputError(
            f"durability={durability!r} is not supported by log stores in a bucket, which are always durable: remove "
            "durability"
        )
    if durability != "memory":
        raise LogInputError(f"durability={durability!r} is not supported by memory://: use sqlite:/// or segments:///")
