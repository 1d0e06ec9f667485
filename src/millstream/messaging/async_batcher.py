"""Calls that are made at the same time, run together on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from functools import partial
from typing import Generic, TypeVar

import msgspec

from millstream.core.clock import SystemClock
from millstream.messaging.batch_accumulator import BatchAccumulator, BatchingLimits, Slot

Item = TypeVar("Item")
Result = TypeVar("Result")
_Pending = tuple[Item, asyncio.Future[Result]]
"""An item and its future result."""


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """For how long a batch waits for more items when another one has ended: until it has as many as that one, or
    ``items``, but not longer than ``times`` the duration of that one, or ``seconds``.
    """

    items: int
    times: float
    seconds: float


class AsyncBatcher(Generic[Item, Result]):
    """Runs items that are submitted at the same time together, as *limits* allow. For one event loop.

    *run* gets the items of a batch in the order of their submission and returns an outcome for each; one that is an
    exception is raised to the caller that submitted the item. An exception that *run* raises is raised to all of the
    batch, as the exception that *failure* makes of it. A batch that is not full waits for *linger* seconds if the
    limits have one; one that fills while another one is in flight waits for more items as *patience* says, for which
    the limits must allow only one in flight. With *drops_cancelled* an item whose submission is cancelled before it is
    in flight is not run. *on_idle* is called whenever nothing waits or is in flight any more.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Item]], Awaitable[Sequence[Result | Exception]]],
        limits: BatchingLimits,
        *,
        failure: Callable[[BaseException], Exception],
        linger: float = 0.0,
        patience: Patience | None = None,
        drops_cancelled: bool = False,
        on_idle: Callable[[], object] | None = None,
    ) -> None:
        self._run = run
        self._accumulator: BatchAccumulator[_Pending[Item, Result]] = BatchAccumulator(limits)
        self._failure = failure
        self._lingers, self._linger = limits.lingers, linger
        self._patience = patience
        self._awaited: tuple[int, asyncio.Future[None]] | None = None  # so many items end a pause
        self._is_wanted = _is_awaited if drops_cancelled else None
        self._on_idle = on_idle
        self._clock = SystemClock()
        self._timer: asyncio.TimerHandle | None = None
        self._workers: set[asyncio.Task[None]] = set()
        self._in_flight: dict[Slot, Sequence[_Pending[Item, Result]]] = {}

    def submit(self, item: Item, *, count: int = 1, size: int = 0) -> asyncio.Future[Result]:
        """The future result of *item*, which counts as *count* items and *size* bytes."""
        result: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._accumulator.add((item, result), count=count, size=size)
        if self._awaited is not None and self._accumulator.items >= self._awaited[0]:
            _resolve(self._awaited[1])
        if self._accumulator.needs_slot or (self._lingers and self._timer is None):
            self._advance()
        return result

    async def submit_at_once(self, item: Item, *, count: int = 1) -> Result:
        """Like :meth:`submit`; where a slot is free, *item* runs alone in the task of the caller."""
        slot = self._accumulator.reserve_alone()
        if slot is None:
            return await self.submit(item, count=count)
        try:
            (outcome,) = await self._run([item])
        finally:
            self._release(slot)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def flush(self) -> None:
        """Run what waits without lingering; return when all that was submitted before has its result."""
        entries = [*self._accumulator.waiting, *(entry for batch in self._in_flight.values() for entry in batch)]
        self._fall_due()
        if self._awaited is not None:
            _resolve(self._awaited[1])
        if entries:
            await asyncio.wait([result for _, result in entries])

    def close(self) -> None:
        """End at once: what waits or is in flight fails with what *failure* makes of a cancellation."""
        for worker in self._workers:
            worker.cancel()
        _fail(self._accumulator.clear(), self._failure(asyncio.CancelledError()))
        self._stop_timer()

    def _advance(self) -> None:
        """Start workers for the batches that may go, else the timer."""
        while self._accumulator.needs_slot:
            slot = self._accumulator.reserve()
            worker = asyncio.ensure_future(self._work(slot))
            self._workers.add(worker)
            worker.add_done_callback(partial(self._worker_ended, slot))
        if not self._lingers:
            return
        if self._accumulator.is_empty:
            self._stop_timer()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._linger, self._fall_due)

    def _fall_due(self) -> None:
        self._accumulator.make_due()
        self._advance()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _work(self, slot: Slot) -> None:
        items, seconds = 0, 0.0
        has_more = True
        while has_more:
            await asyncio.sleep(0)  # calls that are made in this moment go along
            if self._accumulator.items < items:
                await self._pause(items, seconds)
            items = self._accumulator.items
            batch = self._accumulator.take(slot, self._is_wanted)
            if not batch:
                self._advance()  # where all were dropped, the timer ends
                return
            self._advance()
            self._in_flight[slot] = batch
            began = self._clock.monotonic()  # the time of uvloop's loop has no more than milliseconds
            try:
                await self._deliver(batch)
            finally:
                del self._in_flight[slot]
            items, seconds = self._pause_after(items, self._clock.monotonic() - began)
            self._accumulator.finish(slot)
            has_more = not self._accumulator.is_empty

    def _pause_after(self, items: int, seconds: float) -> tuple[int, float]:
        """For how many items the next batch waits, and for how long, after one of *items* that took *seconds*."""
        if self._patience is None:
            return 0, 0.0
        return min(items, self._patience.items), min(seconds * self._patience.times, self._patience.seconds)

    async def _pause(self, items: int, seconds: float) -> None:
        """Return when *items* items wait, or after *seconds*."""
        loop = asyncio.get_running_loop()
        enough = loop.create_future()
        timer = loop.call_later(seconds, _resolve, enough)
        self._awaited = items, enough
        try:
            await enough
        finally:
            self._awaited = None
            timer.cancel()

    async def _deliver(self, batch: Sequence[_Pending[Item, Result]]) -> None:
        try:
            outcomes = await self._run([item for item, _ in batch])
            pairs = list(zip(batch, outcomes, strict=True))
        except Exception as error:
            _fail(batch, self._failure(error))
            return
        except BaseException as error:
            _fail(batch, self._failure(error))
            raise
        for (_, result), outcome in pairs:
            if result.done():
                continue
            if isinstance(outcome, Exception):
                result.set_exception(outcome)
            else:
                result.set_result(outcome)

    def _worker_ended(self, slot: Slot, worker: asyncio.Task[None]) -> None:
        self._workers.discard(worker)
        self._release(slot)

    def _release(self, slot: Slot) -> None:
        self._accumulator.release(slot)
        self._advance()
        if self._on_idle is not None and self._accumulator.is_idle:
            self._on_idle()


class KeyedBatchers(Generic[Item, Result]):
    """An :class:`AsyncBatcher` for each key of which items wait or are in flight; *run*, *failure*, *linger* and
    *drops_cancelled* are those of each."""

    def __init__(
        self,
        run: Callable[[Sequence[Item]], Awaitable[Sequence[Result | Exception]]],
        *,
        failure: Callable[[BaseException], Exception],
        linger: float = 0.0,
        drops_cancelled: bool = False,
    ) -> None:
        self._run = run
        self._failure = failure
        self._linger, self._drops_cancelled = linger, drops_cancelled
        self._batchers: dict[Hashable, AsyncBatcher[Item, Result]] = {}
        self.had_company = False
        """Whether the last batch, of any key, had several items. Callers that got their results together are likely to
        submit their next items together: the first of these should wait for the others, and not run alone."""

    def batcher(self, key: Hashable, limits: BatchingLimits) -> AsyncBatcher[Item, Result]:
        """The batcher of *key*; a new one has the *limits*. To be used at once: it ends when it is idle."""
        found = self._batchers.get(key)
        if found is None:
            found = self._batchers[key] = AsyncBatcher(
                self._run_batch,
                limits,
                failure=self._failure,
                linger=self._linger,
                drops_cancelled=self._drops_cancelled,
                on_idle=lambda: self._batchers.pop(key, None),
            )
        return found

    async def flush(self) -> None:
        """Like :meth:`AsyncBatcher.flush`, for all keys."""
        await asyncio.gather(*(batcher.flush() for batcher in list(self._batchers.values())))

    async def _run_batch(self, items: Sequence[Item]) -> Sequence[Result | Exception]:
        self.had_company = len(items) > 1
        return await self._run(items)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _is_awaited(entry: _Pending[Item, Result]) -> bool:
    return not entry[1].cancelled()


def _fail(entries: Sequence[_Pending[Item, Result]], error: Exception) -> None:
    for _, result in entries:
        if not result.done():
            result.set_exception(error)
