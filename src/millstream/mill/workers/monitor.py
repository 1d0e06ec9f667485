"""Watching the queues while workers work: figures for autoscalers and dashboards, alarms for people."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeVar

import msgspec

from millstream.core.amounts import counted
from millstream.core.clock import Clock
from millstream.core.metric_collection.prometheus import CONTENT_TYPE, prometheus_text
from millstream.mill.notices.alarms import GUARD, NODE, QUEUES, Alarm, Alarms
from millstream.mill.notices.receivers import NoticeError, NoticeReceiver
from millstream.mill.workers.metrics import QueueMetrics, queue_metrics
from millstream.mill.workers.scaling import DEFAULT_SCALING, QueueScaling, recommended
from millstream.queue.protocol import Depth, WorkQueue

_log = logging.getLogger(__name__)

Value = TypeVar("Value")

EVERY = 60.0
"""Seconds between two looks."""


class UndeliveredAlarm(msgspec.Struct, frozen=True):
    """An ``alarm`` that did not arrive since ``since`` (microseconds), and why; it is retried with each look."""

    alarm: Alarm
    since: int
    why: str


class QueueMonitor:
    """Looks at *queues* (by name) and tells *receivers* of alarms; see :meth:`look`. Thread-safe to read.

    *held* gives how many plans the change guard holds, *others* further alarms; None where these are not known.
    *scaling* is that of each queue. :meth:`run` looks every *every* seconds.
    """

    def __init__(
        self,
        queues: Mapping[str, WorkQueue],
        clock: Clock,
        alarms: Alarms,
        receivers: Sequence[NoticeReceiver] = (),
        *,
        held: Callable[[], int] = lambda: 0,
        others: Callable[[], Sequence[Alarm] | None] = lambda: None,
        scaling: Mapping[str, QueueScaling] = DEFAULT_SCALING,
        every: float = EVERY,
    ) -> None:
        self._queues, self._clock, self._alarms, self._receivers = queues, clock, alarms, receivers
        self._held, self._others, self._scaling = held, others, scaling
        self._every = every
        self._unread = set[str]()
        self._untold: Mapping[tuple[int, str, str], UndeliveredAlarm] = {}
        self._waiting = threading.Condition()
        self._ended = False
        self.figures = QueueMetrics()

    @property
    def undelivered(self) -> Sequence[UndeliveredAlarm]:
        """The alarms that did not arrive yet, one for each receiver that it did not reach."""
        return list(self._untold.values())

    def look(self) -> QueueMetrics:
        """Look once, tell what is to be told, and return the figures.

        What cannot be read in two looks in a row is an alarm, too, and hides no other alarm.
        """
        at = self._clock.monotonic()
        unread = list[Alarm]()
        depths = self._read_depths(unread)
        held, others = _read(GUARD, self._held, unread), _read(NODE, self._others, unread)
        for alarm in unread:
            _log.warning("%s", alarm.message)
        lasting = [alarm for alarm in unread if alarm.queue in self._unread]  # what is a matter of a moment is not told
        self._unread = {alarm.queue for alarm in unread}
        untold = self._tell(self._alarms.observe(at, depths, held, others, lasting))
        self.figures = QueueMetrics(depths, recommended(depths, self._scaling), self.figures.untold + untold)
        return self.figures

    def count(self) -> QueueMetrics:
        """The figures of this moment; no alarm is told."""
        depths = {name: queue.depth() for name, queue in self._queues.items()}
        return QueueMetrics(depths, recommended(depths, self._scaling), self.figures.untold)

    def run(self) -> None:
        """Look at once and at intervals until :meth:`stop`; what does not answer is logged, and is examined again."""
        while True:
            try:
                self.look()
            except Exception as error:  # of whatever kind: with this thread all alarms would end
                _log.warning("cannot tell the alarms: %s: %s", type(error).__name__, error)
            with self._waiting:
                if not self._ended:
                    self._clock.wait(self._waiting, self._every)
                if self._ended:
                    return

    def stop(self) -> None:
        """Let :meth:`run` return."""
        with self._waiting:
            self._ended = True
            self._waiting.notify_all()

    def _read_depths(self, unread: list[Alarm]) -> Mapping[str, Depth]:
        """The depths of the queues that can be read; of the others *unread* gets one alarm."""
        depths, failed = dict[str, Depth](), list[Alarm]()
        for name, queue in self._queues.items():
            depth = _read(f"the queue {name}", queue.depth, failed)
            if depth is not None:
                depths[name] = depth
        if failed:
            more = f"{counted(len(failed) - 1, 'other queue')} and " if failed[1:] else ""
            unread.append(Alarm(QUEUES, "unknown", more + failed[0].message, len(failed)))
        return depths

    def _tell(self, alarms: Sequence[Alarm]) -> int:
        """Tell everyone of *alarms*, and of what did not arrive before; how many did not arrive now.

        What does not arrive is retried with each look, until it does or something newer is to be said of its queue.
        After :meth:`stop` a receiver gets no more alarms once one does not arrive, as each may take half a minute.
        """
        new = {(who, one.queue, one.kind): one for who in range(len(self._receivers)) for one in alarms}
        failed, away = 0, set[int]()
        for key, alarm in ({key: one.alarm for key, one in self._untold.items()} | new).items():
            if self._ended and key[0] in away:
                continue
            before = self._untold.get(key)
            try:
                self._receivers[key[0]].tell(alarm)
            except Exception as raised:  # of whatever kind: the other receivers are told in any case
                error = (
                    raised if isinstance(raised, NoticeError) else NoticeError(f"unexpected {type(raised).__name__}")
                )
                failed += 1
                away.add(key[0])
                since = before.since if before else self._clock.now()
                self._untold = {**self._untold, key: UndeliveredAlarm(alarm, since, error.summary)}
                if key in new:
                    text = "the alarm %s was not delivered; retrying every %g s: %s"
                    _log.warning(text, alarm.subject, self._every, error)
            else:
                self._untold = {other: one for other, one in self._untold.items() if other != key}
        return failed


def _read(name: str, read: Callable[[], Value], unread: list[Alarm]) -> Value | None:
    """What *read* returns; None where it fails, and *unread* gets an alarm about *name*."""
    try:
        return read()
    except Exception as error:  # of whatever kind: all other alarms are told in any case
        why = str(error).partition("\n")[0][:300]
        todo = "check that its database, broker and log store answer"
        unread.append(Alarm(name, "unknown", f"{name} cannot be read: {type(error).__name__}: {why}: {todo}", 1))
        return None


def serve_metrics(figures: Callable[[], QueueMetrics], host: str, port: int) -> ThreadingHTTPServer:
    """A web server for ``/workers`` (JSON) and ``/metrics`` (Prometheus); call its ``serve_forever``.

    Each request calls *figures*; where that fails the answer is 503.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path not in ("/workers", "/metrics"):
                self.send_error(404, "unknown path: use /workers or /metrics")
                return
            try:
                now = figures()
            except Exception as error:  # of whatever kind: a scraper is told that there are no figures, never old ones
                _log.warning("cannot count the tasks of the queues: %s: %s", type(error).__name__, error)
                self.send_error(503, "cannot count the tasks of the queues; the cause is in the log of this process")
                return
            if self.path == "/workers":
                self._answer("application/json", msgspec.json.encode(now))
            else:
                self._answer(CONTENT_TYPE, prometheus_text(queue_metrics(now)).encode())

        def log_message(self, format: str, *args: object) -> None:
            """Requests are not logged."""

        def _answer(self, kind: str, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return ThreadingHTTPServer((host, port), Handler)
