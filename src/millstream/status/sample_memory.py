"""The samples of a node that are kept: those of the last half hour, and one a minute of the last day."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TypeVar

from millstream.core.clock import MICROSECONDS
from millstream.queue import Depth
from millstream.status.history import MINUTES, MinuteSample
from millstream.status.models import QueueSample, Sample

RATE_SECONDS = 10
_RECENT = 900
_RECENT_SECONDS = 1_800
_MINUTE = 60 * MICROSECONDS
_MOST_QUEUES = 200
"""Queues whose past is kept, the first of them by name."""

AnySample = TypeVar("AnySample", Sample, QueueSample)


class SampleMemory:
    """Begins with *minutes*, which an earlier process has left. Not thread-safe: the poller has a lock around it."""

    def __init__(self, minutes: Sequence[MinuteSample] = ()) -> None:
        self.minutes: deque[MinuteSample] = deque(minutes, maxlen=MINUTES)
        self._recent: deque[Sample] = deque(_latest([one.counters for one in minutes]), maxlen=_RECENT)
        self._queues: dict[str, deque[QueueSample]] = {}
        for name in sorted({name for one in minutes for name in one.queues}):
            samples = [one.queues[name] for one in minutes if name in one.queues]
            self._queues[name] = deque(_latest(samples), maxlen=_RECENT)

    @property
    def latest(self) -> Sample | None:
        """The last sample; None before the first one."""
        return self._recent[-1] if self._recent else None

    def samples(self, *, coarse: bool) -> Sequence[Sample]:
        """Those of the last half hour, or with *coarse* one a minute of the last day."""
        return [one.counters for one in self.minutes] if coarse else _latest(self._recent)

    def queue_samples(self, name: str, *, coarse: bool) -> Sequence[QueueSample]:
        """The same of one queue."""
        if coarse:
            return [one.queues[name] for one in self.minutes if name in one.queues]
        return _latest(self._queues.get(name, ()))

    def queues_now(self) -> Mapping[str, QueueSample]:
        """The last sample of each queue."""
        return {name: past[-1] for name, past in self._queues.items() if past}

    def add(self, taken: Sample, depths: Mapping[str, Depth]) -> None:
        """Keep what was counted, and how full queues are; what there is of queues that are gone is dropped."""
        self._recent.append(taken)
        names = sorted(depths)[:_MOST_QUEUES]
        self._queues = {name: self._queues.get(name, deque[QueueSample](maxlen=_RECENT)) for name in names}
        for name, past in self._queues.items():
            depth = depths[name]
            past.append(QueueSample(taken.at, depth.ready, depth.leased, depth.delayed, depth.dead))

    def begins_minute(self, taken: Sample) -> bool:
        """Whether *taken* is the first sample of its minute."""
        return not self.minutes or taken.at // _MINUTE != self.minutes[-1].counters.at // _MINUTE

    def add_minute(self, minute: MinuteSample) -> None:
        """Keep *minute* for a day."""
        while self.minutes and self.minutes[-1].counters.at > minute.counters.at:  # the clock was set back
            self.minutes.pop()
        self.minutes.append(minute)

    def rates(self) -> tuple[float, float]:
        """Messages a second and batches a minute, over the last seconds."""
        recent = list(self._recent)
        if len(recent) < 2:
            return 0.0, 0.0
        last = recent[-1]
        first, minute = (  # samples may come more seldom than that
            next((sample for sample in recent if last.at - span <= sample.at < last.at), recent[-2])
            for span in (RATE_SECONDS * MICROSECONDS, _MINUTE)
        )
        seconds = max(last.at - first.at, 1) / MICROSECONDS
        minutes = max(last.at - minute.at, 1) / _MINUTE
        return (last.messages - first.messages) / seconds, (last.batches - minute.batches) / max(minutes, 1 / 60)


def _latest(samples: Sequence[AnySample]) -> list[AnySample]:
    """Those of *samples* that are at most half an hour older than the last one."""
    since = samples[-1].at - _RECENT_SECONDS * MICROSECONDS if samples else 0
    return [sample for sample in samples if sample.at >= since]
