"""What the original writes we read, and what we write the original reads; what is damaged is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.log import (
    DamagedLogError,
    Gap,
    IdRange,
    Log,
    LogInputError,
    LogNotFoundError,
    LogSpec,
    MissingBlockError,
    copy_log,
    open_store,
)
from millstream.log.backends.mysql import parse_address
from millstream.log.backends.mysql.driver import choose_driver
from millstream.log.backends.nerve import reading as reading_module
from support.nerve_original import NAME, SPEC, OpenOriginal, OriginalQueue, bodies

# Both directions


def test_what_the_original_wrote_is_read_with_its_ids(original: OriginalQueue, log: Log) -> None:
    found = [message for batch in log.read() for message in batch]
    assert [(m.id, m.body) for m in found] == [(n, b"%d" % n) for n in range(1, 101)]
    assert {(m.source, m.key, m.headers, m.received_at) for m in found} == {("", "", (), 0)}
    assert [m.body for batch in log.read(50, 52) for m in batch] == [b"50", b"51", b"52"]
    assert log.verify().ok
    assert log.verify().messages == log.info().count == 100


def test_what_we_write_the_original_reads(log: Log, open_original: OpenOriginal) -> None:
    packs = [[b"a", b"", b"\x00'\\\xff"], [b"%d" % n for n in range(5000)], [b"z"]]
    with log.writer() as writer:
        ids = [writer.append(pack) for pack in packs]
    assert ids == [IdRange(1, 3), IdRange(4, 5003), IdRange(5004, 5004)]
    theirs = open_original()
    assert theirs.pointer() == 5004
    expected = list(enumerate([body for pack in packs for body in pack], 1))
    assert theirs.packets(1, 6000) == expected
    assert bodies(log) == [body for _, body in expected]


def test_publishers_take_turns(original: OriginalQueue, log: Log, open_original: OpenOriginal) -> None:
    with log.writer() as writer:
        writer.append([b"ours"] * 5)
    later = open_original()
    assert later.counter == 105
    later.send([b"theirs"] * 5)
    with log.writer() as writer:
        assert writer.append([b"ours again"]) == IdRange(111, 111)
    assert bodies(log, 101) == [b"ours"] * 5 + [b"theirs"] * 5 + [b"ours again"]
    assert log.verify().ok


def test_consumers_go_on_where_the_other_program_left_them(original: OriginalQueue, log: Log) -> None:
    original.move("billing", 40)
    with log.reader("billing") as reader:
        assert next(reader.batches(10)).ids == IdRange(41, 50)
        reader.ack(IdRange(41, 50))
        reader.ack(IdRange(60, 70))
    assert original.pointer("billing") == 50
    with log.reader("billing") as reader:
        assert [m.id for batch in reader.batches() for m in batch] == [*range(51, 60), *range(71, 101)]
    original.move("billing", 80)
    assert log.info().consumers == {"billing": 80}
    with log.reader("billing") as reader:
        assert [m.id for batch in reader.batches() for m in batch] == list(range(81, 101))
        reader.ack(IdRange(81, 100))
    assert original.pointer("billing") == 100


def test_a_queue_that_only_the_original_uses_is_read_without_a_change_to_its_database(
    original: OriginalQueue, queues: str
) -> None:
    original.move("billing", 7)
    for table in ("queues", "states"):
        original.execute(f"DROP TABLE IF EXISTS millstream_nerve_{table}")
    with open_store(f"{queues}?layout=nerve", read_only=True) as store:
        log = store.log(SPEC, create=False)
        assert len(bodies(log)) == 100
        assert log.info().consumers == {"billing": 7}
        assert log.info().writer is None
        assert log.verify().ok
    connection = choose_driver(parse_address(queues))(parse_address(queues))
    assert not connection.rows("SHOW TABLES LIKE 'millstream_nerve%'")
    connection.close()


def test_rows_above_the_pointer_are_seen_by_nobody_and_give_way_to_the_next_writer(
    original: OriginalQueue, log: Log
) -> None:
    original.insert([b"never confirmed"] * 7)
    assert len(bodies(log)) == log.last_id == 100
    assert [block.last_id for block in log.block_ranges()] == [100]
    with log.writer() as writer:
        writer.append([b"a"] * 3)
        assert bodies(log, 101) == [b"a"] * 3
        writer.append([b"b"] * 3000)
    assert bodies(log, 101) == [b"a"] * 3 + [b"b"] * 3000
    assert log.verify().ok


# Counts of tables


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            "layout=nerve&shards=8",
            r"with 3 shards \(3 of 3 tables exist\), but the URL says shards=8: use shards=3, or",
        ),
        (
            "layout=nerve&shards=3&pointers=1",
            r"with 2 pointers \(2 of 2 tables exist\), but the URL says pointers=1: use pointers=2, or",
        ),
    ],
)
def test_another_count_than_the_one_that_exists_is_refused_with_what_was_found(
    original: OriginalQueue, queues: str, options: str, told: str
) -> None:
    for create in (True, False):
        with open_store(f"{queues}?{options}") as store, pytest.raises(LogInputError, match=told):
            store.log(SPEC, create=create)
    with pytest.raises(AssertionError), open_store(f"{queues}?{options}") as store:
        raise AssertionError(store.logs())


def test_the_count_that_exists_is_found_and_two_are_refused(
    original: OriginalQueue, queues: str, open_original: Callable[[int, int], OriginalQueue]
) -> None:
    with open_store(f"{queues}?layout=nerve") as store:
        assert store.logs() == [NAME]
        assert len(bodies(store.log(SPEC))) == 100
    open_original(5, 2)
    with (
        open_store(f"{queues}?layout=nerve") as store,
        pytest.raises(LogInputError, match=r"3 shards \(.* exist\), 5 shards \(.* use shards=3 or shards=5"),
    ):
        store.log(SPEC)
    with open_store(f"{queues}?layout=nerve&shards=3") as store:
        assert len(bodies(store.log(SPEC))) == 100
    with open_store(f"{queues}?layout=nerve&shards=5") as store, pytest.raises(MissingBlockError, match="1 to 100"):
        bodies(store.log(SPEC))


def test_a_new_queue_has_the_tables_of_the_document(queues: str) -> None:
    with open_store(f"{queues}?layout=nerve") as store:
        store.log(LogSpec("NQLocalTest"))
        with pytest.raises(LogInputError, match="at most 40 characters"):
            store.log(LogSpec("x" * 41))
        with pytest.raises(LogNotFoundError):
            store.log(LogSpec("other"), create=False)
    connection = choose_driver(parse_address(queues))(parse_address(queues))
    names = {str(name) for (name,) in connection.rows("SHOW TABLES LIKE 'queue%'")}
    connection.close()
    assert names == {f"queue_NQLocalTest_004_{n:04d}" for n in range(4)} | {"queue_NQLocalTest_001_0000_pointers"}


def test_a_queue_whose_pointers_are_gone_is_not_begun_anew(original: OriginalQueue, log: Log, url: str) -> None:
    for number in range(2):
        original.execute(f"DROP TABLE queue_{NAME}_002_{number:04d}_pointers")
    with open_store(url) as store, pytest.raises(DamagedLogError, match="no tables for pointers"):
        store.log(SPEC)


# Damage


def test_a_missing_row_is_told_and_does_not_hold_up_the_pointer(original: OriginalQueue, log: Log) -> None:
    """Nerve: the id was skipped without a word, and the pointer stuck before it for ever."""
    original.execute(f"DELETE FROM queue_{NAME}_003_0000 WHERE id = 51")
    with log.reader("worker") as reader:
        with pytest.raises(MissingBlockError, match="ids 51 to 51"):
            for batch in reader.batches():
                reader.ack(batch.ids)
        assert reader.pointer == 50
    log.set_pointer("worker", 51)
    with log.reader("worker") as reader:
        assert [m.id for batch in reader.batches() for m in batch] == list(range(52, 101))
        reader.ack(IdRange(52, 100))
    assert original.pointer("worker") == 100
    assert log.verify().problems == ("ids 51 to 51 are missing",)


def test_an_empty_answer_for_ids_that_should_be_there_is_an_error_not_a_crash(
    original: OriginalQueue, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nerve: index out of range."""
    monkeypatch.setattr(reading_module, "_FIRST_SPAN", 4)
    for shard in range(3):
        original.execute(f"DELETE FROM queue_{NAME}_003_{shard:04d} WHERE id BETWEEN 21 AND 60")
    seen: list[int] = []
    with pytest.raises(MissingBlockError, match="ids 21 to 60"):
        for batch in log.read():
            seen += batch.ids
    assert seen == list(range(1, 21))
    for shard in range(3):
        original.execute(f"DELETE FROM queue_{NAME}_003_{shard:04d}")
    with pytest.raises(MissingBlockError, match="ids 1 to 100"):
        list(log.read())
    assert list(log.block_ranges()) == []
    with pytest.raises(DamagedLogError, match="should end at id 100"):
        log.writer()


def test_a_row_in_a_table_where_it_does_not_belong_is_told(original: OriginalQueue, log: Log) -> None:
    original.execute(f"INSERT INTO queue_{NAME}_003_0001 VALUES (51, 'twice')")
    with pytest.raises(DamagedLogError, match=r"id 51 .* is in two tables"):
        list(log.read())
    assert log._backend.check(NAME) == ["rows whose ids belong in other tables: 1"]


def test_a_pointer_far_behind_its_rows_is_not_believed(original: OriginalQueue, log: Log) -> None:
    original.execute(f"INSERT INTO queue_{NAME}_003_0000 VALUES (3000000, 'x')")
    with pytest.raises(DamagedLogError, match="Set the pointer to the id of the last confirmed message"):
        log.writer()


def test_missing_rows_come_as_a_gap_to_whoever_asks_for_all(original: OriginalQueue, log: Log) -> None:
    for number in (50, 51, 52):
        original.execute(f"DELETE FROM queue_{NAME}_003_{number % 3:04d} WHERE id = {number}")
    found = list(log.read(gaps="all"))
    assert [(part.first_id, part.last_id, isinstance(part, Gap)) for part in found] == [
        (1, 49, False),
        (50, 52, True),
        (53, 100, False),
    ]


def test_a_queue_whose_old_rows_somebody_has_deleted_is_trimmed_to_what_is_there(
    original: OriginalQueue, log: Log, tmp_path: Path
) -> None:
    for shard in range(3):
        original.execute(f"DELETE FROM queue_{NAME}_003_{shard:04d} WHERE id <= 40")
    with pytest.raises(MissingBlockError, match="ids 1 to 40"):
        list(log.read())
    log.trim(41)
    assert bodies(log)[0] == b"41"
    assert log.verify().ok
    with open_store(f"sqlite:///{tmp_path / 'log.db'}") as store:
        target = store.log(SPEC, first_id=41)
        assert copy_log(log, target).messages == 60
        assert target.verify().ok
