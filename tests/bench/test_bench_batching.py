"""The benchmark of batching: all contenders batch every event, and say the same."""

from __future__ import annotations

import pyarrow as pa
import pytest

from millstream.batching import Batcher
from millstream.bench import batching
from millstream.bench.fleet import events_of, fleet, fleet_parts
from millstream.core.errors import InputError


def test_every_contender_batches_every_event(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(batching, "STEP", 700)
    threads = pa.cpu_count()
    found = {
        c.title: {d.name: d.run() for d in c.contenders} for c in batching.comparisons("quick", tmp_path, modes="core")
    }
    assert pa.cpu_count() == threads
    assert list(found) == ["1 source", "100 sources", "20,000 sources", "Growing number of events", "1,000 open events"]
    for title, samples in found.items():
        assert all(sample.value > 0 for sample in samples.values())
        if title.endswith("sources"):
            assert len({sample.figures["batches"] for name, sample in samples.items() if "order-free" in name}) == 1


def test_a_fleet_is_made_in_parts_of_which_each_is_in_order_and_none_holds_late_events() -> None:
    table = fleet(3000, 7)
    assert table.num_rows == 3000
    received = table["received_at"].to_pylist()
    assert received == sorted(received)
    assert len({row.id for row in events_of(table)}) == 3000
    assert Batcher.of(batching.RULES).receive_many(events_of(table)).rejects == []
    assert sum(len(part) for part in fleet_parts(2500, 3, seed=2)) == 2500


def test_a_mode_that_is_none_is_refused(tmp_path) -> None:
    with pytest.raises(InputError, match="unknown mode sparks; choose from core, spark"):
        next(batching.comparisons("quick", tmp_path, modes="core,sparks"))
