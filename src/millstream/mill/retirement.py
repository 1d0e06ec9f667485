"""Retiring the records of a store that was removed from the settings for good, such as a disk that was thrown away.

The rows leave the manifest. They get no tombstones: a tombstone says that people deleted the item, and allows to delete
its copies. Reports, audit log and bit log are history and stay.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
import sqlalchemy as sa

from millstream.core.amounts import counted
from millstream.core.clock import Clock
from millstream.core.errors import InputError
from millstream.core.sql_rows import total
from millstream.mill.adoption.catalog import AdoptionCatalog, items_table
from millstream.mill.configured_stores import SYSTEM_PREFIX
from millstream.mill.duplication.change_guard import ChangeGuard
from millstream.mill.errors import MillError, UnknownStoreError
from millstream.mill.integrity_decision import CheckVerdict
from millstream.mill.manifest import Manifest, manifest_table
from millstream.mill.policies.repository import Policies
from millstream.mill.reports.statistics import SpaceSize, SpaceStatisticsTable
from millstream.stores.audit import AuditIntent, AuditOutbox, HolderState, describe_holder

NAMED = 10
"""Items without another good copy that are named."""


class StoreInUseError(MillError, InputError):
    """The store is in the settings or in a policy, so its records are needed."""


class LastCopiesError(MillError):
    """Items have no other copy that is recorded as good."""


class UnknownWritersError(MillError):
    """Processes on other machines, or in other containers, may still be changing the store."""


class StoreRecords(msgspec.Struct, frozen=True, kw_only=True):
    """The records of ``store``: its ``spaces``, the number of ``items`` and their ``bytes``, and recorded
    ``deletions``; of ``open_changes`` it is not known whether they happened, and of the processes ``unknown_writers``
    that began them it is not known whether they have ended.

    Of ``last_copies`` items no store in the settings has another copy that is recorded as good; ``named`` are the first
    of them, as SPACE/ID.
    """

    store: str
    spaces: Sequence[str]
    items: int
    bytes: int
    deletions: int
    last_copies: int
    named: Sequence[str]
    open_changes: int = 0
    unknown_writers: Sequence[str] = ()


def require_copies(found: StoreRecords) -> None:
    """Raise :class:`LastCopiesError` if the last record of where an item is would be lost."""
    if found.last_copies:
        named, count = repr(found.named[0]), counted(found.last_copies, "item")
        items = f"{count} ({named}) has" if found.last_copies == 1 else f"{count} ({named} and others) have"
        raise LastCopiesError(
            f"without store {found.store!r}, {items} no copy that is recorded as good: to copy the content first, put "
            "the store into the settings again; if the content is lost or not needed, add the option --last-copies"
        )


class StoreRetirement:
    """Looks at the records of removed stores in *manifest*, and retires them.

    *urls* are the stores in the settings by id, *policies* those in force; *outbox* has the open changes.
    """

    def __init__(
        self,
        manifest: Manifest,
        statistics: SpaceStatisticsTable,
        change_guard: ChangeGuard,
        urls: Collection[str],
        policies: Policies,
        *,
        outbox: AuditOutbox,
    ) -> None:
        self._manifest, self._statistics, self._change_guard = manifest, statistics, change_guard
        self._urls, self._policies, self._outbox = urls, policies, outbox
        self._engine = manifest.writer.engine

    def find(self, store: str) -> StoreRecords:
        """The records of *store*, which was removed. Raises :class:`StoreInUseError` and :class:`UnknownStoreError`."""
        self._require_removed(store)
        changes = self._open_changes(store)
        unknown = self._unknown_writers(changes)
        row = manifest_table.c
        is_live = sa.case((row.deleted, 0), else_=1)
        query = (
            sa.select(row.space, sa.func.count(), total(is_live), total(is_live * row.size))
            .where(row.store == store)
            .group_by(row.space)
            .order_by(row.space)
        )
        with self._engine.connect() as connection:
            spaces = {name: tuple(map(int, sums)) for name, *sums in connection.execute(query)}
        if not spaces and not changes:
            raise UnknownStoreError(self._nothing_recorded(store))
        rows, items, size = (sum(column) for column in zip((0, 0, 0), *spaces.values(), strict=True))
        count, named = self._last_copies(store)
        return StoreRecords(
            store=store,
            spaces=list(spaces),
            items=items,
            bytes=size,
            deletions=rows - items,
            last_copies=count,
            named=named,
            open_changes=len(changes),
            unknown_writers=unknown,
        )

    def changes_to_end(self, store: str, *, writers_stopped: bool = False) -> Sequence[int]:
        """The numbers of the open changes of *store*, which nobody can settle any more.

        Raises :class:`StoreInUseError` if a process that began one still runs, and, unless *writers_stopped* says that
        all of them have ended, :class:`UnknownWritersError` if it is not known whether one does.
        """
        changes = self._open_changes(store)
        unknown = self._unknown_writers(changes)
        if unknown and not writers_stopped:
            raise UnknownWritersError(
                f"store {store!r} has unfinished changes, and this machine cannot check whether the processes that "
                f"began them have ended: {', '.join(unknown)}; make sure that they have ended, and add "
                "--writers-stopped"
            )
        return [one.event.number for one in changes]

    def retire(self, found: StoreRecords, clock: Clock, *, writers_stopped: bool = False) -> None:
        """Retire what was *found*, durably; after a crash, the same call continues.

        Raises the errors of :meth:`changes_to_end`, before anything is changed.
        """
        changes = self.changes_to_end(found.store, writers_stopped=writers_stopped)
        self._change_guard.withdraw(found.store)
        for size in self._statistics.latest(found.store, until=clock.now()):
            if size.items:
                self._statistics.add(SpaceSize(found.store, size.space, clock.now(), 0, 0))
        self._outbox.cancel(*changes)
        self._manifest.writer.remove_store(found.store)

    def _open_changes(self, store: str) -> Sequence[AuditIntent]:
        """The open changes of *store*. Raises :class:`StoreInUseError` if a process that began one still runs."""
        changes = [one for one in self._outbox.open_intents(others=True) if one.event.store == store]
        for holder in {one.holder for one in changes}:
            if self._outbox.holders.state(holder) == HolderState.RUNNING:
                raise StoreInUseError(
                    f"{describe_holder(holder)} is changing store {store!r}: restart this process first"
                )
        return changes

    def _unknown_writers(self, changes: Sequence[AuditIntent]) -> Sequence[str]:
        """The processes that began *changes* and of which it is not known whether they have ended, for people."""
        state = self._outbox.holders.state
        holders = {one.holder for one in changes}
        return sorted({describe_holder(one) for one in holders if state(one) == HolderState.UNKNOWN})

    def _require_removed(self, store: str) -> None:
        if store in self._urls:
            raise StoreInUseError(
                f"store {store!r} is in the settings: remove its section there first, and restart the processes of the "
                "node"
            )
        for account, policy in self._policies.by_account.items():
            pair = next((pair for pair in policy.pairs if store in (pair.source, pair.destination)), None)
            if pair is not None:
                raise StoreInUseError(
                    f"the policy of account {account!r} has the pair {pair}: remove store {store!r} from the policy "
                    "first (`millstream mill policy save`)"
                )

    def _nothing_recorded(self, store: str) -> str:
        removed = sorted({name for name, _ in self._manifest.spaces()} - set(self._urls))
        others = f"removed stores with records: {', '.join(removed)}" if removed else "no removed store has records"
        return f"the manifest has no records of a store {store!r}; {others}"

    def _last_copies(self, store: str) -> tuple[int, Sequence[str]]:
        """How many live items of *store* have no other good copy, and the first of them."""
        AdoptionCatalog(self._engine)  # makes its tables
        here, other, adopted = manifest_table.alias("here"), manifest_table.alias("other"), items_table.alias("adopted")
        has_vanished = sa.select(1).where(
            adopted.c.store == other.c.store,
            adopted.c.space == other.c.space,
            adopted.c.content_id == other.c.content_id,
            adopted.c.vanished_at.is_not(None),
        )
        is_same = sa.or_(
            other.c.sha256 == here.c.sha256,
            sa.and_(other.c.modified > here.c.modified, other.c.sha256.is_not(None), self._is_version(store, other)),
        )
        copied = sa.select(1).where(
            other.c.store.in_(sorted(self._urls)),
            other.c.space == here.c.space,
            other.c.content_id == here.c.content_id,
            other.c.deleted.is_(False),
            other.c.missing.is_(False),
            sa.func.coalesce(other.c.outcome, CheckVerdict.SUCCESS.value) == CheckVerdict.SUCCESS.value,
            is_same,
            ~has_vanished.exists(),
        )
        is_last = sa.and_(
            here.c.store == store,
            here.c.deleted.is_(False),
            here.c.missing.is_(False),
            sa.func.substr(here.c.space, 1, len(SYSTEM_PREFIX)) != SYSTEM_PREFIX,  # its items are bad copies
            ~copied.exists(),
        )
        first = sa.select(here.c.space, here.c.content_id).where(is_last)
        first = first.order_by(here.c.space, here.c.content_id).limit(NAMED)
        with self._engine.connect() as connection:
            named = [f"{space}/{content_id}" for space, content_id in connection.execute(first)]
            if len(named) < NAMED:
                return len(named), named
            count = sa.select(sa.func.count()).select_from(here).where(is_last)
            return int(connection.execute(count).scalar_one()), named

    def _is_version(self, store: str, other: sa.FromClause) -> sa.ColumnElement[bool]:
        """Whether the row *other* is one of a later version of an item, and not of a copy that is only younger.

        It is one in a store that is a source of the space, or if another store has the same bytes.
        """
        third = manifest_table.alias("third")
        again = sa.select(1).where(
            third.c.store.in_(sorted(self._urls)),
            third.c.store != other.c.store,
            third.c.space == other.c.space,
            third.c.content_id == other.c.content_id,
            third.c.sha256 == other.c.sha256,
            third.c.deleted.is_(False),
            third.c.missing.is_(False),
        )
        spaces: dict[frozenset[str], list[str]] = {}
        for name, space in self._manifest.spaces():
            if name == store:
                spaces.setdefault(self._policies.sources(space), []).append(space)
        at_source = [
            sa.and_(other.c.store.in_(sorted(sources)), other.c.space.in_(names)) for sources, names in spaces.items()
        ]
        return sa.or_(*at_source, again.exists())
