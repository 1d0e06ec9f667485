"""The catalog of adopted items: the checksums computed for a source that records none.

A row says which version of the item was read (its size and the source's mark of a version), the checksum of its bytes,
and the origin of that checksum. The format is ``docs/formats/adoption.md``.
"""

from __future__ import annotations

import enum
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from millstream.core.column_types import CONTENT_ID, EXACT_LONG_TEXT, NAME
from millstream.core.decoding import prepared
from millstream.core.sql import make_tables_once, writing
from millstream.core.sql_rows import DriverQuery, among, insert_rows, replacing, total
from millstream.mill.column_join import ItemColumns
from millstream.mill.column_scan import page_of, scan_pages
from millstream.mill.merge_join import groups
from millstream.stores.folder.properties import MTIME, format_time
from millstream.stores.protocol import EntryKind

_PAGE = 1_000
_SUMS_A_SCAN = 100_000


class ChecksumEvidence(enum.StrEnum):
    """The origin of the checksum of an adopted item."""

    COMPUTED = "computed"  # no external source: hashed at adoption
    LISTED = "listed"  # a list of checksums that people had agreed with it
    PROVIDER = "provider"  # the source's provider had recorded one that agreed with it


class FindingKind(enum.StrEnum):
    """The reason why an item is not adopted, or an adopted one not trusted."""

    SUSPECTED_ROT = "suspected rot"
    CHECKSUM_MISMATCH = "checksum mismatch"
    UNREADABLE = "unreadable"
    UNSTABLE = "changes while it is read"
    NOT_SUPPORTED = "not supported"
    NOT_THERE = "missing from the source"


metadata = sa.MetaData()

items_table = sa.Table(
    "mill_adopted_items",
    metadata,
    sa.Column("store", NAME, primary_key=True),
    sa.Column("space", NAME, primary_key=True),
    sa.Column("content_id", CONTENT_ID, primary_key=True),
    sa.Column("kind", NAME, nullable=False),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("version", EXACT_LONG_TEXT, nullable=False),
    sa.Column("sha256", EXACT_LONG_TEXT, nullable=False),
    sa.Column("sums", EXACT_LONG_TEXT, nullable=False),
    sa.Column("origin", EXACT_LONG_TEXT, nullable=False),
    sa.Column("adopted_at", sa.BigInteger, nullable=False),
    sa.Column("last_read_at", sa.BigInteger, nullable=False),
    sa.Column("mimetype", EXACT_LONG_TEXT, nullable=False),
    sa.Column("properties", EXACT_LONG_TEXT, nullable=False),
    sa.Column("suspected", EXACT_LONG_TEXT),
    sa.Column("vanished_at", sa.BigInteger),
    sa.Column("renamed_to", CONTENT_ID),
    sa.Column("excluded_at", sa.BigInteger),
    sqlite_with_rowid=False,
)

_findings = sa.Table(
    "mill_adoption_findings",
    metadata,
    sa.Column("store", NAME, primary_key=True),
    sa.Column("space", NAME, primary_key=True),
    sa.Column("content_id", CONTENT_ID, primary_key=True),
    sa.Column("kind", NAME, primary_key=True),
    sa.Column("detail", EXACT_LONG_TEXT, nullable=False),
    sa.Column("version", EXACT_LONG_TEXT, nullable=False),
    sa.Column("found_at", sa.BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

_spaces = sa.Table(
    "mill_adopted_spaces",
    metadata,
    sa.Column("store", NAME, primary_key=True),
    sa.Column("space", NAME, primary_key=True),
    sa.Column("deletions", EXACT_LONG_TEXT, nullable=False),
    sa.Column("begun_at", sa.BigInteger),
    sa.Column("ended_at", sa.BigInteger),
    sa.Column("exit_code", sa.Integer),
    sqlite_with_rowid=False,
)


class AdoptedItem(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One item as it was adopted. Times are microseconds since the epoch, UTC; checksums are lower-case hex.

    ``version`` is the source's mark of the version (``docs/formats/adoption.md``), ``sums`` are checksums other than
    SHA-256, by algorithm. ``suspected`` is what the bytes hash to now, where they changed and neither size nor version
    did; ``vanished_at`` is when the item was first found to be gone, and ``renamed_to`` the new item with its bytes;
    ``excluded_at`` is when it was first left out on purpose.
    """

    store: str
    space: str
    content_id: str
    kind: str
    size: int
    version: str
    sha256: str
    sums: Mapping[str, str] = {}
    origin: str = ChecksumEvidence.COMPUTED.value
    adopted_at: int
    last_read_at: int
    mimetype: str
    properties: Mapping[str, str] = {}
    suspected: str | None = None
    vanished_at: int | None = None
    renamed_to: str | None = None
    excluded_at: int | None = None

    @property
    def is_there(self) -> bool:
        """Whether the source lists it, as far as is known: it has not vanished and is not left out."""
        return self.vanished_at is None and self.excluded_at is None


class AdoptedFiles(NamedTuple):
    """Plain files of a folder that were new and were read together, in columns; all were adopted *at* one time."""

    store: str
    space: str
    at: int
    content_ids: Sequence[str]
    sizes: Sequence[int]
    versions: Sequence[str]
    sums: Sequence[str]
    mimetypes: Sequence[str]


class AdoptionFinding(msgspec.Struct, frozen=True, kw_only=True):
    """Something about an item of a source that people have to look at."""

    store: str
    space: str
    content_id: str
    kind: str
    detail: str
    version: str = ""
    found_at: int


class AdoptedSpace(msgspec.Struct, frozen=True):
    """A space that is adopted: what its deletions do, when its last adoption began and ended, and the exit code of the
    last protection (None where it did not end)."""

    store: str
    space: str
    deletions: str = "hold"
    begun_at: int | None = None
    ended_at: int | None = None
    exit_code: int | None = None


class SpaceTotals(msgspec.Struct, frozen=True):
    """The adopted items of a space that are there, and how many only we vouch for, are suspected, have vanished, or are
    left out on purpose."""

    items: int
    bytes: int
    computed: int
    suspected: int
    vanished: int
    oldest_read: int | None
    excluded: int


NO_ITEMS = SpaceTotals(0, 0, 0, 0, 0, None, 0)
"""The totals of a space of which nothing was adopted."""


class AdoptionCatalog:
    """The catalog in the database of *engine*; its tables are made where they are absent. Thread-safe."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine
        make_tables_once(engine, metadata)

    def drop_unused_index(self) -> None:
        """Remove the index by sums, which earlier versions made and kept."""
        if self.engine.dialect.name != "sqlite":
            return
        with self.engine.connect() as connection:
            known = connection.scalar(sa.text("SELECT 1 FROM sqlite_master WHERE name = :name"), {"name": _OLD_INDEX})
        if known:
            with writing(self.engine) as connection:
                connection.exec_driver_sql(f"DROP INDEX IF EXISTS {_OLD_INDEX}")

    def get_many(self, store: str, space: str, content_ids: Sequence[str]) -> Mapping[str, AdoptedItem]:
        """The items among *content_ids* that were adopted, vanished ones included, by id."""
        query = _of(items_table, store, space).where(among(items_table.c.content_id, content_ids))
        return {item.content_id: item for item in self._select(query)}

    def page(self, store: str, space: str, *, prefix: str = "", after: str = "", limit: int) -> Sequence[AdoptedItem]:
        """Up to *limit* items that are there, whose ids begin with *prefix* and come after *after*."""
        query = _of(items_table, store, space).where(is_listed(items_table), items_table.c.content_id > after)
        if prefix:
            query = query.where(items_table.c.content_id >= prefix)
            length = len(prefix.encode() if self.engine.dialect.name == "mysql" else prefix)
            query = query.where(sa.func.substr(items_table.c.content_id, 1, length) == prefix)
        return self._select(query.order_by(items_table.c.content_id).limit(limit))

    def scan(self, store: str, space: str) -> Iterator[AdoptedItem]:
        """Every item of a space, vanished ones included, in the order of the ids."""
        after = ""
        while True:
            query = _of(items_table, store, space).where(items_table.c.content_id > after)
            page = self._select(query.order_by(items_table.c.content_id).limit(_PAGE))
            yield from page
            if len(page) < _PAGE:
                return
            after = page[-1].content_id

    def scan_columns(self, store: str, space: str) -> Iterator[ItemColumns]:
        """Every item of :meth:`scan` with the columns :data:`SCANNED_COLUMNS`, several times as fast."""
        return scan_pages(self.engine, _SCANNED, (store, space), after="", rows_at_once=_PAGE)

    def vanished(self, store: str, space: str, *, limit: int | None = None) -> Sequence[AdoptedItem]:
        """The items that have vanished from the source, in the order of the ids: the first *limit*, or all."""
        query = _of(items_table, store, space).where(items_table.c.vanished_at.is_not(None))
        return self._select(query.order_by(items_table.c.content_id).limit(limit))

    def vanished_names(self, store: str, spaces: Sequence[str], *, limit: int) -> Mapping[str, list[str]]:
        """The ids of the first *limit* items of each of *spaces* that have vanished from the source."""
        row = items_table.c
        query = sa.select(row.space, row.content_id).where(row.store == store, row.space.in_(spaces))
        query = first_of_each_space(query.where(row.vanished_at.is_not(None)), row, limit)
        found: dict[str, list[str]] = {}
        with self.engine.connect() as connection:
            for one in connection.execute(query):
                found.setdefault(one.space, []).append(one.content_id)
        return found

    def excluded(self, store: str, space: str) -> Sequence[AdoptedItem]:
        """The items that are left out on purpose, in the order of the ids."""
        query = _of(items_table, store, space).where(items_table.c.excluded_at.is_not(None))
        return self._select(query.order_by(items_table.c.content_id))

    def save(self, items: Iterable[AdoptedItem]) -> None:
        """Put *items* into the catalog, each in the place of what it has of that id. Durable when this returns."""
        rows = [_row(item) for item in items]
        if rows:
            with writing(self.engine) as connection:
                insert_rows(connection, items_table, _COLUMNS, rows, conflict=_REPLACE)

    def save_files(self, files: AdoptedFiles) -> None:
        """Put *files* into the catalog, like :meth:`save`."""
        same = itertools.repeat
        rows = zip(
            same(files.store), same(files.space), files.content_ids, same(EntryKind.FILE.value), files.sizes,
            files.versions, files.sums, same("{}"), same(ChecksumEvidence.COMPUTED.value), same(files.at),
            same(files.at), files.mimetypes, map(_file_properties, files.versions), strict=False,
        )  # fmt: skip
        if files.content_ids:
            with writing(self.engine) as connection:
                insert_rows(connection, items_table, _COLUMNS[: -len(_LATER)], list(rows), conflict=_REPLACE)

    def remove(self, store: str, space: str, content_ids: Sequence[str]) -> None:
        """Forget *content_ids*."""
        with writing(self.engine) as connection:
            gone = sa.delete(items_table).where(items_table.c.store == store, items_table.c.space == space)
            connection.execute(gone.where(among(items_table.c.content_id, content_ids)))

    def holders(self, store: str, space: str, sums: Iterable[str]) -> Sequence[AdoptedItem]:
        """The items with one of these SHA-256 sums, vanished ones included."""
        found: list[AdoptedItem] = []
        for some in groups(sums, _SUMS_A_SCAN):  # an index by sums would cost an adoption more than all it writes
            query = _of(items_table, store, space).where(among(items_table.c.sha256, some))
            found += self._select(query.order_by(items_table.c.content_id))
        return found

    def totals(self, store: str, space: str) -> SpaceTotals:
        """How much of a space is adopted."""
        return self.totals_of(store, [space]).get(space, NO_ITEMS)

    def totals_of(self, store: str, spaces: Sequence[str]) -> Mapping[str, SpaceTotals]:
        """How much is adopted of each of *spaces* of which anything is: one statement for all."""
        row, count = items_table.c, sa.func.count
        there = is_listed(items_table)
        query = sa.select(
            row.space,
            count(sa.case((there, 1))),
            total(sa.case((there, row.size))),
            count(sa.case((sa.and_(there, row.origin == ChecksumEvidence.COMPUTED.value), 1))),
            count(sa.case((sa.and_(there, row.suspected.is_not(None)), 1))),
            count(row.vanished_at),
            sa.func.min(sa.case((there, row.last_read_at))),
            count(row.excluded_at),
        ).where(row.store == store, row.space.in_(spaces))
        with self.engine.connect() as connection:
            rows = connection.execute(query.group_by(row.space))
            return {space: SpaceTotals(*values) for space, *values in rows}

    def reread_before(self, store: str, space: str, count: int) -> int | None:
        """The time at which the *count*-th item in the order of last reading was read; None if there are fewer."""
        there = sa.and_(items_table.c.store == store, items_table.c.space == space, is_listed(items_table))
        query = sa.select(items_table.c.last_read_at).where(there).order_by(items_table.c.last_read_at)
        with self.engine.connect() as connection:
            return connection.scalar(query.offset(count - 1).limit(1)) if count > 0 else None

    # Findings

    def findings(self, store: str, space: str) -> Sequence[AdoptionFinding]:
        """The items that need a decision, ordered by id."""
        return self.findings_of(store, [space]).get(space, [])

    def findings_of(self, store: str, spaces: Sequence[str]) -> Mapping[str, list[AdoptionFinding]]:
        """The findings of each of *spaces* that has any: one statement for all."""
        row, found = _findings.c, dict[str, list[AdoptionFinding]]()
        query = sa.select(_findings).where(row.store == store, row.space.in_(spaces))
        with self.engine.connect() as connection:
            for one in connection.execute(query.order_by(row.space, row.content_id, row.kind)).mappings():
                found.setdefault(one["space"], []).append(AdoptionFinding(**one))
        return found

    def replace_findings(self, store: str, space: str, found: Iterable[AdoptionFinding]) -> None:
        """From now on *found*, and nothing else, has to be looked at."""
        rows = {(one.content_id, one.kind): msgspec.structs.asdict(one) for one in found}
        with writing(self.engine) as connection:
            connection.execute(sa.delete(_findings).where(_findings.c.store == store, _findings.c.space == space))
            if rows:
                connection.execute(sa.insert(_findings), list(rows.values()))

    def remove_findings(self, store: str, space: str, content_ids: Sequence[str]) -> None:
        """Nothing has to be looked at any more about *content_ids*."""
        with writing(self.engine) as connection:
            gone = sa.delete(_findings).where(_findings.c.store == store, _findings.c.space == space)
            connection.execute(gone.where(among(_findings.c.content_id, content_ids)))

    # Spaces

    def spaces(self) -> Sequence[AdoptedSpace]:
        """Every space that was ever adopted, by store and name."""
        with self.engine.connect() as connection:
            rows = connection.execute(sa.select(_spaces).order_by(_spaces.c.store, _spaces.c.space))
            return [AdoptedSpace(*row) for row in rows]

    def space(self, store: str, space: str) -> AdoptedSpace:
        """The state of a space, or a new state."""
        with self.engine.connect() as connection:
            row = connection.execute(_of(_spaces, store, space)).first()
        return AdoptedSpace(*row) if row is not None else AdoptedSpace(store, space)

    def save_space(self, space: AdoptedSpace) -> None:
        """Put *space* in the place of what is known of it."""
        with writing(self.engine) as connection:
            known = sa.and_(_spaces.c.store == space.store, _spaces.c.space == space.space)
            connection.execute(sa.delete(_spaces).where(known))
            connection.execute(sa.insert(_spaces).values(msgspec.structs.asdict(space)))

    def _select(self, query: sa.Select[Any]) -> list[AdoptedItem]:
        with self.engine.connect() as connection:
            return [_item(row) for row in connection.execute(query)]


SCANNED_COLUMNS = 5
"""The columns of :meth:`AdoptionCatalog.scan_columns`: size, version, kind, when it was last read (microseconds), and
whether it is settled (1): there, and not suspected."""

_SETTLED = sa.and_(*(items_table.c[name].is_(None) for name in ("suspected", "vanished_at", "excluded_at")))
_SCANNED = DriverQuery(
    page_of(
        items_table,
        *(items_table.c[name] for name in ("content_id", "size", "version", "kind", "last_read_at")),
        sa.case((_SETTLED, 1), else_=0),
    )
)
_LATER = ("suspected", "vanished_at", "renamed_to", "excluded_at")  # NULL in a row that is new
_OLD_INDEX = "mill_adopted_items_sum"
_COLUMNS = tuple(column.name for column in items_table.columns)
_REPLACE = replacing(items_table, _COLUMNS[3:])


def is_listed(table: sa.Table) -> sa.ColumnElement[bool]:
    """The items of *table* that are there: see :attr:`AdoptedItem.is_there`."""
    return sa.and_(table.c.vanished_at.is_(None), table.c.excluded_at.is_(None))


def first_of_each_space(query: sa.Select[Any], columns: Any, limit: int) -> sa.Select[Any]:
    """The first *limit* rows by id of each space among those of *query*; *columns* are those of the table of items."""
    place = sa.func.row_number().over(partition_by=columns.space, order_by=columns.content_id)
    rows = query.add_columns(place.label("place")).subquery()
    kept = [column for column in rows.c if column.name != "place"]
    return sa.select(*kept).where(rows.c.place <= limit).order_by(rows.c.space, rows.c.place)


def _of(table: sa.Table, store: str, space: str) -> sa.Select[Any]:
    return sa.select(table).where(table.c.store == store, table.c.space == space)


def _row(item: AdoptedItem) -> tuple[Any, ...]:
    values = list(_plain(item))
    values[_SUMS], values[_PROPERTIES] = _json(item.sums), _json(item.properties)
    return tuple(values)


_plain: Callable[[AdoptedItem], tuple[Any, ...]] = operator.attrgetter(*_COLUMNS)
_SUMS, _PROPERTIES = map(_COLUMNS.index, ("sums", "properties"))


def _file_properties(version: str) -> str:
    """The properties of a plain file, which are its time only, as :func:`_json` writes them."""
    return f'{{"{MTIME}":"{format_time(int(version))}"}}'


def _json(values: Mapping[str, str]) -> str:
    return msgspec.json.encode(values, order="sorted").decode("utf-8") if values else "{}"


def _item(row: sa.Row[Any]) -> AdoptedItem:
    values = row._asdict()
    for name in ("sums", "properties"):
        values[name] = msgspec.json.decode(values[name], type=prepared(dict[str, str])) if values[name] != "{}" else {}
    return AdoptedItem(**values)
