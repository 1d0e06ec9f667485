"""The outbox: a table of changes that are intended, done, or on their way to the audit queue."""

from __future__ import annotations

import enum
import itertools
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa

from millstream.core.clock import Clock, SystemClock
from millstream.core.coalescing import RequestCoalescer
from millstream.core.column_types import CONTENT_ID, EXACT_LONG_TEXT, LONG_BYTES, NAME, WHOLE_NUMBER
from millstream.core.sql import make_tables, writing
from millstream.core.sql_rows import NO_CONFLICT, among, driver_sql, insert_rows, update_rows
from millstream.stores.audit import group_table
from millstream.stores.audit.events import NEW_BYTES, AuditAction, AuditEvent
from millstream.stores.audit.group_table import metadata as _metadata
from millstream.stores.audit.holders import Holders
from millstream.stores.audit.intents import AuditBusyError, AuditIntent, IntentGroup, busy_error
from millstream.stores.audit.target_locks import TargetLocks
from millstream.stores.protocol import ItemInfo

_outbox = sa.Table(
    "audit_outbox",
    _metadata,
    sa.Column("number", WHOLE_NUMBER, primary_key=True),
    sa.Column("holder", EXACT_LONG_TEXT, nullable=False),
    sa.Column("state", sa.Integer, nullable=False),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("store", NAME, nullable=False),
    sa.Column("space", NAME, nullable=False),
    sa.Column("content_id", CONTENT_ID, nullable=False),
    sa.Column("event", LONG_BYTES, nullable=False),
    sa.Column("item", LONG_BYTES),
    sa.Column("had_space", sa.Boolean, nullable=False),
    sa.Index("audit_outbox_state", "state", "number"),
    sa.Index("audit_outbox_target", "store", "space", "content_id"),
    sqlite_autoincrement=True,
)


class _State(enum.IntEnum):
    INTENDED = 0
    DONE = 1
    DELIVERED = 2


class _Beginning(NamedTuple):
    """An intent that is to be written down, and the newest number when what was there before it was examined."""

    intent: AuditIntent
    seen: int | None = None


class AuditOutbox:
    """The outbox in the database of *engine*; the tables are made where they are absent. Thread-safe.

    Every call is one transaction, durable when it returns. *holder* names this process's writers.
    """

    def __init__(self, engine: sa.Engine, clock: Clock | None = None, *, holder: str | None = None) -> None:
        self.engine = engine
        self._clock = clock or SystemClock()
        self.holders = Holders.beside(engine)
        self.holder = holder or self.holders.new()
        self._last = 0
        self._targets = TargetLocks()
        self._collected = threading.local()
        self._begin = RequestCoalescer(self._begin_all)
        self._change = RequestCoalescer(self._change_all)
        make_tables(engine, _metadata)

    def hold(self, store: str, space: str, content_id: str) -> AbstractContextManager[object]:
        """While one item, or a space, is changed by a thread of this holder, the others wait."""
        return self._targets.hold([(store, space, content_id)])

    def hold_all(self, store: str, space: str, content_ids: Iterable[str]) -> AbstractContextManager[object]:
        """:meth:`hold` for many items at once."""
        return self._targets.hold((store, space, content_id) for content_id in content_ids)

    def newest(self) -> int:
        """The greatest number that was given; to be asked before one looks at what is there (see :meth:`begin`)."""
        with self.engine.connect() as connection:
            return group_table.last_number(connection)

    def begin(
        self, event: AuditEvent, *, item: ItemInfo | None = None, had_space: bool = False, seen: int | None = None
    ) -> AuditIntent:
        """Write down that *event* is to happen, where *item* or the space was before; gives it its number and time.

        Raises :class:`AuditBusyError` where another holder has begun a change of the same item or space that is open,
        or that is newer than *seen*: what was there before is not known then.
        """
        return self._begin(_Beginning(AuditIntent(event, self.holder, item, had_space), seen))

    def begin_all(
        self, events: Sequence[AuditEvent], *, seen: int | None = None
    ) -> Sequence[AuditIntent | AuditBusyError]:
        """:meth:`begin` for many items at once, none of which is there; errors are given and not raised."""
        return self._begin_all([_Beginning(AuditIntent(event, self.holder), seen) for event in events])

    def _begin_all(self, wanted: Sequence[_Beginning]) -> Sequence[AuditIntent | AuditBusyError]:
        """Begin what several threads want to begin, in one transaction."""
        with writing(self.engine) as connection:
            number = self._last_number(connection)
            oldest = min((one.seen for one in wanted if one.seen is not None), default=number)
            newest = self._newest_of_others(connection, oldest)
            begun: list[AuditIntent | AuditBusyError] = []
            for intent, seen in wanted:
                if newest and newest.get(_target(intent.event), 0) > (number if seen is None else seen):
                    begun.append(busy_error(*_target(intent.event)))
                    continue
                number, self._last = number + 1, max(self._clock.now(), self._last + 1)
                event = msgspec.structs.replace(intent.event, at=self._last, number=number)
                begun.append(AuditIntent(event, intent.holder, intent.item, intent.had_space))
            if rows := [_row(intent) for intent in begun if isinstance(intent, AuditIntent)]:
                insert_rows(connection, _outbox, _COLUMNS, rows, conflict=NO_CONFLICT)
                if connection.dialect.name != "sqlite":
                    group_table.give_numbers(connection, number)
            return begun

    def begin_group(
        self, group: IntentGroup, *, seen: int | None = None
    ) -> tuple[IntentGroup, Mapping[str, AuditBusyError]]:
        """:meth:`begin` for all additions of *group* at once, in one row: the group with its numbers and times.

        Those that cannot be begun are left out of it; their errors are given by content id.
        """
        event = group.event
        with writing(self.engine) as connection:
            number = self._last_number(connection)
            after = number if seen is None else seen
            newest = self._newest_of_others(connection, after)
            busy = {
                name: busy_error(event.store, event.space, name)
                for name in (group.content_ids if newest else ())
                if newest.get((event.store, event.space, name), 0) > after
            }
            group = group.without(busy) if busy else group
            if group.content_ids:
                first = msgspec.structs.replace(event, at=max(self._clock.now(), self._last + 1), number=number + 1)
                group = msgspec.structs.replace(group, event=first, holder=self.holder)
                group_table.insert_group(connection, group)
                self._last = first.at + len(group.content_ids) - 1
        return group, busy

    def _last_number(self, connection: sa.Connection) -> int:
        """The greatest number that was given; the time of that event is known from then on."""
        self._last = max(self._last, connection.execute(_NEWEST).scalar() or 0, group_table.newest_time(connection))
        return group_table.last_number(connection)

    def _newest_of_others(self, connection: sa.Connection, after: int) -> dict[tuple[str, ...], float]:
        """The newest change of each item and space that others made after the number *after*; infinity where one is
        open."""
        newest = dict[tuple[str, ...], float]()
        for *target, state, number in connection.execute(_OTHERS, {"holder": self.holder, "after": after}):
            key = tuple(target)
            newest[key] = max(newest.get(key, 0), math.inf if state == _State.INTENDED else number)
        newest |= dict.fromkeys(group_table.targets_of_others(connection, self.holder), math.inf)
        return newest

    def add(self, events: Sequence[AuditEvent], *, seen: int | None = None) -> int:
        """Write down *events* that are known to have happened and were never intended here; returns how many.

        Those of items that another holder is changing just now, or has changed since the number *seen*, are left out:
        that change has an event of its own.
        """
        begun = self.begin_all(events, seen=seen)
        known = [one.event for one in begun if isinstance(one, AuditIntent)]
        if known:
            self._change_all([(event, _State.DONE) for event in known])
        return len(known)

    def note(self, event: AuditEvent) -> None:
        """Write down more of what an intended event is to be."""
        self._update(event, _State.INTENDED)

    def done(self, event: AuditEvent) -> None:
        """The intended *event* happened, as it is described now."""
        collected = self._collected_here()
        if collected is not None:
            collected.append(event)
        else:
            self._update(event, _State.DONE)

    def done_all(self, events: Sequence[AuditEvent]) -> None:
        """:meth:`done` for many events at once."""
        collected = self._collected_here()
        if collected is not None:
            collected += events
        elif events:
            self._change_all([(event, _State.DONE) for event in events])

    @contextmanager
    def collecting(self) -> Iterator[list[AuditEvent]]:
        """In the block, what this thread says is done is given to the caller instead of being written down.

        The caller records these events himself and removes them within the block. Until then they stay intended: where
        the process dies, it is found out at the store that they happened. Where the block raises they are written down.
        """
        self._collected.events = events = list[AuditEvent]()
        try:
            yield events
        except BaseException:
            del self._collected.events
            self.done_all(events)
            raise
        del self._collected.events

    def _collected_here(self) -> list[AuditEvent] | None:
        return getattr(self._collected, "events", None)

    def cancel(self, *numbers: int) -> None:
        """The intended events of these numbers did not happen."""
        self._delete(numbers, _outbox.c.state == _State.INTENDED)

    def open_of(self, store: str, space: str, content_ids: Sequence[str]) -> set[str]:
        """Which of these items (some 1,000 at most) have a change of which it is not known whether it happened."""
        query = sa.select(_outbox.c.content_id).where(
            _outbox.c.store == store,
            _outbox.c.space == space,
            among(_outbox.c.content_id, content_ids),
            _outbox.c.state == _State.INTENDED,
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
            (_INTENTS, {}) if target is None else (_INTENTS_OF, dict(zip(_TARGET, _target(target), strict=True)))
        )
        with self.engine.connect() as connection:
            space = () if target is None else (target.store, target.space)
            groups = group_table.groups_of(connection, *space)
            rows = map(_intent, connection.execute(query, values))
            begun = itertools.chain(*(group.intents() for group in groups), rows)
            wanted = {one.event.number: one for one in begun if others or one.holder == self.holder}
        if target is not None:
            wanted = {n: one for n, one in wanted.items() if one.event.content_id == target.content_id}
        return [wanted[number] for number in sorted(wanted)]

    def get(self, numbers: Iterable[int]) -> dict[int, AuditEvent]:
        """The events of these *numbers* that are done and not removed yet, by number."""
        with self.engine.connect() as connection:
            rows = connection.execute(_EVENTS, {"numbers": list(numbers)})
            return {number: _event(number, data) for number, data in rows}

    def events(self, *, after: int = 0, limit: int = 1000) -> Sequence[AuditEvent]:
        """Events that are done and not removed yet, by number, from above *after*."""
        query = (
            sa.select(_outbox.c.number, _outbox.c.event)
            .where(_outbox.c.state != _State.INTENDED, _outbox.c.number > after)
            .order_by(_outbox.c.number)
            .limit(limit)
        )
        with self.engine.connect() as connection:
            return [_event(number, data) for number, data in connection.execute(query)]

    def undelivered(self) -> int:
        """How many events are done and were never delivered."""
        query = sa.select(sa.func.count()).select_from(_outbox).where(_outbox.c.state == _State.DONE)
        with self.engine.connect() as connection:
            return int(connection.execute(query).scalar_one())

    def oldest(self) -> int | None:
        """When the first of the events that are done and were never delivered happened (microseconds)."""
        query = sa.select(sa.func.min(_outbox.c.at)).where(_outbox.c.state == _State.DONE)
        with self.engine.connect() as connection:
            at: int | None = connection.execute(query).scalar_one()
            return at

    def deliver(self, put: Callable[[Sequence[int]], object], *, limit: int = 1000) -> int:
        """Call *put* with the numbers of up to *limit* events that were never delivered; returns how many.

        If the process dies in between, they are delivered again; the receiver knows their numbers.
        """
        query = (
            sa.select(_outbox.c.number).where(_outbox.c.state == _State.DONE).order_by(_outbox.c.number).limit(limit)
        )
        with self.engine.connect() as connection:
            numbers = list(connection.execute(query).scalars())
        if numbers:
            put(numbers)
            delivered = sa.update(_outbox).where(among(_outbox.c.number, numbers)).values(state=_State.DELIVERED)
            with writing(self.engine) as connection:
                connection.execute(delivered)
        return len(numbers)

    def remove(self, numbers: Iterable[int]) -> None:
        """Forget events that were processed."""
        self._delete(list(numbers))

    def pending(self, store: str, space: str, content_ids: Sequence[str] | None = None) -> set[str]:
        """The content ids of the space that have events, done or intended, which were not processed yet.

        With *content_ids* (some 1,000 at most) only of those.
        """
        query = sa.select(_outbox.c.content_id).where(_outbox.c.store == store, _outbox.c.space == space)
        with self.engine.connect() as connection:
            grouped = self._in_groups(connection, store, space)
            if content_ids is None:
                return grouped.union(connection.execute(query).scalars())
            grouped.intersection_update(content_ids)
            if connection.execute(query.limit(1)).first() is None:
                return grouped  # nearly always: many ids in a statement cost more than it takes to look them up
            return grouped.union(connection.execute(query.where(among(_outbox.c.content_id, content_ids))).scalars())

    def pending_in_order(self, store: str, space: str, size: int) -> Iterator[list[str]]:
        """The content ids of :meth:`pending` in ascending order, in lists of at most *size*; each list is one query."""
        query = (
            sa.select(_outbox.c.content_id)
            .distinct()
            .where(_outbox.c.store == store, _outbox.c.space == space)
            .order_by(_outbox.c.content_id)
            .limit(size)
        )
        names: list[str] = []
        while True:
            with self.engine.connect() as connection:
                last = names[-1] if names else ""
                grouped = {name for name in self._in_groups(connection, store, space) if name > last}
                page = query.where(_outbox.c.content_id > last) if names else query
                names = sorted(grouped.union(connection.execute(page).scalars()))[:size]
            if not names:
                return
            yield names

    def waiting(self, store: str, space: str, content_id: str) -> Sequence[AuditEvent]:
        """The events of one item that are done and were not processed yet, the oldest first."""
        query = (
            sa.select(_outbox.c.number, _outbox.c.event)
            .where(_outbox.c.store == store, _outbox.c.space == space, _outbox.c.content_id == content_id)
            .where(_outbox.c.state != _State.INTENDED)
            .order_by(_outbox.c.number)
        )
        with self.engine.connect() as connection:
            return [_event(number, data) for number, data in connection.execute(query)]

    def deletions(self, store: str, space: str, content_ids: Sequence[str]) -> dict[str, int]:
        """Which of these items (some 1,000 at most) were deleted, and when (microseconds), by what waits here.

        A deletion of which it is not known whether it happened does not count, nor one before a later addition, even
        where it is not known whether that happened.
        """
        query = (
            sa.select(_outbox.c.content_id, _outbox.c.state, _outbox.c.number, _outbox.c.event)
            .where(_outbox.c.store == store, _outbox.c.space == space, among(_outbox.c.content_id, content_ids))
            .order_by(_outbox.c.number)
        )
        deleted: dict[str, int] = {}
        with self.engine.connect() as connection:
            added = self._in_groups(connection, store, space)
            for name, state, number, data in connection.execute(query):
                event = _event(number, data)
                if event.action in NEW_BYTES:
                    deleted.pop(name, None)
                elif event.action == AuditAction.DELETE_CONTENT and state != _State.INTENDED:
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

    def _delete(self, numbers: Sequence[int], *conditions: sa.ColumnElement[bool]) -> None:
        if not numbers:
            return
        with writing(self.engine) as connection:
            left = group_table.take_whole(connection, sorted(set(numbers)))
            if left:
                self._open_groups(connection, dict.fromkeys(left, (None, _State.INTENDED)))
                connection.execute(sa.delete(_outbox).where(among(_outbox.c.number, left), *conditions))

    def _open_groups(
        self, connection: sa.Connection, changes: Mapping[int, tuple[AuditEvent | None, _State]]
    ) -> set[int]:
        """Write each change of a group down by itself where one of them is among *changes*, as it is changed there.

        Gives the numbers of all that were in a group.
        """
        begun = [one for group in group_table.take_touched(connection, changes) for one in group.intents()]
        rows = []
        for one in begun:
            event, state = changes.get(one.event.number, (None, _State.INTENDED))
            rows.append(_row(one if event is None else msgspec.structs.replace(one, event=event), state))
        if rows:
            insert_rows(connection, _outbox, _COLUMNS, rows, conflict=NO_CONFLICT)
        return {one.event.number for one in begun}

    def _update(self, event: AuditEvent, state: _State) -> None:
        self._change((event, state))

    def _change_all(self, changes: Sequence[tuple[AuditEvent, _State]]) -> Sequence[None]:
        """Write down what several threads have to say of intended events, in one transaction."""
        columns, intended = _outbox.c, {"state": int(_State.INTENDED)}
        with writing(self.engine) as connection:
            written = self._open_groups(connection, {event.number: (event, state) for event, state in changes})
            for state in _State:
                told = [
                    (event.number, msgspec.json.encode(event))
                    for event, new in changes
                    if new == state and event.number not in written
                ]
                update_rows(
                    connection, columns.event, columns.number, told, change={"state": int(state)}, only=intended
                )
        return [None] * len(changes)


TABLES = tuple(table for table in _metadata.sorted_tables if table is not group_table.numbers)
"""The tables of the outbox, but for the one that only servers have."""

_COLUMNS = tuple(column.name for column in _outbox.c)
_encoder = msgspec.json.Encoder()
_SETTLED = "SELECT MIN(number) - 1 FROM audit_outbox WHERE store = ? AND space = ?"
_NEWEST = sa.select(_outbox.c.at).order_by(_outbox.c.number.desc()).limit(1)
"""When the last event was begun: times grow with the numbers."""
_EVENTS = sa.select(_outbox.c.number, _outbox.c.event).where(
    _outbox.c.number.in_(sa.bindparam("numbers", expanding=True)), _outbox.c.state != _State.INTENDED
)
_TARGET = ("store", "space", "content_id")
_OTHERS = sa.select(*(_outbox.c[name] for name in _TARGET), _outbox.c.state, _outbox.c.number).where(
    sa.or_(_outbox.c.state == _State.INTENDED, _outbox.c.number > sa.bindparam("after")),
    _outbox.c.holder != sa.bindparam("holder"),
)
"""What others are changing, and have changed lately: few items at any time."""
_INTENTS = (
    sa.select(_outbox.c.number, _outbox.c.holder, _outbox.c.event, _outbox.c.item, _outbox.c.had_space)
    .where(_outbox.c.state == _State.INTENDED)
    .order_by(_outbox.c.number)
)
_INTENTS_OF = _INTENTS.where(*(_outbox.c[name] == sa.bindparam(name) for name in _TARGET))


def _target(event: AuditEvent) -> tuple[str, ...]:
    return event.store, event.space, event.content_id


def _row(intent: AuditIntent, state: _State = _State.INTENDED) -> tuple[Any, ...]:
    """The values of :data:`_COLUMNS`."""
    event, item = intent.event, None if intent.item is None else msgspec.json.encode(intent.item)
    told = _encoder.encode(event)
    return event.number, intent.holder, int(state), event.at, *_target(event), told, item, int(intent.had_space)


def _intent(row: Any) -> AuditIntent:
    before = None if row.item is None else msgspec.json.decode(row.item, type=ItemInfo)
    return AuditIntent(_event(row.number, row.event), row.holder, before, row.had_space)


def _event(number: int, data: bytes) -> AuditEvent:
    return msgspec.structs.replace(msgspec.json.decode(data, type=AuditEvent), number=number)
