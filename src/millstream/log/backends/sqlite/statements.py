"""Every statement of the SQLite backend, named."""

from __future__ import annotations

from millstream.log.ids import IndexEntry

VERSION = 2
"""The format of the file. In format 1 logs had no kind, and system logs the names of users' logs."""

SET_VERSION = f"PRAGMA user_version = {VERSION}"
PAGE_SIZE = 8192
WAL_BYTES_KEPT = 64 << 20  # what a large commit has made of the write-ahead log is cut to this

SCHEMA = (
    """
    CREATE TABLE logs (
        number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE,
        last_id INTEGER NOT NULL DEFAULT 0, received_at INTEGER NOT NULL DEFAULT 0,
        epoch INTEGER NOT NULL DEFAULT 0, holder BLOB NOT NULL DEFAULT x'', lease_until INTEGER NOT NULL DEFAULT 0
    )
    """,
    """
    CREATE TABLE states (
        log INTEGER NOT NULL, key TEXT NOT NULL, version INTEGER NOT NULL, value BLOB NOT NULL,
        PRIMARY KEY (log, key)
    ) WITHOUT ROWID
    """,
    SET_VERSION,
)

CREATE_BLOCKS = """
    CREATE TABLE IF NOT EXISTS blocks_{} (
        first_id INTEGER PRIMARY KEY, last_id INTEGER NOT NULL, epoch INTEGER NOT NULL, bytes INTEGER NOT NULL,
        min_event_time INTEGER NOT NULL, max_event_time INTEGER NOT NULL,
        min_received_at INTEGER NOT NULL, max_received_at INTEGER NOT NULL, data BLOB NOT NULL
    )
"""

LOG_NAMES = "SELECT name FROM logs ORDER BY name"
LOG_KINDS = """
    SELECT name, coalesce((SELECT value FROM states WHERE log = logs.number AND key = ?), x'') FROM logs ORDER BY name
"""
LAST_IDS = "SELECT name, last_id FROM logs"
LOG_NUMBER = "SELECT number FROM logs WHERE name = ?"
INSERT_LOG = "INSERT INTO logs (name, last_id) VALUES (?, ?) ON CONFLICT DO NOTHING"

HEAD = """
    SELECT last_id, received_at, epoch, holder, lease_until,
           (SELECT value FROM states WHERE log = logs.number AND key = ?)
    FROM logs WHERE number = ?
"""
TAKE_LEASE = "UPDATE logs SET epoch = epoch + 1, holder = ?, lease_until = ? WHERE number = ? AND epoch = ?"
RENEW_LEASE = "UPDATE logs SET lease_until = ? WHERE number = ? AND epoch = ? AND holder <> x''"
RENAME = "UPDATE logs SET name = ?, holder = x'', lease_until = 0 WHERE number = ? AND epoch = ?"
RELEASE_LEASE = "UPDATE logs SET holder = x'', lease_until = 0 WHERE number = ? AND epoch = ?"
MOVE_POINTER = "UPDATE logs SET last_id = ?, received_at = ? WHERE number = ? AND epoch = ? AND last_id = ?"

INSERT_BLOCK = "INSERT INTO blocks_{} VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_HOLDING = """
    FROM blocks_{0}
    WHERE first_id >= coalesce((SELECT max(first_id) FROM blocks_{0} WHERE first_id <= ?), ?) AND last_id >= ?
"""
"""Its values are the first id, three times: Python 3.12 takes ``?1`` for a name and warns of it."""

_UP_TO = _HOLDING + " AND first_id <= ? ORDER BY first_id"
READ_BLOCKS = "SELECT first_id, last_id, data" + _UP_TO
BLOCK_RANGES = "SELECT first_id, last_id, bytes" + _UP_TO
BLOCK_INDEX = f"SELECT {', '.join(IndexEntry.__struct_fields__)}" + _UP_TO
FIRST_BLOCK_SINCE = "SELECT first_id, last_id, bytes" + _HOLDING + " AND max_received_at >= ? ORDER BY first_id LIMIT 1"
STATISTICS = (
    """
    SELECT min(first_id), max(last_id), sum(last_id - first_id + 1), count(*), sum(bytes),
           min(min_event_time), max(max_event_time), min(min_received_at), max(max_received_at)
    """
    + _HOLDING
)

OLD_BLOCKS = "SELECT first_id, bytes FROM blocks_{} WHERE last_id < ? ORDER BY first_id LIMIT ?"
DELETE_BLOCKS = "DELETE FROM blocks_{} WHERE first_id <= ?"
"""Blocks do not overlap, so all up to a block that ends below an id do."""

GET_STATE = "SELECT version, value FROM states WHERE log = ? AND key = ?"
SET_STATE = """
    INSERT INTO states VALUES (?, ?, 1, ?)
    ON CONFLICT (log, key) DO UPDATE SET version = version + 1, value = excluded.value
"""
INSERT_STATE = "INSERT INTO states VALUES (?, ?, 1, ?) ON CONFLICT DO NOTHING"
UPDATE_STATE = "UPDATE states SET version = version + 1, value = ? WHERE log = ? AND key = ? AND version = ?"
STATES = "SELECT key, version, value FROM states WHERE log = ? AND substr(key, 1, ?) = ? ORDER BY key"
