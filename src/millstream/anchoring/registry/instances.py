"""Instances: which are alive, and the takeover of operations of dead ones (seed document, "Recovery")."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from millstream.anchoring.registry import tables as t
from millstream.anchoring.registry.operation_store import OperationStore
from millstream.anchoring.registry.settings import OperationQueueSettings
from millstream.anchoring.registry.states import OperationState

_log = logging.getLogger(__name__)


def _without_entry(table: sa.Table, has_work: sa.ColumnElement[bool]) -> sa.Select[tuple[str]]:
    entry = sa.exists().where(t.instances.c.instance == table.c.instance)
    return sa.select(table.c.instance).where(has_work, ~entry)


_WITHOUT_ENTRY: sa.CompoundSelect[Any] = sa.union(
    _without_entry(t.operations, t.operations.c.state == OperationState.QUEUED.value),
    _without_entry(t.cuts, t.cuts.c.open),
)
"""The instances that have work and no entry, each once."""


class Instances:
    """The instances that share the operations of *store*; this one is *instance*. Thread-safe."""

    def __init__(self, store: OperationStore, instance: str, settings: OperationQueueSettings) -> None:
        self._store = store
        self.instance = instance
        self._settings = settings

    def heartbeat(self) -> None:
        """Record that this instance is alive. A new process has a new name, so an old entry is never revived."""

        def transaction(connection: sa.Connection, now: int) -> None:
            mine = sa.update(t.instances).where(t.instances.c.instance == self.instance).values(updated_at=now)
            if not connection.execute(mine).rowcount:
                connection.execute(sa.insert(t.instances).values(instance=self.instance, updated_at=now))

        self._store.database.write(transaction)

    def leave(self) -> None:
        """Remove the entry of this instance, which has released its operations and ends: others may take over a cut
        that it leaves open at once."""
        entry = sa.delete(t.instances).where(t.instances.c.instance == self.instance)
        self._store.database.write(lambda connection, _now: connection.execute(entry))

    def known(self) -> Sequence[str]:
        """All instances with an entry, including dead ones that are not detected yet."""
        query = sa.select(t.instances.c.instance).order_by(t.instances.c.instance)
        return [row.instance for row in self._store.database.rows(query)]

    def dead(self) -> Sequence[str]:
        """The other instances that have sent no heartbeat for longer than the task expiration, and those without an
        entry that still have queued operations or an open cut: they left with an open cut, or sent no heartbeat."""

        def query(connection: sa.Connection, now: int) -> Sequence[str]:
            others = sa.select(t.instances.c.instance).where(self._silent(now), t.instances.c.instance != self.instance)
            found = list(connection.scalars(others.order_by(t.instances.c.updated_at)))
            return found + [name for name in connection.scalars(_WITHOUT_ENTRY) if name != self.instance]

        return self._store.database.read(query)

    def take_over_dead(self) -> int:
        """Requeue the operations of dead instances, at most ``max_repost``; returns how many.

        Open cuts of a dead instance are assigned to this one. Its entry is removed when it has no operations left.
        """
        reposted = 0
        for name in self.dead():
            freed = self._store.repost(name, self._settings.max_repost - reposted)
            cuts = self._store.reassign(name, self.instance)
            _log.warning(
                "instance %s sends no heartbeat: took over %d queued operations and %d cuts", name, freed, cuts
            )
            reposted += freed
            if reposted >= self._settings.max_repost:
                break
            self._forget(name)
        return reposted

    def _forget(self, name: str) -> None:
        """Remove the entry of the instance *name*, unless it has sent a heartbeat since."""
        entry = sa.delete(t.instances).where(t.instances.c.instance == name)
        self._store.database.write(lambda connection, now: connection.execute(entry.where(self._silent(now))))

    def _silent(self, now: int) -> sa.ColumnElement[bool]:
        return t.instances.c.updated_at < now - int(self._settings.task_expiration * 1_000_000)
