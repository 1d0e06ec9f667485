"""Watching a node: fast counters every two seconds, slower figures as often as they are cheap, stores at intervals, and
a short memory."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import sqlalchemy as sa

from millstream.core.clock import MICROSECONDS, processor_seconds
from millstream.core.errors import MillstreamError
from millstream.core.threads import join_within
from millstream.log import DATA_KINDS
from millstream.log.backend_schemes import is_database_store
from millstream.log.backends.objects.bucket import is_bucket_url
from millstream.mill.notices.alarms import Alarm, Alarms
from millstream.mill.workers.scaling import recommended, scaling_of
from millstream.queue import Depth
from millstream.status.disk_usage import Disk, Usage, disks_by_pace, find_disks, part_sizes, usage_by_growth
from millstream.status.history import MinuteSample, StatusHistory
from millstream.status.models import Fault, Overview, QueueAlarm, QueueSample, QueueStatus, Sample
from millstream.status.node_view import NodeView
from millstream.status.sample_memory import SampleMemory
from millstream.status.snapshot import (
    StatusSnapshot,
    anchor_metrics,
    batch_metrics,
    check_metrics,
    copy_metrics,
    log_metrics,
    take_snapshot,
    unreadable_steps,
)
from millstream.status.verdict.clock_watch import ClockWatch
from millstream.status.verdict.copies import CopiesStatus, LatestReports, LookStoppedError, look_at_copies
from millstream.status.verdict.facts import Facts, Look
from millstream.status.verdict.judge import dated, judge
from millstream.status.verdict.models import Verdict
from millstream.status.verdict.process import ProcessState, look_at_process
from millstream.status.verdict.store_watch import StoreWatch, disk_free

SAMPLE_SECONDS = 2.0
SNAPSHOT_SECONDS = 10.0
SNAPSHOT_SHARE = 20
"""After a look, except at the counters, the poller waits this many times its processor time. Elapsed time would include
that of unavailable servers and of other work on the machine."""

PAID_SECONDS = 60.0
"""The least pause where the logs are in a bucket: a look takes some requests for each log, which cost money."""

SERVER_SHARE = 5
"""On a database server, the pause is also this many times the elapsed time: the server has the work. Each member looks,
so it is multiplied by their number."""

LONGEST_SERVER_PAUSE = 120.0
"""The most seconds of that pause: what was read before it is shown as known for so long."""

_FIRST_LOOK_SECONDS = 60.0
_STOP_SECONDS = 5.0
"""For so long the end of the process waits for looks: one may hang with a database or a disk."""

_FIRST_VERDICT_SECONDS = 2.0
_JUDGE_SECONDS = 1.0
"""For so long the pages that are open share one verdict."""

_LATE_SECONDS = 45.0
_LATE_TIMES = 3
"""A look that did not end for so long after it was to begin, and for so many times as long as the last one took, is
late: what it said is not known any more."""

_FAILED_SECONDS = 8.0
"""The same where it fails: what is a matter of a moment is not told."""

COUNTERS, TOTALS, COPIES, PROCESS = "counters", "totals", "protected spaces", "servers and certificates"
"""The displayed names of the polls."""

QUEUES, _WITH_QUEUES = "queues", ("copies", "checks")
"""The queues among the parts of the overview that cannot be read, and the steps that count tasks, too."""

_log = logging.getLogger(__name__)


class StatusPoller:
    """Looks at *view* from threads between :meth:`start` and :meth:`stop`. Thread-safe to read.

    Without threads (in a test, or in a command) every question looks anew. *free_bytes* gives the free space of a
    folder's disk. The samples of the last day are kept in *history*, where that is given, and taken from there at the
    start.
    """

    def __init__(
        self, view: NodeView, free_bytes: Callable[[Path], int] = disk_free, history: StatusHistory | None = None
    ) -> None:
        self._view, self._free_bytes = view, free_bytes
        self._changed = threading.Condition()
        self._ended = False
        self._hurried = set[str]()
        self._threads: list[threading.Thread] = []
        self._history = history
        self._host = socket.gethostname() if view.node.databases.members.is_shared else ""
        self._memory = SampleMemory(history.read(view.clock.now()) if history is not None else ())
        self._depths: Mapping[str, Depth] = {}
        self._unreadable: Mapping[str, str] = {}
        self._snapshot: StatusSnapshot | None = None
        self._is_sampled = False
        limits = view.node.settings.mill.alarms
        self._alarm_rules = Alarms(limits.most, limits.longest / MICROSECONDS)
        self._alarms: Mapping[tuple[str, str], QueueAlarm] = {}
        self._scaling = scaling_of(view.node.settings.mill.scaling)
        self._limits = view.node.settings.verdict
        self._process = ProcessState()
        self._disks: Sequence[Disk] = ()
        self._usage: Sequence[Usage] = ()
        self._clock_watch = ClockWatch(view.clock, self._limits.clock_off)
        self._copies: CopiesStatus | None = None
        self._due_pauses: dict[str, float] = {}
        url = view.node.logs.store.url
        self._is_paid = is_bucket_url(url)
        self._is_on_server = view.node.databases.members.is_shared or is_database_store(url)
        self.reports = LatestReports(view.node.mill.reports.archive)
        self._ended_looks: dict[str, tuple[float, int, float]] = {}
        self._errors: dict[str, str] = {}
        self._started_at = 0.0
        self._verdict: Verdict | None = None
        self._judge_at = 0.0
        self._first_seen: dict[tuple[str, str], int] = {}
        self.stores = StoreWatch(
            view.node.stores.providers,
            view.clock,
            self._limits.store_timeout / MICROSECONDS,
            written=lambda: self._copies.policies.destinations if self._copies else frozenset(),
            free_bytes=free_bytes,
        )

    def start(self) -> None:
        """Begin to look."""
        self._started_at = self._view.clock.monotonic()
        self._threads = [
            threading.Thread(target=self._loop, args=(name, *how), name=f"watch-{how[0].__name__}", daemon=True)
            for name, how in self.looks.items()
        ]
        for thread in self._threads:
            thread.start()

    @property
    def looks(self) -> Mapping[str, tuple[Callable[[], object], Callable[[], float]]]:
        """What is examined by its name: how, and how many seconds after the end of one look the next begins."""
        return {
            COUNTERS: (self.sample, lambda: self._pause_after(COUNTERS, self._of_logs(SAMPLE_SECONDS))),
            TOTALS: (self.look, lambda: self._pause_after(TOTALS, self._of_logs(SNAPSHOT_SECONDS))),
            COPIES: (self.look_at_copies, lambda: self._pause_after(COPIES, SNAPSHOT_SECONDS)),
            PROCESS: (self.look_at_process, lambda: SNAPSHOT_SECONDS),
            "stores": (self.stores.ask, lambda: self._limits.store_every / MICROSECONDS),
        }

    def stop(self) -> None:
        """End the threads. A look that hangs is left behind: it ends with the process."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        if late := join_within(_STOP_SECONDS, self._threads):
            _log.warning("the status of the node is still being read and is not waited for: %s", ", ".join(late))

    def hurry(self) -> None:
        """Something was done: look soon."""
        with self._changed:
            self._hurried |= {COUNTERS, TOTALS, COPIES}
            self._judge_at = 0.0
            self._changed.notify_all()

    @property
    def snapshot(self) -> StatusSnapshot:
        """The slower figures; waits for the first ones."""
        if not self._threads:
            return self.look()
        with self._changed:
            self._changed.wait_for(lambda: self._snapshot is not None or self._ended, _FIRST_LOOK_SECONDS)
        return self._snapshot or StatusSnapshot(at=self._view.clock.now(), seconds=0.0, is_taken=False)

    def history(self, *, coarse: bool = False) -> Sequence[Sample]:
        """The samples of the last half hour, or with *coarse* one a minute of the last day.

        Those from before this process began are a minute apart in both.
        """
        with self._changed:
            return self._memory.samples(coarse=coarse)

    @property
    def latest(self) -> Sample | None:
        """The last sample; None before the first one."""
        with self._changed:
            return self._memory.latest

    def disks(self) -> Sequence[Disk]:
        """The disks of the node; the one that is full first, at the pace of the last day, comes first."""
        with self._changed:  # members on other hosts have other disks with the same names
            past = [minute for minute in self._memory.minutes if minute.host == self._host]
        found = find_disks(self._view.node, self.stores.states, self._free_bytes)
        return disks_by_pace(found, past, self._view.clock.now(), self._limits.disk_full_within)

    def usage(self) -> Sequence[Usage]:
        """The sizes of the parts of the node; the one that grew most in the last day comes first."""
        return self._usage_of(self.snapshot)

    def _usage_of(self, snapshot: StatusSnapshot | None) -> Sequence[Usage]:
        sizes = part_sizes(self._view.node, snapshot)
        with self._changed:
            past = list(self._memory.minutes)
        return usage_by_growth(sizes, past, self._view.clock.now())

    def queues(self) -> Sequence[QueueStatus]:
        """Every queue as it was a moment ago."""
        if not self._threads or not self._is_sampled:
            self.sample()
        depths = self._depths
        desired = recommended(depths, self._scaling)
        return [QueueStatus.of(name, depth, desired.get(name)) for name, depth in depths.items()]

    @property
    def unreadable_queues(self) -> Mapping[str, str]:
        """The queues that :meth:`queues` lacks, as ``queue NAME``, with the reasons why they cannot be read."""
        return {f"queue {name}": why for name, why in self._unreadable.items()}

    def queue_history(self, name: str, *, coarse: bool = False, since: int = 0) -> Sequence[QueueSample]:
        """The samples of one queue after *since* (microseconds): of the last half hour, or one a minute of a day."""
        with self._changed:
            return [sample for sample in self._memory.queue_samples(name, coarse=coarse) if sample.at > since]

    def alarms(self) -> Sequence[QueueAlarm]:
        """The present issues of queues, by queue."""
        if not self._threads or not self._is_sampled:
            self.sample()
        since = {(one.subject, one.kind): one.since for one in self.verdict().issues}
        found = [
            msgspec.structs.replace(alarm, since=since.get(key) or alarm.since) for key, alarm in self._alarms.items()
        ]
        return sorted(found, key=lambda alarm: (alarm.queue, alarm.kind))

    def verdict(self) -> Verdict:
        """The issues of the node, and unknown facts: see :func:`~millstream.status.verdict.judge.judge`."""
        if self._threads:
            left = self._started_at + _FIRST_VERDICT_SECONDS - self._view.clock.monotonic()
            with self._changed:  # so that the first page does not say that nothing is known yet
                self._changed.wait_for(lambda: len(self._ended_looks) == len(self.looks), max(left, 0.0))
            return self.judge_known(self.snapshot)
        for name, (look, _) in self.looks.items():
            self._attempt(name, look)
        return self.judge_known()

    def judge_known(self, snapshot: StatusSnapshot | None = None) -> Verdict:
        """The verdict on what the looks have found out so far; nothing is examined."""
        now = self._view.clock.monotonic()
        with self._changed:
            if self._threads and self._verdict is not None and now < self._judge_at:
                return self._verdict
        began = processor_seconds()
        found = judge(self.facts(snapshot))
        cost = processor_seconds() - began
        with self._changed:
            self._judge_at = self._view.clock.monotonic() + max(_JUDGE_SECONDS, cost * SNAPSHOT_SHARE)
            self._verdict = dated(found, self._first_seen)
            return self._verdict

    def facts(self, snapshot: StatusSnapshot | None = None) -> Facts:
        """What the looks have found out so far, with *snapshot* in the place of the last one."""
        node, now = self._view.node, self._view.clock.now()
        snapshot = snapshot or self._snapshot or StatusSnapshot(at=now, seconds=0.0)
        return Facts(
            at=now,
            limits=self._limits,
            snapshot=snapshot,
            process=self._process,
            step=self._clock_watch.look(),
            copies=self._copies,
            stores=self.stores.states,
            depths=self._depths,
            unreadable=self._unreadable,
            alarms=node.settings.mill.alarms,
            patience=node.batching.patience,
            anchor_every=node.settings.serve.anchor_every,
            looks=self._states_of_looks(),
            disks=self._disks,
            usage=self._usage,
        )

    def _states_of_looks(self) -> Sequence[Look]:
        now, states = self._view.clock.monotonic(), []
        with self._changed:
            for name, (_, pause) in self.looks.items():
                ended, at, took = self._ended_looks.get(name, (None, None, 0.0))
                failed = bool(self._errors.get(name))
                allowed = pause() + (_FAILED_SECONDS if failed else max(_LATE_SECONDS, _LATE_TIMES * took))
                is_late = ended is not None and now - ended > allowed
                if not self._threads:  # it is done when it is asked for
                    if not failed:
                        continue
                    is_late = True
                states.append(Look(name=name, ended_at=at, error=self._errors.get(name, ""), is_late=is_late))
        return states

    def overview(self) -> Overview:
        """The state of each step, from logs to checks."""
        verdict = self.verdict()
        snapshot, unreadable = self._snapshot or self.snapshot, list[str]()
        queues: Sequence[QueueStatus] = ()
        try:
            queues = self.queues()
        except (MillstreamError, OSError, sa.exc.SQLAlchemyError):  # the verdict says why
            unreadable = [QUEUES, *_WITH_QUEUES]
        with self._changed:
            per_second, per_minute = self._memory.rates()
        log = log_metrics(snapshot, per_second)
        anchors, checks = anchor_metrics(snapshot), check_metrics(snapshot, queues)
        return Overview(
            at=self._view.clock.now(),
            counted_at=snapshot.at,
            log=log,
            batches=batch_metrics(snapshot, per_minute),
            anchors=anchors,
            copies=copy_metrics(snapshot, queues),
            checks=checks,
            queues=queues,
            faults=[
                *(Fault(one.kind, one.severity, one.what, one.todo, one.page) for one in verdict.issues),
                *(Fault("unknown", "warn", one.what, one.todo, "/") for one in verdict.unknown),
            ],
            verdict=verdict,
            unreadable=list(dict.fromkeys([*unreadable_steps(snapshot), *unreadable])),
        )

    def sample(self) -> None:
        """Take the fast counters once."""
        view, node = self._view, self._view.node
        depths, unreadable = view.queues.depths()
        kinds = node.logs.store.kinds()
        data = [name for name, kind in kinds.items() if kind in DATA_KINDS]
        messages = sum(node.logs.store.last_ids(data).values())
        now = view.clock.now()
        open_tasks, dead_tasks = sum(d.open for d in depths.values()), sum(d.dead for d in depths.values())
        taken = Sample(
            at=now,
            messages=messages,
            batches=view.batches.last_number(),
            anchors=node.anchoring.ledger.last_number,
            open_tasks=open_tasks,
            dead_tasks=dead_tasks,
        )
        found = [alarm for name, depth in depths.items() for alarm in self._alarm_rules.standing(name, depth)]
        with self._changed:
            self._alarms = {(one.queue, one.kind): self._dated(one, now) for one in found}
            self._depths, self._unreadable = depths, unreadable
            self._memory.add(taken, depths)
            self._is_sampled = True
            self._changed.notify_all()
        self._keep_minute(taken)

    def _dated(self, alarm: Alarm, now: int) -> QueueAlarm:
        before = self._alarms.get((alarm.queue, alarm.kind))
        return QueueAlarm(
            queue=alarm.queue,
            kind=alarm.kind,
            message=alarm.message,
            count=alarm.count,
            since=before.since if before else now,
        )

    def _keep_minute(self, taken: Sample) -> None:
        """Keep *taken* for a day, and in the database, if it is the first of its minute."""
        with self._changed:
            if not self._memory.begins_minute(taken):
                return
            queues = self._memory.queues_now()
        node = self._view.node
        minute = MinuteSample(
            counters=taken,
            host=self._host,
            queues=queues,
            free={disk.mount: disk.free for disk in find_disks(node, self.stores.states, self._free_bytes)},
            sizes=part_sizes(node, self._snapshot),
        )
        with self._changed:
            self._memory.add_minute(minute)
        if self._history is not None:
            self._history.add(minute)

    def look(self) -> StatusSnapshot:
        """Take the slower figures once."""
        found = take_snapshot(self._view, self._free_bytes, lambda: self._ended)
        with self._changed:
            self._snapshot = found
            self._changed.notify_all()
        return found

    def look_at_copies(self) -> CopiesStatus:
        """Look at how well each space is protected."""
        now = self._view.clock.now()
        found = look_at_copies(self._view.node, self.reports, now, stopping=lambda: self._ended)
        with self._changed:
            self._copies = found
        return found

    def look_at_process(self) -> ProcessState:
        """Look at this process: its certificates, its alarms, the servers that it needs, and how its disks fill."""
        found, disks = look_at_process(self._view.node), self.disks()
        usage = self._usage_of(self._snapshot) if any(disk.is_filling for disk in disks) else ()
        with self._changed:
            self._process, self._disks, self._usage = found, disks, usage
        return found

    def _pause_after(self, name: str, least: float) -> float:
        """How many seconds after the end of one look *name* the next begins."""
        return max(least, self._due_pauses.get(name, 0.0))

    def _of_logs(self, seconds: float) -> float:
        """The least pause of a look at the logs, where it is *seconds* if it costs nothing."""
        return max(seconds, PAID_SECONDS) if self._is_paid else seconds

    def _server_pause(self, name: str, seconds: float) -> float:
        """The pause for the sake of a database server after a look *name* that took *seconds*.

        The shorter of two looks counts: the other one may have waited for the server, or for other work on the machine.
        """
        before, snapshot = self._ended_looks.get(name), self._snapshot
        if not self._is_on_server or before is None or snapshot is None or snapshot.troubles:
            return 0.0
        members = 1 if snapshot.members is None else max(1, len(snapshot.members.serving))
        return min(min(seconds, before[2]) * SERVER_SHARE * members, LONGEST_SERVER_PAUSE)

    def _loop(self, name: str, look: Callable[[], object], pause: Callable[[], float]) -> None:
        while True:
            with self._changed:
                self._hurried.discard(name)
            self._attempt(name, look)
            with self._changed:
                deadline = self._view.clock.monotonic() + pause()
                while not self._ended and (left := deadline - self._view.clock.monotonic()) > 0:
                    if name in self._hurried:
                        break
                    self._view.clock.wait(self._changed, left)
                if self._ended:
                    return

    def _attempt(self, name: str, look: Callable[[], object]) -> None:
        """Look once; what prevents it is kept for the verdict."""
        error, began, work = "", self._view.clock.monotonic(), processor_seconds()
        try:
            look()
        except LookStoppedError:
            return
        except (MillstreamError, OSError, sa.exc.SQLAlchemyError) as failure:
            error = str(failure).partition("\n")[0][:300]
            _log.warning("the %s could not be read; it is tried again", name, exc_info=True)
        except Exception as failure:  # without this thread the verdict would stop unnoticed
            error = f"unexpected {type(failure).__name__}: {failure}"
            _log.exception("the %s could not be read; it is tried again", name)
        with self._changed:
            self._errors[name] = error
            pause = 0.0 if name == COUNTERS else (processor_seconds() - work) * SNAPSHOT_SHARE
            if not error:
                ended = self._view.clock.monotonic()
                pause = max(pause, self._server_pause(name, ended - began))
                self._ended_looks[name] = ended, self._view.clock.now(), ended - began
            self._due_pauses[name] = pause
            self._changed.notify_all()
