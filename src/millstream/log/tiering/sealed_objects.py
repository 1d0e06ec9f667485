"""Which sealed objects a log has: rows in the log's own states, so that they are as durable as the log."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import msgspec

from millstream.core.decoding import prepared
from millstream.log.backend import Backend, BlockStatistics
from millstream.log.errors import LogInputError
from millstream.log.tiering.objects import TierObjects
from millstream.log.tiering.spec import Tiering

TIERING = "tier/policy"
"""The state in which a log keeps where its objects are and what is moved there."""

PLACE = "tier/place"
"""The state in which a log keeps the URL at which the place of its objects was made."""

PAGES = "tier/rows/"
PAGE_ROWS = 500
"""Rows are kept in pages of so many: sealing an object writes one page, however long the log is."""


class ParquetCopy(msgspec.Struct, frozen=True):
    """The messages of an object as a Parquet file beside it."""

    name: str
    size: int
    sha256: str


class SealedObject(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One sealed object. ``sums`` is what its blocks add up to, ``size`` the bytes of the whole object.

    It lies at the URL of the log's tiering, or, ``in_store``, in the bucket of the log itself.
    """

    name: str
    size: int
    sha256: str
    sums: BlockStatistics
    parquet: ParquetCopy | None = None
    in_store: bool = False

    @property
    def first_id(self) -> int:
        return self.sums.first_id

    @property
    def last_id(self) -> int:
        return self.sums.last_id

    @property
    def parquet_name(self) -> str:
        """The name that its Parquet file has, where there is one."""
        return f"{self.name}.parquet"


class RowPage(msgspec.Struct, frozen=True):
    """A page of rows, in order, as of *version* of its state *key*."""

    key: str
    version: int
    rows: tuple[SealedObject, ...]


def read_tiering(backend: Backend, log: str) -> Tiering | None:
    """The tiering that is kept with *log*; None where there is none."""
    value = backend.get_state(log, TIERING).value
    return msgspec.json.decode(value, type=prepared(Tiering)) if value else None


def write_tiering(backend: Backend, log: str, tiering: Tiering) -> Tiering:
    """Keep *tiering* with *log*, durably, and return it with the folder that is this log's alone.

    Raises :class:`LogInputError` where the objects that *log* has lie at another URL.
    """
    while True:
        state = backend.get_state(log, TIERING)
        before = msgspec.json.decode(state.value, type=prepared(Tiering)) if state.value else None
        if before is not None and before.url != tiering.url and _has_tier(backend, log):
            raise LogInputError(
                f"log {log!r} already has a tier at {before.url}, and a log can have only one tier: use that URL"
            )
        folder = before.folder if before is not None else f"{log}/{secrets.token_hex(8)}"
        wanted = msgspec.structs.replace(tiering, folder=folder)
        if wanted == before:
            return wanted
        if backend.put_state(log, TIERING, msgspec.json.encode(wanted), version=state.version):
            return wanted


def make_place(backend: Backend, log: str, objects: TierObjects) -> None:
    """Make the place of *objects*, once: where it is missing later, its disk is not mounted.

    Releases before kept a policy without that: their place is made now, unless *log* has objects there.
    """
    made, url = backend.get_state(log, PLACE), objects.url.encode("utf-8")
    if made.value == url:
        return
    if not _has_tier(backend, log):
        objects.create()
    backend.put_state(log, PLACE, url, version=made.version)  # unless another process has just done it


def read_pages(backend: Backend, log: str) -> list[RowPage]:
    """The rows of *log*, in order, by pages."""
    pages = backend.states(log, PAGES)
    return [RowPage(key, pages[key].version, tuple(_decode(pages[key].value))) for key in sorted(pages)]


def read_objects(backend: Backend, log: str) -> list[SealedObject]:
    """The objects of *log*, in order."""
    return [row for page in read_pages(backend, log) for row in page.rows]


def add_object(backend: Backend, log: str, row: SealedObject) -> bool:
    """Add *row* at the end, durably; False where the last object is no longer the one before it.

    An object that ends at or before the last row is never needed: so it may be deleted.
    """
    pages = read_pages(backend, log)
    before = next((page.rows[-1].last_id for page in reversed(pages) if page.rows), None)
    if before is not None and before + 1 != row.first_id:
        return False
    last = pages[-1] if pages else RowPage(_page(0), 0, ())
    if len(last.rows) >= PAGE_ROWS:
        last = RowPage(_page(int(last.key) + 1), 0, ())
    return _put_rows(backend, log, last, [*last.rows, row])


def replace_objects(backend: Backend, log: str, page: RowPage, old: Sequence[SealedObject], new: SealedObject) -> bool:
    """Put *new* in place of the rows *old* of *page*, durably; False where the page has changed since it was read.

    The name of *new* states the version that the page gets by that (:func:`rewritten_suffix`).
    """
    begin = page.rows.index(old[0])
    return _put_rows(backend, log, page, [*page.rows[:begin], new, *page.rows[begin + len(old) :]])


def rewritten_suffix(page: RowPage) -> str:
    """The suffix of the name of an object that replaces others in *page*.

    So it may be deleted, once the page has that version and does not name it.
    """
    return f".{page.key}-{page.version + 1}"


def _put_rows(backend: Backend, log: str, page: RowPage, rows: Sequence[SealedObject]) -> bool:
    return backend.put_state(log, PAGES + page.key, msgspec.json.encode(rows), version=page.version)


def _has_tier(backend: Backend, log: str) -> bool:
    return any(not row.in_store for row in read_objects(backend, log))


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
    return msgspec.json.decode(value, type=prepared(list[SealedObject])) if value else []
