"""The content of the outbox: open intents, and events on their way to the audit log."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import sqlalchemy as sa

from millstream.core.sql_rows import among, driver_sql
from millstream.stores.audit import group_table
from millstream.stores.audit.events import NEW_BYTES, AuditAction, AuditEvent
from millstream.stores.audit.intents import AuditIntent
from millstream.stores.audit.outbox_table import TARGET, IntentState, event_of, intent_of, outbox, target_of

_SETTLED = "SELECT MIN(number) - 1 FROM audit_outbox WHERE store = ? AND space = ?"
_EVENTS = sa.select(outbox.c.number, outbox.c.event).where(
    outbox.c.number.in_(sa.bindparam("numbers", expanding=True)), outbox.c.state != IntentState.INTENDED
)
_INTENTS = (
    sa.select(
        outbox.c.number,
        outbox.c.holder,
        outbox.c.event,
        outbox.c.item,
        outbox.c.had_space,
    )
    .where(outbox.c.state == IntentState.INTENDED)
    .order_by(outbox.c.number)
)
_INTENTS_OF = _INTENTS.where(*(outbox.c[name] == sa.bindparam(name) for name in TARGET))


class OutboxReader:
    """Reads the outbox in the database of *engine*; the intents of *holder* are its own. Thread-safe."""

    def __init__(self, engine: sa.Engine, holder: str) -> None:
        self.engine = engine
        self.holder = holder

    def newest(self) -> int:
        """The greatest number that was given; ask before looking at what is there (:meth:`AuditOutbox.begin`)."""
        with self.engine.connect() as connection:
            return group_table.last_number(connection)

    def open_of(self, store: str, space: str, content_ids: Sequence[str]) -> set[str]:
        """Which of these items (some 1,000 at most) have a change of which it is not known whether it happened."""
        query = sa.select(outbox.c.content_id).where(
            outbox.c.store == store,
            outbox.c.space == space,
            among(outbox.c.content_id, content_ids),
            outbox.c.state == IntentState.INTENDED,
        )
        with self.engine.connect() as connection:
            found = self._in_groups(connection, store, space).intersection(content_ids)
            return found.union(connection.execute(query).scalars())

    @staticmethod
    def _in_groups(connection: sa.Connection, store: str, space: str) -> set[str]:
        """The items of a space whose additions were begun together.

        To be asked for before the rows of single changes, which may take the place of a group meanwhile.
        """
        return set().union(*group_table.names_of(connection, store, space))

    def open_intents(self, target: AuditEvent | None = None, *, others: bool = False) -> Sequence[AuditIntent]:
        """Intents of which it is not known whether they happened, the oldest first.

        Those of this holder, or with *others* those of all; only those for the item or space of *target*.
        """
        query, values = (
            (_INTENTS, {}) if target is None else (_INTENTS_OF, dict(zip(TARGET, target_of(target), strict=True)))
        )
        with self.engine.connect() as connection:
            space = () if target is None else (target.store, target.space)
            groups = group_table.groups_of(connection, *space)
            rows = map(intent_of, connection.execute(query, values))
            begun = itertools.chain(*(group.intents() for group in groups), rows)
            wanted = {one.event.number: one for one in begun if others or one.holder == self.holder}
        if target is not None:
            wanted = {n: one for n, one in wanted.items() if one.event.content_id == target.content_id}
        return [wanted[number] for number in sorted(wanted)]

    def get(self, numbers: Iterable[int]) -> dict[int, AuditEvent]:
        """The events of these *numbers* that are done and not removed yet, by number."""
        with self.engine.connect() as connection:
            rows = connection.execute(_EVENTS, {"numbers": list(numbers)})
            return {number: event_of(number, data) for number, data in rows}

    def events(self, *, after: int = 0, limit: int = 1000) -> Sequence[AuditEvent]:
        """Events that are done and not removed yet, by number, from above *after*."""
        query = (
            sa.select(outbox.c.number, outbox.c.event)
            .where(outbox.c.state != IntentState.INTENDED, outbox.c.number > after)
            .order_by(outbox.c.number)
            .limit(limit)
        )
        with self.engine.connect() as connection:
            return [event_of(number, data) for number, data in connection.execute(query)]

    def undelivered(self) -> int:
        """How many events are done and were never delivered."""
        query = sa.select(sa.func.count()).select_from(outbox).where(outbox.c.state == IntentState.DONE)
        with self.engine.connect() as connection:
            return int(connection.execute(query).scalar_one())

    def last_delivered(self) -> int | None:
        """The greatest number of an event that was delivered and not removed yet."""
        query = sa.select(sa.func.max(outbox.c.number)).where(outbox.c.state == IntentState.DELIVERED)
        with self.engine.connect() as connection:
            number: int | None = connection.execute(query).scalar_one()
            return number

    def oldest(self) -> int | None:
        """When the first of the events that are done and were never delivered happened (microseconds)."""
        query = sa.select(sa.func.min(outbox.c.at)).where(outbox.c.state == IntentState.DONE)
        with self.engine.connect() as connection:
            at: int | None = connection.execute(query).scalar_one()
            return at

    def pending(self, store: str, space: str, content_ids: Sequence[str] | None = None) -> set[str]:
        """The content ids of the space that have events, done or intended, which were not processed yet.

        With *content_ids* (some 1,000 at most) only of those.
        """
        query = sa.select(outbox.c.content_id).where(outbox.c.store == store, outbox.c.space == space)
        with self.engine.connect() as connection:
            grouped = self._in_groups(connection, store, space)
            if content_ids is None:
                return grouped.union(connection.execute(query).scalars())
            grouped.intersection_update(content_ids)
            if connection.execute(query.limit(1)).first() is None:
                return grouped  # nearly always: many ids in a statement cost more than it takes to look them up
            return grouped.union(connection.execute(query.where(among(outbox.c.content_id, content_ids))).scalars())

    def pending_in_order(self, store: str, space: str, size: int) -> Iterator[list[str]]:
        """The content ids of :meth:`pending` in ascending order, in lists of at most *size*; each list is one query."""
        query = (
            sa.select(outbox.c.content_id)
            .distinct()
            .where(outbox.c.store == store, outbox.c.space == space)
            .order_by(outbox.c.content_id)
            .limit(size)
        )
        names: list[str] = []
        while True:
            with self.engine.connect() as connection:
                last = names[-1] if names else ""
                grouped = {name for name in self._in_groups(connection, store, space) if name > last}
                page = query.where(outbox.c.content_id > last) if names else query
                names = sorted(grouped.union(connection.execute(page).scalars()))[:size]
            if not names:
                return
            yield names

    def waiting(self, store: str, space: str, content_id: str) -> Sequence[AuditEvent]:
        """The events of one item that are done and were not processed yet, the oldest first."""
        query = (
            sa.select(outbox.c.number, outbox.c.event)
            .where(outbox.c.store == store, outbox.c.space == space, outbox.c.content_id == content_id)
            .where(outbox.c.state != IntentState.INTENDED)
            .order_by(outbox.c.number)
        )
        with self.engine.connect() as connection:
            return [event_of(number, data) for number, data in connection.execute(query)]

    def deletions(self, store: str, space: str, content_ids: Sequence[str]) -> dict[str, int]:
        """Which of these items (some 1,000 at most) were deleted, and when (microseconds), by what waits here.

        A deletion of which it is not known whether it happened does not count, nor one before a later addition, even
        where it is not known whether that happened.
        """
        query = (
            sa.select(outbox.c.content_id, outbox.c.state, outbox.c.number, outbox.c.event)
            .where(
                outbox.c.store == store,
                outbox.c.space == space,
                among(outbox.c.content_id, content_ids),
            )
            .order_by(outbox.c.number)
        )
        deleted: dict[str, int] = {}
        with self.engine.connect() as connection:
            added = self._in_groups(connection, store, space)
            for name, state, number, data in connection.execute(query):
                event = event_of(number, data)
                if event.action in NEW_BYTES:
                    deleted.pop(name, None)
                elif event.action == AuditAction.DELETE_CONTENT and state != IntentState.INTENDED:
                    deleted[name] = event.at
        return {name: at for name, at in deleted.items() if name not in added}

    def settled(self, store: str, space: str) -> int:
        """The greatest number up to which every event of the space was processed, or did not happen."""
        with self.engine.connect() as connection:
            last = group_table.last_number(connection)  # before the rest: what is begun meanwhile is beyond it
            grouped = group_table.oldest_number(connection, store, space)
            first = driver_sql(connection, _SETTLED, (store, space)).scalar()
            found = last if first is None else int(first)
            return found if grouped is None else min(found, grouped - 1)
