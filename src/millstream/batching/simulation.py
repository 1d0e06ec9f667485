"""Simulates rules on known records, to choose a window, a delay and a policy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.batching.batch_config import BatchConfig, LatePolicy
from millstream.batching.columns import FARTHEST, cut_columns
from millstream.batching.window_boundaries import Integers

STEPS = 8
"""Steps of the latency histogram in each doubling: a quantile is at most 9 % too high."""

SLACK = 0.01
"""How many more of the groups may be single records than in the best case, as a share, for the sake of less latency."""


class SimulationMetrics(msgspec.Struct, frozen=True):
    """The result of some rules for some records; times in ticks.

    ``groups`` are all batches, those of late records and amendments too (``late_groups``); ``singles`` hold one record.
    ``late`` and ``future`` were refused, ``copies`` too; ``accepted_late`` came late and are in a batch. Latency is the
    time from the first record of a group to its closing: ``waited`` is the sum, ``waits`` a histogram whose step *n*
    counts those up to 2^(n / STEPS) ticks.
    """

    window: int
    max_delay: int
    late_policy: LatePolicy
    grace: int
    records: int
    groups: int
    late_groups: int
    singles: int
    late: int
    accepted_late: int
    future: int
    copies: int
    waited: int
    waits: tuple[int, ...]

    @property
    def late_share(self) -> float:
        """The share of the records that are refused as late."""
        return self.late / self.records if self.records else 0.0

    @property
    def single_share(self) -> float:
        """The share of the groups that hold one record."""
        return self.singles / self.groups if self.groups else 0.0

    @property
    def latency(self) -> float:
        """The mean latency."""
        return self.waited / self.groups if self.groups else 0.0

    def latency_quantile(self, share: float) -> int:
        """A latency that *share* of the groups do not exceed, at most 9 % too high."""
        if not self.groups:
            return 0
        step = int(np.searchsorted(np.cumsum(self.waits), share * self.groups))
        return int(np.ceil(2 ** (step / STEPS)))

    def __add__(self, other: SimulationMetrics) -> SimulationMetrics:
        """The figures of the records of both, which have no source in common, under the same rules."""
        length = max(len(self.waits), len(other.waits))
        waits = _padded(self.waits, length) + _padded(other.waits, length)
        counts = {name: getattr(self, name) + getattr(other, name) for name in _COUNTS}
        return msgspec.structs.replace(self, **counts, waits=tuple(waits.tolist()))


_RULES = ("window", "max_delay", "late_policy", "grace")
_COUNTS = [name for name in SimulationMetrics.__struct_fields__ if name not in (*_RULES, "waits")]


def simulate(events: pa.Table, config: BatchConfig) -> SimulationMetrics:
    """What *config* makes of *events* (``EVENT_SCHEMA``): the late policies as the batcher has them.

    Raises what :func:`~millstream.batching.columns.cut_columns` raises.
    """
    punctual = _Cut(events, config.punctual)
    grace = config.grace if isinstance(config.grace, int) else 0
    if config.policy == "side":
        late = pc.less(events["event_time"], pc.subtract(events["received_at"], config.max_delay))
        parts = [_Cut(events.filter(pc.invert(late)), config.punctual), _Cut(events.filter(late), config.patient)]
        refused, more = parts[1].refused, [parts[1].all()]
        copies = parts[0].refused["copies"] + refused["copies"]
        groups = [parts[0].all(), *more]
    elif config.policy == "amend":
        patient = _Cut(events, config.patient)
        refused, more = patient.refused, [patient.other_than(punctual)]
        copies, groups = refused["copies"], [punctual.all(), *more]
    else:
        refused, more, copies, groups = punctual.refused, [], punctual.refused["copies"], [punctual.all()]
    sizes, waits = (np.concatenate([group[place] for group in groups]) for place in (0, 1))
    return SimulationMetrics(
        config.window,
        config.max_delay,
        config.policy,
        grace,
        records=len(events),
        groups=len(sizes),
        late_groups=sum(len(group[0]) for group in more),
        singles=int((sizes == 1).sum()),
        late=refused["late"],
        accepted_late=punctual.refused["late"] - refused["late"],
        future=punctual.refused["future"],
        copies=copies,
        waited=int(waits.sum()),
        waits=tuple(np.bincount(np.ceil(np.log2(np.maximum(waits, 1)) * STEPS).astype(np.int64)).tolist()),
    )


def total(figures: Sequence[SimulationMetrics]) -> SimulationMetrics:
    """The sum of *figures* (at least one), which are of different sources under the same rules."""
    return reduce(SimulationMetrics.__add__, figures)


def recommend(choices: Sequence[SimulationMetrics], late_share: float) -> SimulationMetrics:
    """The best of *choices* (at least one) by three rules, one after the other.

    Those that refuse at most *late_share* of the records as late (or if there is none, those that refuse fewest); of
    these, those whose share of single-record groups is within :data:`SLACK` of the least; of these, the one with the
    least mean latency.
    """
    fewest = min(choice.late_share for choice in choices)
    kept = [choice for choice in choices if choice.late_share <= max(late_share, fewest)]
    least = min(choice.single_share for choice in kept)
    grouped = [choice for choice in kept if choice.single_share <= least + SLACK]
    return min(grouped, key=lambda choice: (choice.latency, choice.late_groups, choice.window, choice.max_delay))


class _Cut:
    """All of *events* batched under *config*, each batch at its deciding time."""

    def __init__(self, events: pa.Table, config: BatchConfig) -> None:
        history = cut_columns(events, config, FARTHEST)
        batches = history.batches
        self._batches = batches
        self._sizes: Integers = pc.list_value_length(batches["events"]).to_numpy().astype(np.int64)
        self._waits: Integers = pc.subtract(batches["closed_at"], batches["start"]).to_numpy()
        reasons = history.rejects["reason"]
        counts = {reason: pc.sum(pc.equal(reasons, reason)).as_py() or 0 for reason in ("late", "future")}
        self.refused = counts | {"copies": len(reasons) - sum(counts.values())}

    def all(self) -> tuple[Integers, Integers]:
        """How many records each batch has, and how long it waited."""
        return self._sizes, self._waits

    def other_than(self, other: _Cut) -> tuple[Integers, Integers]:
        """The same of the batches that have not just the records of one of *other*."""
        known = set(other._members())
        new = np.array([members not in known for members in self._members()], np.bool_)
        return self._sizes[new], self._waits[new]

    def _members(self) -> list[tuple[int, ...]]:
        return [tuple(members) for members in self._batches["events"].to_pylist()]


def _padded(waits: tuple[int, ...], length: int) -> Integers:
    padded = np.zeros(length, np.int64)
    padded[: len(waits)] = waits
    return padded
