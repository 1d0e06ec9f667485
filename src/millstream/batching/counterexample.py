"""The smallest arrival that shows how thin-edge's algorithm depends on it, where the order-free rule does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from millstream.batching.batch_config import BatchConfig
from millstream.batching.batcher import Batcher
from millstream.batching.event import Event

BatchMembership = list[tuple[int, ...]]
"""The members of each batch by id, in order of their first member's time."""


_MOST_PAIRS = 100_000


class OrderDependence(NamedTuple):
    """Events in order of receipt, and what is made of them.

    ``faithful`` is what that mode makes of them as they came, ``prompt`` what it would have made of them had each come
    when it happened, and ``order_free`` what the other mode makes of them either way.
    """

    events: list[Event]
    faithful: BatchMembership
    prompt: BatchMembership
    order_free: BatchMembership


def smallest_counterexample(events: Sequence[Event], config: BatchConfig) -> OrderDependence | None:
    """The smallest part of *events* that ``faithful`` groups otherwise than if each had come at once; None without one.

    So the arrival alone makes the difference. Late and future events, which both modes refuse, do not count. Where two
    events do, it is two; else the difference goes where any one event is left away, and where any one that came with a
    delay comes at once. *config* holds the rules of both modes; its own mode does not matter.
    """
    arrival = sorted(
        (event for event in events if -config.lead <= event.received_at - event.event_time <= config.max_delay),
        key=lambda event: event.received_at,
    )
    config = msgspec.structs.replace(config, mode="faithful")

    def differs(events: Sequence[Event]) -> bool:
        return batch_membership(events, config) != batch_membership(at_once(events), config)

    sources = _by_source(arrival)
    pairs = islice((pair for mine in sources for pair in _overtaken(mine, config)), _MOST_PAIRS)
    small = next((pair for pair in pairs if differs(pair)), None)
    if small is None:
        small = next((_smallest(mine, differs) for mine in sources if differs(mine)), None)
    if small is None:
        return None
    order_free = batch_membership(small, msgspec.structs.replace(config, mode="order-free"))
    return OrderDependence(small, batch_membership(small, config), batch_membership(at_once(small), config), order_free)


def at_once(events: Sequence[Event]) -> list[Event]:
    """*events* as they would come without a delay."""
    prompt = (msgspec.structs.replace(event, received_at=event.event_time) for event in events)
    return sorted(prompt, key=lambda event: event.received_at)


def _overtaken(arrival: Sequence[Event], config: BatchConfig) -> Iterator[list[Event]]:
    """Every two of *arrival*, within reach of one another, of which the later one came first."""
    for place, first in enumerate(arrival):
        for second in islice(arrival, place + 1, None):
            if second.received_at - first.received_at > config.window + 2 * config.max_delay:
                break
            if second.event_time < first.event_time:
                yield [first, second]


def _by_source(events: Sequence[Event]) -> list[list[Event]]:
    """Sources do not bear on one another, in neither way of batching."""
    sources: dict[str, list[Event]] = {}
    for event in events:
        sources.setdefault(event.source, []).append(event)
    return list(sources.values())


def batch_membership(events: Sequence[Event], config: BatchConfig) -> BatchMembership:
    """The result of a batcher for *events* in that order."""
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
    """*events*, of which as many as possible are received when they happened, in the resulting order."""
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
