"""Random cases for batchers: rules, and events in which clashes, copies, late and future records and gaps abound."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import msgspec
from hypothesis import strategies as st

from millstream.batching import BatchConfig, Event, EventBatch, Reject

SPAN = 60
"""Event times of a case lie between 0 and this."""


def rules(*, late: bool = True, cuts: tuple[str, ...] = ("at_event", "midpoint")) -> st.SearchStrategy[BatchConfig]:
    """Rules with and without leap limits and caps, and with policies for *late* records."""
    return st.builds(
        _rules,
        st.integers(0, 30),
        st.integers(0, 20),
        st.none() | st.integers(0, 10),
        st.sampled_from(cuts),
        st.none() | st.integers(1, 6),
        st.none() | st.integers(1, 30),
        st.sampled_from(("reject", "reject", "side", "amend") if late else ("reject",)),
        st.integers(0, 15),
    )


def _rules(  # noqa: PLR0917 - what the strategies draw
    window: int, max_delay: int, leap: int | None, cut: Any, count: int | None, size: int | None, late: Any, more: int
) -> BatchConfig:
    grace = None if late == "reject" else more + (window if late == "amend" else 0)
    return BatchConfig(window, max_delay, leap, cut, max_count=count, max_bytes=size, late=late, grace=grace)


def draw_case(number: int, config: BatchConfig, draw: random.Random) -> list[Event]:
    """The events of case *number* under *config*; its sources are ``NUMBER.`` and ``NUMBER.b``, ids from 100 NUMBER."""
    count, span = draw.choice((3, 6, 10, 16, 24)), draw.choice((6, 20, SPAN))
    reach = config.patient.max_delay + config.lead + 6
    sources, keys = draw.choices((f"{number}.", f"{number}.b"), (3, 1), k=count), draw.choices("abcd", k=count)
    digests = draw.choices(("", "x", "y"), (4, 1, 1), k=count)
    found = []
    for n, (source, key, digest) in enumerate(zip(sources, keys, digests, strict=True)):
        time = int(draw.random() * span)
        received_at = time + int(draw.random() * reach) - config.lead - 2
        found.append(Event(number * 100 + n, source, key, time, received_at, digest, _size(key, time, digest)))
    return found


def _size(key: str, time: int, digest: str) -> int:
    """Equal records have equal sizes; some are larger than the cap."""
    return (ord(key) * 7 + time * 5 + len(digest) * 3) % 37 // 3


def by_start(batches: Iterable[EventBatch]) -> list[EventBatch]:
    """*batches* by source, start, end and kind; those of one instant, which caps split, as they came."""
    return sorted(batches, key=lambda batch: (batch.source, batch.start, batch.end, batch.kind))


def by_id(rejects: Iterable[Reject]) -> list[Reject]:
    """*rejects* by id and reason."""
    return sorted(rejects, key=lambda reject: (reject.rejected, reject.reason))


def saying_one_thing(_: BatchConfig, events: list[Event]) -> list[Event]:
    """*events* received when they happened; copies of one another say the same."""
    return [
        msgspec.structs.replace(e, received_at=e.event_time, digest="", size=_size(e.key, e.event_time, ""))
        for e in events
    ]


def delayed(config: BatchConfig, events: list[Event], draw: random.Random) -> list[Event]:
    """*events* with other delays, none of them too long, and none of them too far ahead."""
    return [
        msgspec.structs.replace(event, received_at=event.event_time + draw.randint(-config.lead, config.max_delay))
        for event in events
    ]


def moved(events: list[Event], by: int) -> list[Event]:
    """*events* with all their times *by* ticks later."""
    return [msgspec.structs.replace(e, event_time=e.event_time + by, received_at=e.received_at + by) for e in events]


def punctual(config: BatchConfig, events: list[Event]) -> list[Event]:
    """Those of *events* that are neither late nor future."""
    return [e for e in events if -config.lead <= e.received_at - e.event_time <= config.max_delay]


def apart(config: BatchConfig, events: list[Event]) -> list[Event]:
    """*events*, those after each gap that is wider than the window as if they were of a source of their own."""
    last: dict[str, tuple[int, int]] = {}
    found = []
    for event in sorted(punctual(config, events), key=lambda event: event.event_time):
        time, part = last.get(event.source, (event.event_time, 0))
        part += event.event_time - time > config.window
        last[event.source] = event.event_time, part
        found.append(msgspec.structs.replace(event, source=f"{event.source}/{part}"))
    return found
