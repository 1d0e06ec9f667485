"""What the original's programs do to a queue's tables, statement by statement, for tests in both directions.

Tables, statements and keys are those of the program that the seed document nerve describes: an upsert a table, no
transaction, then the pointer. It knows no lease and looks at nothing it has not written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from millstream.log import Log, LogSpec
from millstream.log.backends.database.driver import DatabaseConnection, Value
from millstream.log.backends.mysql.address import MysqlAddress
from millstream.log.backends.mysql.driver import choose_driver

NAME = "Weather_1"
SPEC = LogSpec(NAME)
OPTIONS = "layout=nerve&shards=3&pointers=2"
"""The queue that most tests use, as a log and at the end of its URL."""

_CREATE_ROWS = "create table if not exists {} (id bigint unsigned not null, data longblob not null, primary key(id))"
_CREATE_POINTERS = (
    "create table if not exists {} (id varchar(255) not null, ptr bigint unsigned not null, primary key(id))"
)
_INSERT = "insert into {} (id, data) values {} on duplicate key update data=values(data)"
_POINTER = "select ptr from {} where id = ?"
_READ = "select id, data from {} where id in ({})"
_MOVE = "insert into {} (id, ptr) values (?, ?) on duplicate key update ptr = values(ptr)"


class OriginalQueue:
    """The queue *name* in the database at *place* as the original sees it; close it, or use it in a ``with`` block."""

    def __init__(self, place: MysqlAddress, name: str, shards: int, pointers: int) -> None:
        self._name = name
        self._rows = [f"queue_{name}_{shards:03d}_{number:04d}" for number in range(shards)]
        self._pointers = [f"queue_{name}_{pointers:03d}_{number:04d}_pointers" for number in range(pointers)]
        self._connection: DatabaseConnection = choose_driver(place)(place)
        self.execute("SET autocommit = 1")
        for table in self._rows:
            self.execute(_CREATE_ROWS.format(table))
        for table in self._pointers:
            self.execute(_CREATE_POINTERS.format(table))
        self.counter = self.pointer()
        """The last id that this publisher has given: the pointer when it was started, and then its own count."""

    def send(self, packets: Sequence[bytes]) -> None:
        """Write *packets* and confirm them."""
        self.insert(packets)
        self.move()

    def insert(self, packets: Sequence[bytes]) -> None:
        """Write *packets*, without confirming them, as a publisher that is killed in between does."""
        first = self.counter + 1
        self.counter += len(packets)
        for shard, table in enumerate(self._rows):
            mine = [(number, data) for number, data in enumerate(packets, first) if number % len(self._rows) == shard]
            if mine:
                places = ",".join(f"({number}, ?)" for number, _ in mine)
                self.execute(_INSERT.format(table, places), *[data for _, data in mine])

    def move(self, consumer: str = "", last_id: int | None = None) -> None:
        """Confirm all up to *last_id* (what was written, without it) for *consumer*, or for the writer."""
        key = f"{self._name}:{consumer}"
        self.execute(_MOVE.format(self._pointers[0]), key, self.counter if last_id is None else last_id)

    def pointer(self, consumer: str = "") -> int:
        """The pointer of *consumer*, or of the writer; 0 where there is none."""
        rows = self._connection.rows(_POINTER.format(self._pointers[0]), f"{self._name}:{consumer}")
        return int(rows[0][0]) if rows else 0

    def packets(self, first: int, last: int) -> list[tuple[int, bytes]]:
        """What a receiver is given of the ids *first* to *last*."""
        found: list[tuple[int, bytes]] = []
        for shard, table in enumerate(self._rows):
            ids = ",".join(str(number) for number in range(first, last + 1) if number % len(self._rows) == shard)
            if ids:
                rows = self._connection.rows(_READ.format(table, ids))
                found += [(int(number), data) for number, data in rows]
        return sorted(found)

    def execute(self, statement: str, *values: Value) -> None:
        """Do anything to the database."""
        self._connection.execute(statement, *values)

    def close(self) -> None:
        """Let go of the database."""
        self._connection.close()


OpenOriginal: TypeAlias = Callable[[], OriginalQueue]
"""Opens the queue as the original does."""


def bodies(log: Log, first: int = 1) -> list[bytes]:
    """The bodies of the messages from the id *first* on."""
    return [message.body for batch in log.read(first) for message in batch]
