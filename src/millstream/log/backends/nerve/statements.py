"""Every statement for the nerve layout, named. ``?`` is a value, ``{}`` a table."""

from __future__ import annotations

TABLE_NAMES = "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()"
CREATE_ROWS = """
    CREATE TABLE IF NOT EXISTS {} (id BIGINT UNSIGNED NOT NULL, data LONGBLOB NOT NULL, PRIMARY KEY (id))
    ENGINE = InnoDB
"""
CREATE_POINTERS = """
    CREATE TABLE IF NOT EXISTS {} (id VARCHAR(255) NOT NULL, ptr BIGINT UNSIGNED NOT NULL, PRIMARY KEY (id))
    ENGINE = InnoDB
"""

SIDE_TABLES = ("millstream_nerve_queues", "millstream_nerve_states")
SIDE_SCHEMA = (
    """
    CREATE TABLE IF NOT EXISTS millstream_nerve_queues (
        queue VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, shards INT NOT NULL,
        last_id BIGINT NOT NULL DEFAULT 0, leftover_id BIGINT NOT NULL DEFAULT 0,
        epoch BIGINT NOT NULL DEFAULT 0, holder VARBINARY(2000) NOT NULL DEFAULT '',
        lease_until BIGINT NOT NULL DEFAULT 0, PRIMARY KEY (queue, shards)
    ) ENGINE = InnoDB
    """,
    """
    CREATE TABLE IF NOT EXISTS millstream_nerve_states (
        queue VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, shards INT NOT NULL,
        name VARBINARY(1100) NOT NULL, version BIGINT NOT NULL, ptr BIGINT NOT NULL, value LONGBLOB NOT NULL,
        PRIMARY KEY (queue, shards, name)
    ) ENGINE = InnoDB
    """,
)
"""Data that the original lacks: the writer's lease, and acknowledgements out of order."""

ADD_QUEUE = """
    INSERT INTO millstream_nerve_queues (queue, shards) VALUES (?, ?) ON DUPLICATE KEY UPDATE shards = VALUES(shards)
"""
LEASE = "SELECT epoch, last_id, leftover_id FROM millstream_nerve_queues WHERE queue = ? AND shards = ?"
LEASE_SHARED = LEASE + " LOCK IN SHARE MODE"
LEASE_ALONE = LEASE + " FOR UPDATE"
TAKE_LEASE = """
    UPDATE millstream_nerve_queues SET epoch = epoch + 1, holder = ?, lease_until = ?, last_id = ?, leftover_id = ?
    WHERE queue = ? AND shards = ?
"""
RENEW_LEASE = """
    UPDATE millstream_nerve_queues SET lease_until = ? WHERE queue = ? AND shards = ? AND epoch = ? AND holder <> ''
"""
RELEASE_LEASE = """
    UPDATE millstream_nerve_queues SET holder = '', lease_until = 0 WHERE queue = ? AND shards = ? AND epoch = ?
"""
MOVE_LAST = """
    UPDATE millstream_nerve_queues SET last_id = ? WHERE queue = ? AND shards = ? AND epoch = ? AND last_id = ?
"""
HEAD = """
    SELECT p.ptr, q.epoch, q.holder, q.lease_until, s.value FROM (SELECT 1) AS one
    LEFT JOIN {} AS p ON p.id = ? LEFT JOIN millstream_nerve_queues AS q ON q.queue = ? AND q.shards = ?
    LEFT JOIN millstream_nerve_states AS s ON s.queue = ? AND s.shards = ? AND s.name = ?
"""
HEAD_OF_ORIGINAL = "SELECT ptr, NULL, NULL, NULL, NULL FROM {} WHERE id = ?"

POINTER = "SELECT ptr FROM {} WHERE id = ?"
POINTER_SHARED = POINTER + " LOCK IN SHARE MODE"
POINTER_ALONE = POINTER + " FOR UPDATE"
ADD_POINTER = "INSERT INTO {} VALUES (?, 0) ON DUPLICATE KEY UPDATE id = VALUES(id)"
MOVE_POINTER = "UPDATE {} SET ptr = ? WHERE id = ? AND ptr = ?"
SET_POINTER = "INSERT INTO {} VALUES (?, ?) ON DUPLICATE KEY UPDATE ptr = VALUES(ptr)"
POINTERS = "SELECT id, ptr FROM {} ORDER BY id"

INSERT_ROWS = "INSERT INTO {} (id, data) VALUES "
DELETE_ROWS = "DELETE FROM {} WHERE id BETWEEN ? AND ?"
READ_ROWS = "SELECT id, data FROM {} WHERE id BETWEEN ? AND ? ORDER BY id"
BYTES = "SELECT SUM(LENGTH(data)) FROM {} WHERE id BETWEEN ? AND ?"
FIRST_ID = "SELECT MIN(id) FROM {} WHERE id BETWEEN ? AND ?"
LAST_ID = "SELECT MAX(id) FROM {} WHERE id BETWEEN ? AND ?"
STRAYS = "SELECT COUNT(*) FROM {} WHERE id BETWEEN ? AND ? AND id MOD ? <> ?"
SIZE = """
    SELECT data_length, avg_row_length FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = ?
"""

GET_STATE = "SELECT version, value FROM millstream_nerve_states WHERE queue = ? AND shards = ? AND name = ?"
ADD_STATE = "INSERT INTO millstream_nerve_states VALUES (?, ?, ?, 1, 0, ?)"
UPDATE_STATE = """
    UPDATE millstream_nerve_states SET version = version + 1, value = ?
    WHERE queue = ? AND shards = ? AND name = ? AND version = ?
"""
SET_STATE = """
    INSERT INTO millstream_nerve_states VALUES (?, ?, ?, 1, 0, ?)
    ON DUPLICATE KEY UPDATE version = version + 1, value = VALUES(value)
"""
STATES = """
    SELECT name, version, value FROM millstream_nerve_states
    WHERE queue = ? AND shards = ? AND LEFT(name, ?) = ? ORDER BY name
"""

POSITION = """
    SELECT s.version, s.ptr, s.value, p.id, p.ptr FROM (SELECT 1) AS one
    LEFT JOIN millstream_nerve_states AS s ON s.queue = ? AND s.shards = ? AND s.name = ? LEFT JOIN {} AS p ON p.id = ?
"""
POSITION_ALONE = POSITION + " FOR UPDATE"
POSITION_OF_ORIGINAL = "SELECT NULL, NULL, NULL, id, ptr FROM {} WHERE id = ?"
PUT_POSITION = """
    INSERT INTO millstream_nerve_states VALUES (?, ?, ?, ?, ?, ?)
    ON DUPLICATE KEY UPDATE version = VALUES(version), ptr = VALUES(ptr), value = VALUES(value)
"""
STATE_OF_ALL = "SELECT queue, value FROM millstream_nerve_states WHERE name = ?"
