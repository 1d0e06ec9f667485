"""How many workers there should be: every row of the table, and what never happens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.mill.workers.scaling import SCALED_POOLS, PoolScaler, ScaledPool

BY_NAME = {pool.queue.value: pool for pool in SCALED_POOLS}


def feed(scaler: PoolScaler, start: float, minutes: int, ready: int, leased: int = 0) -> list[int]:
    """What is desired after each of *minutes*."""
    return [scaler.observe(start + 60 * minute, ready, leased) for minute in range(1, minutes + 1)]


@pytest.mark.parametrize(
    ("name", "quiet", "busy", "grows_at", "rest"),
    [
        ("audit", 1000, 1001, 6, 15),
        ("duplication-high", 500, 501, 6, 5),
        ("duplication-low", 4999, 5000, 6, 5),
        ("bit-integrity", 0, 1, 6, 5),
        ("repair", 0, 1, 6, 5),
    ],
)
def test_a_pool_grows_by_one_after_two_busy_periods_and_then_rests(
    name: str, quiet: int, busy: int, grows_at: int, rest: int
) -> None:
    least = BY_NAME[name].least
    assert set(feed(PoolScaler(BY_NAME[name]), 0, 60, quiet, leased=5)) == {least}
    grown = feed(PoolScaler(BY_NAME[name]), 0, 300, busy, leased=5)
    steps = [minute + 1 for minute in range(1, 300) if grown[minute] != grown[minute - 1]]
    assert steps[:3] == [grows_at, grows_at + rest, grows_at + 2 * rest]
    assert grown[-1] == 10


@pytest.mark.parametrize(
    ("name", "kept", "idle", "minutes"),
    [
        ("audit", (501, 0), (500, 0), 16),
        ("duplication-high", (101, 0), (100, 0), 16),
        ("duplication-low", (101, 0), (100, 0), 16),
        ("bit-integrity", (0, 1), (0, 0), 46),
        ("repair", (0, 1), (0, 0), 46),
    ],
)
def test_a_pool_shrinks_by_one_after_its_idle_periods_down_to_the_least(
    name: str, kept: tuple[int, int], idle: tuple[int, int], minutes: int
) -> None:
    pool = BY_NAME[name]
    scaler = PoolScaler(pool)
    feed(scaler, 0, 300, 6000, leased=9)
    assert feed(scaler, 18_000, 400, *kept)[-1] == 10
    shrunk = feed(scaler, 42_000, 400, *idle)
    assert shrunk.index(9) + 1 >= minutes - 1
    assert shrunk[-1] == pool.least


@pytest.mark.parametrize(("name", "grows_at", "shrinks_at"), [("bit-report", 5, 360), ("storage-statistics", 30, 30)])
def test_a_pool_of_one_comes_with_the_first_task_and_goes_long_after_the_last(
    name: str, grows_at: int, shrinks_at: int
) -> None:
    scaler = PoolScaler(BY_NAME[name])
    assert set(feed(scaler, 0, 500, 0)) == {0}
    grown = feed(scaler, 30_000, 60, 1)
    assert (grown.index(1) + 1, grown[-1]) == (grows_at, 1)
    shrunk = feed(scaler, 33_600, 500, 0)
    assert shrinks_at - 5 <= shrunk.index(0) + 1 <= shrinks_at + 60


@pytest.mark.parametrize("average", [1000.0, 1000.5])
def test_more_than_a_thousand_is_meant_of_averages_too(average: float) -> None:
    scaler = PoolScaler(BY_NAME["audit"])
    for minute in range(1, 31):
        scaler.observe(60.0 * minute, int(average) + (minute % 2 if average % 1 else 0), 0)
    assert scaler.desired == (1 if average == 1000 else 3)


@given(
    st.sampled_from(SCALED_POOLS),
    st.lists(st.tuples(st.floats(1, 2000), st.integers(0, 10_000), st.integers(0, 50)), max_size=200),
)
def test_the_figure_stays_in_its_bounds_and_moves_by_one_and_not_while_it_rests(
    pool: ScaledPool, seen: list[tuple[float, int, int]]
) -> None:
    scaler, at, last, changed = PoolScaler(pool), 0.0, pool.least, None
    for seconds, ready, leased in seen:
        at += seconds
        now = scaler.observe(at, ready, leased)
        assert pool.least <= now <= pool.most and abs(now - last) <= 1
        if now != last:
            assert changed is None or at - changed >= min(pool.rest_up, pool.rest_down)
            changed = at
        last = now
