"""What a writer does for many who append at once: shared commits, linger, rates, coroutines, back-pressure."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

from millstream.core.clock import SystemClock, VirtualClock
from millstream.log import FencedError, IdRange, Log, LogInputError, LogSpec, LogStore, Writer, WriterFailedError
from millstream.log.backend import Commit
from millstream.log.backends.memory import MemoryBackend
from millstream.log.errors import StorageError, StorageUnavailableError
from millstream.log.writing import pending_requests
from millstream.log.writing.append_request import AppendRequest, make_request
from millstream.log.writing.rate_limiter import RateLimiter
from millstream.log.writing.waiters import WOKEN_AT_ONCE, Waiter, Waiters, wake
from millstream.testing.waiting import join, until


class Gate(MemoryBackend):
    """A backend whose commits wait until they are let through, and fail where ``error`` is set."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.through = threading.Semaphore(0)
        self.arrived = threading.Semaphore(0)
        self.error: Exception | None = None
        self.commits: list[int] = []

    def commit(self, log: str, commit: Commit) -> None:
        self.arrived.release()
        assert self.through.acquire(timeout=60)
        if self.error is not None:
            raise self.error
        super().commit(log, commit)
        self.commits.append(commit.last_id)


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def writer(gate: Gate) -> Iterator[Writer]:
    with LogStore(gate, SystemClock()) as store:
        writer = store.log(LogSpec("weather")).writer()
        yield writer
        for _ in range(1000):
            gate.through.release()
        gate.error = None
        if not writer._group.failure:
            writer.close()


def started(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_what_comes_while_a_commit_runs_is_one_commit(gate: Gate, writer: Writer) -> None:
    first = started(lambda: writer.append([b"a"]))
    assert gate.arrived.acquire(timeout=60)
    others = [started(lambda: writer.append([b"b", b"c"])) for _ in range(50)]
    until(lambda: writer._group.last_given >= 101)
    gate.through.release(2)
    for thread in [first, *others]:
        join(thread)
    assert gate.commits == [1, 101]


def test_everybody_who_waits_is_told_of_a_failure(gate: Gate, writer: Writer) -> None:
    def append() -> None:
        try:
            writer.append([b"x"])
        except WriterFailedError as error:
            told.append(str(error))

    told: list[str] = []
    threads = [started(append) for _ in range(3 * WOKEN_AT_ONCE)]
    assert gate.arrived.acquire(timeout=60)
    until(lambda: writer._group.last_given >= len(threads))
    gate.error = StorageError("the disk is gone")
    gate.through.release(100)
    for thread in threads:
        join(thread)
    assert len(told) == len(threads)
    assert all("the disk is gone" in text for text in told)


def test_a_coroutine_is_told_of_a_failure(gate: Gate, writer: Writer) -> None:
    async def append() -> None:
        with pytest.raises(WriterFailedError, match="the disk is gone"):
            await writer.append_async([b"x"])
        with pytest.raises(WriterFailedError, match="the disk is gone"):
            await writer.append_async([b"y"])

    gate.error = StorageError("the disk is gone")
    gate.through.release(100)
    asyncio.run(append())


def test_a_coroutine_that_is_cancelled_leaves_the_others_alone(gate: Gate, writer: Writer) -> None:
    async def work() -> list[IdRange | BaseException | None]:
        tasks = [asyncio.create_task(writer.append_async([b"x"])) for _ in range(3)]
        await asyncio.to_thread(gate.arrived.acquire, timeout=60)
        tasks[1].cancel()
        await asyncio.sleep(0)
        gate.through.release(100)
        return list(await asyncio.gather(*tasks, return_exceptions=True))

    first, second, third = asyncio.run(work())
    assert (first, third) == (IdRange(1, 1), IdRange(3, 3))
    assert isinstance(second, asyncio.CancelledError)


def test_coroutines_wait_for_room_and_do_not_block_their_loop(gate: Gate, writer: Writer) -> None:
    async def work() -> None:
        tasks = [asyncio.create_task(writer.append_async([b"small"]))]
        await asyncio.to_thread(gate.arrived.acquire, timeout=60)
        tasks += [asyncio.create_task(writer.append_async([bytes(30 << 20)])) for _ in range(3)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert writer._group.last_given == 3, "the first is under way, two wait, the fourth finds no room"
        gate.through.release(100)
        ranges = await asyncio.gather(*tasks)
        assert [ids.first for ids in ranges if ids] == [1, 2, 3, 4]

    asyncio.run(work())


def test_a_coroutine_without_room_goes_on_if_there_is_room_before_it_waits(
    gate: Gate, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_requests, "PENDING_BYTES", 1000)
    enqueue = writer._group.enqueue_if_room

    def commit_meanwhile(request: AppendRequest) -> tuple[int, IdRange | None]:
        result = enqueue(request)
        gate.through.release(100)
        until(lambda: writer.last_id == writer._group.last_given)
        return result

    async def work() -> IdRange | None:
        first = asyncio.create_task(writer.append_async([b"small"]))
        await asyncio.to_thread(gate.arrived.acquire, timeout=60)
        second = asyncio.create_task(writer.append_async([b"waits"]))
        await asyncio.sleep(0)
        monkeypatch.setattr(writer._group, "enqueue_if_room", commit_meanwhile)
        async with asyncio.timeout(30):
            third = await writer.append_async([bytes(1000)])
        await asyncio.gather(first, second)
        return third

    assert asyncio.run(work()) == IdRange(3, 3)


def test_several_event_loops_share_a_writer(gate: Gate, writer: Writer) -> None:
    async def work() -> None:
        for _ in range(20):
            await writer.append_async([b"x"])

    gate.through.release(1000)
    threads = [started(lambda: asyncio.run(work())) for _ in range(3)]
    for thread in threads:
        join(thread)
    assert writer.last_id == 60


def test_event_loops_that_are_closed_are_forgotten(gate: Gate, writer: Writer) -> None:
    gate.through.release(1000)
    for _ in range(5):
        asyncio.run(writer.append_async([b"x"]))
    assert writer._async_waiters is not None and len(writer._async_waiters._loops) == 1
    until(lambda: len(writer._group._notifier._listeners) == 1)  # those who wait are woken before the list is made anew
    assert writer.last_id == 5


def test_waiters_wake_one_another_a_few_at_a_time() -> None:
    waiters = Waiters()
    waiting = [Waiter(number) for number in range(1, 3 * WOKEN_AT_ONCE + 1)]
    for waiter in waiting:
        waiters.add(waiter)
    wake(waiters.take(2 * WOKEN_AT_ONCE))
    for waiter in waiting[: 2 * WOKEN_AT_ONCE]:
        waiter.wait()
    leader = waiters.promote()
    assert leader is waiting[2 * WOKEN_AT_ONCE]
    assert leader.leads
    assert waiters.leave(waiting[-1])
    assert not waiters.leave(waiting[0])
    assert waiters.take() == waiting[2 * WOKEN_AT_ONCE + 1 : -1]


def test_whoever_is_interrupted_while_it_waits_leaves_its_duties_to_others(gate: Gate, writer: Writer) -> None:
    """An interrupted thread may have been chosen to commit next, and to wake another."""
    group = writer._group
    first = started(lambda: writer.append([b"a"]))
    assert gate.arrived.acquire(timeout=60)
    interrupted = Waiter(group.last_given)
    group._notifier.waiters.add(interrupted)
    ids = group.enqueue(make_request([b"b"]))
    assert ids is not None
    chosen = Waiter(ids.last)
    group._notifier.waiters.add(chosen)
    second = started(lambda: group.durable(ids.last, None))
    gate.through.release(100)
    join(first)
    group._take_over(interrupted)
    group._take_over(chosen)
    join(second)
    assert writer.last_id == 2


def log_of(clock: VirtualClock, **pace: float) -> tuple[Log, MemoryBackend]:
    backend = MemoryBackend(clock)
    return LogStore(backend, clock).log(LogSpec("weather", **pace)), backend  # type: ignore[arg-type]


def test_a_writer_lingers_for_company_and_no_longer_than_it_was_told() -> None:
    clock = VirtualClock()
    log, backend = log_of(clock, linger=0.5)
    writer = log.writer()
    threads = [started(lambda: writer.append([b"x"])) for _ in range(5)]
    until(lambda: writer._group.last_given == 5 and bool(clock._waiters))
    assert log.last_id == 0
    clock.advance(0.5)
    for thread in threads:
        join(thread)
    assert (log.last_id, backend.statistics("weather").blocks) == (5, 1)


def test_a_full_block_ends_the_lingering() -> None:
    log, _ = log_of(VirtualClock(), linger=60.0)
    writer = log.writer()
    assert writer.append([b"x"] * 65_536) == IdRange(1, 65_536)


def test_a_full_block_ends_the_lingering_of_messages_that_nobody_waits_for() -> None:
    log, _ = log_of(VirtualClock(), linger=60.0)
    writer = log.writer()
    stored = threading.Event()
    writer.on_durable(lambda last_id: stored.set() if last_id == 65_536 else None)
    writer.append_nowait([b"x"])  # the scheduler is told to commit in 60 seconds, by a clock that stands still
    writer.append_nowait([b"x"] * 65_535)
    assert stored.wait(5)


def test_nothing_lingers_when_a_writer_is_closed() -> None:
    log, _ = log_of(VirtualClock(), linger=60.0)
    writer = log.writer()
    writer.append_nowait([b"x"])
    writer.close()
    assert log.last_id == 1


def test_a_pace_spaces_commits_by_their_number_and_by_their_messages() -> None:
    pace = RateLimiter(LogSpec("weather", commit_rate=50))
    assert pace.delay(10.0, 10.0, full=False) == 0
    pace.spend(10.0, 1000)
    assert pace.delay(10.005, 10.0, full=True) == pytest.approx(0.015)
    pace = RateLimiter(LogSpec("weather", message_rate=1000))
    assert pace.max_messages == 100
    pace.spend(10.0, 500)
    assert pace.delay(10.1, 10.0, full=True) == pytest.approx(0.4)
    assert pace.delay(99.0, 10.0, full=True) == 0, "nothing is saved up"
    assert RateLimiter(LogSpec("weather")).is_unlimited


def test_a_rate_holds_commits_back() -> None:
    clock = VirtualClock()
    log, backend = log_of(clock, commit_rate=2)
    writer = log.writer()
    writer.append([b"a"])
    thread = started(lambda: writer.append([b"b"]))
    until(lambda: bool(clock._waiters))
    assert log.last_id == 1
    clock.advance(0.5)
    join(thread)
    assert backend.statistics("weather").blocks == 2


@pytest.mark.parametrize("wrong", [{"linger": -1}, {"linger": 61}, {"commit_rate": -5}, {"message_rate": 1e12}])
def test_a_pace_that_cannot_be_meant_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(LogInputError, match=next(iter(wrong))):
        LogSpec("weather", **wrong)  # type: ignore[arg-type]


def test_a_log_whose_ids_are_used_up_says_so() -> None:
    log, backend = log_of(VirtualClock())
    writer = log.writer()
    writer._group._pending.last_id = 2**63 - 2
    with pytest.raises(LogInputError, match="no id after"):
        writer.append_nowait([b"a", b"b"])
    assert backend.head("weather").last_id == 0


def test_p10_one_writer_a_coroutine_of_a_fenced_writer_is_refused() -> None:
    log, backend = log_of(VirtualClock())
    writer = log.writer()
    backend.release_lease("weather", epoch=backend.head("weather").epoch)
    log.writer()
    with pytest.raises(FencedError):
        asyncio.run(writer.append_async([b"late"]))


def test_a_callback_that_fails_is_logged_and_the_others_are_called(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[int] = []
    log, _ = log_of(VirtualClock())
    with log.writer() as writer:
        writer.on_durable(lambda _: 1 // 0)
        end = writer.on_durable(heard.append)
        writer.append([b"a"])
        end()
        writer.append([b"b"])
    assert heard == [1]
    assert "a callback of the log weather failed" in caplog.text


def test_those_who_wait_for_the_end_of_a_writer_are_called_if_its_lease_cannot_be_released() -> None:
    class Unreachable(MemoryBackend):
        def release_lease(self, log: str, *, epoch: int) -> None:
            raise StorageUnavailableError("it does not answer")

    clock, ended = VirtualClock(), list[str]()
    with LogStore(Unreachable(clock), clock) as store:
        writer = store.log(LogSpec("weather")).writer()
        writer.on_close(lambda: ended.append("first"))
        with pytest.raises(StorageUnavailableError):
            writer.close()
    assert ended == ["first"]


def test_all_who_wait_for_the_end_of_a_writer_are_called_if_one_of_them_fails() -> None:
    ended: list[str] = []
    log, _ = log_of(VirtualClock())
    writer = log.writer()
    writer.on_close(lambda: 1 // 0)
    writer.on_close(lambda: ended.append("second"))
    with pytest.raises(ZeroDivisionError):
        writer.close()
    assert ended == ["second"]


def test_a_renewal_that_takes_long_does_not_hold_up_commits() -> None:
    class Stuck(MemoryBackend):
        def __init__(self) -> None:
            super().__init__(SystemClock())
            self.renewing, self.through = threading.Event(), threading.Event()

        def renew_lease(self, log: str, *, epoch: int, until: int) -> bool:
            self.renewing.set()
            return self.through.wait(60) and super().renew_lease(log, epoch=epoch, until=until)

    backend = Stuck()
    with LogStore(backend, SystemClock(), lease_seconds=0.03) as store:
        writer = store.log(LogSpec("weather")).writer()
        assert backend.renewing.wait(60)
        writer.append_nowait([b"a"])
        try:
            until(lambda: writer.last_id == 1, "a commit")
        finally:
            backend.through.set()
        writer.close()


@pytest.mark.parametrize("sequence", [0, -1, 1 << 63, 1.5])
def test_a_sequence_that_stores_cannot_keep_is_refused_and_others_go_on(sequence: int) -> None:
    log, _ = log_of(VirtualClock())
    with log.writer() as writer:
        with pytest.raises(LogInputError, match=r"must be a whole number from 1 to 2\^63 - 1"):
            writer.append([b"a"], sequence=sequence)
        assert writer.append([b"b"]) == IdRange(1, 1)


@pytest.mark.parametrize("name", ["p" * 256, "\ud800"])
def test_a_name_that_stores_cannot_keep_is_refused(name: str) -> None:
    log, _ = log_of(VirtualClock())
    with pytest.raises(LogInputError, match=r"invalid producer name .*: use 0 to 255 characters"):
        log.writer(name)
    with pytest.raises(LogInputError, match=r"invalid consumer name .*: use 1 to 255 characters"):
        log.reader(name)
    with log.writer("ü" * 255) as writer:
        writer.append([b"a"])
