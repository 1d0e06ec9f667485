"""The roles of a node that its settings name (section ``serve``): resources and threads of each."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from millstream.anchoring.errors import AnchoringError
from millstream.anchoring.feed import AnchorSchedule, FeedProgress
from millstream.batching.errors import BatchServiceError, ConfigError, SnapshotError
from millstream.batching.metrics import OPEN_GAUGES
from millstream.cli.anchor.observe import follow_in_background
from millstream.cli.log_sources import MqttIngestRunner, opened_relay, run_relay
from millstream.cli.mill.work import monitor_of, run_pools, wake_others, watching
from millstream.cli.producer_threads import running_producers
from millstream.cli.retried_resource import RetriedResource
from millstream.cli.role_run import errors_once
from millstream.core.amounts import counted
from millstream.core.documents import IncompleteDocumentError
from millstream.core.errors import MillstreamError
from millstream.core.metric_collection.hook import LabelledMetrics
from millstream.ingest import IngestError
from millstream.log import LogError, LogSpec
from millstream.mill.workers.pools import queues_of
from millstream.node.ledger_trees import LEDGERS
from millstream.node.members.assignment import BROKER_ROLE

if TYPE_CHECKING:
    from millstream.batching.service import BatchService
    from millstream.batching.ticks import Ticker
    from millstream.cli.role_run import RoleRun
    from millstream.log import Writer
    from millstream.log.relay import Relay
    from millstream.mill.workers.manager import WorkerManager, WorkTally
    from millstream.node import Node
    from millstream.node.ledger_trees import LedgerName
    from millstream.settings import IngestRole, RelayRole

T = TypeVar("T")

Opener: TypeAlias = "Callable[[RoleRun], AbstractContextManager[object]]"
"""Opens what a role needs, for the length of the block, and adds its threads to the run."""

_COSIGN_SECONDS = 0.5
"""How often the ledgers are compared with what was cosigned: two small queries each."""

_STAMP_SECONDS = 5.0
"""How often it is checked whether a time stamp is due: a small query for each ledger and authority."""

_DRAFTS_SECONDS = 86_400.0
"""How often drafts of killed processes are looked for: all names in the folder of anchored files are read."""

_SUSPENDING = BatchServiceError, ConfigError, IncompleteDocumentError, LogError, SnapshotError
"""The errors of a log that cannot be batched as it is, or not by the rules and the state that there are."""

_log = logging.getLogger(__name__)


class NodeRoles:
    """The roles of *node*. Roles of :meth:`everywhere` run in each process, roles of :meth:`owned` in one process."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._settings = node.settings.serve
        self._managers: dict[str, WorkerManager] = {}
        self._writers: dict[str, Callable[[], Writer | None]] = {}
        self._topic_writer: Callable[[str], Writer | None] = lambda _: None

    def owned(self) -> Mapping[str, Opener]:
        """The roles that one process of the node owns, by name, in the order in which a process starts them."""
        settings, serve = self._node.settings, self._settings
        roles: dict[str, Opener] = {}
        if settings.log.upkeep:
            roles["upkeep"] = self._upkeep
        roles |= {f"ingest {log}": functools.partial(self._ingest, log, role) for log, role in serve.ingest.items()}
        roles |= {f"relay {log}": functools.partial(self._relay, log, role) for log, role in serve.relay.items()}
        if settings.registry.follow.ledger:
            roles["following"] = self._following
        for log, output in serve.batching.items():
            roles[f"batching {log}"] = functools.partial(self._batching, log, output)
        if settings.anchoring.witness_policy:
            roles["cosignatures"] = self._cosignatures
        if settings.anchoring.timestamp_authorities:
            roles["time stamps"] = self._timestamps
        if serve.producers:
            roles["producers"] = self._producers
        return roles

    def everywhere(self) -> Mapping[str, Opener]:
        """The roles that run in each process: they share queues and tables."""
        roles: dict[str, Opener] = {}
        if self._settings.registry or self._settings.registry_http:
            roles["registry"] = self._registry
        if self._settings.workers:
            roles["workers"] = functools.partial(self._workers, self._settings.workers)
        return roles

    def groups(self, *, broker: bool = False) -> Mapping[str, str]:
        """The roles of :meth:`owned`, each with its group: the writer and the batcher of a log are one group.

        With *broker* this process can have the broker, whose owner writes the logs that no other role writes: only it
        can append ticks to a topic.
        """
        groups = {name: name.partition(" ")[2] if name.startswith(_OF_LOGS) else name for name in self.owned()}
        if broker:
            written = self._settings.ingest.keys() | self._settings.relay.keys()
            groups |= {f"batching {log}": BROKER_ROLE for log in self._settings.batching.keys() - written}
            groups[BROKER_ROLE] = BROKER_ROLE
        return groups

    def stop_workers(self) -> None:
        """Let workers begin nothing more. Does not wait."""
        for manager in self._managers.values():
            manager.stop()

    def write_topics_by(self, find: Callable[[str], Writer | None]) -> None:
        """From now on *find* returns the writers of logs that are topics of this process's broker."""
        self._topic_writer = find

    @contextlib.contextmanager
    def _upkeep(self, run: RoleRun) -> Iterator[None]:
        """Moves and trims logs, and removes once a day what killed processes were writing."""

        def clear_drafts() -> None:
            while not run.stopping.is_set():
                with contextlib.suppress(MillstreamError):  # the part that needs the storage reports the error
                    self._node.anchoring.cas.clear_drafts(run.stopping.is_set)
                run.stopping.wait(_DRAFTS_SECONDS)

        run.add("removal of drafts", clear_drafts)
        with self._node.logs.upkeep(_log.warning):
            yield

    @contextlib.contextmanager
    def _ingest(self, log: str, role: IngestRole, run: RoleRun) -> Iterator[None]:
        """Takes messages of a broker into *log* until it is stopped."""
        collector, say = self._node.metrics, functools.partial(_log.info, "ingest into %s: %s", log)
        runner, metrics = MqttIngestRunner(log, role), LabelledMetrics(collector, log=log)
        with self._source("ingest", log, run, lambda: runner.opened(self._node, metrics, say)) as source:

            def take_all() -> None:
                source.use(lambda opened: opened[1](run.stopping.is_set))
                records, aside = (
                    collector.figures().by_label(f"ingest_{what}_total", "log").get(log, 0)
                    for what in ("records", "rejects")
                )
                say(f"it has ended: {records:,} records, {counted(aside, 'message')} rejected")

            run.add(f"ingest into {log}", take_all)
            with self._writing(log, lambda: None if (opened := source.current) is None else opened[0]):
                yield

    @contextlib.contextmanager
    def _relay(self, log: str, role: RelayRole, run: RoleRun) -> Iterator[None]:
        """Moves an outbox into *log* until it is stopped."""
        moved: Counter[str] = Counter()

        def move(relay: Relay) -> None:
            try:
                run_relay(relay, role)
            finally:
                moved.update(messages=relay.relayed.messages, dead=relay.relayed.dead)

        def open_relay() -> AbstractContextManager[Relay]:
            return opened_relay(log, role, self._node, run.stopping.is_set)

        with self._source("relay", log, run, open_relay) as source:
            _log.info("relaying the table %s into %s", role.table, log)

            def relay_all() -> None:
                source.use(move)
                _log.info(
                    "relaying into %s has ended: %s messages, %s dead rows", log, moved["messages"], moved["dead"]
                )

            run.add(f"relay into {log}", relay_all)
            with self._writing(log, lambda: None if (relay := source.current) is None else relay.writer):
                yield

    @contextlib.contextmanager
    def _source(
        self, kind: str, log: str, run: RoleRun, opened: Callable[[], AbstractContextManager[T]]
    ) -> Iterator[RetriedResource[T]]:
        """What *opened* returns, which brings messages into *log*, by an ingest or a relay (*kind*).

        While it cannot, the gauge of this *kind* is 0. What cannot be used at the start of the process is raised.
        """
        metrics, gauge = self._node.metrics, f"{kind}_connected"

        def suspended() -> None:
            metrics.gauge(gauge, 0, log=log)

        try:
            with RetriedResource(run, opened, (IngestError, LogError), suspended) as source:
                source.open(required=not run.is_owned)
                yield source
        finally:  # another process may have the role now, and its state
            metrics.remove_gauge(gauge, log=log)

    @contextlib.contextmanager
    def _writing(self, log: str, writer: Callable[[], Writer | None]) -> Iterator[None]:
        """Within the block *writer* finds the writer of *log* in this process."""
        self._writers[log] = writer
        try:
            yield
        finally:
            del self._writers[log]

    @contextlib.contextmanager
    def _following(self, run: RoleRun) -> Iterator[None]:
        _log.info("following the registry that the settings name")
        run.add("following", follow_in_background(self._node, run.stopping.is_set))
        yield

    def _own_writer(self, log: str) -> Writer | None:
        """The writer of *log* that another role of this process has now."""
        find = self._writers.get(log)
        return None if find is None else find()

    def _ticker(self, log: str) -> Ticker:
        """Ticks for *log*: by its writer where that is in this process, a role or the broker, else where it is free."""
        from millstream.batching.ticks import current_writer_ticker, first_of_tickers, idle_log_ticker

        own = current_writer_ticker(lambda: self._own_writer(log))
        topic = current_writer_ticker(lambda: self._topic_writer(log))
        return first_of_tickers(own, topic, idle_log_ticker(self._node.logs.store.log(LogSpec(log)), self._node.clock))

    @contextlib.contextmanager
    def _batching(self, log: str, output: str, run: RoleRun) -> Iterator[None]:
        """Batches *log* into *output* and anchors what came, until it is stopped; then anchors the rest."""
        node = self._node
        node.logs.store.log(LogSpec(log))  # made where it is absent: those who write to it may begin later
        unanchored = errors_once(f"anchoring the batches of {log} failed, and is tried again", node.clock)
        schedules: list[AnchorSchedule] = []

        def anchoring() -> AnchorSchedule:
            if not schedules:
                feed = node.anchoring.feed(log, output)
                schedules.append(AnchorSchedule(feed, node.clock, self._settings.anchor_every))
            return schedules[0]

        def anchor(step: Callable[[AnchorSchedule], object]) -> None:
            try:
                step(anchoring())
            except Exception as error:  # the log can be batched on, also if the anchored files cannot be stored
                if not (isinstance(error, AnchoringError) or run.bears(error, (LogError, SnapshotError))):
                    raise
                unanchored(error)

        def suspended() -> None:
            anchor(AnchorSchedule.when_due)  # what there is of batches

        @contextlib.contextmanager
        def open_service() -> Iterator[BatchService]:
            try:
                with contextlib.closing(node.batching.service(log, output, ticks=self._ticker(log))) as opened:
                    yield opened
            finally:  # another process may have the role now
                for gauge in OPEN_GAUGES:
                    node.metrics.remove_gauge(gauge, log=log)

        with RetriedResource(run, open_service, _SUSPENDING, suspended) as service:
            service.open(required=False)
            with contextlib.suppress(SnapshotError):  # the service is suspended by the same error
                anchoring()
            _log.info("batching %s into %s, and anchoring", log, output)

            def batch_all() -> None:
                between = functools.partial(anchor, AnchorSchedule.when_due)
                service.use(lambda opened: opened.run(run.stopping.is_set, between=between))
                anchor(AnchorSchedule.finish)
                done = schedules[0].feed.total if schedules else FeedProgress()
                _log.info("batching %s has ended: %s batches handed over, %s anchors", log, done.batches, done.anchors)

            run.add(f"batching {log}", batch_all)
            yield

    @contextlib.contextmanager
    def _cosignatures(self, run: RoleRun) -> Iterator[None]:
        """Asks the witnesses of the policy to cosign the ledgers, until it is stopped."""
        ledgers = self._node.ledgers
        assert ledgers.cosignatures.policy is not None
        _log.info("asking %d witnesses to cosign the ledgers", len(ledgers.cosignatures.policy.witnesses))

        collect = self._for_ledgers(
            "cosignatures", _COSIGN_SECONDS, lambda name: ledgers.cosignatures.required_collector(name).collect(), run
        )
        run.add("cosignatures", collect)
        yield

    @contextlib.contextmanager
    def _timestamps(self, run: RoleRun) -> Iterator[None]:
        """Has the ledgers time-stamped by the authorities, until it is stopped."""
        ledgers = self._node.ledgers
        ledgers.timestamps.required_collector(LEDGERS[0])  # settings that cannot be used end the process now
        count = len(self._node.settings.anchoring.timestamp_authorities)
        _log.info("asking %d authorities for time stamps of the ledgers", count)
        collect = self._for_ledgers(
            "time stamps", _STAMP_SECONDS, lambda name: ledgers.timestamps.required_collector(name).collect(), run
        )
        run.add("time stamps", collect)
        yield

    def _for_ledgers(
        self, what: str, seconds: float, collect: Callable[[LedgerName], object], run: RoleRun
    ) -> Callable[[], None]:
        """Calls *collect* every *seconds* for each ledger of the node, until it is stopped."""

        def collect_again_and_again() -> None:
            failed: dict[str, str] = {}
            while not run.stopping.is_set():
                for name in LEDGERS:
                    try:
                        if self._node.ledgers.has(name):
                            collect(name)
                        failed.pop(name, None)
                    except MillstreamError as error:  # a store or database that is unreachable comes back
                        if failed.get(name) != str(error):
                            _log.warning("cannot collect %s for the ledger %s: %s", what, name, error)
                        failed[name] = str(error)
                run.stopping.wait(seconds)

        return collect_again_and_again

    @contextlib.contextmanager
    def _workers(self, pools: Sequence[str], run: RoleRun) -> Iterator[None]:
        chosen = {name: queues_of(name, self._node.settings.mill.pools) for name in pools}

        def show(pool: str, _tally: WorkTally) -> None:
            wake_others(self._managers, but=pool)

        for pool, names in chosen.items():
            self._managers[pool] = self._node.mill.workers(*names, on_progress=functools.partial(show, pool))
            _log.info("working on %s (pool %s)", ", ".join(names), pool)

        def work() -> None:
            tally = run_pools(self._managers, drain=False)
            _log.info("workers have ended: %s tasks done, %s dead", tally.done, tally.dead)

        every = dict.fromkeys(name for names in chosen.values() for name in names)
        with watching(monitor_of(self._node, list(every)), None):
            run.add("workers", work)
            yield

    @contextlib.contextmanager
    def _registry(self, _run: RoleRun) -> Iterator[None]:
        _log.info("cutting and anchoring operations on identifiers")
        with self._node.registry.instance as registry:
            registry.start()
            yield

    def _producers(self, run: RoleRun) -> AbstractContextManager[None]:
        _log.info("producing tasks of duplication, of bit checks and of storage statistics")
        wake = functools.partial(wake_others, self._managers)
        return running_producers(self._node, wake, _log.info, run.stopping, run.fence)


_OF_LOGS = ("batching ", "ingest ", "relay ")
"""The common prefix of the names of the roles of a log."""
