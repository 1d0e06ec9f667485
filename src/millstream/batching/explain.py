"""Why each batch began and ended, and why each record that is in none was refused: for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec

from millstream.batching.batcher import Batcher
from millstream.batching.config import BatchConfig
from millstream.batching.errors import ConfigError
from millstream.batching.event import Cut, Event, EventBatch, Reason, Reject


class BatchStory(msgspec.Struct, frozen=True, omit_defaults=True):
    """One batch: what its beginning and its end are due to, in words (``why``) and by record id.

    ``began`` is ``first`` or the reason for which the batch before it ended; ``by`` the record that ended this one and
    ``repeats`` its member with the same key.
    """

    batch: str
    source: str
    start: int
    end: int
    events: tuple[int, ...]
    began: str
    ended: Cut
    why: str
    by: int | None = None
    repeats: int | None = None


class RejectStory(msgspec.Struct, frozen=True, omit_defaults=True):
    """One record that is in no batch: the rule that refused it, and what would have kept it, if anything.

    ``max_delay`` or ``leap`` is the least value of that rule under which the record would have been taken; ``copy_of``
    the record that is in a batch in its place.
    """

    rejected: int
    reason: Reason
    why: str
    max_delay: int | None = None
    leap: int | None = None
    copy_of: int | None = None


def explain(events: Sequence[Event], config: BatchConfig) -> Iterator[BatchStory | RejectStory]:
    """Batch *events* (ids must differ) and tell the story of each batch by source and start, then of each reject.

    Raises :class:`~millstream.batching.errors.ConfigError` for the mode ``faithful`` and for late policies: what they
    do depends on more than the rules told of here.
    """
    if config.mode != "order-free" or config.policy != "reject":
        raise ConfigError("only the mode order-free with the late policy reject is explained")
    known = {event.id: event for event in events}
    if len(known) < len(events):
        raise ConfigError("two events have the same id, so that none can be told from the other: number them")
    batcher = Batcher.of(config)
    refused = batcher.receive_many(events).rejects
    batches, rejects = batcher.flush()
    batches.sort(key=lambda batch: (batch.source, batch.start, batch.end))
    yield from _tell_batches(batches, known, config)
    members = (known[number] for batch in batches for number in batch.events)
    kept = {(event.source, event.key, event.event_time): event.id for event in members}
    for reject in sorted([*refused, *rejects], key=lambda reject: reject.rejected):
        yield _tell_reject(reject, known[reject.rejected], kept, config)


def _tell_batches(batches: Sequence[EventBatch], known: dict[int, Event], config: BatchConfig) -> Iterator[BatchStory]:
    began, source = "first", None
    for position, batch in enumerate(batches):
        if batch.source != source:
            began, source = "first", batch.source
        followers = _followers(batches, position, known)
        by, repeats, why = _ending(batch, followers, known, config)
        beginning = _BEGINNINGS[began]
        yield BatchStory(
            batch.batch,
            batch.source,
            batch.start,
            batch.end,
            batch.events,
            began,
            batch.cut,
            f"Began at {batch.start}: {beginning}. Ended at {batch.end}: {why}.",
            by,
            repeats,
        )
        began = batch.cut


_BEGINNINGS = {
    "first": "it holds the first record of its source",
    "window": "the window of the batch before was over",
    "conflict": "a key repeated in the batch before",
    "size": "the batch before was full",
}


def _followers(batches: Sequence[EventBatch], position: int, known: dict[int, Event]) -> Iterator[Event]:
    """The records of the same source after the batch at *position*, in order."""
    for batch in islice(batches, position + 1, None):
        if batch.source != batches[position].source:
            return
        for number in batch.events:
            yield known[number]


def _ending(
    batch: EventBatch, followers: Iterator[Event], known: dict[int, Event], config: BatchConfig
) -> tuple[int | None, int | None, str]:
    """The record that ended *batch*, the member that it repeats, and the reason in words."""
    if batch.cut == "conflict":
        keys = {known[number].key: known[number] for number in batch.events}
        clash = next(event for event in followers if event.key in keys)
        member = keys[clash.key]
        times = f"{member.event_time} (record {member.id}) and {clash.event_time} (record {clash.id})"
        place = "cut halfway between them" if config.conflict_cut == "midpoint" else "cut before the second"
        return clash.id, member.id, f"the key {clash.key!r} is there at {times}, {place}"
    following = next(followers, None)
    if following is None:
        return None, None, "the input ended"
    at = f"record {following.id} at {following.event_time}"
    if batch.cut == "size":
        return following.id, None, f"{at} and what else has its time would exceed {_caps_text(config)}"
    ahead = following.event_time - batch.start
    return following.id, None, f"{at} lies {ahead} after the start, the window is {config.window}"


def _caps_text(config: BatchConfig) -> str:
    rules = {"max_count": config.max_count, "max_bytes": config.max_bytes}
    return " or ".join(f"{name}={value}" for name, value in rules.items() if isinstance(value, int))


def _tell_reject(
    reject: Reject, event: Event, kept: dict[tuple[str, str, int], int], config: BatchConfig
) -> RejectStory:
    number, reason = reject.rejected, reject.reason
    delay = event.received_at - event.event_time
    if reason == "late":
        why = f"It took {delay} from event to receipt, max_delay is {config.max_delay}; {delay} would have kept it."
        return RejectStory(number, reason, why, max_delay=delay)
    if reason == "future":
        why = f"It lies {-delay} ahead of its receipt, leap is {config.lead}; {-delay} would have kept it."
        return RejectStory(number, reason, why, leap=-delay)
    other = kept[event.source, event.key, event.event_time]
    says = "says the same" if reason == "duplicate" else "says something else and has the lower digest"
    why = f"Record {other} has the same key and time, and {says}; no delay would have kept this one."
    return RejectStory(number, reason, why, copy_of=other)
