"""What applications write in their transactions is in the log once, in order, on each kind of database."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.core.clock import VirtualClock
from millstream.core.message import Message
from millstream.log import Log, WriterBusyError
from millstream.log.backends.database.driver import DatabaseConnection, Value
from millstream.log.relay import (
    BatchLimits,
    Outbox,
    OutboxDatabase,
    OutboxError,
    OutboxTable,
    OutboxTakenError,
    PoisonRowError,
    Relay,
    open_outbox_database,
)
from support.faulty_connection import FaultyDriver
from support.outboxes import bodies, connect_application, count, insert, make_outbox, relay_all


def test_rows_become_messages_in_order_and_are_deleted(
    source: OutboxDatabase, application: DatabaseConnection, log: Log
) -> None:
    for number in range(20):
        insert(application, b"%d" % number)
    relay = relay_all(source, log, limits=BatchLimits(rows=7))
    assert bodies(log) == [b"%d" % number for number in range(20)]
    assert (relay.relayed.messages, relay.relayed.batches, relay.relayed.last_id) == (20, 3, 20)
    assert count(application) == 0
    insert(application, b"more")
    relay_all(source, log)
    assert bodies(log)[20:] == [b"more"]


def test_every_column_comes_over(source: OutboxDatabase, application: DatabaseConnection, log: Log) -> None:
    key = source.outbox_dialect.quoted("key")
    headers = "?::json" if source.url.startswith("postgresql:") else "?"
    statement = f"INSERT INTO outbox (source, {key}, event_time, headers, body) VALUES (?, ?, ?, {headers}, ?)"
    application.execute(statement, "shop", "ordër", 5, '{"b": "2", "a": "1"}', b"\x00\xff'\\")
    relay_all(source, log)
    (message,) = [m for batch in log.read() for m in batch]
    expected = Message(b"\x00\xff'\\", "ordër", "shop", 5, message.received_at, (("b", b"2"), ("a", b"1")), 1)
    assert message == expected


def test_what_was_rolled_back_is_not_there_and_leaves_no_hole(
    source: OutboxDatabase, application: DatabaseConnection, log: Log
) -> None:
    for number in range(9):
        application.execute(source.outbox_dialect.begin)
        insert(application, b"%d" % number)
        insert(application, b"%d'" % number)
        application.execute("ROLLBACK" if number % 3 == 1 else "COMMIT")
    relay_all(source, log, limits=BatchLimits(rows=5))
    expected = [b"%d%b" % (number, end) for number in range(9) if number % 3 != 1 for end in (b"", b"'")]
    assert bodies(log) == expected
    assert count(application) == 0


def test_more_gaps_than_are_worth_ranges_are_taken_out_by_their_ids(
    source: OutboxDatabase, application: DatabaseConnection, log: Log
) -> None:
    application.execute(source.outbox_dialect.begin)
    for number in range(1, 1600, 2):
        application.execute("INSERT INTO outbox (id, body) VALUES (?, ?)", number, b"%d" % number)
    application.execute("COMMIT")
    relay_all(source, log)
    assert bodies(log) == [b"%d" % number for number in range(1, 1600, 2)]
    assert count(application) == 0


def test_large_rows_make_small_batches(source: OutboxDatabase, application: DatabaseConnection, log: Log) -> None:
    for size in (10, 3000, 3000, 10, 50_000, 10):
        insert(application, b"x" * size)
    relay = relay_all(source, log, limits=BatchLimits(bytes=4000))
    assert [len(body) for body in bodies(log)] == [10, 3000, 3000, 10, 50_000, 10]
    assert relay.relayed.batches == 4


def test_rows_may_be_kept_and_marked(
    database_url: str, source: OutboxDatabase, application: DatabaseConnection, log: Log
) -> None:
    application.execute("ALTER TABLE outbox ADD COLUMN moved_at TIMESTAMP NULL")
    table = OutboxTable(mark="moved_at")
    for number in range(10):
        insert(application, b"%d" % number)
    relay_all(source, log, table=table, limits=BatchLimits(rows=4))
    insert(application, b"10")
    relay_all(source, log, table=table)
    assert bodies(log) == [b"%d" % number for number in range(11)]
    assert count(application) == 11
    assert not application.rows("SELECT id FROM outbox WHERE moved_at IS NULL")


def test_columns_may_have_names_and_types_of_the_application(
    database_url: str, source: OutboxDatabase, application: DatabaseConnection, log: Log
) -> None:
    types = {
        "sqlite": ("INTEGER PRIMARY KEY", "TEXT", "TEXT"),
        "mysql": ("INT AUTO_INCREMENT PRIMARY KEY", "DATETIME(6)", "JSON"),
        "postgresql": ("serial PRIMARY KEY", "timestamptz", "jsonb"),
    }[database_url.partition(":")[0]]
    application.execute("CREATE TABLE events (number {}, happened {}, payload {})".format(*types))
    application.execute(
        "INSERT INTO events (happened, payload) VALUES ('2013-01-31 12:00:00.5', '{\"temperature\": -3}')"
    )
    table = OutboxTable(name="events", id="number", body="payload", event_time="happened")
    relay_all(source, log, table=table)
    (message,) = [m for batch in log.read() for m in batch]
    assert message.body.replace(b" ", b"") == b'{"temperature":-3}'
    assert message.event_time == 1_359_633_600_500_000
    application.execute("DROP TABLE events_relay")


def test_a_table_that_cannot_be_an_outbox_is_refused(
    source: OutboxDatabase, application: DatabaseConnection, log: Log
) -> None:
    with pytest.raises(OutboxError, match="table elsewhere does not exist"):
        Outbox(source, OutboxTable(name="elsewhere"), "orders")
    with pytest.raises(OutboxError, match="no column payload, colour"):
        Outbox(source, OutboxTable(body="payload", key="colour"), "orders")
    with pytest.raises(OutboxError, match="integers"):
        insert(application, b"x")
        relay_all(source, log, table=OutboxTable(id="source"))


# Rows that are no messages


def spoil(application: DatabaseConnection, number: int) -> None:
    application.execute("UPDATE outbox SET event_time = NULL, headers = '[1]' WHERE id = ?", number)


def test_a_row_that_is_no_message_stops_the_relay_after_all_before_it(
    source: OutboxDatabase, application: DatabaseConnection, log: Log
) -> None:
    for number in range(1, 7):
        insert(application, b"%d" % number)
    spoil(application, 4)
    for _ in range(2):
        with pytest.raises(PoisonRowError, match=r"row 4 of outbox .* headers"):
            relay_all(source, log)
        assert bodies(log) == [b"1", b"2", b"3"]
        assert count(application) == 3
    application.execute("UPDATE outbox SET headers = NULL WHERE id = 4")
    relay_all(source, log)
    assert bodies(log) == [b"%d" % number for number in range(1, 7)]


def test_rows_that_are_no_messages_may_be_put_aside(
    source: OutboxDatabase, application: DatabaseConnection, log: Log
) -> None:
    for number in range(1, 7):
        insert(application, b"%d" % number)
    spoil(application, 1)
    spoil(application, 4)
    relay = relay_all(source, log, bad="dead", limits=BatchLimits(rows=1))
    assert bodies(log) == [b"2", b"3", b"5", b"6"]
    assert relay.relayed.dead == 2
    assert count(application) == 0
    dead = application.rows("SELECT id, body, dead_reason FROM outbox_dead ORDER BY id")
    assert [(number, bytes(body)) for number, body, _ in dead] == [(1, b"1"), (4, b"4")]
    assert "headers" in dead[0][2]


def test_columns_are_found_whatever_their_case_where_the_database_does_not_care(tmp_path: Path, log: Log) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "application.db")) as made:
        made.execute("CREATE TABLE outbox (ID INTEGER PRIMARY KEY, Body BLOB, Key TEXT, Event_Time INTEGER)")
        made.execute("INSERT INTO outbox VALUES (1, ?, 'k', 5)", (b"x",))
        made.commit()
    with contextlib.closing(open_outbox_database(f"sqlite:///{tmp_path}/application.db", VirtualClock())) as source:
        relay_all(source, log)
    (message,) = [m for batch in log.read() for m in batch]
    assert (message.body, message.key, message.event_time) == (b"x", "k", 5)


def test_text_that_is_not_utf8_is_one_bad_row_of_sqlite(tmp_path: Path, log: Log) -> None:
    url = f"sqlite:///{tmp_path}/application.db"
    sqlite3.connect(tmp_path / "application.db").close()
    make_outbox(url)
    with contextlib.closing(connect_application(url)) as application:
        insert(application, b"1")
        application.execute("INSERT INTO outbox (body, key) VALUES (?, CAST(x'ff' AS TEXT))", b"2")
        insert(application, b"3")
        with contextlib.closing(open_outbox_database(url, VirtualClock())) as source:
            relay_all(source, log, bad="dead")
        assert bodies(log) == [b"1", b"3"]
        assert [row[0] for row in application.rows("SELECT dead_reason FROM outbox_dead")] == ["the key is not UTF-8"]


def test_a_row_larger_than_a_message_is_put_aside_without_being_fetched(
    source: OutboxDatabase, application: DatabaseConnection, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.log.relay.rows.MAX_ROW_BYTES", 10_000)
    for size in (10, 20_000, 10):
        insert(application, b"x" * size)
    relay_all(source, log, bad="dead", limits=BatchLimits(bytes=5000))
    assert [len(body) for body in bodies(log)] == [10, 10]
    assert [row[0] for row in application.rows("SELECT id FROM outbox_dead")] == [2]


# Several relays


def test_p10_one_writer_a_second_relay_is_told_who_moves_the_outbox(
    source: OutboxDatabase, application: DatabaseConnection, log: Log
) -> None:
    with log.writer(), pytest.raises(WriterBusyError, match="is being written by process"):
        relay_all(source, log)


def test_an_outbox_that_another_log_may_have_a_part_of_is_not_taken(
    source: OutboxDatabase, application: DatabaseConnection, log: Log
) -> None:
    insert(application, b"1")
    first = Outbox(source, OutboxTable(), "elsewhere")
    batch = first.advance(first.progress(), 1)
    assert batch is not None
    with pytest.raises(OutboxTakenError, match="has an unfinished batch for log elsewhere"):
        relay_all(source, log)
    relay_all(source, log, adopt=True)
    assert bodies(log) == [b"1"]
    with pytest.raises(OutboxTakenError, match="was taken over by a relay to log orders"):
        first.advance(batch.progress, 2)


def test_a_batch_of_a_relay_to_another_log_is_not_appended(
    source: OutboxDatabase, application: DatabaseConnection, log: Log
) -> None:
    """A relay follows while another one is started to another log, and has a batch under way there."""
    relay = Relay(Outbox(source, OutboxTable(), "orders"), log, VirtualClock())
    other = Outbox(source, OutboxTable(), "elsewhere")
    insert(application, b"1")
    assert other.advance(other.progress(), 1)
    with pytest.raises(OutboxTakenError, match="was taken over by a relay to log elsewhere"):
        list(relay.follow())
    assert bodies(log) == []


def test_an_outbox_that_moves_while_another_relay_claims_it_is_not_taken(
    database_url: str, source: OutboxDatabase, application: DatabaseConnection
) -> None:
    first = Outbox(source, OutboxTable(), "orders")
    insert(application, b"1")

    class Meanwhile(FaultyDriver[Any]):
        """The first relay moves between the look at the outbox and its claim."""

        def __call__(self, place: Any, *, database: bool = True) -> DatabaseConnection:
            connection = super().__call__(place, database=database)
            execute = connection.execute

            def advance_first(statement: str, *values: Value) -> int:
                if "SET target" in statement:
                    first.advance(first.progress(), 1)
                return execute(statement, *values)

            connection.execute = advance_first  # type: ignore[method-assign]
            return connection

    with (
        contextlib.closing(open_outbox_database(database_url, VirtualClock(), wrap_driver=Meanwhile)) as late,
        pytest.raises(OutboxTakenError, match="was taken over by a relay to log orders"),
    ):
        Outbox(late, OutboxTable(), "elsewhere")


def test_a_relay_that_slept_while_another_went_on_changes_nothing(
    source: OutboxDatabase, application: DatabaseConnection, log: Log
) -> None:
    insert(application, b"1")
    slow = Outbox(source, OutboxTable(), "orders")
    batch = slow.advance(slow.progress(), 1)
    assert batch is not None
    relay_all(source, log)
    insert(application, b"2")
    assert slow.advance(batch.progress, 2) is None
    slow.finish(batch.progress)
    assert count(application) == 1
    relay_all(source, log)
    assert bodies(log) == [b"1", b"2"]


def test_a_log_that_is_ahead_of_its_outbox_takes_nothing_for_what_it_has(
    source: OutboxDatabase, application: DatabaseConnection, log: Log, caplog: Any
) -> None:
    """As after the application's database was restored from a copy."""
    insert(application, b"1")
    relay_all(source, log)
    application.execute("UPDATE outbox_relay SET number = 0")
    insert(application, b"2")
    relay_all(source, log)
    assert bodies(log) == [b"1", b"2"]
    assert caplog.text.count("restored from a backup") == 1


def test_a_log_that_lost_batches_is_named(
    source: OutboxDatabase, application: DatabaseConnection, log: Log, caplog: Any
) -> None:
    insert(application, b"1")
    relay_all(source, log)
    relay_all(source, log)
    assert "lost messages" not in caplog.text
    application.execute("UPDATE outbox_relay SET number = 9")  # as if the log was restored from a backup
    for body in (b"2", b"3"):
        insert(application, body)
        relay_all(source, log)
    assert bodies(log) == [b"1", b"2", b"3"]
    assert caplog.text.count("log orders ends with batch 1 of outbox outbox, but got batch 9") == 1


def test_a_log_that_lost_batches_is_named_once_while_nothing_comes(
    source: OutboxDatabase, application: DatabaseConnection, log: Log, caplog: Any
) -> None:
    insert(application, b"1")
    relay_all(source, log)
    application.execute("UPDATE outbox_relay SET number = 9")
    clock, looks = VirtualClock(), iter(range(30))
    relay = Relay(Outbox(source, OutboxTable(), "orders"), log, clock, stopped=lambda: next(looks, None) is None)
    for _ in relay.follow():
        pass
    assert clock.monotonic() > 1  # it has looked several times
    assert caplog.text.count("lost messages") == 1


# Transactions that end in another order than they began


def test_a_row_that_becomes_visible_late_is_moved_late_and_not_lost(
    server_database_url: str, server_source: OutboxDatabase, connect: Callable[[str], DatabaseConnection], log: Log
) -> None:
    slow, quick = connect(server_database_url), connect(server_database_url)
    slow.execute(server_source.outbox_dialect.begin)
    insert(slow, b"slow")
    insert(quick, b"quick")
    relay_all(server_source, log)
    assert bodies(log) == [b"quick"]
    insert(quick, b"quicker")
    slow.execute("COMMIT")
    relay_all(server_source, log)
    assert bodies(log) == [b"quick", b"slow", b"quicker"]
    assert count(quick) == 0


def test_the_relay_waits_for_no_transaction_and_none_waits_for_it(
    server_database_url: str, server_source: OutboxDatabase, connect: Callable[[str], DatabaseConnection], log: Log
) -> None:
    """While rows on both sides and between are not committed, what is committed goes, and more can be added."""
    applications = [connect(server_database_url) for _ in range(5)]
    for number, application in enumerate(applications):
        application.execute(server_source.outbox_dialect.begin)
        insert(application, b"%d" % number)
        if number == 1:
            insert(application, b"1'")
    for number in (1, 3):
        applications[number].execute("COMMIT")
    outbox = Outbox(server_source, OutboxTable(), "orders")
    batch = outbox.advance(outbox.progress(), 1)
    assert batch is not None
    assert [message.body for message in batch.messages] == [b"1", b"1'", b"3"]
    insert(applications[0], b"0'")
    batch = outbox.advance(batch.progress, 2)
    assert batch is not None
    assert not batch.messages
    for number in (0, 2, 4):
        applications[number].execute("COMMIT")
    relay_all(server_source, log)
    assert bodies(log) == [b"0", b"2", b"4", b"0'"]
