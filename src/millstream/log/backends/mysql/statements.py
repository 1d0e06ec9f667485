"""Every statement of the MariaDB and MySQL backend that is particular to these servers, named."""

from __future__ import annotations

from millstream.log.backends.database.statements import Statements


class MysqlStatements(Statements):
    """``?`` is a value, ``{}`` the table of a log's blocks."""

    SESSION = """
        SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', autocommit = 1,
        innodb_lock_wait_timeout = 10, time_zone = '+00:00'
        /*M!100300 , idle_transaction_timeout = 2 */ /*!50700 , wait_timeout = 60 */
    """
    """A writer that is stopped in a transaction holds the log's row; MariaDB ends its connection after two seconds, so
    that another one can take over. A commit that only paused so long is done again. MySQL has no such limit: it ends a
    connection that gives it nothing to do for a minute (MariaDB passes over comments of that version). The time of
    leases is computed from the session's local time, which jumps by an hour when summer time ends: it has to be UTC."""

    SESSION_READ_ONLY = "SET SESSION TRANSACTION READ ONLY"
    PACKET_BYTES = "SELECT @@max_allowed_packet"

    CREATE_DATABASE = "CREATE DATABASE IF NOT EXISTS `{}` CHARACTER SET utf8mb4"
    SCHEMA = (
        """
        CREATE TABLE IF NOT EXISTS millstream_logs (
            name VARCHAR(200) CHARACTER SET ascii COLLATE ascii_bin PRIMARY KEY,
            blocks VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'the table of its blocks',
            last_id BIGINT NOT NULL DEFAULT 0, received_at BIGINT NOT NULL DEFAULT 0,
            epoch BIGINT NOT NULL DEFAULT 0, holder VARBINARY(2000) NOT NULL DEFAULT '',
            lease_until BIGINT NOT NULL DEFAULT 0
        ) ENGINE = InnoDB
        """,
        """
        CREATE TABLE IF NOT EXISTS millstream_states (
            log VARCHAR(200) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, name VARBINARY(1100) NOT NULL,
            version BIGINT NOT NULL, value LONGBLOB NOT NULL, PRIMARY KEY (log, name)
        ) ENGINE = InnoDB
        """,
        "CREATE TABLE IF NOT EXISTS millstream_format (version INT PRIMARY KEY) ENGINE = InnoDB",
    )

    CREATE_BLOCKS = """
        CREATE TABLE IF NOT EXISTS {} (
            first_id BIGINT NOT NULL, part INT NOT NULL, last_id BIGINT NOT NULL, epoch BIGINT NOT NULL,
            bytes BIGINT NOT NULL, min_event_time BIGINT NOT NULL, max_event_time BIGINT NOT NULL,
            min_received_at BIGINT NOT NULL, max_received_at BIGINT NOT NULL, data LONGBLOB NOT NULL,
            PRIMARY KEY (first_id, part)
        ) ENGINE = InnoDB ROW_FORMAT = DYNAMIC
    """
    """A block larger than a packet of the server lies in several rows, its parts 0, 1, 2 …"""

    LEASE_TIME = "SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)"
    INSERT_BLOCKS = "INSERT INTO {} VALUES "
    BLOCK_ROW = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    BLOCK_EPOCH = "SELECT epoch FROM {} WHERE first_id = ? AND part = 0"

    _HOLDING = """
        FROM {0}
        WHERE part = 0 AND first_id >= coalesce((SELECT max(first_id) FROM {0} WHERE first_id <= ?), ?) AND last_id >= ?
    """
    BLOCK_RANGES = "SELECT first_id, last_id, bytes" + _HOLDING + " AND first_id <= ? ORDER BY first_id LIMIT ?"
    BLOCK_INDEX = Statements.INDEX_COLUMNS + _HOLDING + " AND first_id <= ? ORDER BY first_id"
    READ_BLOCKS = "SELECT first_id, last_id, data FROM {} WHERE first_id BETWEEN ? AND ? ORDER BY first_id, part"
    FIRST_BLOCK_SINCE = (
        "SELECT first_id, last_id, bytes" + _HOLDING + " AND max_received_at >= ? ORDER BY first_id LIMIT 1"
    )
    STATISTICS = (
        """
        SELECT min(first_id), max(last_id), sum(last_id - first_id + 1), count(*), sum(bytes),
               min(min_event_time), max(max_event_time), min(min_received_at), max(max_received_at)
        """
        + _HOLDING
    )
    OLD_BLOCKS = "SELECT first_id, bytes FROM {} WHERE part = 0 AND last_id < ? ORDER BY first_id LIMIT ?"

    VACUUM = "OPTIMIZE TABLE {}"

    SET_STATE = """
        INSERT INTO millstream_states VALUES (?, ?, 1, ?)
        ON DUPLICATE KEY UPDATE version = version + 1, value = VALUES(value)
    """
    STATES = "SELECT name, version, value FROM millstream_states WHERE log = ? AND LEFT(name, ?) = ? ORDER BY name"

    DURABILITY_SETTINGS = """
        SHOW GLOBAL VARIABLES WHERE Variable_name IN ('innodb_flush_log_at_trx_commit', 'log_bin', 'sync_binlog',
        'innodb_doublewrite', 'innodb_flush_method')
    """
    SERVER_SETTINGS = "SHOW GLOBAL VARIABLES"


sql = MysqlStatements
"""Short, for where they are used."""
