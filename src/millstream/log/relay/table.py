"""The outbox table: what it and its columns are called."""

from __future__ import annotations

import re

import msgspec

from millstream.log.relay.errors import OutboxError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,50}")


class OutboxTable(msgspec.Struct, frozen=True, kw_only=True):
    """The table *name* (``table`` or ``schema.table``) and the names of its columns.

    ``id`` is an integer that the database counts up; ``body`` is the message. The others may be absent from the table
    where they are called as here. With ``mark`` rows are kept, and that column, NULL at first, is set to the time when
    they were moved.
    """

    name: str = "outbox"
    id: str = "id"
    body: str = "body"
    key: str = "key"
    source: str = "source"
    event_time: str = "event_time"
    headers: str = "headers"
    mark: str = ""

    def __post_init__(self) -> None:
        for column in self.columns:
            _check(column, "column")
        for part in self.name.split(".", 1):
            _check(part, "table")

    @property
    def schema(self) -> str:
        """The schema of the table; empty where it is the one that the connection has."""
        return self.name.rpartition(".")[0]

    @property
    def columns(self) -> list[str]:
        """The names of all columns."""
        return [self.id, self.body, *self.optional.values(), *filter(None, [self.mark])]

    @property
    def optional(self) -> dict[str, str]:
        """The columns that a table need not have, by what they are for."""
        return {"key": self.key, "source": self.source, "event_time": self.event_time, "headers": self.headers}

    def is_named(self, purpose: str) -> bool:
        """Whether the settings name the column for *purpose*, so that it must exist."""
        return self.optional[purpose] != OutboxTable().optional[purpose]

    def beside(self, ending: str) -> str:
        """The table of ours beside it, in the same schema."""
        return f"{self.name}_{ending}"


def _check(name: str, what: str) -> None:
    if not _NAME.fullmatch(name):
        raise OutboxError(
            f"invalid {what} name {name[:80]!r} of an outbox: use 1 to 51 letters, digits, '_' and '$', "
            "and begin with a letter or '_'"
        )
