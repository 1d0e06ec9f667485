"""Requests of a store are spread over time, and over those who share its rate."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.clock import VirtualClock
from millstream.core.token_bucket import TokenBucket
from millstream.stores import LocalStore, StoreInputError, ThrottledStore, open_provider
from millstream.stores.throttled import shared_rate, split_rate


@given(
    rate=st.integers(1, 1000),
    burst=st.integers(1, 5),
    pauses=st.lists(st.floats(0, 0.5), min_size=2, max_size=60),
)
def test_no_window_sees_more_calls_than_its_length_allows(rate: int, burst: int, pauses: list[float]) -> None:
    clock = VirtualClock()
    bucket = TokenBucket(rate, clock, burst=burst)
    times = []
    for pause in pauses:
        clock.sleep(pause)
        bucket.take()
        times.append(clock.monotonic())
    for first, begin in enumerate(times):
        for last, end in enumerate(times[first:], first):
            assert last - first + 1 <= burst + (end - begin) * rate + 0.01 + rate * 2e-6


def test_calls_that_come_too_fast_wait(tmp_path: Path) -> None:
    clock = VirtualClock()
    store = ThrottledStore(LocalStore(tmp_path), 10, clock)
    began = clock.monotonic()
    for _ in range(21):
        store.has_space("docs")
    assert clock.monotonic() - began == pytest.approx(2.0, abs=0.01)


def test_the_rate_stands_in_the_url_and_opens_the_same_store_again(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store?mount=cas:cas://{tmp_path}/cas&requests=12.5"
    store = open_provider(url, create=True)
    assert isinstance(store, ThrottledStore)
    again = open_provider(store.url)
    assert (again.url, split_rate(again.url)[1]) == (store.url, 12.5)
    assert open_provider(f"file://{tmp_path}/store").url == f"file://{tmp_path}/store"


def test_the_rate_of_a_store_is_shared_out_among_tasks() -> None:
    assert split_rate(shared_rate("s3://bucket/x?endpoint=http://h&requests=100", 8)) == (
        "s3://bucket/x?endpoint=http://h",
        12.5,
    )
    assert shared_rate("s3://bucket/x", 8) == "s3://bucket/x"


@pytest.mark.parametrize("rate", ["0", "-1", "many", "inf", "nan", ""])
def test_a_rate_that_is_none_is_refused(tmp_path: Path, rate: str) -> None:
    with pytest.raises(StoreInputError, match="write the maximum number of requests per second"):
        open_provider(f"file://{tmp_path}?requests={rate}")
