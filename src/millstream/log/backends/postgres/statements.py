"""Every statement of the PostgreSQL backend that is particular to this server, named."""

from __future__ import annotations

from millstream.log.backends.database.statements import Statements

_MAKING_TABLES = 0x6D696C6C  # the name of the advisory lock under which tables are made: that is no atomic matter here


class PostgresStatements(Statements):
    """``?`` is a value, ``{}`` the table of a log's blocks."""

    SESSION = """
        SELECT set_config('statement_timeout', '60s', false), set_config('lock_timeout', '10s', false),
               set_config('idle_in_transaction_session_timeout', '2s', false),
               set_config('default_transaction_isolation', 'read committed', false),
               set_config('default_transaction_read_only', ?, false),
               set_config('synchronous_commit', CASE current_setting('synchronous_commit')
                   WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, false)
    """
    """A writer that is stopped inside a transaction holds the log's row: the server ends it after two seconds. Where
    the server confirms before it has written, it does not do so for us."""

    CREATE_DATABASE = "CREATE DATABASE \"{}\" ENCODING 'UTF8' LOCALE 'C' TEMPLATE template0"
    SCHEMA = (
        f"""
        SELECT pg_advisory_xact_lock({_MAKING_TABLES});
        CREATE TABLE IF NOT EXISTS millstream_logs (
            name text COLLATE "C" PRIMARY KEY, blocks text NOT NULL,
            last_id bigint NOT NULL DEFAULT 0, received_at bigint NOT NULL DEFAULT 0,
            epoch bigint NOT NULL DEFAULT 0, holder bytea NOT NULL DEFAULT '', lease_until bigint NOT NULL DEFAULT 0
        ) WITH (fillfactor = 20);
        COMMENT ON COLUMN millstream_logs.blocks IS 'the table of its blocks';
        CREATE TABLE IF NOT EXISTS millstream_states (
            log text COLLATE "C" NOT NULL, name bytea NOT NULL CHECK (length(name) <= 1100),
            version bigint NOT NULL, value bytea NOT NULL, PRIMARY KEY (log, name)
        ) WITH (fillfactor = 50);
        CREATE TABLE IF NOT EXISTS millstream_format (version int PRIMARY KEY);
        """,
    )
    """Rows that every commit changes leave room on their page, so that no index is touched."""

    CREATE_BLOCKS = f"""
        SELECT pg_advisory_xact_lock({_MAKING_TABLES});
        CREATE TABLE IF NOT EXISTS {{0}} (
            first_id bigint PRIMARY KEY, last_id bigint NOT NULL, epoch bigint NOT NULL, bytes bigint NOT NULL,
            min_event_time bigint NOT NULL, max_event_time bigint NOT NULL,
            min_received_at bigint NOT NULL, max_received_at bigint NOT NULL, data bytea NOT NULL
        );
        ALTER TABLE {{0}} ALTER COLUMN data SET STORAGE EXTERNAL;
    """
    """Blocks are compressed already, so that the server need not try."""

    LEASE_TIME = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
    SET_FORMAT = Statements.SET_FORMAT + " ON CONFLICT DO NOTHING"
    INSERT_LOG = Statements.INSERT_LOG + " ON CONFLICT DO NOTHING"
    INSERT_STATE = Statements.INSERT_STATE + " ON CONFLICT DO NOTHING"

    MOVED = f"WITH moved AS ({Statements.MOVE_POINTER} RETURNING 1)"
    STORED = ", stored AS (INSERT INTO {} SELECT new.* FROM (VALUES {}) AS new WHERE EXISTS (SELECT FROM moved))"
    NOTED = """
        , noted AS (
            INSERT INTO millstream_states AS old SELECT ?, ?, 1, ? FROM moved
            ON CONFLICT (log, name) DO UPDATE SET version = old.version + 1, value = excluded.value
        )
    """
    WHETHER_MOVED = " SELECT count(*) FROM moved"
    """A commit is one statement of these parts, so that nothing is held between two, whatever happens to a writer."""

    INSERT_BLOCKS = "INSERT INTO {} VALUES {}"
    BLOCK_ROW = "(?, ?, ?, ?, ?, ?, ?, ?, ?)"
    BLOCK_EPOCH = "SELECT epoch FROM {} WHERE first_id = ?"

    _HOLDING = """
        FROM {0}
        WHERE first_id >= coalesce((SELECT max(first_id) FROM {0} WHERE first_id <= ?), ?) AND last_id >= ?
    """
    BLOCK_RANGES = "SELECT first_id, last_id, bytes" + _HOLDING + " AND first_id <= ? ORDER BY first_id LIMIT ?"
    BLOCK_INDEX = Statements.INDEX_COLUMNS + _HOLDING + " AND first_id <= ? ORDER BY first_id"
    READ_BLOCKS = "SELECT first_id, last_id, data FROM {} WHERE first_id BETWEEN ? AND ? ORDER BY first_id"
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
    OLD_BLOCKS = "SELECT first_id, bytes FROM {} WHERE last_id < ? ORDER BY first_id LIMIT ?"

    VACUUM = "VACUUM FULL {}"

    STATES = """
        SELECT name, version, value FROM millstream_states
        WHERE log = ? AND substring(name FROM 1 FOR ?::int) = ? ORDER BY name
    """

    DURABILITY_SETTINGS = """
        SELECT name, current_setting(name) FROM pg_settings
        WHERE name IN ('synchronous_commit', 'fsync', 'full_page_writes')
    """
    SERVER_SETTINGS = "SELECT name, current_setting(name) FROM pg_settings"


sql = PostgresStatements
"""Short, for where they are used."""
