"""Processes that share a bucket, stepped request by request in an order that a seed draws."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from millstream.log.backends.objects.bucket import Bucket


class InlinePool(ThreadPoolExecutor):
    """Does everything in the thread that asks."""

    def map(self, function: Callable[..., Any], *values: Any, **_: Any) -> Iterator[Any]:  # type: ignore[override]
        return map(function, *values)

    def submit(self, function: Callable[..., Any], /, *values: Any, **options: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(function(*values, **options))
        except Exception as error:
            done.set_exception(error)
        return done


class _Stopped(BaseException):
    """The run is over."""


class Process:
    """*work* in a thread that runs only when it is told to, up to its next request."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self.name = name
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self.is_over = self._stopping = False
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def step(self) -> None:
        """Let it do one request, and all that it does before the next one."""
        self._go.release()
        self._paused.acquire()

    def pause(self) -> None:
        """Called in its thread before each request."""
        self._paused.release()
        self._go.acquire()
        if self._stopping:
            raise _Stopped

    def stop(self) -> None:
        """End it at the request before which it pauses, as kill -9 does."""
        self._stopping = True
        if not self.is_over:
            self.step()
        self._thread.join()

    def _run(self, work: Callable[[], None]) -> None:
        self._go.acquire()
        try:
            if not self._stopping:
                work()
        except _Stopped:
            pass
        except BaseException as error:
            self.failure = error
        self.is_over = True
        self._paused.release()


class SteppedBucket:
    """*bucket* as one process sees it: each request waits until that process is stepped."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self.process: Process | None = None

    url = "s3://stepped"

    def create(self, name: str, data: bytes) -> bool:
        return self._stepped().create(name, data)

    def put(self, name: str, data: bytes) -> None:
        self._stepped().put(name, data)

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        return self._stepped().get(name, start, length)

    def size(self, name: str) -> int | None:
        return self._stepped().size(name)

    def list(self, prefix: str, after: str = "", limit: int = 1000) -> Sequence[str]:
        return self._stepped().list(prefix, after, limit)

    def delete(self, names: Sequence[str]) -> None:
        self._stepped().delete(names)

    def server_time(self) -> int:
        return self._bucket.server_time()

    def close(self) -> None:
        pass

    def _stepped(self) -> Bucket:
        if self.process is not None:
            self.process.pause()
        return self._bucket


def run_stepped(processes: list[Process], seed: int, steps: int) -> None:
    """Step *processes* in the order that *seed* draws; then stop them all. Raises what one of them has raised.

    Now and then one of them is left alone for long, as a process that the machine has suspended.
    """
    draw = random.Random(seed)
    asleep: dict[Process, int] = {}
    try:
        for turn in range(steps):
            awake = [each for each in processes if not each.is_over and asleep.get(each, 0) <= turn]
            if not awake:
                awake = [each for each in processes if not each.is_over]
            if not awake:
                return
            process = draw.choice(awake)
            process.step()
            if process.failure is not None:
                raise process.failure
            if draw.random() < 0.03:
                asleep[process] = turn + draw.randrange(20, 200)
    finally:
        for process in processes:
            process.stop()
