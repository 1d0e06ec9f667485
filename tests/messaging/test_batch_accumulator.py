"""Which items go together and when, and how an event loop runs them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millstream.core.event_loop import run_server
from millstream.messaging.async_batcher import AsyncBatcher, Patience
from millstream.messaging.batch_accumulator import BatchAccumulator, BatchingLimits, Slot

LIMITS = BatchingLimits(max_in_flight=2, max_items=3, max_bytes=10, lingers=True)


class AccumulatorMachine(RuleBasedStateMachine):
    """Items are added, batches taken and finished in any order; none is lost, repeated, or overtaken."""

    limits = LIMITS

    def __init__(self) -> None:
        super().__init__()
        self.accumulator: BatchAccumulator[tuple[int, int]] = BatchAccumulator(self.limits)
        self.added = 0
        self.taken: list[int] = []
        self.loaded: list[Slot] = []
        self.is_due = False

    @rule(size=st.integers(0, 12))
    def add(self, size: int) -> None:
        self.accumulator.add((self.added, size), size=size)
        self.added += 1

    @rule()
    def fall_due(self) -> None:
        self.accumulator.make_due()
        self.is_due = bool(self.accumulator.waiting)

    @precondition(lambda self: self.accumulator.needs_slot)
    @rule()
    def start(self) -> None:
        self.take(self.accumulator.reserve())

    @precondition(lambda self: self.loaded)
    @rule(number=st.integers(0, 10), goes_on=st.booleans())
    def end(self, number: int, goes_on: bool) -> None:
        slot = self.loaded.pop(number % len(self.loaded))
        self.accumulator.finish(slot)
        if goes_on:
            self.take(slot)
        else:
            self.accumulator.release(slot)

    def take(self, slot: Slot) -> None:
        batch = self.accumulator.take(slot)
        self.taken += [number for number, _ in batch]
        assert len(batch) <= self.limits.max_items
        assert len(batch) == 1 or sum(size for _, size in batch) <= self.limits.max_bytes
        if batch:
            self.loaded.append(slot)
        else:
            self.accumulator.release(slot)

    @invariant()
    def nothing_is_lost_repeated_or_overtaken(self) -> None:
        assert self.taken + [number for number, _ in self.accumulator.waiting] == list(range(self.added))

    @invariant()
    def at_most_so_many_batches_are_in_flight(self) -> None:
        assert len(self.loaded) <= self.limits.max_in_flight
        if len(self.loaded) == self.limits.max_in_flight:
            assert not self.accumulator.needs_slot

    @invariant()
    def what_is_full_or_due_asks_for_a_slot_while_one_is_free(self) -> None:
        waiting = self.accumulator.waiting
        is_full = len(waiting) >= self.limits.max_items or sum(size for _, size in waiting) >= self.limits.max_bytes
        self.is_due = self.is_due and bool(waiting)
        most = self.limits.max_in_flight if is_full else min(self.limits.max_in_flight, self.limits.max_partial)
        is_free = len(self.loaded) < most
        may_go = is_full or self.is_due or (bool(waiting) and not self.limits.lingers)
        assert self.accumulator.needs_slot == (is_free and may_go)
        assert self.accumulator.is_idle == (not waiting and not self.loaded)


class EagerMachine(AccumulatorMachine):
    """The same, where nothing lingers."""

    limits = BatchingLimits(max_in_flight=2, max_items=3, max_bytes=10)


class FillingMachine(AccumulatorMachine):
    """The same, where a batch that is not full waits for the one in flight."""

    limits = BatchingLimits(max_in_flight=3, max_partial=1, max_items=3, max_bytes=10)


TestLingering = AccumulatorMachine.TestCase
TestEager = EagerMachine.TestCase
TestFilling = FillingMachine.TestCase


def test_items_of_one_moment_ask_for_no_more_slots_than_they_fill() -> None:
    accumulator: BatchAccumulator[int] = BatchAccumulator(BatchingLimits(max_in_flight=4, max_items=3))
    slots = []
    for number in range(7):
        accumulator.add(number)
        while accumulator.needs_slot:
            slots.append(accumulator.reserve())
    assert [accumulator.take(slot) for slot in slots] == [[0, 1, 2], [3, 4, 5]]
    assert accumulator.waiting == [6]


def test_a_batch_that_is_not_full_waits_for_those_in_flight_and_a_full_one_goes() -> None:
    limits = BatchingLimits(max_in_flight=3, max_partial=1, max_items=3)
    accumulator: BatchAccumulator[int] = BatchAccumulator(limits)
    accumulator.add(0)
    first = accumulator.reserve()
    assert accumulator.take(first) == [0]
    for number in range(1, 3):
        accumulator.add(number)
        assert not accumulator.needs_slot
    accumulator.add(3)
    assert accumulator.needs_slot
    second = accumulator.reserve()
    assert accumulator.take(second) == [1, 2, 3]
    accumulator.add(4)
    accumulator.finish(first)
    assert accumulator.take(first) == [], "another is still in flight"
    accumulator.release(first)
    accumulator.finish(second)
    assert accumulator.take(second) == [4]


class Calls:
    """A call that can be held up: what it was called with, and how each call ends."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.gate: asyncio.Event | None = None
        self.error: BaseException | None = None

    async def run(self, items: Sequence[str]) -> Sequence[str | Exception]:
        self.batches.append(list(items))
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        return [KeyError(item) if item.startswith("bad") else item.upper() for item in items]


def batcher_of(
    calls: Calls, *, linger: float | None = None, patience: Patience | None = None, **limits: int
) -> AsyncBatcher[str, str]:
    found = BatchingLimits(lingers=linger is not None, **{"max_in_flight": 1, **limits})
    return AsyncBatcher(
        calls.run, found, failure=lambda error: RuntimeError(repr(error)), linger=linger or 0.0, patience=patience
    )


def on_loop(test: Callable[[Calls], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(10):
            await test(Calls())

    for start in (asyncio.run, run_server):
        start(run())


def test_submissions_of_one_moment_run_together_and_each_has_its_own_outcome() -> None:
    async def test(calls: Calls) -> None:
        batcher = batcher_of(calls)
        results = await asyncio.gather(*map(batcher.submit, ["a", "bad b", "c"]), return_exceptions=True)
        assert calls.batches == [["a", "bad b", "c"]]
        assert (results[0], repr(results[1]), results[2]) == ("A", "KeyError('bad b')", "C")

    on_loop(test)


def test_what_is_submitted_while_a_batch_is_in_flight_goes_with_the_next() -> None:
    async def test(calls: Calls) -> None:
        batcher, calls.gate = batcher_of(calls), asyncio.Event()
        first = batcher.submit("a")
        while not calls.batches:
            await asyncio.sleep(0)
        others = [batcher.submit(item) for item in ("b", "c")]
        await asyncio.sleep(0)
        calls.gate.set()
        assert await asyncio.gather(first, *others) == ["A", "B", "C"]
        assert calls.batches == [["a"], ["b", "c"]]

    on_loop(test)


async def in_flight(batcher: AsyncBatcher[str, str], calls: Calls, items: str) -> None:
    """Let a batch of *items* end while ``next`` has come."""
    calls.gate = asyncio.Event()
    results = [batcher.submit(item) for item in items]
    while not calls.batches:
        await asyncio.sleep(0)
    batcher.submit("next")
    calls.gate.set()
    await asyncio.gather(*results)


@pytest.mark.parametrize(("items", "others"), [("abc", "de"), ("abcde", "fgh")])
def test_with_patience_a_batch_waits_until_it_has_as_many_items_as_the_last_one_or_enough(
    items: str, others: str
) -> None:
    async def test(calls: Calls) -> None:
        batcher = batcher_of(calls, patience=Patience(items=4, times=1e9, seconds=3600.0))
        await in_flight(batcher, calls, items)
        results = [batcher.submit(item) for item in others[:-1]]
        for _ in range(10):
            await asyncio.sleep(0)
        assert calls.batches == [list(items)]
        await asyncio.gather(*results, batcher.submit(others[-1]))
        assert calls.batches[1:] == [["next", *others]]
        assert await batcher.submit("alone") == "ALONE"

    on_loop(test)


@pytest.mark.parametrize(
    "patience", [Patience(items=4, times=0.5, seconds=3600.0), Patience(items=4, times=1e9, seconds=0.001)]
)
def test_with_patience_a_batch_waits_no_longer_than_the_last_one_allows(patience: Patience) -> None:
    async def test(calls: Calls) -> None:
        batcher = batcher_of(calls, patience=patience)
        await in_flight(batcher, calls, "abc")
        await batcher.flush()
        assert calls.batches == [["a", "b", "c"], ["next"]]

    on_loop(test)


def test_a_batcher_that_is_closed_while_a_batch_waits_for_more_items_fails_it() -> None:
    async def test(calls: Calls) -> None:
        batcher = batcher_of(calls, patience=Patience(items=4, times=1e9, seconds=3600.0))
        await in_flight(batcher, calls, "abc")
        late = batcher.submit("late")
        await asyncio.sleep(0)
        batcher.close()
        with pytest.raises(RuntimeError, match="CancelledError"):
            await late
        assert await batcher.submit("d") == "D"

    on_loop(test)


def test_a_batch_that_is_full_does_not_linger_and_flush_ends_the_lingering_of_the_rest() -> None:
    async def test(calls: Calls) -> None:
        batcher = batcher_of(calls, linger=3600.0, max_items=2)
        tasks = [batcher.submit(item) for item in ("a", "b", "c")]
        assert await asyncio.gather(*tasks[:2]) == ["A", "B"]
        assert not tasks[2].done()
        await batcher.flush()
        assert (await tasks[2], calls.batches) == ("C", [["a", "b"], ["c"]])

    on_loop(test)


def test_a_free_slot_runs_a_single_item_in_the_task_of_its_caller() -> None:
    async def test(calls: Calls) -> None:
        batcher, calls.gate = batcher_of(calls), asyncio.Event()
        first, second = (asyncio.ensure_future(batcher.submit_at_once(item)) for item in ("a", "b"))
        await asyncio.sleep(0)
        assert calls.batches == [["a"]]
        calls.gate.set()
        assert [await first, await second] == ["A", "B"]
        assert calls.batches == [["a"], ["b"]]

    on_loop(test)


def test_an_error_of_the_call_reaches_everybody_in_the_batch_and_the_next_batch_goes_on() -> None:
    async def test(calls: Calls) -> None:
        batcher, calls.error = batcher_of(calls), OSError("no line")
        results = await asyncio.gather(*map(batcher.submit, "ab"), return_exceptions=True)
        assert [repr(each) for each in results] == ["RuntimeError(\"OSError('no line')\")"] * 2
        calls.error = None
        assert await batcher.submit("c") == "C"

    on_loop(test)


def test_a_cancelled_submission_is_dropped_only_where_that_was_asked_for() -> None:
    async def test(calls: Calls) -> None:
        for drops in (False, True):
            batcher: AsyncBatcher[str, str] = AsyncBatcher(
                calls.run, BatchingLimits(max_in_flight=1), failure=lambda error: RuntimeError(repr(error)),
                drops_cancelled=drops,
            )  # fmt: skip
            tasks = [batcher.submit(item) for item in "ab"]
            await asyncio.sleep(0)
            tasks[0].cancel()
            assert await tasks[1] == "B"
        assert calls.batches == [["a", "b"], ["b"]]

    on_loop(test)


def test_closing_fails_what_waits_and_what_is_in_flight() -> None:
    async def test(calls: Calls) -> None:
        batcher, calls.gate = batcher_of(calls), asyncio.Event()
        first = batcher.submit("a")
        while not calls.batches:
            await asyncio.sleep(0)
        second = batcher.submit("b")
        await asyncio.sleep(0)
        batcher.close()
        for task in (first, second):
            with pytest.raises(RuntimeError, match="CancelledError"):
                await task
        calls.gate = None
        assert await batcher.submit("c") == "C"

    on_loop(test)


def test_a_batcher_says_when_it_is_idle() -> None:
    async def test(calls: Calls) -> None:
        idle: list[int] = []
        batcher: AsyncBatcher[str, str] = AsyncBatcher(
            calls.run, BatchingLimits(max_in_flight=2), failure=lambda error: RuntimeError(repr(error)),
            on_idle=lambda: idle.append(len(calls.batches)),
        )  # fmt: skip
        await batcher.submit("a")
        await batcher.submit_at_once("b")
        while not idle:
            await asyncio.sleep(0)
        assert idle[-1] == 2

    on_loop(test)
