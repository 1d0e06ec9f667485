"""A soak at a short length, and what it says of series."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path

import numpy as np
import pytest
from samples import folder_sizes, picture, slope

from soak import soak
from suite.sizes import SIZE

SECONDS = np.arange(0, 3600, 10.0)


def test_a_rise_is_told_from_noise() -> None:
    noise = np.random.default_rng(1).normal(0, 5, len(SECONDS))
    risen = slope(SECONDS, 200 + SECONDS / 3600 * 30 + noise)
    assert abs(risen.an_hour - 30) < risen.margin and not risen.is_flat
    level = slope(SECONDS, 200 + noise)
    assert level.is_flat and level.margin < 4


def test_values_that_follow_one_another_prove_less() -> None:
    rng = np.random.default_rng(2)
    apart = rng.normal(0, 5, len(SECONDS))
    walk = np.zeros(len(SECONDS))
    for number, step in enumerate(apart):
        walk[number] = 0.95 * walk[max(0, number - 1)] + step
    assert slope(SECONDS, walk).margin > 5 * slope(SECONDS, apart).margin


def test_a_series_without_noise_has_its_slope_and_too_few_values_have_none() -> None:
    assert slope(SECONDS, np.full(len(SECONDS), 47.0)) == (0.0, 0.0)
    assert slope(SECONDS, SECONDS).an_hour == pytest.approx(3600)
    assert math.isnan(slope([0, 1], [1, 2]).an_hour)


def test_a_picture_has_a_line_for_each_series() -> None:
    drawn = picture({"send": [(0, 3), (60, 5)], "look": [(0, 40), (60, 900)]}, "p99", "ms")
    assert drawn.count("<polyline") == 2 and ">1000 ms<" in drawn and ">look<" in drawn
    assert picture({}, "p99", "ms") == ""


def test_files_are_counted_below_each_entry_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "stores" / "one").mkdir(parents=True)
    for name in ("node.db", "stores/a", "stores/one/b"):
        (tmp_path / name).write_bytes(b"x" * len(name))
    assert folder_sizes(tmp_path) == {"node.db": [1, 7], "stores": [2, 20]}


@pytest.mark.served
@pytest.mark.timeout(12_000)
@pytest.mark.skipif(SIZE != "long", reason="long size only: two hours and a half of load")
def test_a_node_under_mixed_load_answers_without_an_error(tmp_path: Path) -> None:
    seconds = 4500.0
    for run in ("first", "second"):
        output = tmp_path / run
        summary = asyncio.run(soak(tmp_path / "node", seconds, output))
        assert summary["first_errors"] == [], summary["first_errors"]
        assert all(count >= seconds * rate * 0.9 for count, rate in _counts(summary))
        assert (output / "p99.svg").read_text().startswith("<svg")
        assert len((output / "samples.jsonl").read_text().splitlines()) >= seconds / 20
        print(json.dumps(summary))


def _counts(summary: dict[str, dict[str, float]]) -> list[tuple[float, float]]:
    return [(summary["answers"][name], rate) for name, rate in summary["rates"].items()]
