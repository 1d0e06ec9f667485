"""Watching a node: fast counters every two seconds, slower figures as often as they are cheap, and a short memory."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import sqlalchemy as sa

from millstream.core.clock import MICROSECONDS
from millstream.core.errors import MillstreamError
from millstream.log import DATA_KINDS
from millstream.mill.notices.alarms import Alarm, Alarms
from millstream.mill.tasks import QueueName
from millstream.mill.workers.scaling import recommended
from millstream.queue import Depth
from millstream.rest.issues import find_issues
from millstream.rest.node_view import NodeView
from millstream.rest.status_models import Overview, QueueAlarm, QueueSample, QueueStatus, Sample
from millstream.rest.status_snapshot import (
    StatusSnapshot,
    anchor_metrics,
    batch_metrics,
    check_metrics,
    copy_metrics,
    log_metrics,
    take_snapshot,
)

SAMPLE_SECONDS = 2.0
SNAPSHOT_SECONDS = 10.0
SNAPSHOT_SHARE = 20
"""After a snapshot the poller waits this many times as long as it took."""

RATE_SECONDS = 10
_RECENT = 900
_COARSE = 1_440
_FIRST_LOOK_SECONDS = 60.0
_MOST_HISTORIES = 200
"""Queues whose past is kept, the first of them by name."""

_log = logging.getLogger(__name__)


class _QueueHistory:
    """What one queue was like: often for half an hour, and once a minute for a day."""

    def __init__(self) -> None:
        self.recent: deque[QueueSample] = deque(maxlen=_RECENT)
        self.coarse: deque[QueueSample] = deque(maxlen=_COARSE)

    def add(self, sample: QueueSample) -> None:
        self.recent.append(sample)
        if not self.coarse or sample.at - self.coarse[-1].at >= 60 * MICROSECONDS:
            self.coarse.append(sample)


class StatusPoller:
    """Looks at *view* from two threads between :meth:`start` and :meth:`stop`. Thread-safe to read.

    Without threads (in a test) every question looks anew.
    """

    def __init__(self, view: NodeView) -> None:
        self._view = view
        self._changed = threading.Condition()
        self._ended = False
        self._hurry = False
        self._threads: list[threading.Thread] = []
        self._recent: deque[Sample] = deque(maxlen=_RECENT)
        self._coarse: deque[Sample] = deque(maxlen=_COARSE)
        self._depths: Mapping[str, Depth] = {}
        self._unreadable: Mapping[str, str] = {}
        self._snapshot: StatusSnapshot | None = None
        self._pasts: dict[str, _QueueHistory] = {}
        limits = view.node.settings.mill.alarms
        self._alarm_rules = Alarms(limits.most, limits.longest / MICROSECONDS)
        self._alarms: Mapping[tuple[str, str], QueueAlarm] = {}
        self._scaling = view.node.mill.scaling

    def start(self) -> None:
        """Begin to look."""
        self._threads = [
            threading.Thread(target=self._loop, args=(look, pause), name=f"watch-{look.__name__}", daemon=True)
            for look, pause in ((self.sample, lambda: SAMPLE_SECONDS), (self.look, self._snapshot_pause))
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def hurry(self) -> None:
        """Something was done: look soon."""
        with self._changed:
            self._hurry = True
            self._changed.notify_all()

    @property
    def snapshot(self) -> StatusSnapshot:
        """The slower figures; waits for the first ones."""
        if not self._threads:
            return self.look()
        with self._changed:
            self._changed.wait_for(lambda: self._snapshot is not None or self._ended, _FIRST_LOOK_SECONDS)
        return self._snapshot or StatusSnapshot(at=self._view.clock.now(), seconds=0.0)

    def history(self, *, coarse: bool = False) -> Sequence[Sample]:
        """The samples of the last half hour, or with *coarse* one a minute of the last day."""
        with self._changed:
            return list(self._coarse if coarse else self._recent)

    def queues(self) -> Sequence[QueueStatus]:
        """Every queue as it was a moment ago."""
        if not self._threads or not self._recent:
            self.sample()
        depths = self._depths
        desired = recommended(depths, self._scaling)
        return [QueueStatus.of(name, depth, desired.get(name)) for name, depth in depths.items()]

    def queue_history(self, name: str, *, coarse: bool = False, since: int = 0) -> Sequence[QueueSample]:
        """The samples of one queue after *since* (microseconds): of the last half hour, or one a minute of a day."""
        with self._changed:
            past = self._pasts.get(name)
            kept = (past.coarse if coarse else past.recent) if past else ()
            return [sample for sample in kept if sample.at > since]

    def alarms(self) -> Sequence[QueueAlarm]:
        """What is wrong with queues at this moment, by queue."""
        if not self._threads or not self._recent:
            self.sample()
        return sorted(self._alarms.values(), key=lambda alarm: (alarm.queue, alarm.kind))

    def overview(self) -> Overview:
        """The whole road."""
        snapshot, queues = self.snapshot, self.queues()
        waiting = {queue.queue: queue.ready + queue.leased + queue.delayed for queue in queues}
        copying = waiting.get(QueueName.DUPLICATION_HIGH, 0) + waiting.get(QueueName.DUPLICATION_LOW, 0)
        per_second, per_minute = self._rates()
        log = log_metrics(snapshot, per_second)
        anchors, checks = anchor_metrics(snapshot), check_metrics(snapshot, waiting.get(QueueName.REPAIR, 0))
        return Overview(
            at=self._view.clock.now(),
            counted_at=snapshot.at,
            log=log,
            batches=batch_metrics(snapshot, per_minute),
            anchors=anchors,
            copies=copy_metrics(snapshot, copying),
            checks=checks,
            queues=queues,
            faults=find_issues(snapshot, queues, checks, self._unreadable),
        )

    def sample(self) -> None:
        """Take the fast counters once."""
        view, node = self._view, self._view.node
        depths, unreadable = dict[str, Depth](), dict[str, str]()
        for name in view.queues.names():
            try:
                depths[name] = view.queues.depth(name)
            except MillstreamError as error:
                unreadable[name] = str(error)
        kinds = node.logs.store.kinds()
        heads = {name: view.log(name).last_id for name in kinds}
        messages = sum(last for name, last in heads.items() if kinds.get(name) in DATA_KINDS)
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
            self._remember(depths, now)
            self._depths, self._unreadable = depths, unreadable
            self._recent.append(taken)
            if not self._coarse or now - self._coarse[-1].at >= 60 * MICROSECONDS:
                self._coarse.append(taken)
            self._changed.notify_all()

    def _dated(self, alarm: Alarm, now: int) -> QueueAlarm:
        before = self._alarms.get((alarm.queue, alarm.kind))
        return QueueAlarm(
            queue=alarm.queue,
            kind=alarm.kind,
            message=alarm.message,
            count=alarm.count,
            since=before.since if before else now,
        )

    def _remember(self, depths: Mapping[str, Depth], now: int) -> None:
        self._pasts = {name: self._pasts.get(name) or _QueueHistory() for name in sorted(depths)[:_MOST_HISTORIES]}
        for name, past in self._pasts.items():
            depth = depths[name]
            past.add(QueueSample(now, depth.ready, depth.leased, depth.delayed, depth.dead))

    def look(self) -> StatusSnapshot:
        """Take the slower figures once."""
        found = take_snapshot(self._view)
        with self._changed:
            self._snapshot, self._hurry = found, False
            self._changed.notify_all()
        return found

    def _rates(self) -> tuple[float, float]:
        """Messages a second and batches a minute, over the last seconds."""
        with self._changed:
            recent = list(self._recent)
        if len(recent) < 2:
            return 0.0, 0.0
        last = recent[-1]
        since = last.at - RATE_SECONDS * MICROSECONDS
        first = next(sample for sample in recent if sample.at >= since)
        if first.at >= last.at:
            first = recent[-2]
        seconds = max(last.at - first.at, 1) / MICROSECONDS
        minute = next(sample for sample in recent if sample.at >= last.at - 60 * MICROSECONDS)
        minutes = max(last.at - minute.at, 1) / (60 * MICROSECONDS)
        return (last.messages - first.messages) / seconds, (last.batches - minute.batches) / max(minutes, 1 / 60)

    def _snapshot_pause(self) -> float:
        took = self._snapshot.seconds if self._snapshot else 0.0
        return max(SNAPSHOT_SECONDS, took * SNAPSHOT_SHARE)

    def _loop(self, look: Callable[[], object], pause: Callable[[], float]) -> None:
        while True:
            try:
                look()
            except (MillstreamError, OSError, sa.exc.SQLAlchemyError):
                _log.warning("the node could not be looked at; it is tried again", exc_info=True)
            with self._changed:
                deadline = self._view.clock.monotonic() + pause()
                while not self._ended and (left := deadline - self._view.clock.monotonic()) > 0:
                    if self._hurry and look == self.look:
                        break
                    self._view.clock.wait(self._changed, left)
                if self._ended:
                    return
