"""A folder that an earlier version wrote, with a row for each batch, is read and continued.

``kept/rows-a-batch.tar.xz`` was made by the release of November 2026: two packed cuts of five batches, one of a batch
that was added beside one that was rejected, and a packed cut of two batches that its writer left open when it died.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from millstream.anchoring import (
    AnchorIndex,
    BatchJournal,
    BatchState,
    BatchStatus,
    BatchWriter,
    CutLimits,
    LocalCas,
    LogLedger,
    Observer,
    prove,
    replay,
)  # fmt: skip
from millstream.anchoring.journal_reader import JournalReader
from millstream.anchoring.packing import pack_cut
from millstream.core.clock import VirtualClock
from millstream.log import open_store
from millstream.testing.batches import CONFIG, make_batch, make_batches

KEPT = Path(__file__).with_name("kept") / "rows-a-batch.tar.xz"
BATCHES = list(make_batches(13))


@pytest.fixture
def earlier(tmp_path: Path) -> Iterator[Any]:
    with tarfile.open(KEPT) as archive:
        archive.extractall(tmp_path, filter="data")
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'node.db'}")
    with open_store(f"sqlite:///{tmp_path / 'log.db'}") as store:
        ledger, cas = LogLedger(store, VirtualClock()), LocalCas(tmp_path / "cas")
        index, journal = AnchorIndex(engine), BatchJournal(engine)
        writer = BatchWriter(journal, cas, ledger, Observer(index, cas, ledger), limits=CutLimits(5, 3000))
        yield SimpleNamespace(engine=engine, ledger=ledger, cas=cas, index=index, journal=journal, writer=writer)
    engine.dispose()


def test_what_an_earlier_version_anchored_is_found_and_its_open_cut_is_finished(earlier: Any) -> None:
    (entry,) = earlier.writer.recover()
    assert (entry.number, entry.anchor_string[:2]) == (4, "2.")
    assert replay(earlier.cas, earlier.ledger, earlier.index).findings == ()
    assert [len(earlier.index.find_batch("weather", batch.batch)) for batch in BATCHES] == [1] * 13
    for batch in BATCHES:
        place = earlier.index.locate("weather", batch.ids[0])
        assert (place.batch, place.number) == (batch.batch, earlier.journal.status("weather", batch.batch).anchor)
        assert prove("weather", batch.ids[-1], index=earlier.index, cas=earlier.cas, ledger=earlier.ledger)
    assert earlier.journal.status("weather", "overlapping").reason == "message 5 is in a batch of anchor 1 already"
    assert earlier.index.totals().batches == earlier.journal.totals().observed == 13
    assert len(JournalReader(earlier.engine).batches()) == 14


def test_what_an_earlier_version_anchored_is_not_anchored_again(earlier: Any) -> None:
    earlier.writer.recover()
    again = pack_cut(earlier.cas, [BATCHES[0], make_batch([5000])], 3000)
    assert earlier.writer.take("weather", again, config=CONFIG) is None
    known = earlier.journal.known_roots("weather", [batch.batch for batch in BATCHES])
    assert known == {batch.batch: batch.root for batch in BATCHES}
    own = [make_batch([5000 + number], name=f"new-{number}") for number in range(3)]
    assert earlier.writer.take("weather", pack_cut(earlier.cas, own, 3000), config=CONFIG).number == 5
    assert earlier.journal.status("weather", "new-1") == BatchStatus(BatchState.OBSERVED, 5)
    assert earlier.writer.take("weather", pack_cut(earlier.cas, own, 3000), config=CONFIG) is None
    assert replay(earlier.cas, earlier.ledger, earlier.index).findings == ()


def test_a_changed_row_of_an_earlier_version_is_found(earlier: Any) -> None:
    earlier.writer.recover()
    with earlier.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE anchor_index_batches SET size = size + 1 WHERE number = 2 AND ordinal = 3")
    (finding,) = replay(earlier.cas, earlier.ledger, earlier.index).findings
    assert (finding.what, finding.number) == ("index", 2)
