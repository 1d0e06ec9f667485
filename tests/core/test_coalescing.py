"""Work done together: every job once, in rounds, and each thread gets its own outcome."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from millstream.core.coalescing import RequestCoalescer


def test_who_comes_alone_is_served_alone() -> None:
    combiner: RequestCoalescer[int, int] = RequestCoalescer(lambda jobs: [job * len(jobs) for job in jobs])
    assert [combiner(number) for number in range(5)] == list(range(5))


def test_all_who_wait_are_served_in_one_round_and_each_gets_its_own_outcome() -> None:
    rounds: list[list[int]] = []
    first_runs, go_on = threading.Event(), threading.Event()

    def run(jobs: Sequence[int]) -> list[int | Exception]:
        rounds.append(list(jobs))
        first_runs.set()
        go_on.wait(60)
        return [ValueError(str(job)) if job == 7 else -job for job in jobs]

    combiner = RequestCoalescer(run)
    with ThreadPoolExecutor(10) as pool:
        first = pool.submit(combiner, 0)
        assert first_runs.wait(60)
        others = [pool.submit(combiner, number) for number in range(1, 10)]
        while len(combiner._waiting) < 9:
            threading.Event().wait(0.001)
        go_on.set()
        assert first.result() == 0
        for number, other in enumerate(others, 1):
            if number == 7:
                with pytest.raises(ValueError, match="7"):
                    other.result()
            else:
                assert other.result() == -number
    assert rounds[0] == [0] and sorted(rounds[1]) == list(range(1, 10)) and len(rounds) == 2


def test_a_round_that_fails_fails_for_all_of_it_and_for_nobody_after() -> None:
    broken = [True]

    def run(jobs: Sequence[str]) -> Sequence[str]:
        if broken.pop() if broken else False:
            raise OSError("the disk is full")
        return jobs

    combiner = RequestCoalescer(run)
    with pytest.raises(OSError, match="full"):
        combiner("first")
    assert combiner("second") == "second"
