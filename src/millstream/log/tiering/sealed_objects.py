"""Which sealed objects a log has: rows in the log's own states, so that they are as durable as the log."""

from __future__ import annotations

import secrets

import msgspec

from millstream.log.backend import Backend, BlockStatistics
from millstream.log.errors import LogInputError
from millstream.log.tiering.spec import Tiering

TIERING = "tier/policy"
"""The state in which a log keeps where its objects are and what is moved there."""

PAGES = "tier/rows/"
PAGE_ROWS = 500
"""Rows are kept in pages of so many: sealing an object writes one page, however long the log is."""


class ParquetCopy(msgspec.Struct, frozen=True):
    """The messages of an object as a Parquet file beside it."""

    name: str
    size: int
    sha256: str


class SealedObject(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One sealed object. ``sums`` is what its blocks add up to, ``size`` the bytes of the whole object."""

    name: str
    size: int
    sha256: str
    sums: BlockStatistics
    parquet: ParquetCopy | None = None

    @property
    def first_id(self) -> int:
        return self.sums.first_id

    @property
    def last_id(self) -> int:
        return self.sums.last_id


def read_tiering(backend: Backend, log: str) -> Tiering | None:
    """The tiering that is kept with *log*; None where there is none."""
    value = backend.get_state(log, TIERING).value
    return msgspec.json.decode(value, type=Tiering) if value else None


def write_tiering(backend: Backend, log: str, tiering: Tiering) -> Tiering:
    """Keep *tiering* with *log*, durably, and return it with the folder that is this log's alone.

    Raises :class:`LogInputError` where the objects that *log* has lie at another URL.
    """
    while True:
        state = backend.get_state(log, TIERING)
        before = msgspec.json.decode(state.value, type=Tiering) if state.value else None
        if before is not None and before.url != tiering.url and read_objects(backend, log):
            raise LogInputError(
                f"log {log!r} has its tier at {before.url} already, and a log can have only one: use that URL"
            )
        folder = before.folder if before is not None else f"{log}/{secrets.token_hex(8)}"
        wanted = msgspec.structs.replace(tiering, folder=folder)
        if wanted == before:
            return wanted
        if backend.put_state(log, TIERING, msgspec.json.encode(wanted), version=state.version):
            return wanted


def read_objects(backend: Backend, log: str) -> list[SealedObject]:
    """The objects of *log*, in order."""
    pages = backend.states(log, PAGES)
    return [row for key in sorted(pages) for row in _decode(pages[key].value)]


def add_object(backend: Backend, log: str, row: SealedObject) -> bool:
    """Add *row* at the end, durably; False where the last object is no longer the one before it."""
    pages = backend.states(log, PAGES)
    last = max(pages, default=_page(0))
    rows = _decode(pages[last].value) if pages else []
    before = next(
        (found.last_id for key in sorted(pages, reverse=True) for found in _decode(pages[key].value)[-1:]), None
    )
    if before is not None and before + 1 != row.first_id:
        return False
    if len(rows) >= PAGE_ROWS:
        last, rows = _page(int(last) + 1), []
    version = pages[last].version if last in pages else 0
    return backend.put_state(log, PAGES + last, msgspec.json.encode([*rows, row]), version=version)


def drop_objects(backend: Backend, log: str, below: int) -> None:
    """Take out every row whose messages all lie below the id *below*, durably."""
    for key in sorted(backend.states(log, PAGES)):
        while True:
            page = backend.get_state(log, PAGES + key)
            rows = _decode(page.value)
            kept = [row for row in rows if row.last_id >= below]
            if len(kept) == len(rows):
                break
            value = msgspec.json.encode(kept) if kept else b""
            if backend.put_state(log, PAGES + key, value, version=page.version):
                break


def _page(number: int) -> str:
    return f"{number:08d}"


def _decode(value: bytes) -> list[SealedObject]:
    return msgspec.json.decode(value, type=list[SealedObject]) if value else []
