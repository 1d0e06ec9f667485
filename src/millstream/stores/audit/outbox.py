"""The outbox: a table of changes that are intended, done, or on their way to the audit queue."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

import msgspec
import sqlalchemy as sa

from millstream.core.clock import Clock, SystemClock
from millstream.core.coalescing import RequestCoalescer
from millstream.core.sql import make_tables, writing
from millstream.core.sql_rows import NO_CONFLICT, among, insert_rows, update_rows
from millstream.stores.audit import group_table
from millstream.stores.audit.events import AuditEvent
from millstream.stores.audit.holders import Holders
from millstream.stores.audit.intents import AuditBusyError, AuditIntent, IntentGroup, busy_error
from millstream.stores.audit.outbox_reader import OutboxReader
from millstream.stores.audit.outbox_table import COLUMNS, TARGET, IntentState, outbox, row_of, target_of
from millstream.stores.audit.target_locks import TargetLocks
from millstream.stores.protocol import ItemInfo


class _Beginning(NamedTuple):
    """An intent that is to be written down, and the newest number when what was there before it was examined."""

    intent: AuditIntent
    seen: int | None = None


class AuditOutbox(OutboxReader):
    """The outbox in the database of *engine*; the tables are made where they are absent. Thread-safe.

    Every call is one transaction, durable when it returns. *holder* names this process's writers.
    """

    def __init__(self, engine: sa.Engine, clock: Clock | None = None, *, holder: str | None = None) -> None:
        self.holders = Holders.beside(engine)
        super().__init__(engine, holder or self.holders.new())
        self._clock = clock or SystemClock()
        self._last = 0
        self._targets = TargetLocks()
        self._collected = threading.local()
        self._begin = RequestCoalescer(self._begin_all)
        self._change = RequestCoalescer(self._change_all)
        make_tables(engine, group_table.metadata)

    def hold(self, store: str, space: str, content_id: str) -> AbstractContextManager[object]:
        """While one item, or a space, is changed by a thread of this holder, the others wait."""
        return self._targets.hold([(store, space, content_id)])

    def hold_all(self, store: str, space: str, content_ids: Iterable[str]) -> AbstractContextManager[object]:
        """:meth:`hold` for many items at once."""
        return self._targets.hold((store, space, content_id) for content_id in content_ids)

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
                if newest and newest.get(target_of(intent.event), 0) > (number if seen is None else seen):
                    begun.append(busy_error(*target_of(intent.event)))
                    continue
                number, self._last = number + 1, max(self._clock.now(), self._last + 1)
                event = msgspec.structs.replace(intent.event, at=self._last, number=number)
                begun.append(AuditIntent(event, intent.holder, intent.item, intent.had_space))
            if rows := [row_of(intent) for intent in begun if isinstance(intent, AuditIntent)]:
                insert_rows(connection, outbox, COLUMNS, rows, conflict=NO_CONFLICT)
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
            newest[key] = max(newest.get(key, 0), math.inf if state == IntentState.INTENDED else number)
        newest |= dict.fromkeys(group_table.targets_of_others(connection, self.holder), math.inf)
        return newest

    def add(self, events: Sequence[AuditEvent], *, seen: int | None = None) -> int:
        """Record *events* that are known to have happened and were never intended here; returns their number.

        Those of items that another holder is changing just now, or has changed since the number *seen*, are left out:
        that change has its own event.
        """
        begun = self.begin_all(events, seen=seen)
        known = [one.event for one in begun if isinstance(one, AuditIntent)]
        if known:
            self._change_all([(event, IntentState.DONE) for event in known])
        return len(known)

    def note(self, event: AuditEvent) -> None:
        """Write down more of what an intended event is to be."""
        self._update(event, IntentState.INTENDED)

    def done(self, event: AuditEvent) -> None:
        """The intended *event* happened, as it is described now."""
        collected = self._collected_here()
        if collected is not None:
            collected.append(event)
        else:
            self._update(event, IntentState.DONE)

    def done_all(self, events: Sequence[AuditEvent]) -> None:
        """:meth:`done` for many events at once."""
        collected = self._collected_here()
        if collected is not None:
            collected += events
        elif events:
            self._change_all([(event, IntentState.DONE) for event in events])

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
        self._delete(numbers, outbox.c.state == IntentState.INTENDED)

    def deliver(self, put: Callable[[Sequence[int]], object], *, limit: int = 1000) -> int:
        """Call *put* with the numbers of up to *limit* events that were never delivered; returns how many.

        If the process dies in between, they are delivered again; the receiver knows their numbers.
        """
        query = (
            sa.select(outbox.c.number).where(outbox.c.state == IntentState.DONE).order_by(outbox.c.number).limit(limit)
        )
        with self.engine.connect() as connection:
            numbers = list(connection.execute(query).scalars())
        if numbers:
            put(numbers)
            delivered = sa.update(outbox).where(among(outbox.c.number, numbers)).values(state=IntentState.DELIVERED)
            with writing(self.engine) as connection:
                connection.execute(delivered)
        return len(numbers)

    def redeliver(self, last: int) -> None:
        """Let :meth:`deliver` take the events up to the number *last* again that were delivered and not removed."""
        lost = sa.update(outbox).where(outbox.c.state == IntentState.DELIVERED, outbox.c.number <= last)
        with writing(self.engine) as connection:
            connection.execute(lost.values(state=IntentState.DONE))

    def remove(self, numbers: Iterable[int]) -> None:
        """Forget events that were processed."""
        self._delete(list(numbers))

    def _delete(self, numbers: Sequence[int], *conditions: sa.ColumnElement[bool]) -> None:
        if not numbers:
            return
        with writing(self.engine) as connection:
            left = group_table.take_whole(connection, sorted(set(numbers)))
            if left:
                self._open_groups(connection, dict.fromkeys(left, (None, IntentState.INTENDED)))
                connection.execute(sa.delete(outbox).where(among(outbox.c.number, left), *conditions))

    def _open_groups(
        self, connection: sa.Connection, changes: Mapping[int, tuple[AuditEvent | None, IntentState]]
    ) -> set[int]:
        """Write each change of a group down by itself where one of them is among *changes*, as it is changed there.

        Gives the numbers of all that were in a group.
        """
        begun = [one for group in group_table.take_touched(connection, changes) for one in group.intents()]
        rows = []
        for one in begun:
            event, state = changes.get(one.event.number, (None, IntentState.INTENDED))
            rows.append(row_of(one if event is None else msgspec.structs.replace(one, event=event), state))
        if rows:
            insert_rows(connection, outbox, COLUMNS, rows, conflict=NO_CONFLICT)
        return {one.event.number for one in begun}

    def _update(self, event: AuditEvent, state: IntentState) -> None:
        self._change((event, state))

    def _change_all(self, changes: Sequence[tuple[AuditEvent, IntentState]]) -> Sequence[None]:
        """Write down what several threads have to say of intended events, in one transaction."""
        columns, intended = outbox.c, {"state": int(IntentState.INTENDED)}
        with writing(self.engine) as connection:
            written = self._open_groups(connection, {event.number: (event, state) for event, state in changes})
            for state in IntentState:
                told = [
                    (event.number, msgspec.json.encode(event))
                    for event, new in changes
                    if new == state and event.number not in written
                ]
                found = update_rows(
                    connection, columns.event, columns.number, told, change={"state": int(state)}, only=intended
                )
                if found < len(told) and state == IntentState.DONE:
                    self._add_settled(connection, {event.number: event for event, new in changes if new == state})
        return [None] * len(changes)

    def _add_settled(self, connection: sa.Connection, done: Mapping[int, AuditEvent]) -> None:
        """Add again those of the events *done* whose intents others have settled and removed: they took this process
        for one that had ended, and may have seen the store before the change."""
        known = set(connection.scalars(sa.select(outbox.c.number).where(among(outbox.c.number, done))))
        number, rows = self._last_number(connection), []
        for before in sorted(done.keys() - known):
            number, self._last = number + 1, max(self._clock.now(), self._last + 1)
            anew = msgspec.structs.replace(done[before], at=self._last, number=number)
            rows.append(row_of(AuditIntent(anew, self.holder), IntentState.DONE))
        if rows:
            insert_rows(connection, outbox, COLUMNS, rows, conflict=NO_CONFLICT)
            if connection.dialect.name != "sqlite":
                group_table.give_numbers(connection, number)


TABLES = tuple(table for table in group_table.metadata.sorted_tables if table is not group_table.numbers)
"""The tables of the outbox, but for the one that only servers have."""

_NEWEST = sa.select(outbox.c.at).order_by(outbox.c.number.desc()).limit(1)
"""When the last event was begun: times grow with the numbers."""
_OTHERS = sa.select(*(outbox.c[name] for name in TARGET), outbox.c.state, outbox.c.number).where(
    sa.or_(outbox.c.state == IntentState.INTENDED, outbox.c.number > sa.bindparam("after")),
    outbox.c.holder != sa.bindparam("holder"),
)
"""Items that others are changing, or have changed recently: few at any time."""
