"""The floor that anchoring is measured against makes the anchors that the batch writer makes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
import sqlalchemy as sa

from millstream.anchoring import (
    AnchorIndex,
    BatchJournal,
    BatchWriter,
    CutLimits,
    LocalCas,
    LogLedger,
    MemoryLedger,
    Observer,
    replay,
)
from millstream.anchoring.batch_records import EncodedBatch
from millstream.anchoring.packing import pack_cut
from millstream.batching import Rulebook
from millstream.bench.batching_spark import fleet_messages
from millstream.core.clock import SystemClock, VirtualClock
from millstream.log import LogSpec, open_store
from millstream.pipeline.planning.cut_plans import encoded_batches
from millstream.pipeline.shard_shares import write_share
from millstream.pipeline.tasks.shard_task import ShardBatching
from millstream.testing.batches import make_batch
from millstream_peers import anchoring_floor
from millstream_peers.anchoring_floor import RULES, Floor, Recorder, anchor


def test_the_floor_makes_the_anchors_of_the_batch_writer(tmp_path: Path) -> None:
    messages = fleet_messages(3_000, 20, 1, body=100)
    url = f"sqlite:///{tmp_path / 'log.db'}"
    with open_store(url) as store, store.log(LogSpec("fleet")).writer() as writer:
        for part in messages.to_batches():
            writer.append(part)
    done = anchor(url, "fleet", tmp_path / "floor", 1, batches_a_cut=50)

    engine = sa.create_engine("sqlite://", poolclass=sa.pool.StaticPool)
    cas, ledger, index = LocalCas(tmp_path / "cas"), MemoryLedger(VirtualClock()), AnchorIndex(engine)
    limits = CutLimits(batches=50)
    ours = BatchWriter(BatchJournal(engine), cas, ledger, Observer(index, cas, ledger), limits=limits)
    for cut in _cuts(url, 50):
        ours.add("fleet", cut, config=msgspec.to_builtins(RULES))
        ours.cut(force=True)
    assert len(done) > 2
    assert done == [entry.anchor_string for entry in ledger.entries()]
    floor_cas = LocalCas(tmp_path / "floor" / "cas")
    assert sorted(floor_cas.cids()) == sorted(cas.cids())
    with open_store(f"sqlite:///{tmp_path / 'floor' / 'ledger.db'}") as store:
        assert replay(floor_cas, LogLedger(store, SystemClock())).findings == ()
    engine.dispose()


def test_the_floor_refuses_a_message_that_it_has_anchored(tmp_path: Path) -> None:
    recorder = Recorder(Floor("", "fleet", tmp_path, 1))
    cas = LocalCas(tmp_path / "cas")
    recorder.record(pack_cut(cas, [make_batch([1, 2]), make_batch([5])], 4_000), [])
    with pytest.raises(RuntimeError, match="anchored already"):
        recorder.record(pack_cut(cas, [make_batch([2, 3], name="other")], 4_000), [])
    recorder.close()


def test_the_floor_is_at_most_200_lines() -> None:
    assert len(Path(anchoring_floor.__file__).read_text("utf-8").splitlines()) <= 200


def _cuts(url: str, size: int) -> list[list[EncodedBatch]]:
    """The batches of the whole log, made as one shard, in the order of a manifest."""
    with open_store(url) as store:
        table = pa.Table.from_batches([part.arrow for part in store.log(LogSpec("fleet")).read()])
    share = write_share(table.combine_chunks().to_batches()[0])
    bound = max(table["received_at"].to_pylist())
    rows = pa.concat_tables(ShardBatching(Rulebook(RULES), whole=True).run([(0, 0, share)], bound, flush=True))
    batches = list(encoded_batches(rows.filter(rows["batch"].is_valid()).combine_chunks()))
    batches.sort(key=lambda batch: (batch.header.start, batch.header.source, batch.batch))
    return [batches[first : first + size] for first in range(0, len(batches), size)]
