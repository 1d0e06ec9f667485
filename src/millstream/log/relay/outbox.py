"""One outbox: which rows come next, and taking out those that the log has.

A batch is chosen before it is handed to the log: its number and its rows are written down in a table of ours, in one
transaction with taking out the rows of the batch before. After a crash, the next relay finds in that table which rows
the log may have under which number, and the log shows whether it has that number. Nothing is concluded from the order
of ids: a row that becomes visible late, with an id lower than others, is in a later batch.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import msgspec

from millstream.core.message import Message
from millstream.log.backends.database.driver import DatabaseConnection
from millstream.log.errors import StorageError
from millstream.log.relay.errors import OutboxError, OutboxTakenError, PoisonRowError
from millstream.log.relay.outbox_database import OutboxDatabase
from millstream.log.relay.progress import RelayProgress, decode_rows, each_id, encode_rows, runs
from millstream.log.relay.rows import RowError, check_size, row_message
from millstream.log.relay.statements import OutboxStatements
from millstream.log.relay.table import OutboxTable


class BatchLimits(msgspec.Struct, frozen=True):
    """The maximum of rows, and about of bytes, in a batch; a larger row is a separate batch."""

    rows: int = 5000
    bytes: int = 8 << 20


class OutboxBatch(msgspec.Struct, frozen=True):
    """The messages of ``progress.rows``, to be appended under the sequence ``progress.number``.

    ``dead`` rows, which are no messages, were put aside before them; ``poison`` is a row that stops the relay after
    them, and why.
    """

    progress: RelayProgress
    messages: Sequence[Message] = ()
    dead: int = 0
    poison: tuple[int, str] | None = None


class Outbox:
    """The outbox *table* of *source*, whose rows go to the log that *target* names.

    Opening makes a table of ours beside it. Rows that are no messages stop the relay, or with *bad* ``dead`` are put
    into a table beside it as well. *adopt* takes an outbox over of which another log may have the last batch.
    """

    def __init__(
        self,
        source: OutboxDatabase,
        table: OutboxTable,
        target: str,
        *,
        bad: Literal["stop", "dead"] = "stop",
        limits: BatchLimits | None = None,
        adopt: bool = False,
        new_name: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self.table = table
        self._source = source
        self._target = target[:1000]
        self._bad = bad
        self._limits = limits or BatchLimits()
        self._sql = OutboxStatements(source.outbox_dialect, table, self._kinds())
        self._prepare(new_name())
        self._claim(adopt)

    def progress(self) -> RelayProgress:
        """How far it was moved. Raises :class:`OutboxTakenError` where it goes to another log by now."""
        found = self._look_up_progress()
        self._refuse_other_target(found)
        return found

    def advance(self, progress: RelayProgress, number: int) -> OutboxBatch | None:
        """Take out the rows of *progress*, which the log has, and choose the next ones, as the batch *number*.

        The batch has no rows where there are none. None where another process has moved the outbox meanwhile, or the
        reply of the database was lost: look at :meth:`progress` again. Raises :class:`OutboxTakenError`,
        :class:`PoisonRowError`.
        """
        if not progress.rows and not self._source.call(lambda connection: connection.rows(self._sql.first)):
            return OutboxBatch(progress)
        batch = self._source.transaction(lambda connection: self._advance(connection, progress, number))
        if batch and batch.poison and not batch.messages:
            raise self._poison(*batch.poison)
        return batch

    def finish(self, progress: RelayProgress) -> None:
        """Take out the rows of *progress*, which the log has, and choose no others."""
        self._source.transaction(lambda connection: self._take_out(connection, progress))

    def reread(self, progress: RelayProgress) -> Sequence[Message]:
        """The messages of *progress* once more. Raises :class:`PoisonRowError`."""
        ids = list(each_id(progress.rows))
        rows = self._source.call(lambda connection: list(self._rows(connection, ids)))
        return [self._message(number, values) for number, values in rows]

    def waiting(self, most: int = 100_000) -> int:
        """How many rows wait, counted up to *most*."""
        ((count,),) = self._source.call(lambda connection: connection.rows(self._sql.waiting, most))
        return int(count)

    def _advance(self, connection: DatabaseConnection, progress: RelayProgress, number: int) -> OutboxBatch | None:
        if not self._take_out(connection, progress):
            return None
        batch = self._next(connection, msgspec.structs.replace(progress, number=number))
        following = batch.progress
        if following.rows:
            connection.execute(self._sql.move_state, following.number, encode_rows(following.rows))
            return batch
        return msgspec.structs.replace(batch, progress=msgspec.structs.replace(progress, rows=()))

    def _take_out(self, connection: DatabaseConnection, progress: RelayProgress) -> bool:
        """Take out the rows of *progress*; False where another process has moved the outbox."""
        found = self._read_progress(connection, self._sql.lock_state)
        self._refuse_other_target(found)
        if found != progress:
            return False
        if progress.rows:
            for statement, values in self._sql.take_out(progress.rows):
                connection.execute(statement, *values)
            connection.execute(self._sql.move_state, progress.number, "")
        return True

    def _next(self, connection: DatabaseConnection, progress: RelayProgress) -> OutboxBatch:
        """The batch that comes next, under the number of *progress*."""
        messages: list[Message] = []
        ids: list[int] = []
        dead, poison = 0, None
        for number, message in self._tried(connection, self._choose(connection)):
            if isinstance(message, Message):
                messages.append(message)
                ids.append(number)
            elif self._bad == "dead":
                self._bury(connection, number, str(message))
                dead += 1
            else:
                poison = number, str(message)
                break
        return OutboxBatch(msgspec.structs.replace(progress, rows=runs(ids)), messages, dead, poison)

    def _choose(self, connection: DatabaseConnection) -> list[tuple[int, int]]:
        """Ids and sizes of the rows that come next, within the limits; those too large for a message stand alone."""
        chosen: list[tuple[int, int]] = []
        total = 0
        for found, size in connection.rows(self._sql.candidates, self._limits.rows):
            if not isinstance(found, int):
                raise OutboxError(
                    f"column {self.table.id} of {self._where()} contains {type(found).__name__}: name a column "
                    "of integers (--id-column, or id in the settings)"
                )
            total += int(size)
            if chosen and total > self._limits.bytes:
                break
            chosen.append((found, int(size)))
        return chosen

    def _tried(
        self, connection: DatabaseConnection, chosen: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[int, Message | RowError]]:
        """The rows that were *chosen*, each as a message, or why it is none. What is too large is not even fetched."""
        if len(chosen) == 1:
            try:
                check_size(chosen[0][1])
            except RowError as error:
                yield chosen[0][0], error
                return
        for number, values in self._rows(connection, [number for number, _ in chosen]):
            try:
                yield number, row_message(self._sql.purposes, values)
            except RowError as error:
                yield number, error

    def _rows(self, connection: DatabaseConnection, ids: Sequence[int]) -> Iterator[tuple[int, Sequence[Any]]]:
        """The rows *ids* that are there: not those between them that became visible a moment ago."""
        if not ids:
            return
        wanted = frozenset(ids)
        for number, *values in connection.rows(self._sql.rows, ids[0], ids[-1]):
            if number in wanted:
                yield number, values

    def _message(self, number: int, values: Sequence[Any]) -> Message:
        try:
            return row_message(self._sql.purposes, values)
        except RowError as error:
            raise self._poison(number, str(error)) from error

    def _bury(self, connection: DatabaseConnection, number: int, reason: str) -> None:
        connection.execute(self._sql.bury, reason[:1000], number)
        for statement, values in self._sql.take_out(runs([number])):
            connection.execute(statement, *values)

    def _poison(self, number: int, reason: str) -> PoisonRowError:
        return PoisonRowError(
            f"row {number} of {self.table.name} in {self._source.url} is not a message: {reason}. All rows "
            "before it are in the log. Fix or delete the row, or move such rows to "
            f"{self.table.beside('dead')} (--bad dead)"
        )

    def _kinds(self) -> dict[str, str]:
        """The types of the table's columns, by name."""
        name = self.table.name.rpartition(".")[2]
        statement = self._source.outbox_dialect.columns
        rows = self._source.call(lambda connection: connection.rows(statement, self.table.schema, name))
        kinds = {str(column): str(kind) for column, kind in rows}
        if self._source.outbox_dialect.ignores_case:
            named_as = {column.lower(): column for column in self.table.columns}
            kinds = {named_as.get(column.lower(), column): kind for column, kind in kinds.items()}
        if not kinds:
            raise OutboxError(
                f"table {self.table.name} does not exist in {self._source.url}: create the table with "
                f"`millstream log relay SOURCE_URL --table {self.table.name} --create-table`"
            )
        named = [column for purpose, column in self.table.optional.items() if self.table.is_named(purpose)]
        needed = [self.table.id, self.table.body, *named, *filter(None, [self.table.mark])]
        missing = [column for column in needed if column not in kinds]
        if missing:
            raise OutboxError(
                f"table {self.table.name} in {self._source.url} has no column {', '.join(missing)}; the table has "
                f"{', '.join(kinds)}. Add what is missing, or name other columns with "
                "options such as --body-column"
            )
        return kinds

    def _prepare(self, name: str) -> None:
        """Make the tables of ours, and the one row of them; another relay may do so at the same time."""
        if self._bad == "dead":
            self._source.call(lambda connection: connection.execute(self._sql.make_dead))
        try:
            self._source.call(lambda connection: connection.execute(self._sql.make_state))
            if not self._source.call(lambda connection: connection.rows(self._sql.state)):
                self._source.call(lambda connection: connection.execute(self._sql.begin_state, name, self._target))
        except StorageError:
            if not self._source.call(lambda connection: connection.rows(self._sql.state)):
                raise

    def _claim(self, adopt: bool) -> None:
        """Let the outbox go to our log from now on, if no other log may have a part of it."""
        found = self._look_up_progress()
        if found.target != self._target:
            if found.rows and not adopt:
                raise OutboxTakenError(
                    f"{self._where()} has an unfinished batch for log {found.target}: part of that batch may already "
                    f"be in {found.target}. Run the relay to {found.target} with --once to finish the batch; or, if "
                    f"{self._target} is log {found.target} under a new name or URL, use --adopt"
                )
            claim = (self._target, found.number, found.target)
            self._source.call(lambda connection: connection.execute(self._sql.claim_state, *claim))
            self.progress()  # raises if another relay has moved the outbox meanwhile: then it is not claimed

    def _refuse_other_target(self, found: RelayProgress) -> None:
        if found.target != self._target:
            raise OutboxTakenError(
                f"{self._where()} was taken over by a relay to log {found.target}: an outbox can have only one "
                f"relay, so stop either that relay or the relay to {self._target}"
            )

    def _where(self) -> str:
        return f"the outbox {self.table.name} in {self._source.url}"

    def _look_up_progress(self) -> RelayProgress:
        return self._source.call(lambda connection: self._read_progress(connection, self._sql.state))

    def _read_progress(self, connection: DatabaseConnection, statement: str) -> RelayProgress:
        rows = connection.rows(statement)
        if not rows:
            raise OutboxError(
                f"the row of this relay in {self.table.beside('relay')} of {self._source.url} is missing, because "
                f"another program deleted it. Delete the rows of {self.table.name} that are at the end of the log "
                "already, then start the relay again: otherwise these rows are appended twice"
            )
        outbox, target, number, last_rows = rows[0]
        return RelayProgress(outbox, target, int(number), decode_rows(last_rows))
