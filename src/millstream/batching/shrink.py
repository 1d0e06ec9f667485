"""The smallest arrival that shows how thin-edge's algorithm depends on arrival where the order-free rule does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from millstream.batching.batcher import Batcher
from millstream.batching.config import BatchConfig
from millstream.batching.event import Event

Grouping = list[tuple[int, ...]]
"""The members of each batch by id, in order of their first member's time."""


class Difference(NamedTuple):
    """Events in order of receipt, and what the two ways of batching make of them."""

    events: list[Event]
    faithful: Grouping
    order_free: Grouping


def shrink(events: Sequence[Event], config: BatchConfig) -> Difference | None:
    """The smallest part of *events* that ``faithful`` groups otherwise than ``order-free``; None where they agree.

    Small in this sense: the difference goes where any one event is left away, and where any one that came with a delay
    comes at once. *config* holds the rules of both; its mode does not matter.
    """
    arrival = sorted(events, key=lambda event: event.received_at)
    differs = _comparison(config)
    for mine in _by_source(arrival):
        if differs(mine):
            small = _smallest(mine, differs)
            return Difference(small, *groupings(small, config))
    return None


def _by_source(events: Sequence[Event]) -> list[list[Event]]:
    """Sources do not bear on one another, in neither way of batching."""
    sources: dict[str, list[Event]] = {}
    for event in events:
        sources.setdefault(event.source, []).append(event)
    return list(sources.values())


def _comparison(config: BatchConfig) -> Callable[[Sequence[Event]], bool]:
    def differs(events: Sequence[Event]) -> bool:
        faithful, order_free = groupings(events, config)
        return faithful != order_free

    return differs


def groupings(events: Sequence[Event], config: BatchConfig) -> tuple[Grouping, Grouping]:
    """What the mode ``faithful`` and the mode ``order-free`` make of *events*, in that order of arrival."""
    replayed = msgspec.structs.replace(config, mode="faithful")
    return _grouping(events, replayed), _grouping(events, msgspec.structs.replace(config, mode="order-free"))


def _grouping(events: Sequence[Event], config: BatchConfig) -> Grouping:
    batcher = Batcher.of(config)
    batches = [*batcher.receive_many(events).batches, *batcher.flush().batches]
    return [batch.events for batch in sorted(batches, key=lambda batch: (batch.start, batch.end))]


def _smallest(events: list[Event], differs: Callable[[Sequence[Event]], bool]) -> list[Event]:
    """*events* shrunk in both ways by turns, until neither finds anything more."""
    before: list[Event] = []
    while events != before:
        before, events = events, _prompt(_fewest(events, differs), differs)
    return events


def _fewest(events: list[Event], differs: Callable[[Sequence[Event]], bool]) -> list[Event]:
    """*events* without all that can be left away: halves first, then ever smaller runs, down to single events."""
    size = len(events) // 2
    while size:
        position, before = 0, len(events)
        while position < len(events):
            fewer = events[:position] + events[position + size :]
            if differs(fewer):
                events = fewer
            else:
                position += size
        if size > 1 or len(events) == before:
            size //= 2
    return events


def _prompt(events: list[Event], differs: Callable[[Sequence[Event]], bool]) -> list[Event]:
    """*events* with as many as possible received when they happened, in the order in which they come then."""
    again = True
    while again:
        again = False
        for position, event in enumerate(events):
            if event.received_at == event.event_time:
                continue
            prompt = msgspec.structs.replace(event, received_at=event.event_time)
            others = [*events[:position], prompt, *events[position + 1 :]]
            others.sort(key=lambda event: event.received_at)
            if differs(others):
                events, again = others, True
                break
    return events
