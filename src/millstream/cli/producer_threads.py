"""The looping producers as threads of a process that also has workers, and their log lines."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from millstream.cli.logging_setup import describe_error
from millstream.cli.mill.plan_printing import held_lines
from millstream.cli.mill.produce import left_out
from millstream.core.amounts import counted
from millstream.core.clock import MICROSECONDS
from millstream.mill.audit.export import AuditExport
from millstream.mill.audit.open_changes import open_changes
from millstream.mill.producers.producer_loop import LoopFailure, LoopOutcome, ProducerLoop
from millstream.mill.producers.space_filter import SpaceFilter
from millstream.node import Node

Say = Callable[[str], object]


OneRun = Callable[[Callable[[], bool]], Iterator[str]]
"""Makes a run, unless a stop was requested; returns the lines to log."""


class _Producer(NamedTuple):
    """A producer, and how often it runs (microseconds)."""

    name: str
    run: OneRun
    every: int


@contextlib.contextmanager
def running_producers(
    node: Node,
    wake: Callable[[], None],
    say: Say,
    ended: threading.Event | None = None,
    fence: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
) -> Iterator[None]:
    """Run the looping producers for the length of the block, or until *ended*, and call *wake* when they have put
    tasks.

    *say* gets a line for every space that failed, was left out or is held; no failure ends a producer. Their threads
    write to the node's database within *fence*.
    """
    ended = ended or threading.Event()

    def again_and_again(producer: _Producer) -> None:
        with fence():
            while not ended.is_set():
                for line in _one_run(producer, ended.is_set):
                    say(line)
                ended.wait(producer.every / MICROSECONDS)

    threads = [
        threading.Thread(target=again_and_again, args=[producer], name=f"mill-producer-{producer.name}")
        for producer in _producers(node, wake)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def _producers(node: Node, wake: Callable[[], None]) -> list[_Producer]:
    settings = node.settings.mill.produce
    duplication, producer = node.mill.producers.duplication(SpaceFilter(), on_progress=lambda _: wake())

    def tell() -> Iterator[str]:
        while producer.held:
            yield from held_lines(producer.held.pop(0))
        yield from left_out(producer)

    bits = node.mill.producers.bits(SpaceFilter(), on_progress=lambda _: wake())
    statistics = node.mill.producers.statistics(SpaceFilter(), on_progress=lambda _: wake())
    producers = [
        _Producer("duplication", _run_of(duplication, tell), settings.duplication_every),
        _Producer("bits", _run_of(bits), settings.bits_every),
        _Producer("statistics", _run_of(statistics), settings.statistics_every),
    ]
    if node.mill.audit.export is not None:
        producers.append(_Producer("audit-log", _run_of_export(node, node.mill.audit.export), settings.audit_log_every))
    return producers


def _run_of(loop: ProducerLoop[Any], tell: Callable[[], Iterator[str]] = lambda: iter(())) -> OneRun:
    said = list[LoopFailure]()

    def one_run(stopping: Callable[[], bool]) -> Iterator[str]:
        run = loop.run(stopping)
        for failure in run.failures:
            if run.outcome != LoopOutcome.NOT_DUE or failure not in said:  # why no loop begins is said once
                yield f"{failure.what}: {failure.error}"
        said[:] = run.failures
        yield from tell()
        if run.outcome == LoopOutcome.DONE:
            yield "the loop is done"

    return one_run


def _run_of_export(node: Node, export: AuditExport) -> OneRun:
    def one_run(stopping: Callable[[], bool]) -> Iterator[str]:
        done = export.run(stopping)
        if done.events:
            yield f"{counted(done.events, 'event')} exported"
        found = open_changes(node.stores.outbox, node.stores.providers.unchecked)
        yield from (str(one) for one in found if one.is_left(node.clock.now()))

    return one_run


def _one_run(producer: _Producer, stopping: Callable[[], bool]) -> Iterator[str]:
    """The lines to log about one run."""
    try:
        for line in producer.run(stopping):
            yield f"producer of {producer.name}: {line}"
    except Exception as error:  # of any type: the next run may succeed, and the end of this thread would be unnoticed
        yield f"producer of {producer.name}: {describe_error(error)}"
