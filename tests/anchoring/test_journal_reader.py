"""The journal is looked at: which batches, when they begin, why they ended, and which messages are in none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from millstream.anchoring.journal import BatchJournal
from millstream.anchoring.journal_reader import BatchFilter, CutReasonCount, JournalReader, RejectCount, RejectRow
from millstream.testing.batches import CONFIG, make_batch

HOUR = 3_600_000_000


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sa.Engine]:
    made = sa.create_engine(f"sqlite:///{tmp_path / 'node.db'}")
    yield made
    made.dispose()


@pytest.fixture
def reader(engine: sa.Engine) -> JournalReader:
    journal = BatchJournal(engine)
    batches = [
        make_batch([number], hour=number, cut="conflict" if number % 4 == 0 else "window") for number in range(1, 13)
    ]
    rejects = [(number, "late" if number % 2 else "duplicate") for number in range(100, 107)]
    journal.add("weather", CONFIG, batches, rejects)
    journal.add("tides", CONFIG, [make_batch([1], hour=24, cut="flush")], [(50, "future")])
    journal.reject({3: "a message of it is anchored already"})
    return JournalReader(engine)


def test_batches_are_found_by_log_time_end_and_state(reader: JournalReader) -> None:
    found = reader.batches()
    assert [row.number for row in found] == list(range(13, 0, -1))
    assert (found[0].log, found[0].ended, found[0].end) == ("tides", "flush", found[0].start)
    assert [row.number for row in reader.batches(BatchFilter("weather", ended="conflict"))] == [12, 8, 4]
    assert [row.number for row in reader.batches(BatchFilter(rejected=True))] == [3]
    fifth = reader.batches(BatchFilter("weather"), before=6, limit=1)[0]
    assert [row.number for row in reader.batches(BatchFilter(since=fifth.start, until=fifth.start + 2 * HOUR))] == [
        6,
        5,
    ]


def test_batches_over_time_add_up_and_each_bucket_finds_its_own(reader: JournalReader) -> None:
    rows = reader.starts(buckets=4)
    assert sum(row.batches for row in rows) == 13
    assert {row.ended for row in rows} == {"window", "conflict", "flush"}
    for row in rows:
        inside = reader.batches(BatchFilter(row.log, ended=row.ended, since=row.at, until=row.until))
        assert len(inside) == row.batches
    assert sum(row.batches for row in reader.starts(BatchFilter("weather"))) == 12
    assert reader.starts(BatchFilter("nothing")) == []


def test_why_batches_ended_and_messages_are_in_none_is_counted_and_listed(reader: JournalReader) -> None:
    assert reader.ends() == [
        CutReasonCount("tides", "flush", 1), CutReasonCount("weather", "conflict", 3), CutReasonCount("weather",
        "window", 9)
    ]  # fmt: skip
    assert reader.rejects() == [
        RejectCount("tides", "future", 1), RejectCount("weather", "duplicate", 4), RejectCount("weather", "late", 3)
    ]  # fmt: skip
    assert reader.rejected("weather", limit=2) == [
        RejectRow("weather", 100, "duplicate", None), RejectRow("weather", 101, "late", None)
    ]  # fmt: skip
    assert [row.id for row in reader.rejected("weather", reason="late", after=101)] == [103, 105]


def test_batches_of_a_node_without_these_columns_are_still_there(engine: sa.Engine) -> None:
    BatchJournal(engine).add("weather", CONFIG, [make_batch([1])], [])
    with engine.begin() as connection:
        for column in ("end", "ended"):
            connection.exec_driver_sql(f'ALTER TABLE anchor_batches DROP COLUMN "{column}"')
    journal, reader = BatchJournal(engine), JournalReader(engine)
    journal.add("weather", CONFIG, [make_batch([2], cut="size")], [])
    assert [(row.end is None, row.ended) for row in reader.batches()] == [(False, "size"), (True, None)]
    assert reader.ends() == [CutReasonCount("weather", None, 1), CutReasonCount("weather", "size", 1)]
    assert sum(row.batches for row in reader.starts()) == 2
