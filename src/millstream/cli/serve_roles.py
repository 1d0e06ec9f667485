"""What one process of a node does beside broker and console: take in, batch, anchor, work, put tasks on queues."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from millstream.anchoring.feed import AnchorSchedule
from millstream.cli.anchor.observe import follow_in_background
from millstream.cli.log_sources import MqttIngestRunner, opened_relay, run_relay
from millstream.cli.mill.work import monitor_of, run_pools, wake_others, watching
from millstream.cli.producer_threads import running_producers
from millstream.core.amounts import counted
from millstream.core.errors import MillstreamError
from millstream.core.metrics.hook import LabelledMetrics
from millstream.log import LogSpec
from millstream.mill.workers.pools import queues_of
from millstream.node.ledger_trees import LEDGERS

if TYPE_CHECKING:
    from millstream.batching.ticks import Ticker
    from millstream.log import Writer
    from millstream.mill.workers.manager import WorkerManager, WorkTally
    from millstream.node import Node
    from millstream.node.ledger_trees import LedgerName
    from millstream.settings import IngestRole, RelayRole

_COSIGN_SECONDS = 0.5
"""How often the ledgers are compared with what was cosigned: two small queries each."""

_STAMP_SECONDS = 5.0
"""How often it is checked whether a time stamp is due: a small query for each ledger and authority."""

_log = logging.getLogger(__name__)


class ServeRoles:
    """The roles of *node* that its settings name (section ``serve``), each in threads of its own within the block.

    :meth:`stop` asks them to complete running work and to begin nothing more; the end of the block waits for
    that. When one fails, *failed* is called, and the end of the block raises its error. A line is logged for each role
    that begins, and for what it did.
    """

    def __init__(self, node: Node, failed: Callable[[], object]) -> None:
        self._node, self._failed = node, failed
        self._settings = node.settings.serve
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._managers: dict[str, WorkerManager] = {}
        self._writers: dict[str, Callable[[], Writer | None]] = {}
        self._topic_writer: Callable[[str], Writer | None] = lambda _: None
        self._errors: list[Exception] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> ServeRoles:
        with contextlib.ExitStack() as stack:
            for log, broker in self._settings.ingest.items():
                stack.enter_context(self._ingest(log, broker))
            for log, outbox in self._settings.relay.items():
                stack.enter_context(self._relay(log, outbox))
            if self._node.settings.registry.follow.ledger:
                _log.info("following the registry that the settings name")
                self._add("following", follow_in_background(self._node, self._stopping.is_set))
            if self._settings.registry or self._settings.registry_http:
                stack.enter_context(self._registry())
            for log, output in self._settings.batching.items():
                self._add(f"batching {log}", self._batching(log, output))
            if self._node.settings.anchoring.witness_policy:
                self._add("cosignatures", self._cosignatures())
            if self._node.settings.anchoring.timestamp_authorities:
                self._add("time stamps", self._timestamps())
            if self._settings.workers:
                stack.enter_context(self._workers(self._settings.workers))
            if self._settings.producers:
                _log.info("producing tasks of duplication, of bit checks and of storage statistics")
                stack.enter_context(running_producers(self._node, lambda: wake_others(self._managers), _log.info))
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

    def write_topics_by(self, find: Callable[[str], Writer | None]) -> None:
        """From now on *find* knows the writers of logs that are topics of this process's broker."""
        self._topic_writer = find

    def _add(self, name: str, run: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                run()
            except Exception as error:
                self._errors.append(error)
                if isinstance(error, MillstreamError):
                    _log.error("%s has ended: %s", name, error)
                else:
                    _log.exception("%s has failed", name)
                self._failed()

        self._threads.append(threading.Thread(target=guarded, name=name))

    @contextlib.contextmanager
    def _ingest(self, log: str, role: IngestRole) -> Iterator[None]:
        """Takes messages of a broker into *log* until it is stopped."""
        collector, say = self._node.metrics, functools.partial(_log.info, "ingest into %s: %s", log)
        with MqttIngestRunner(log, role).opened(self._node, LabelledMetrics(collector, log=log), say) as (writer, take):
            self._writers[log] = lambda: writer

            def run() -> None:
                take(self._stopping.is_set)
                records, aside = (
                    collector.figures().by_label(f"ingest_{what}_total", "log").get(log, 0)
                    for what in ("records", "rejects")
                )
                say(f"it has ended: {records:,} records, {counted(aside, 'message')} put aside")

            self._add(f"ingest into {log}", run)
            yield

    @contextlib.contextmanager
    def _relay(self, log: str, role: RelayRole) -> Iterator[None]:
        """Moves an outbox into *log* until it is stopped."""
        with opened_relay(log, role, self._node, self._stopping.is_set) as relay:
            self._writers[log] = lambda: relay.writer
            _log.info("relaying the table %s into %s", role.table, log)

            def run() -> None:
                done = run_relay(relay, role)
                _log.info("relaying into %s has ended: %s messages, %s dead rows", log, done.messages, done.dead)

            self._add(f"relay into {log}", run)
            yield

    def _ticker(self, log: str) -> Ticker:
        """Ticks for *log*: by its writer where that is in this process, a role or the broker, else where it is free."""
        from millstream.batching.ticks import current_writer_ticker, first_of_tickers, idle_log_ticker

        if log in self._writers:
            return current_writer_ticker(self._writers[log])
        topic = current_writer_ticker(lambda: self._topic_writer(log))
        return first_of_tickers(topic, idle_log_ticker(self._node.logs.store.log(LogSpec(log)), self._node.clock))

    def _batching(self, log: str, output: str) -> Callable[[], None]:
        """Batches *log* into *output* and anchors what came, until it is stopped; then anchors the rest."""
        node = self._node
        node.logs.store.log(LogSpec(log))  # made where it is absent: those who write to it may begin later
        service = node.batching.service(log, output, ticks=self._ticker(log))
        anchoring = AnchorSchedule(node.anchoring.feed(log, output), node.clock, self._settings.anchor_every)
        _log.info("batching %s into %s, and anchoring", log, output)

        def run() -> None:
            service.run(self._stopping.is_set, between=anchoring.when_due)
            anchoring.feed.step(force=True)
            total = anchoring.feed.total
            _log.info("batching %s has ended: %s batches handed over, %s anchors", log, total.batches, total.anchors)

        return run

    def _cosignatures(self) -> Callable[[], None]:
        """Asks the witnesses of the policy to cosign the ledgers, until it is stopped."""
        ledgers = self._node.ledgers
        assert ledgers.cosignatures.policy is not None
        _log.info("asking %d witnesses to cosign the ledgers", len(ledgers.cosignatures.policy.witnesses))

        return self._for_ledgers(
            "cosignatures", _COSIGN_SECONDS, lambda name: ledgers.cosignatures.required_collector(name).collect()
        )

    def _timestamps(self) -> Callable[[], None]:
        """Has the ledgers time-stamped by the authorities, until it is stopped."""
        ledgers = self._node.ledgers
        ledgers.timestamps.required_collector(LEDGERS[0])  # settings that cannot be used end the process now
        count = len(self._node.settings.anchoring.timestamp_authorities)
        _log.info("asking %d authorities for time stamps of the ledgers", count)
        return self._for_ledgers(
            "time stamps", _STAMP_SECONDS, lambda name: ledgers.timestamps.required_collector(name).collect()
        )

    def _for_ledgers(self, what: str, seconds: float, collect: Callable[[LedgerName], object]) -> Callable[[], None]:
        """Calls *collect* every so many *seconds* for each ledger of the node, until it is stopped."""

        def run() -> None:
            failed: dict[str, str] = {}
            while not self._stopping.is_set():
                for name in LEDGERS:
                    try:
                        if self._node.ledgers.has(name):
                            collect(name)
                        failed.pop(name, None)
                    except MillstreamError as error:  # a store or database that is unreachable comes back
                        if failed.get(name) != str(error):
                            _log.warning("cannot collect %s for the ledger %s: %s", what, name, error)
                        failed[name] = str(error)
                self._stopping.wait(seconds)

        return run

    @contextlib.contextmanager
    def _workers(self, pools: Sequence[str]) -> Iterator[None]:
        chosen = {name: queues_of(name, self._node.settings.mill.pools) for name in pools}

        def show(pool: str, _tally: WorkTally) -> None:
            wake_others(self._managers, but=pool)

        for pool, names in chosen.items():
            self._managers[pool] = self._node.mill.workers(*names, on_progress=functools.partial(show, pool))
            _log.info("working on %s (pool %s)", ", ".join(names), pool)

        def run() -> None:
            tally = run_pools(self._managers, drain=False)
            _log.info("workers have ended: %s tasks done, %s dead", tally.done, tally.dead)

        every = dict.fromkeys(name for names in chosen.values() for name in names)
        with watching(monitor_of(self._node, list(every)), None):
            self._add("workers", run)
            yield

    @contextlib.contextmanager
    def _registry(self) -> Iterator[None]:
        _log.info("cutting and anchoring operations on identifiers")
        with self._node.registry.instance as registry:
            registry.start()
            yield
