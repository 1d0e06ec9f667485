"""The statements of a log store in a database: those that all servers understand, and the names of the others.

``?`` is a value, ``{}`` the table of a log's blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from millstream.log.ids import IndexEntry

VERSION = 2
"""The format of the tables. In format 1 logs had no kind, and system logs the names of users' logs."""


class Statements:
    """The statements of the backend. Each kind of server adds those without a text here."""

    SCHEMA: ClassVar[Sequence[str]]
    """Makes the tables ``millstream_logs``, ``millstream_states`` and ``millstream_format`` where they are absent."""

    CREATE_BLOCKS: ClassVar[str]
    """Makes the table of a log's blocks where it is absent."""

    LEASE_TIME: ClassVar[str]
    """The server's clock, in microseconds since the epoch."""

    FORMAT = "SELECT max(version) FROM millstream_format"
    SET_FORMAT = "INSERT INTO millstream_format VALUES (?)"

    LOG_NAMES = "SELECT name FROM millstream_logs ORDER BY name"
    LOG_KINDS = """
        SELECT l.name, s.value FROM millstream_logs l
        LEFT JOIN millstream_states s ON s.log = l.name AND s.name = ? ORDER BY l.name
    """
    LAST_IDS = "SELECT name, last_id FROM millstream_logs"
    LOGS_OF_BLOCKS = "SELECT name FROM millstream_logs WHERE blocks = ?"
    LOG_BLOCKS = "SELECT blocks FROM millstream_logs WHERE name = ?"
    INSERT_LOG = "INSERT INTO millstream_logs (name, blocks, last_id) VALUES (?, ?, ?)"

    HEAD = """
        SELECT last_id, received_at, epoch, holder, lease_until,
               (SELECT value FROM millstream_states s WHERE s.log = l.name AND s.name = ?)
        FROM millstream_logs l WHERE l.name = ?
    """
    TAKE_LEASE = (
        "UPDATE millstream_logs SET epoch = epoch + 1, holder = ?, lease_until = ? WHERE name = ? AND epoch = ?"
    )
    RENEW_LEASE = "UPDATE millstream_logs SET lease_until = ? WHERE name = ? AND epoch = ? AND holder <> ''"
    RELEASE_LEASE = "UPDATE millstream_logs SET holder = '', lease_until = 0 WHERE name = ? AND epoch = ?"
    RENAME = "UPDATE millstream_logs SET name = ?, holder = '', lease_until = 0 WHERE name = ? AND epoch = ?"
    RENAME_STATES = "UPDATE millstream_states SET log = ? WHERE log = ?"

    BEGIN, COMMIT, ROLLBACK = "START TRANSACTION", "COMMIT", "ROLLBACK"
    MOVE_POINTER = (
        "UPDATE millstream_logs SET last_id = ?, received_at = ? WHERE name = ? AND epoch = ? AND last_id = ?"
    )

    BLOCK_EPOCH: ClassVar[str]
    """The epoch of the block that begins at an id."""

    BLOCK_RANGES: ClassVar[str]
    """First id, last id and bytes of the blocks from an id (given three times) to another, up to a number."""

    INDEX_COLUMNS = f"SELECT {', '.join(IndexEntry.__struct_fields__)}"
    BLOCK_INDEX: ClassVar[str]
    """What :class:`~millstream.log.ids.IndexEntry` has of the blocks from an id (given three times) to another."""

    READ_BLOCKS: ClassVar[str]
    """First id, last id and data of the blocks whose first ids lie between two."""

    FIRST_BLOCK_SINCE: ClassVar[str]
    """The same of the first block from an id (given three times) with a message that was received then or later."""

    STATISTICS: ClassVar[str]
    """What the blocks from an id (given three times) add up to, in the order of
    :class:`~millstream.log.backend.BlockStatistics`."""

    OLD_BLOCKS: ClassVar[str]
    """First id and bytes of the blocks that end below an id, the oldest first, up to a number."""

    DELETE_BLOCKS = "DELETE FROM {} WHERE first_id <= ?"
    """Blocks do not overlap, so all up to a block that ends below an id do."""

    VACUUM: ClassVar[str]
    """Gives the free space in the table back to the disk: for administrators, since it needs room for a copy of the
    table on a disk that only the server sees, and may lock the table meanwhile."""

    GET_STATE = "SELECT version, value FROM millstream_states WHERE log = ? AND name = ?"
    INSERT_STATE = "INSERT INTO millstream_states VALUES (?, ?, 1, ?)"
    UPDATE_STATE = (
        "UPDATE millstream_states SET version = version + 1, value = ? WHERE log = ? AND name = ? AND version = ?"
    )
    SETTLED = b"settled"
    """The name of a state of no log, which changes with each commit that was done and not confirmed."""
    TOUCH = "UPDATE millstream_states SET version = version + 1 WHERE log = '' AND name = ?"
    STATES: ClassVar[str]
    """Name, version and value of the states of a log whose names begin with this many bytes, these, in order."""
