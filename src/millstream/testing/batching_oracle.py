"""The order-free rule of batching in plain words, as an oracle for tests, and a short notation for events.

:func:`plain_batches` knows nothing of arrival, chunks or clocks: it sorts everything and cuts. Whoever builds another
host for the batcher (a stream job, a batch job) compares its output with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from fractions import Fraction

import msgspec

from millstream.batching import BatchConfig, Event, EventBatch, Reject
from millstream.batching.event import CutReason, Kind
from millstream.batching.identity import make_batch

_SPELLED = re.compile(r"(?P<key>[^:@#\s]+):(?P<event_time>-?\d+)@(?P<received_at>-?\d+)(?:#(?P<digest>\S+))?")


def spelled(text: str, source: str = "") -> list[Event]:
    """Events in the short notation ``key:event_time@received_at#digest`` (the digest may be left out), ids from 1."""
    words = text.split()
    return [_spelled_event(number, word, source) for number, word in enumerate(words, start=1)]


def respelled(events: Iterable[Event], ids: Iterable[int]) -> str:
    """The events of *ids* as ``key:event_time``, in that order."""
    known = {event.id: f"{event.key}:{event.event_time}" for event in events}
    return " ".join(known[number] for number in ids)


def plain_batches(
    events: Iterable[Event], config: BatchConfig, clock: int | None = None
) -> tuple[list[EventBatch], list[Reject]]:
    """What the order-free batcher must give for *events* in any order: batches by source and start, rejects by id.

    ``closed_at`` is None where it lies after *clock*, the last time that the batcher was advanced to before its flush.
    """
    if config.policy == "side":
        return _with_side(list(events), config, clock)
    if config.policy == "amend":
        return _with_amendments(list(events), config, clock)
    return _plain(events, config, clock, config, "batch")


def _with_side(events: list[Event], config: BatchConfig, clock: int | None) -> tuple[list[EventBatch], list[Reject]]:
    late = [event for event in events if event.event_time < event.received_at - config.max_delay]
    others = [event for event in events if event not in late]
    batches, rejects = _plain(others, config.punctual, clock, config, "batch")
    more, refused = _plain(late, config.patient, clock, config, "side")
    return _in_order(batches + more), sorted(rejects + refused, key=lambda reject: (reject.rejected, reject.reason))


def _with_amendments(
    events: list[Event], config: BatchConfig, clock: int | None
) -> tuple[list[EventBatch], list[Reject]]:
    """An amendment is a batch of all the records that is none of the punctual ones; it replaces those it overlaps."""
    place = {event.id: (event.source, event.event_time, event.key) for event in events}
    given, _ = _plain(events, config.punctual, clock, config, "batch")
    final, rejects = _plain(events, config.patient, clock, config, "amendment")
    names = {batch.batch for batch in given}
    amendments = [
        msgspec.structs.replace(
            batch,
            amends=tuple(
                old.batch for old in given if {place[n] for n in old.events} & {place[n] for n in batch.events}
            ),
        )
        for batch in final
        if batch.batch not in names
    ]
    return _in_order(given + amendments), rejects


def _in_order(batches: list[EventBatch]) -> list[EventBatch]:
    return sorted(batches, key=lambda batch: (batch.source, batch.start))


def _plain(
    events: Iterable[Event], config: BatchConfig, clock: int | None, named: BatchConfig, kind: Kind
) -> tuple[list[EventBatch], list[Reject]]:
    """The batches by the rules of *config*, under the identities that *named* gives."""
    rejects: list[Reject] = []
    sources: dict[str, list[Event]] = {}
    for event in events:
        if event.event_time < event.received_at - config.max_delay:
            rejects.append(Reject(event.id, "late"))
        elif event.event_time > event.received_at + config.lead:
            rejects.append(Reject(event.id, "future"))
        else:
            sources.setdefault(event.source, []).append(event)
    batches: list[EventBatch] = []
    for source in sorted(sources):
        kept, copies = _without_copies(sources[source])
        rejects.extend(copies)
        for members, cut, decided in _cut(kept, config):
            rows = [(e.event_time, e.key, e.digest, e.received_at, e.id, e.size) for e in members]
            closed_at = decided + config.max_delay
            open_still = clock is None or closed_at > clock
            reason: CutReason = "window" if cut == "flush" and not open_still else cut
            batches.append(make_batch(named, source, rows, None if open_still else closed_at, reason, kind=kind))
    return batches, sorted(rejects, key=lambda reject: (reject.rejected, reject.reason))


def _spelled_event(number: int, word: str, source: str) -> Event:
    match = _SPELLED.fullmatch(word)
    if not match:
        raise ValueError(f"invalid event {word!r}: write key:event_time@received_at#digest")
    return Event(
        number,
        source,
        match["key"],
        int(match["event_time"]),
        int(match["received_at"]),
        match["digest"] or "",
    )


def _without_copies(events: Iterable[Event]) -> tuple[list[Event], list[Reject]]:
    """One record for each key and event time: the lowest digest, the earliest receipt, the lowest id."""
    copies: dict[tuple[int, str], list[Event]] = {}
    for event in events:
        copies.setdefault((event.event_time, event.key), []).append(event)
    kept: list[Event] = []
    rejects: list[Reject] = []
    for _, group in sorted(copies.items()):
        first, *others = sorted(group, key=lambda event: (event.digest, event.received_at, event.id))
        kept.append(first)
        for event in others:
            same = event.digest == first.digest
            rejects.append(Reject(event.id, "duplicate" if same else "conflicting_duplicate"))
    return kept, rejects


def _cut(events: list[Event], config: BatchConfig) -> Iterator[tuple[list[Event], CutReason, int]]:
    """The members of each batch of *events* (sorted), why it ends, and the deciding time."""
    midpoint = config.conflict_cut == "midpoint"
    members: list[Event] = []
    for time in sorted({event.event_time for event in events}):
        instant = [event for event in events if event.event_time == time]
        keys = {event.key for event in instant}
        if members and time > members[0].event_time + config.window:
            yield members, "window", members[0].event_time + config.window + 1
            members = []
        clashing = [event.event_time for event in members if event.key in keys]
        if clashing:
            border = Fraction(max(clashing) + time, 2) if midpoint else Fraction(time)
            yield [event for event in members if event.event_time < border], "conflict", time + midpoint
            members = [event for event in members if event.event_time >= border]
        if members and _exceeds(members + instant, config):
            yield members, "size", time + 1
            members = []
        for event in instant:
            if members and _exceeds([*members, event], config):
                yield members, "size", time + 1
                members = []
            members.append(event)
    if members:
        yield members, "flush", members[0].event_time + config.window + 1


def _exceeds(events: list[Event], config: BatchConfig) -> bool:
    """Whether *events* are more than one batch may hold."""
    if config.caps is None:
        return False
    return len(events) > config.caps.count or sum(event.size for event in events) > config.caps.size
