"""Every statement about one outbox, named. ``?`` is a value; names of tables and columns were checked before."""
# ruff: noqa: S608

from __future__ import annotations

from collections.abc import Mapping, Sequence

from millstream.log.backends.database.driver import Value
from millstream.log.ids import IdRange
from millstream.log.relay.outbox_dialect import OutboxDialect
from millstream.log.relay.progress import each_id
from millstream.log.relay.table import OutboxTable

_MOST_RUNS = 50  # more runs of ids than that go by their ids
_IDS_AT_ONCE = 500


class OutboxStatements:
    """The statements about *table*, of whose columns *kinds* gives the types."""

    def __init__(self, outbox_dialect: OutboxDialect, table: OutboxTable, kinds: Mapping[str, str]) -> None:
        quoted = outbox_dialect.quoted
        self._table = quoted(table.name)
        self._id = quoted(table.id)
        self._stops_at_limit = outbox_dialect.stops_at_limit
        self._mark = quoted(table.mark) if table.mark else ""
        unmoved = f"{self._mark} IS NULL" if table.mark else "1 = 1"
        used = {"body": table.body, **{name: column for name, column in table.optional.items() if column in kinds}}
        self.purposes = tuple(used)
        selected = [outbox_dialect.selected(column, kinds[column], purpose) for purpose, column in used.items()]
        sizes = [used[purpose] for purpose in ("body", "headers") if purpose in used]
        size = " + ".join(
            f"coalesce({outbox_dialect.length.format(outbox_dialect.selected(column, kinds[column], 'body'))}, 0)"
            for column in sizes
        )
        self.candidates = f"SELECT {self._id}, {size} FROM {self._table} WHERE {unmoved} ORDER BY {self._id} LIMIT ?"
        self.rows = (
            f"SELECT {self._id}, {', '.join(selected)} FROM {self._table} "
            f"WHERE {unmoved} AND {self._id} BETWEEN ? AND ? ORDER BY {self._id}"
        )
        self.first = f"SELECT {self._id} FROM {self._table} WHERE {unmoved} ORDER BY {self._id} LIMIT 1"
        self.waiting = f"SELECT count(*) FROM (SELECT 1 FROM {self._table} WHERE {unmoved} LIMIT ?) AS waiting"
        self._take_out = (
            f"UPDATE {self._table} SET {self._mark} = CURRENT_TIMESTAMP WHERE "
            if table.mark
            else f"DELETE FROM {self._table} WHERE "
        )
        dead = quoted(table.beside("dead"))
        self.make_dead = (
            f"CREATE TABLE IF NOT EXISTS {dead} AS "
            f"SELECT t.*, {outbox_dialect.no_reason} AS dead_reason FROM {self._table} t WHERE 1 = 0"
        )
        self.bury = f"INSERT INTO {dead} SELECT t.*, ? FROM {self._table} t WHERE {self._id} = ?"
        state = quoted(table.beside("relay"))
        self.make_state = (
            f"CREATE TABLE IF NOT EXISTS {state} (one INT PRIMARY KEY, outbox VARCHAR(40) NOT NULL, "
            f"target VARCHAR(1000) NOT NULL, number BIGINT NOT NULL, last_rows {outbox_dialect.long_text} NOT NULL)"
        )
        self.begin_state = f"INSERT INTO {state} VALUES (1, ?, ?, 0, '')"
        self.state = f"SELECT outbox, target, number, last_rows FROM {state} WHERE one = 1"
        self.lock_state = self.state + outbox_dialect.for_update
        self.move_state = f"UPDATE {state} SET number = ?, last_rows = ? WHERE one = 1"
        self.claim_state = f"UPDATE {state} SET target = ? WHERE one = 1 AND number = ? AND target = ?"

    def take_out(self, rows: Sequence[IdRange]) -> list[tuple[str, Sequence[Value]]]:
        """The statements that delete or mark *rows*, with their values."""
        if self._stops_at_limit:
            statement = f"{self._take_out}{self._id} BETWEEN ? AND ? ORDER BY {self._id} LIMIT ?"
            return [(statement, (run.first, run.last, len(run))) for run in rows]
        if len(rows) <= _MOST_RUNS:
            return [(f"{self._take_out}{self._id} BETWEEN ? AND ?", (run.first, run.last)) for run in rows]
        ids = list(each_id(rows))
        shares = [ids[start : start + _IDS_AT_ONCE] for start in range(0, len(ids), _IDS_AT_ONCE)]
        return [(f"{self._take_out}{self._id} IN ({', '.join('?' * len(share))})", share) for share in shares]
