"""Why each batch began and ended, and why each record that is in none was refused: for people.

Nothing is told of a batch or a refusal that did not come out of the batcher itself, and what "would have kept" a record
is what keeps it when the batcher runs with that value.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

import msgspec

from millstream.batching.batch_config import BatchConfig
from millstream.batching.batcher import Batcher
from millstream.batching.errors import ConfigError
from millstream.batching.event import BatcherOutput, CutReason, Event, EventBatch, Kind, Reason, Reject
from millstream.batching.rulebook import Rulebook


class BatchExplanation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One batch: what its beginning and its end are due to, in words (``why``) and by record id.

    ``began`` is ``first`` or the reason for which the batch before it ended; ``by`` the record that ended this one and
    ``repeats`` its member with the same key. ``kind`` and ``amends`` are those of the batch.
    """

    batch: str
    source: str
    start: int
    end: int
    events: tuple[int, ...]
    began: str
    ended: CutReason
    why: str
    by: int | None = None
    repeats: int | None = None
    kind: Kind = "batch"
    amends: tuple[str, ...] = ()


class RejectExplanation(msgspec.Struct, frozen=True, omit_defaults=True):
    """One record that is in no batch: the rule that refused it, and what would have kept it, if anything.

    ``max_delay``, ``leap`` or ``grace`` is the least value of that rule with which the record would be in a batch;
    ``copy_of`` the record that is in a batch in its place, or would be with that rule.
    """

    rejected: int
    reason: Reason
    why: str
    max_delay: int | None = None
    leap: int | None = None
    grace: int | None = None
    copy_of: int | None = None


class ExplanationFormat(msgspec.Struct, frozen=True):
    """How ``moment`` and ``span``, points and lengths of time in the stream's ticks, are written in a sentence."""

    moment: Callable[[int], str] = str
    span: Callable[[int], str] = str


NUMBERS = ExplanationFormat()
"""Bare numbers of a unit that only the caller knows."""


def explain(
    events: Sequence[Event], rules: BatchConfig | Rulebook, wording: ExplanationFormat = NUMBERS
) -> Iterator[BatchExplanation | RejectExplanation]:
    """Batch *events* (ids must differ) and explain each batch by source and start, then each reject.

    The clock advances to the last receive time, as in ``millstream batch``, and then the stream ends. Raises
    :class:`~millstream.batching.errors.ConfigError` for the mode ``faithful``, which has no rules to explain.
    """
    rules = Rulebook(rules) if isinstance(rules, BatchConfig) else rules
    if rules.default.mode != "order-free":
        raise ConfigError(f"batches can be explained only in mode order-free, not in mode {rules.default.mode}")
    repeated = [number for number, count in Counter(event.id for event in events).items() if count > 1]
    if repeated:
        raise ConfigError(f"two events have the id {repeated[0]}: give each event its own id")
    choose, groups = rules.chooser(), defaultdict[BatchConfig, list[Event]](list)
    for event in events:
        groups[choose(event.source, event.key)].append(event)
    clock = max((event.received_at for event in events), default=0)
    told = [_SourceExplanation(config, mine, clock, wording) for config, mine in groups.items()]
    batches = (story for group in told for story in group.batches())
    yield from sorted(batches, key=lambda story: (story.source, story.start, story.end, story.kind))
    rejects = (story for group in told for story in group.rejects())
    yield from sorted(rejects, key=lambda story: story.rejected)


class _SourceExplanation:
    """The *events* that are under the rules *config*, batched up to *clock*."""

    def __init__(self, config: BatchConfig, events: Sequence[Event], clock: int, wording: ExplanationFormat) -> None:
        self._config, self._events, self._clock, self._wording = config, events, clock, wording
        self._known = {event.id: event for event in events}
        self._outcome = _run(events, config, clock)

    def batches(self) -> Iterator[BatchExplanation]:
        """The stories of all batches, in no order."""
        for kind in ("batch", "side", "amendment"):
            mine = [batch for batch in self._outcome.batches if batch.kind == kind]
            if not mine:
                continue
            # What an amendment is cut off from is what batches finally are, most of which came out so at once.
            line = _run(self._events, self._config.patient, self._clock).batches if kind == "amendment" else mine
            wanted = {batch.events: batch for batch in mine}
            yield from self._tell_line(sorted(line, key=_place), wanted)

    def rejects(self) -> Iterator[RejectExplanation]:
        """The stories of all rejects, in no order."""
        kept = {self._copies_key(self._known[number]): number for number in _members(self._outcome)}
        copies = defaultdict[tuple[str, str, int], list[Event]](list)
        for event in self._events:
            copies[event.source, event.key, event.event_time].append(event)
        for reject in self._outcome.rejects:
            event = self._known[reject.rejected]
            if reject.reason in ("late", "future"):
                yield self._tell_out_of_time(reject, event, copies[event.source, event.key, event.event_time])
            else:
                yield _tell_copy(reject, kept[self._copies_key(event)])

    def _copies_key(self, event: Event) -> tuple[str, str, int, bool]:
        """What one of the records in batches can have at most: a late one beside another where they are kept apart."""
        late = self._config.policy == "side" and event.received_at - event.event_time > self._config.max_delay
        return event.source, event.key, event.event_time, late

    def _tell_line(
        self, line: Sequence[EventBatch], wanted: Mapping[tuple[int, ...], EventBatch]
    ) -> Iterator[BatchExplanation]:
        """The stories of those of *line*, batches that follow one another, that came out, by their members."""
        began, source = "first", None
        for position, batch in enumerate(line):
            if batch.source != source:
                began, source = "first", batch.source
            if batch.events in wanted:
                yield self._tell_batch(wanted[batch.events], began, self._followers(line, position))
            began = batch.cut

    def _tell_batch(self, batch: EventBatch, began: str, followers: Iterator[Event]) -> BatchExplanation:
        by, repeats, why = self._ending(batch, followers)
        at = self._wording.moment
        text = f"Began at {at(batch.start)}: {_BEGINNINGS[began]}. Ended at {at(batch.end)}: {why}."
        if batch.kind == "side":
            text = f"A batch of late records only. {text}"
        if batch.kind == "amendment":
            text = f"Late records changed published batches. {text}"
        return BatchExplanation(
            batch=batch.batch,
            source=batch.source,
            start=batch.start,
            end=batch.end,
            events=batch.events,
            began=began,
            ended=batch.cut,
            why=text,
            by=by,
            repeats=repeats,
            kind=batch.kind,
            amends=batch.amends,
        )

    def _followers(self, line: Sequence[EventBatch], position: int) -> Iterator[Event]:
        """The records of the same source after the batch at *position* of *line*, in order."""
        for batch in islice(line, position + 1, None):
            if batch.source != line[position].source:
                return
            for number in batch.events:
                yield self._known[number]

    def _ending(self, batch: EventBatch, followers: Iterator[Event]) -> tuple[int | None, int | None, str]:
        """The record that ended *batch*, the member that it repeats, and the reason in words."""
        at, long = self._wording.moment, self._wording.span
        if batch.cut == "conflict":
            keys = {self._known[number].key: self._known[number] for number in batch.events}
            clash = next(event for event in followers if event.key in keys)
            member = keys[clash.key]
            times = f"{at(member.event_time)} (record {member.id}) and {at(clash.event_time)} (record {clash.id})"
            place = "cut halfway between them" if self._config.conflict_cut == "midpoint" else "cut before the second"
            return clash.id, member.id, f"the key {clash.key!r} occurs at {times}, {place}"
        following = next(followers, None)
        if batch.cut == "flush":
            return None, None, "the input ended"
        window = f"the window is {long(self._config.window)}"
        if following is None:
            assert batch.closed_at is not None
            return None, None, f"{window}, and after {at(batch.closed_at)} no further record could belong to the batch"
        where = f"record {following.id} at {at(following.event_time)}"
        if batch.cut == "size":
            return following.id, None, f"{where} and other records of that time would exceed {_caps_text(self._config)}"
        return following.id, None, f"{where} is {long(following.event_time - batch.start)} after the start, {window}"

    def _tell_out_of_time(self, reject: Reject, event: Event, copies: Sequence[Event]) -> RejectExplanation:
        """The explanation of *event*, which is late or too far ahead; *copies* are all events with its id."""
        long, config = self._wording.span, self._config
        delay = event.received_at - event.event_time
        grace = config.grace if isinstance(config.grace, int) else 0
        if reject.reason == "future":
            rule, value = "leap", -delay
            why = f"Its time is {long(-delay)} after its receipt, leap is {long(config.lead)}"
        elif config.policy == "reject":
            rule, value = "max_delay", delay
            why = f"The record took {long(delay)} from event to receipt; max_delay is {long(config.max_delay)}"
        else:
            rule, value = "grace", delay - config.max_delay
            limits = f"max_delay is {long(config.max_delay)} and grace {long(grace)}"
            why = f"The record took {long(delay)} from event to receipt; {limits}"
        in_place = self._in_place(event, copies, rule, value)
        if in_place is None:
            return RejectExplanation(
                reject.rejected,
                reject.reason,
                f"{why}. With {rule} {long(value)}, the record would be in a batch.",
                **{rule: value},
            )
        other = f"record {in_place} has the same key and time and would be batched instead"
        why = f"{why}. Even with {rule} {long(value)}, the record would not be in a batch: {other}."
        return RejectExplanation(reject.rejected, reject.reason, why, copy_of=in_place)

    def _in_place(self, event: Event, copies: Sequence[Event], rule: str, value: int) -> int | None:
        """Which of *copies* is in a batch where *rule* is *value*; None where that is *event*.

        The leap is the delay if none is given, so both are tried where they are the same.
        """
        config = self._config
        changes = [{rule: value}]
        if rule == "max_delay" and config.lead == config.max_delay:
            changes.append({rule: value, "leap": value})
        for change in changes:
            members = _members(_run(copies, msgspec.structs.replace(config, **change), self._clock))
            if event.id not in members:
                return min(members)
        return None


def _run(events: Sequence[Event], config: BatchConfig, clock: int) -> BatcherOutput:
    """The result for *events* up to *clock*, after which the stream ends."""
    batcher = Batcher.of(config)
    outcomes = [batcher.receive_many(events), batcher.advance(clock), batcher.flush()]
    return BatcherOutput(
        [batch for outcome in outcomes for batch in outcome.batches],
        [reject for outcome in outcomes for reject in outcome.rejects],
    )


_BEGINNINGS = {
    "first": "it contains the first record of its source",
    "window": "the window of the previous batch was over",
    "conflict": "a key of the previous batch repeated",
    "size": "the previous batch was full",
}


def _place(batch: EventBatch) -> tuple[str, int, int]:
    return batch.source, batch.start, batch.end


def _members(outcome: BatcherOutput) -> set[int]:
    """The records that are in a batch in the end."""
    members = {number for batch in outcome.batches for number in batch.events}
    return members - {reject.rejected for reject in outcome.rejects}


def _caps_text(config: BatchConfig) -> str:
    rules = {"max_count": config.max_count, "max_bytes": config.max_bytes}
    return " or ".join(f"{name}={value}" for name, value in rules.items() if isinstance(value, int))


def _tell_copy(reject: Reject, other: int) -> RejectExplanation:
    says = "has the same content" if reject.reason == "duplicate" else "has other content and the lower digest"
    why = f"Record {other} has the same key and time, and {says}; no delay would have kept this one."
    return RejectExplanation(reject.rejected, reject.reason, why, copy_of=other)
