"""One instance of a registry at work: it accepts, queues, cuts, observes, and looks after the others.

Several instances share a database, a ledger and content-addressed storage, and perhaps a broker. Any of them may be
killed at any time.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable, Sequence

from millstream.anchoring.cas import Cas
from millstream.anchoring.ledger import Ledger, LedgerEntry
from millstream.anchoring.registry.chain_cache import ChainCache
from millstream.anchoring.registry.database import RegistryDatabase
from millstream.anchoring.registry.eligibility import Eligibility
from millstream.anchoring.registry.history import OperationHistory
from millstream.anchoring.registry.instances import Instances
from millstream.anchoring.registry.leases import PeriodicTask, TaskManager
from millstream.anchoring.registry.operation_intake import OperationIntake
from millstream.anchoring.registry.operation_observer import OperationObserver
from millstream.anchoring.registry.operation_queue import OperationQueue
from millstream.anchoring.registry.operation_store import OperationStore
from millstream.anchoring.registry.operation_writer import OperationWriter
from millstream.anchoring.registry.protocol_versions import ProtocolVersions
from millstream.anchoring.registry.settings import RegistryParameters
from millstream.anchoring.registry.states import OperationStatus
from millstream.core.closing import ClosesOnExit
from millstream.core.errors import MillstreamError
from millstream.queue import WorkQueue

NOTICE_IDS = 100
"""The most operations that one notice at the broker speaks of: few notices in a crowd, and still enough to share."""

NOTICES = 5
"""How many notices a subscriber takes at once."""

_ANNOUNCE_SECONDS = 0.25
"""How long the ids of accepted operations wait for others, so that few notices tell of them: each costs statements in
the process that puts it and in the one that takes it, whatever the number of ids. At most a quarter of the interval at
which batches are cut."""

_SUBSCRIBE_SECONDS = 0.2
"""How soon a broker that had no notices is asked again; then ever later, up to the interval at which batches are cut.
One that had some is asked after half of that interval."""

_log = logging.getLogger(__name__)


class DidRegistry(ClosesOnExit):
    """An instance with all its parts. Nothing runs by itself before :meth:`start`.

    *instance* is a name that no other process ever had. *broker* carries the ids of accepted operations; without one
    the instance takes them from the database. *follows* is the ledger of another registry that is read into this one,
    which then takes no operations.
    """

    def __init__(
        self,
        database: RegistryDatabase,
        cas: Cas,
        ledger: Ledger,
        *,
        instance: str,
        settings: RegistryParameters | None = None,
        versions: ProtocolVersions | None = None,
        broker: WorkQueue | None = None,
        follows: str = "",
    ) -> None:
        self.settings = settings or RegistryParameters()
        self.instance = instance
        self.cas, self.ledger = cas, ledger
        self.versions = versions or ProtocolVersions()
        self.store = OperationStore(database, lifespan=self.settings.operation_lifespan, follows=follows)
        self.history = OperationHistory(
            database,
            self.store,
            self.versions,
            unpublished=self.settings.unpublished_operation_lifespan,
            apply_unpublished=self.settings.apply_unpublished_operations,
        )
        chains = ChainCache(self.history)
        judge = Eligibility(chains, self.store, self._is_ahead, most_open=self.settings.max_open_per_did)
        self.observer = OperationObserver(self.history, cas, ledger, self.versions, is_of_other=self._is_of_other)
        self.queue = OperationQueue(self.store, instance, self.settings.queue)
        self.writer = OperationWriter(
            self.queue,
            cas,
            ledger,
            self.observer,
            self.versions,
            judge=judge,
            timeout=self.settings.batch_writer_timeout,
            max_operations=self.settings.max_operations,
        )
        self.instances = Instances(self.store, instance, self.settings.queue)
        self.acceptance = OperationIntake(
            self.store, self.versions, judge=judge, limit=self.settings.max_open, notify=self._accepted
        )
        self.tasks = TaskManager(database, instance, self._periodic())
        self._clock = database.clock
        self._broker = broker
        self._threads: list[threading.Thread] = []
        self._woken = threading.Condition()
        self._announcing = threading.Condition()
        self._leasing = threading.Lock()
        self._ask_pause = _SUBSCRIBE_SECONDS
        self._unannounced: list[str] = []
        self._stopping = False

    def start(self) -> None:
        """Register this instance and start its threads."""
        self.keep_alive()
        settings = self.settings
        loops: list[tuple[str, Callable[[], object], float]] = [
            ("cut", self.work_once, self._cut_interval),
            ("tasks", self.tasks.run_due, settings.task_check_interval),
        ]
        if self._broker:
            loops.append(("announce", self._announce, min(_ANNOUNCE_SECONDS, self._cut_interval / 4)))
            loops += [(f"subscribe-{n}", self._subscribe, _SUBSCRIBE_SECONDS) for n in range(settings.queue.pool)]
        for name, step, pause in loops:
            self._start_thread(name, step, pause)

    def keep_alive(self) -> None:
        """Register this instance, and send its heartbeats from a thread until :meth:`close`, unless that is done."""
        if not self._threads:
            self.instances.heartbeat()
            settings = self.settings.queue
            self._start_thread("keep", self._keep, min(settings.monitor_interval, settings.task_expiration / 4))

    def _start_thread(self, name: str, step: Callable[[], object], pause: float) -> None:
        thread = threading.Thread(target=self._loop, args=(step, pause), name=f"registry-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def cut_once(self, *, force: bool) -> Sequence[LedgerEntry]:
        """Anchor the operations that no live instance has, those of dead instances included, and leave; returns the
        new ledger entries."""
        try:
            self.keep_alive()
            while self.instances.take_over_dead():
                pass
            while self.queue.claim(10_000) == 10_000:
                pass
            return self.writer.cut(force=force)
        finally:
            self.close()

    def work_once(self) -> None:
        """Take what is due into the queue, and cut what is due. What failed is retried by the next call."""
        has_work = self.store.has_work(self.instance)
        notice_lost = self.settings.queue.monitor_interval if self._broker else 0.0
        while has_work and self.queue.claim(10_000, older_than=notice_lost) == 10_000:
            pass
        if self._is_left_to_observe():
            self.observer.observe()
        if has_work:
            self.writer.cut()

    def close(self) -> None:
        """Finish the step at hand, give back what is queued, and leave. Closing again does nothing."""
        with self._woken:
            self._stopping = True
            self._woken.notify_all()
        with self._announcing:
            self._announcing.notify_all()
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        self.acceptance.close()
        self._announce()
        self.queue.close()
        self.instances.leave()

    def status(self, operation: str) -> OperationStatus | None:
        """The status of the operation of this id, and its effect; None if it is not recorded."""
        found = self.store.status(operation)
        return None if found is None else self.history.with_effects([found])[0]

    def statuses_of(self, suffix: str) -> Sequence[OperationStatus]:
        """All recorded operations on *suffix* and their effects, in the order of acceptance."""
        return self.history.with_effects(self.store.statuses_of(suffix))

    def _is_ahead(self) -> bool:
        """Whether the ledger has entries that were not observed yet, or not read for want of their files."""
        head = self.ledger.head()
        return self._has_new(head) or self.history.postponed_count() > 0

    def _is_left_to_observe(self) -> bool:
        """Whether the ledger has a new entry that no other instance is about to observe: another registry made it."""
        head = self.ledger.head()
        if head is None or not self._has_new(head):
            return False
        return not self._is_of_other(head)

    def _is_of_other(self, entry: LedgerEntry) -> bool:
        return self.store.is_cut_by_other(entry.anchor_string, self.instance)

    def _has_new(self, head: LedgerEntry | None) -> bool:
        return head is not None and head.number > self.history.position()[0]

    @property
    def _cut_interval(self) -> float:
        """How often it is checked, in seconds, whether a batch is due."""
        return min(self.settings.writer_monitor_interval, max(self.settings.batch_writer_timeout / 4, 0.05))

    def _periodic(self) -> Sequence[PeriodicTask]:
        return [
            PeriodicTask("op-queue-monitor", self.settings.queue.monitor_interval, self.instances.take_over_dead),
            PeriodicTask("data-expiry", self.settings.expiry_check_interval, self.store.expire),
            PeriodicTask("postponed-anchors", self.settings.queue.monitor_interval, self.observer.read_postponed),
        ]

    def _keep(self) -> None:
        self.instances.heartbeat()
        self.tasks.renew()

    def _accepted(self, operations: Sequence[str]) -> None:
        """They are durable, so callers that wait for the answer need not wait for the broker."""
        if self._broker is not None:
            with self._announcing:
                self._unannounced += operations
                self._announcing.notify_all()

    def _announce(self) -> None:
        """Tell the broker what was accepted. One that cannot be reached delays operations, and loses none."""
        if self._broker is None:
            return
        with self._announcing:
            if not self._unannounced and not self._stopping:
                self._clock.wait(self._announcing, 30.0)
            told, self._unannounced = self._unannounced, []
        if not told:
            return
        notices = ["\n".join(told[n : n + NOTICE_IDS]).encode("ascii") for n in range(0, len(told), NOTICE_IDS)]
        try:
            self._broker.put(notices)
        except MillstreamError as error:
            _log.warning("the broker took no notice of %d operations: %s", len(told), error)

    def _subscribe(self) -> None:
        assert self._broker is not None
        with self._leasing:  # one asks at a time: all together would ask a broker with few notices that much more often
            self._pause(self._ask_pause)
            if self._stopping:
                return
            leases = self._broker.lease(NOTICES, visibility=self.settings.queue.visibility)
            self._ask_pause = self._pause_after(len(leases))
        if leases:
            self.queue.add([name for lease in leases for name in lease.body.decode("ascii", "replace").split()])
            self._broker.ack(leases)

    def _pause_after(self, notices: int) -> float:
        """Seconds until the broker is asked again that had so many *notices*: more of them come by then."""
        if notices == NOTICES:
            return 0.0
        pause = self._cut_interval / 2 if notices else min(2 * self._ask_pause, self._cut_interval)
        return max(pause, _SUBSCRIBE_SECONDS)

    def _loop(self, step: Callable[[], object], pause: float) -> None:
        """Repeat *step*; after failures wait with growing pauses, and log the first failure only."""
        failures = 0
        while not self._stopping:
            try:
                step()
                failures = 0
            except Exception as error:
                failures += 1
                if failures == 1:
                    _log.warning("%s: %s", threading.current_thread().name, error, exc_info=not _expected(error))
            self._pause(min(pause * 2 ** min(failures, 6), max(pause, 30.0)))

    def _pause(self, seconds: float) -> None:
        with self._woken:
            if not self._stopping:
                self._clock.wait(self._woken, seconds)


def instance_name() -> str:
    """A name for this process that no other ever had: it says where the process is, and is otherwise random."""
    return f"{socket.gethostname()[:30]}-{os.getpid()}-{secrets.token_hex(6)}"


def _expected(error: Exception) -> bool:
    return isinstance(error, MillstreamError)
