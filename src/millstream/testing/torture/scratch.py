"""A store of its own for a torture, on the disk or the server of a given one, which is not touched."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec

from millstream.core.secrets import safe_url
from millstream.log import LogInputError, LogNotFoundError, StorageError
from millstream.log.backend_schemes import is_database_store, store_files
from millstream.log.backends.database.driver import ServerError
from millstream.stores.s3.log_bucket import open_log_bucket
from millstream.testing.databases import connected

_DATABASE_EXISTS = {1007, "42P04"}  # of MariaDB and MySQL, of PostgreSQL
_LAYOUT = {"layout", "shards", "pointers", "rps"}


class ScratchStore(msgspec.Struct, frozen=True):
    """A store at ``url`` for one user; ``remove`` deletes it with all its content."""

    url: str
    shown: str
    remove: Callable[[], None]


def scratch_beside(url: str, name: str) -> ScratchStore:
    """A new store called *name* beside the one at *url*.

    Raises :class:`LogInputError` where something of that name exists or the store has no place beside it,
    :class:`LogNotFoundError`.
    """
    scheme = url.partition("://")[0]
    if files := store_files(url):
        return _folder(scheme, files.parent, name)
    if is_database_store(url):
        return _database(url, name.replace("-", "_"))
    if scheme == "s3":
        return _prefix(url, name)
    raise LogInputError(
        f"cannot test {safe_url(url)[:200]!r}: give a store on a disk, a database server or in a bucket"
    )


def _folder(scheme: str, parent: Path, name: str) -> ScratchStore:
    if not parent.is_dir():
        raise LogNotFoundError(f"the folder {parent} does not exist: name a store on a disk with --store URL")
    folder = parent / name
    try:
        folder.mkdir()
    except FileExistsError as error:
        raise _exists(str(folder)) from error
    url = f"{scheme}:///{folder / 'log'}"
    return ScratchStore(url, url, lambda: shutil.rmtree(folder))


def _prefix(url: str, name: str) -> ScratchStore:
    parts = urlsplit(url)
    own = urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}"))
    with contextlib.closing(open_log_bucket(own)) as bucket:
        if bucket.list("", limit=1):
            raise _exists(own)

    def remove() -> None:
        with contextlib.closing(open_log_bucket(own)) as bucket:
            while names := bucket.list(""):
                bucket.delete(names)

    return ScratchStore(own, own, remove)


def _database(url: str, name: str) -> ScratchStore:
    own = urlunsplit(urlsplit(url)._replace(path="/" + name))

    def execute(statement: str) -> None:
        try:
            with connected(_plain(own), database=False) as connection:
                connection.execute(statement)
        except ServerError as error:
            if error.code in _DATABASE_EXISTS:
                raise _exists(safe_url(own)) from error
            raise StorageError(
                f"{safe_url(own)}: {error}; the database user must be allowed to create a database"
            ) from error

    execute(f"CREATE DATABASE {name}")
    force = " WITH (FORCE)" if url.startswith("postgresql:") else ""
    return ScratchStore(own, safe_url(own), lambda: execute(f"DROP DATABASE {name}{force}"))


def _plain(url: str) -> str:
    """*url* without what it says of a layout."""
    parts = urlsplit(url)
    options = [(name, value) for name, value in parse_qsl(parts.query) if name not in _LAYOUT]
    return urlunsplit(parts._replace(query=urlencode(options)))


def _exists(what: str) -> LogInputError:
    return LogInputError(
        f"{what} already exists, and the test uses no existing store: remove the store, or use another --seed"
    )
