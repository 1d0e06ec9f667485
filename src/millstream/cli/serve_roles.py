"""What one process of a node does beside broker and console: it batches, anchors, works, and puts tasks on queues."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from millstream.cli.anchor_feed import Anchoring
from millstream.cli.mill_producing import complaining, producing
from millstream.cli.mill_work import run_pools, wake_others, watching
from millstream.core.errors import MillstreamError
from millstream.mill.worker_pools import queues_of

if TYPE_CHECKING:
    from millstream.mill.workers import Tally, WorkerManager
    from millstream.node import Node

Say = Callable[[str], None]


class Roles:
    """The roles of *node* that its settings name (section ``serve``), each in threads of its own within the block.

    :meth:`stop` asks them to end what they have in hand and to begin nothing more; the end of the block waits for
    that. When one fails, *failed* is called, and the end of the block raises its error. *say* gets a line for each
    role that begins, and for what it did.
    """

    def __init__(self, node: Node, say: Say, failed: Callable[[], object]) -> None:
        self._node, self._say, self._failed = node, say, failed
        self._settings = node.settings.serve
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._managers: dict[str, WorkerManager] = {}
        self._errors: list[Exception] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Roles:
        with contextlib.ExitStack() as stack:
            stack.enter_context(complaining(self._say))
            if self._settings.registry:
                stack.enter_context(self._registry())
            for log, output in self._settings.batching.items():
                self._add(f"batching {log}", self._batching(log, output))
            if self._settings.workers:
                stack.enter_context(self._workers(self._settings.workers))
            if self._settings.producers:
                self._say("producing tasks of duplication, of bit checks and of storage statistics")
                stack.enter_context(producing(self._node, lambda: wake_others(self._managers), self._say))
            self._stack = stack.pop_all()
        for thread in self._threads:  # not before every role is known to be one that can begin
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        for thread in self._threads:
            thread.join()
        self._stack.close()
        if self._errors:
            raise self._errors[0]

    def stop(self) -> None:
        """Begin nothing more. Does not wait."""
        self._stopping.set()
        for manager in self._managers.values():
            manager.stop()

    def _add(self, name: str, run: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                run()
            except Exception as error:
                self._errors.append(error)
                self._say(f"{name} has ended: {error}" if isinstance(error, MillstreamError) else f"{name} has failed")
                self._failed()

        self._threads.append(threading.Thread(target=guarded, name=name))

    def _batching(self, log: str, output: str) -> Callable[[], None]:
        """Batches *log* into *output* and anchors what came, until it is stopped; then anchors the rest."""
        from millstream.batching.ticks import ticks_between
        from millstream.log import LogSpec

        node = self._node
        source = node.store.log(LogSpec(log), create=False)
        service = node.batch_service(log, output, ticks=ticks_between(source, node.clock))
        anchoring = Anchoring(node.anchor_feed(log, output), node.clock, self._settings.anchor_every)
        self._say(f"batching {log} into {output}, and anchoring")

        def stopped() -> bool:
            anchoring.when_due()
            return self._stopping.is_set()

        def run() -> None:
            service.run(stopped)
            anchoring.feed.step(force=True)
            total = anchoring.feed.total
            self._say(f"batching {log} has ended: {total.batches:,} batches handed over, {total.anchors:,} anchors")

        return run

    @contextlib.contextmanager
    def _workers(self, pools: Sequence[str]) -> Iterator[None]:
        chosen = {name: queues_of(name, self._node.settings.mill.pools) for name in pools}

        def show(pool: str, _tally: Tally) -> None:
            wake_others(self._managers, but=pool)

        for pool, names in chosen.items():
            self._managers[pool] = self._node.workers(*names, on_progress=functools.partial(show, pool))
            self._say(f"working on {', '.join(names)} (pool {pool})")

        def run() -> None:
            tally = run_pools(self._managers, drain=False)
            self._say(f"workers have ended: {tally.done:,} tasks done, {tally.dead:,} dead")

        every = dict.fromkeys(name for names in chosen.values() for name in names)
        with watching(self._node.monitor(*every), None):
            self._add("workers", run)
            yield

    @contextlib.contextmanager
    def _registry(self) -> Iterator[None]:
        self._say("cutting and anchoring operations on identifiers")
        with self._node.registry as registry:
            registry.start()
            yield
