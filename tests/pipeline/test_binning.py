"""Bins of equal work."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from millstream.pipeline.planning.equal_parts import ITEM_COST, assign_largest_first, count_bins, heavy_threshold

SIZES = st.lists(st.integers(0, 1 << 40), max_size=60).map(lambda sizes: np.array(sizes, np.int64))


@given(SIZES, st.integers(1, 12))
def test_no_bin_is_fuller_than_the_lightest_by_more_than_one_item(sizes: np.ndarray, bins: int) -> None:
    placed = assign_largest_first(sizes, np.zeros(bins, np.int64))
    loads = np.bincount(placed, weights=sizes + ITEM_COST, minlength=bins)
    assert len(placed) == len(sizes)
    if len(sizes):
        assert loads.max() - loads.min() <= sizes.max() + ITEM_COST


@given(SIZES, st.integers(1, 12))
def test_the_same_sizes_always_fall_into_the_same_bins(sizes: np.ndarray, bins: int) -> None:
    loads = np.zeros(bins, np.int64)
    assert (assign_largest_first(sizes, loads) == assign_largest_first(sizes, loads)).all()


def test_what_lies_in_the_bins_already_is_counted() -> None:
    placed = assign_largest_first(np.array([10], np.int64), np.array([1 << 30, 0], np.int64))
    assert placed.tolist() == [1]


@given(st.integers(0, 1 << 50), st.integers(0, 1 << 30), st.integers(1, 16))
def test_the_number_of_bins_stays_within_its_bounds(total: int, items: int, least: int) -> None:
    bins = count_bins(total, items, target=64 << 20, least=least, most=10_000)
    assert 1 <= bins <= 10_000
    assert bins <= max(items, 1)
    assert bins >= min(least, items) or not items


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=200))
def test_few_items_are_heavy(sizes: list[int]) -> None:
    bins = count_bins(sum(sizes), len(sizes), target=64 << 20, least=2, most=10_000)
    threshold = heavy_threshold(sum(sizes), len(sizes), bins)
    assert sum(size >= threshold for size in sizes) <= 8 * bins
