"""A log that grows is written, moved, checked and trimmed, and what each message costs is told at each size."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from millstream.bench.log_flat import GrowingLog, _targets
from millstream.bench.runner import run_benchmark
from millstream.core.clock import SystemClock
from millstream.core.errors import InputError


def test_a_log_grows_in_each_store_and_keeps_its_size() -> None:
    parts = {"up-to": "3e5", "stores": "segments,sqlite"}
    options = {name.replace("-", "_"): value for name, value in parts.items()}
    report = run_benchmark("log-flat", size="quick", runs=5, clock=SystemClock(), show=lambda _: None, parts=options)
    assert [result.title for result in report.results] == ["Up to 100,000 messages", "Up to 300,000 messages"]
    assert report.runs == 1
    for result in report.results:
        for row in result.rows:
            assert row.median > 0
            assert row.figures["writer starts in ms"] > 0


def test_what_is_older_is_moved_and_then_forgotten(tmp_path: Path) -> None:
    growth = GrowingLog("segments", tmp_path, 10**5, SystemClock())
    growth.grow(300_000)
    assert growth._log.last_id >= 300_000
    assert growth._log.first_id > 190_000
    growth._writer.close()
    growth._store.close()


def test_what_was_not_written_ends_it(tmp_path: Path) -> None:
    growth = GrowingLog("segments", tmp_path, 10**5, SystemClock())
    growth.grow(100_000)
    last = growth._writer.send(b"test")
    with pytest.raises(AssertionError, match="differ from what was written"):
        growth._check(last, last)
    growth._writer.close()
    growth._store.close()


def test_sizes_are_powers_of_ten_up_to_the_last() -> None:
    assert _targets(10**6, "1e8") == [10**6, 10**7, 10**8]
    assert _targets(10**6, "25e6") == [10**6, 10**7, 25 * 10**6]
    assert all(later > sooner for sooner, later in itertools.pairwise(_targets(10**5, "1e12")))
    for wrong in ("many", "1e3", "1e99", "nan"):
        with pytest.raises(InputError):
            _targets(10**6, wrong)
