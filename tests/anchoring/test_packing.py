"""Cuts that were packed elsewhere: the batch writer makes the same anchors of them, once, or leaves them alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from millstream.anchoring import BatchJournal, BatchState, BatchStatus, CutLimits
from millstream.anchoring.batch_records import EncodedBatch
from millstream.anchoring.errors import BatchFormatError, CasNotFoundError, JournalBusyError
from millstream.anchoring.packing import PackedCut, pack_cut
from millstream.testing.batches import CONFIG, make_batch, make_batches, make_rejects

LIMITS = CutLimits(batches=5, file_bytes=3000)


def in_order(batches: list[EncodedBatch]) -> list[EncodedBatch]:
    """*batches* as a manifest has them."""
    return sorted(batches, key=lambda batch: (batch.header.start, batch.header.source, batch.batch))


def packed(parts: Any, batches: list[EncodedBatch], limit: int = LIMITS.file_bytes) -> PackedCut:
    return pack_cut(parts.cas, in_order(batches), limit)


def take(parts: Any, cut: PackedCut) -> Any:
    return parts.writer.take("weather", cut, config=CONFIG)


def test_a_packed_cut_is_the_anchor_that_the_writer_makes_of_the_same_batches_and_rejects(make_parts: Any) -> None:
    batches, rejects = list(make_batches(12)), make_rejects(range(900, 950))
    plain, tasks = make_parts("plain", limits=LIMITS), make_parts("tasks", limits=LIMITS)
    for parts in (plain, tasks):
        parts.writer.add("weather", [], rejects, config=CONFIG)
    plain.writer.add("weather", batches, config=CONFIG)
    plain.writer.cut(force=True)
    for start in range(0, 12, 5):
        assert take(tasks, packed(tasks, batches[start : start + 5])) is not None
    assert tasks.anchor_strings() == plain.anchor_strings()
    assert sorted(tasks.cas.cids()) == sorted(plain.cas.cids())
    assert tasks.index.totals() == plain.index.totals()
    assert tasks.journal.totals() == plain.journal.totals()
    for number in (1, 2, 3):
        (mine, my_batches), (theirs, their_batches) = tasks.index.rows(number), plain.index.rows(number)
        assert my_batches == their_batches
        assert mine[0][3:] == theirs[0][3:]  # all but number, hash and time of the entry
    assert tasks.replay().findings == ()
    assert tasks.journal.status("weather", batches[0].batch) == BatchStatus(BatchState.OBSERVED, 1)
    assert tasks.prove(batches[0].ids[0])


def test_to_pack_again_changes_nothing(parts: Any) -> None:
    batches = list(make_batches(9))
    first = packed(parts, batches)
    files = {cid: parts.cas.get(cid, 10_000) for cid in parts.cas.cids()}
    assert packed(parts, batches) == first
    assert {cid: parts.cas.get(cid, 10_000) for cid in parts.cas.cids()} == files
    assert sum(file.messages for file in first.files) == sum(len(batch.ids) for batch in batches)
    assert first.line_bytes == sum(len(batch.lines) for batch in batches)


def test_a_batch_that_fits_in_no_file_is_not_packed(parts: Any) -> None:
    with pytest.raises(BatchFormatError, match="the limit of a batch file is 100"):
        packed(parts, list(make_batches(1)), limit=100)


def test_what_storage_did_not_keep_is_not_packed(parts: Any) -> None:
    parts.faults.lose_writes = True
    with pytest.raises(CasNotFoundError):
        pack_cut(parts.faults, in_order(list(make_batches(3))), 3000)


class TestLeftAlone:
    """Cuts that the writer does not take: nothing has changed, and the long way brings each batch to its end."""

    def check(self, parts: Any, batches: list[EncodedBatch], anchored: int) -> None:
        before, anchors = parts.journal.totals(), parts.anchor_strings()
        assert take(parts, packed(parts, batches)) is None
        assert (parts.journal.totals(), parts.anchor_strings()) == (before, anchors)
        parts.writer.add("weather", batches, config=CONFIG)
        parts.writer.cut(force=True)
        assert parts.index.totals().batches == anchored
        assert parts.replay().findings == ()

    def test_where_others_wait(self, parts: Any) -> None:
        batches = list(make_batches(6))
        parts.writer.add("weather", batches[:2], config=CONFIG)
        self.check(parts, batches[2:], 6)

    def test_where_one_is_known(self, parts: Any) -> None:
        batches = list(make_batches(6))
        parts.writer.add("weather", batches[:2], config=CONFIG)
        parts.writer.cut(force=True)
        self.check(parts, batches[1:], 6)

    def test_where_a_message_is_anchored_already(self, parts: Any) -> None:
        parts.writer.add("weather", [make_batch([1, 2])], config=CONFIG)
        parts.writer.cut(force=True)
        self.check(parts, [make_batch([2, 3], name="other"), make_batch([4])], 2)

    def test_where_a_batch_id_stands_twice(self, parts: Any) -> None:
        self.check(parts, [make_batch([1], name="twin"), make_batch([2, 3], name="twin")], 1)


def interrupted(parts: Any, batches: list[EncodedBatch]) -> PackedCut:
    """A cut of *batches* that was written down, and of which nothing came yet."""
    cut = packed(parts, batches)
    with pytest.MonkeyPatch.context() as fatal:
        fatal.setattr(parts.ledger, "append", lambda *_, **__: (_ for _ in ()).throw(JournalBusyError()))
        with pytest.raises(JournalBusyError):
            take(parts, cut)
    return cut


def stored(parts: Any, table: str) -> list[Any]:
    with parts.engine.connect() as connection:
        return list(connection.exec_driver_sql(f"SELECT * FROM {table}"))


def test_a_packed_cut_is_one_row_and_so_are_its_message_ids_until_it_is_observed(parts: Any) -> None:
    batches = list(make_batches(5))
    interrupted(parts, batches)
    assert (len(stored(parts, "anchor_packed_cuts")), len(stored(parts, "anchor_payloads"))) == (1, 0)
    assert parts.journal.status("weather", batches[3].batch) == BatchStatus(BatchState.CUT)
    for batch in batches:
        for number in batch.ids:
            assert parts.journal.batch_of("weather", number) == batch.batch
    assert parts.journal.batch_of("weather", 999_999) is None
    assert parts.journal.batch_of("rain", batches[0].ids[0]) is None
    parts.writer.recover()
    assert stored(parts, "anchor_packed_cuts") == stored(parts, "anchor_payloads") == []
    assert stored(parts, "anchor_batches") == stored(parts, "anchor_index_batches") == []
    assert len(stored(parts, "anchor_packed_members")) == 1
    assert parts.journal.batch_of("weather", batches[0].ids[0]) is None


def test_a_refused_batch_of_a_packed_cut_still_says_which_messages_it_has(parts: Any) -> None:
    batches = in_order(list(make_batches(4)))
    interrupted(parts, batches)
    (cut,) = parts.journal.open_cuts()
    parts.journal.observed(cut, {batches[2].batch: "refused by the test"})
    assert [parts.journal.batch_of("weather", batch.ids[-1]) for batch in batches] == [
        None,
        None,
        batches[2].batch,
        None,
    ]
    assert parts.journal.rejected() == [("weather", batches[2].batch, "refused by the test")]
    assert stored(parts, "anchor_packed_cuts") == []


def test_a_packed_cut_that_an_earlier_version_left_open_is_finished(parts: Any) -> None:
    batches = in_order(list(make_batches(4)))
    interrupted(parts, batches)
    with parts.engine.begin() as connection:  # a row and a payload for each batch, as it was before
        for table in ("packed_cuts", "packed_members", "journal_runs", "journal_pages"):
            connection.exec_driver_sql(f"DROP TABLE anchor_{table}")
        for seq, batch in enumerate(batches, 1):
            header = batch.header
            own = (
                seq,
                1,
                "weather",
                header.batch,
                header.source,
                header.start,
                1,
                header.root,
                1,
                header.end,
                "window",
            )
            names = "seq, stream, log, batch, source, start, size, root, cut, end, ended"
            marks = ", ".join("?" * len(own))
            connection.exec_driver_sql(f"INSERT INTO anchor_batches ({names}) VALUES ({marks})", own)
            payload = (seq, np.array(batch.ids, "<u8").tobytes(), b"", b"")
            connection.exec_driver_sql("INSERT INTO anchor_payloads VALUES (?, ?, ?, ?)", payload)
    reopened = BatchJournal(parts.engine)
    (cut,) = reopened.open_cuts()
    assert reopened.is_packed(cut)
    assert reopened.batch_of("weather", batches[1].ids[0]) == batches[1].batch
    (entry,) = parts.writer.recover()
    assert entry.anchor_string.startswith("4.")
    assert stored(parts, "anchor_payloads") == []
    assert parts.replay().findings == ()


def test_a_batch_file_that_is_lost_before_the_cut_is_finished_is_named_and_the_cut_goes_on_when_it_is_back(
    parts: Any,
) -> None:
    batches = list(make_batches(4))
    cut = interrupted(parts, batches)
    lost = parts.cas.root / cut.files[0].uri
    data = lost.read_bytes()
    lost.unlink()
    with pytest.raises(CasNotFoundError, match=cut.files[0].uri):
        parts.writer.recover()
    assert parts.anchor_strings() == []
    lost.write_bytes(data)
    (entry,) = parts.writer.recover()
    assert entry.anchor_string.startswith("4.")
    assert parts.journal.totals().observed == 4
    assert parts.replay().findings == ()
