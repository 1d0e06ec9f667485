"""The part of the log's conformance suite that is about what was trimmed: low-water mark, gaps, pointers over them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millstream.core.message import Message
from millstream.log import (
    Gap,
    IdRange,
    Log,
    LogInputError,
    LogSpec,
    LogStore,
    TrimmedError,
)
from millstream.testing.log_backends import NAME


class GapConformance:
    """What a log store does with what was trimmed. Needs the fixture ``open_logs``."""

    @pytest.fixture
    def open_logs(self) -> Callable[[], LogStore]:
        """A function that opens the same store each time it is called."""
        raise LookupError("a conformance test requires the fixture open_logs: define it in your test class")

    @pytest.fixture
    def log(self, open_logs: Callable[[], LogStore]) -> Log:
        """An empty log."""
        return open_logs().log(LogSpec(NAME))

    def test_a_trimmed_log_begins_at_its_low_water_mark(self, log: Log, open_logs: Callable[[], LogStore]) -> None:
        with log.writer() as writer:
            for start in range(1, 31, 10):
                writer.append([Message(b"%d" % n, received_at=100 * n) for n in range(start, start + 10)])
            log.trim(15)
            log.trim(3)
            for each in (log, open_logs().log(LogSpec(NAME))):
                info = each.info()
                assert (each.first_id, info.first_id, info.last_id, info.count) == (15, 15, 30, 16)
                assert [m.body for batch in each.read() for m in batch] == [b"%d" % n for n in range(15, 31)]
                assert [m.id for batch in each.read(20, 22) for m in batch] == [20, 21, 22]
                assert each.first_id_since(100) == 15
                assert each.first_id_since(1700) == 17
                assert each.block_ranges()[0].first_id == 15
                found = each.verify()
                assert (found.ok, found.messages) == (True, 16)
            assert writer.append([b"31"]) == IdRange(31, 31)

    def test_what_was_trimmed_is_read_as_a_gap_or_refused(self, log: Log) -> None:
        with log.writer() as writer:
            writer.append([b"%d" % n for n in range(1, 11)])
        log.trim(8)
        gap, rest = log.read(3, columns=["id"])
        assert isinstance(gap, Gap)
        assert (gap.ids, gap.reason, len(gap), list(gap), gap.arrow.num_rows) == (IdRange(3, 7), "trimmed", 0, [], 0)
        assert gap.arrow.schema == rest.arrow.schema
        assert rest.ids == IdRange(8, 10)
        (only,) = log.read(2, 5)
        assert isinstance(only, Gap)
        assert only.ids == IdRange(2, 5)
        assert next(log.follow(1)).ids == IdRange(1, 7)
        with pytest.raises(TrimmedError, match="ids 3 to 7"):
            list(log.read(3, gaps="none"))

    def test_a_log_that_was_trimmed_to_its_end_is_empty_and_goes_on(
        self, log: Log, open_logs: Callable[[], LogStore]
    ) -> None:
        with log.writer() as writer:
            writer.append([b"a", b"b"])
        log.trim(3)
        assert (list(log.read()), log.info().count, log.first_id, log.verify().ok) == ([], 0, 3, True)
        with pytest.raises(LogInputError, match="choose 1 to 3"):
            log.trim(4)
        again = open_logs().log(LogSpec(NAME))
        with again.writer() as writer:
            assert writer.append([b"c"]) == IdRange(3, 3)
        assert [m.id for batch in again.read() for m in batch] == [3]

    def test_p3_delivery_a_consumer_gets_one_gap_for_what_was_trimmed_and_its_pointer_goes_over_it(
        self, log: Log, open_logs: Callable[[], LogStore]
    ) -> None:
        with log.writer() as writer:
            for start in range(1, 31, 10):
                writer.append([b"%d" % n for n in range(start, start + 10)])
        with log.reader("worker") as reader:
            reader.ack([1, 2, 5, 6])
        log.trim(15)
        with open_logs().log(LogSpec(NAME)).reader("worker") as reader:
            batches = reader.batches()
            gap = next(batches)
            assert isinstance(gap, Gap)
            assert gap.ids == IdRange(3, 14)
            rest = list(batches)
            assert [m.id for batch in rest for m in batch] == list(range(15, 31))
            assert (reader.pointer, reader.missed) == (14, 12)
            reader.ack(IdRange(15, 20))
        with open_logs().log(LogSpec(NAME)).reader("worker") as reader:
            assert [m.id for batch in reader.batches() for m in batch] == list(range(21, 31))
            assert reader.missed == 0

    def test_a_gap_that_was_given_and_not_gone_over_is_given_again(self, log: Log) -> None:
        with log.writer() as writer:
            writer.append([b"a", b"b", b"c"])
        log.trim(3)
        for _ in range(2):
            with log.reader("worker") as reader:
                assert next(reader.batches()).ids == IdRange(1, 2)
        with log.reader("worker") as reader:
            for batch in reader.batches():
                reader.ack(batch.ids)
            assert reader.pointer == 3

    def test_a_reader_that_trimming_overtakes_is_told_so(self, log: Log) -> None:
        with log.writer() as writer:
            writer.append([b"%d" % n for n in range(1, 11)])
            with log.reader("worker") as reader:
                assert [batch.ids for batch in reader.batches()] == [IdRange(1, 10)]
                writer.append([b"%d" % n for n in range(11, 21)])
                log.trim(16)
                gap, rest = reader.batches()
                assert (isinstance(gap, Gap), gap.ids, rest.ids) == (True, IdRange(11, 15), IdRange(16, 20))
                reader.ack(IdRange(1, 20))
                with pytest.raises(LogInputError, match="choose 16 to 21"):
                    reader.seek(15)
                reader.seek(16)
        log.set_pointer("worker", 0)
        with log.reader("worker") as reader:
            assert next(reader.batches()).ids == IdRange(1, 15)

    def test_a_log_that_begins_later_counts_from_there(self, open_logs: Callable[[], LogStore]) -> None:
        log = open_logs().log(LogSpec("later"), first_id=1000)
        assert (log.first_id, log.last_id, log.verify().ok) == (1000, 999, True)
        with log.writer() as writer:
            assert writer.append([b"a", b"b"]) == IdRange(1000, 1001)
        again = open_logs().log(LogSpec("later"))
        assert [m.id for batch in again.read() for m in batch] == [1000, 1001]
        with pytest.raises(LogInputError):
            open_logs().log(LogSpec("never"), first_id=0)
