"""The journal is looked at: which batches, when they begin, why they ended, and which messages are in none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from millstream.anchoring.errors import JournalBusyError
from millstream.anchoring.journal import BatchJournal
from millstream.anchoring.journal_reader import BatchFilter, CutReasonCount, JournalReader, RejectCount, RejectRow
from millstream.anchoring.packing import pack_cut
from millstream.batching.event import CutReason
from millstream.core.clock import VirtualClock
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


def test_batches_of_packed_cuts_are_looked_at_as_those_with_rows_are(make_parts: Any) -> None:
    ends: list[CutReason] = ["window", "conflict", "flush"]
    batches = [make_batch([number], "ABC"[number % 3], number, cut=ends[number % 7 % 3]) for number in range(1, 31)]
    refused = {batches[21].batch: "refused by the test", batches[23].batch: "and this"}
    readers, journals = list[JournalReader](), list[BatchJournal]()
    for packed in (False, True):
        parts = make_parts(str(packed))
        for first in range(0, 30, 10):
            some = batches[first : first + 10]
            with pytest.MonkeyPatch.context() as patched:
                if first == 20:  # written down, and then found to be partly invalid
                    patched.setattr(parts.ledger, "append", lambda *_, **__: (_ for _ in ()).throw(JournalBusyError()))
                with contextlib.suppress(JournalBusyError):
                    if packed:
                        parts.writer.take("weather", pack_cut(parts.cas, some, 9000), config=CONFIG)
                    else:
                        parts.writer.add("weather", some, config=CONFIG)
                        parts.writer.cut(force=True)
        (cut,) = parts.journal.open_cuts()
        assert sorted(parts.journal.members(cut)) == sorted(batch.batch for batch in batches[20:])
        parts.journal.observed(cut, refused)
        parts.journal.add("weather", CONFIG, [make_batch([99], "A", 99)], [])
        readers.append(JournalReader(parts.engine))
        journals.append(parts.journal)
    rows, packs = readers
    assert len(packs.batches()) == 31
    for chosen in (
        BatchFilter(), BatchFilter("weather"), BatchFilter("tides"), BatchFilter(rejected=True),
        BatchFilter(ended="flush"), BatchFilter(ended="fl"), BatchFilter(since=batches[7].header.start),
        BatchFilter(since=batches[4].header.start, until=batches[22].header.start, ended="window"),
    ):  # fmt: skip
        for before in (None, 32, 31, 22, 20, 7, 1):
            for limit in (1, 5, 100):
                assert packs.batches(chosen, before=before, limit=limit) == rows.batches(
                    chosen, before=before, limit=limit
                )
        assert packs.starts(chosen) == rows.starts(chosen)
        assert packs.starts(chosen, buckets=3) == rows.starts(chosen, buckets=3)
    assert packs.ends() == rows.ends()
    assert packs.last_number() == rows.last_number() == 31
    for batch in batches:
        assert packs.batch("weather", batch.batch) == rows.batch("weather", batch.batch)
        assert packs.batch("tides", batch.batch) is None
        assert journals[1].status("weather", batch.batch) == journals[0].status("weather", batch.batch)
        assert journals[1].batch_of("weather", batch.ids[0]) == journals[0].batch_of("weather", batch.ids[0])
    assert journals[1].totals() == journals[0].totals()
    assert journals[1].rejected() == journals[0].rejected()
    names = [batch.batch for batch in batches]
    assert journals[1].known_roots("weather", names) == journals[0].known_roots("weather", names)
    assert journals[1].add("weather", CONFIG, batches, []) == journals[0].add("weather", CONFIG, batches, [])


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


def test_a_batch_waits_for_an_anchor_since_it_was_accepted_whenever_its_messages_were(
    make_parts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = VirtualClock()
    parts, began = make_parts(clock=clock), clock.now()
    reader = JournalReader(parts.engine)
    assert reader.first_waiting() is None
    for number in (1, 2):
        parts.writer.add("weather", [make_batch([number], hour=number)], config=CONFIG)
        clock.advance(60)
    assert reader.first_waiting() == began
    with monkeypatch.context() as patched:
        patched.setattr(parts.ledger, "append", lambda *_, **__: (_ for _ in ()).throw(JournalBusyError()))
        with contextlib.suppress(JournalBusyError):
            parts.writer.cut(force=True)
    assert parts.journal.open_cuts() and reader.first_waiting() == began, "it is in a cut, and not in the ledger"
    parts.writer.cut(force=True)
    assert reader.first_waiting() is None


def test_a_batch_of_an_earlier_release_waits_since_its_end(engine: sa.Engine) -> None:
    BatchJournal(engine).add("weather", CONFIG, [batch := make_batch([1])], [])
    assert JournalReader(engine).first_waiting() == batch.header.end
