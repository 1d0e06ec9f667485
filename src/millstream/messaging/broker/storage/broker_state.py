"""The state that the journal describes: topics, the progress of every group in them, and released messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Final

import msgspec

from millstream.log import MAX_ID, Message
from millstream.messaging.broker.delivery.group_delivery import RENEW_STEP, GroupDelivery
from millstream.messaging.broker.delivery.in_flight_runs import InFlightRun, LeaseTerms
from millstream.messaging.broker.limits import GroupSpec
from millstream.messaging.broker.storage.delayed_messages import DelayedMessage, DelayedMessageIndex
from millstream.messaging.broker.storage.journal_events import (
    DelayedMessagesSnapshot,
    DeliverySnapshot,
    Event,
    Finished,
    GroupConfigured,
    Hidden,
    Ids,
    InFlightSnapshot,
    MessagesLeased,
    OffsetMoved,
    OffsetReset,
    Released,
    TopicDropped,
    TopicMade,
    TransactionChecked,
    delivery_message,
    flights_json,
    read_event,
)
from millstream.messaging.broker.storage.topic import TopicSpec

_FLIGHTS_BYTES: Final = 16 << 20  # of the messages in flight in a message of a snapshot; a log takes up to 64 MiB
_FLIGHTS_AT_ONCE: Final = 10_000  # with them it has up to 21 MB more, if all their ids are as long as they may be


class BrokerState:
    """The state of the broker. :meth:`apply` changes it by an event, live and when the journal is replayed."""

    def __init__(self, renew_step: int = RENEW_STEP) -> None:
        self._renew_step = renew_step
        self.topics: dict[str, TopicSpec] = {}
        self.groups: dict[str, GroupSpec] = {}
        self.deliveries: dict[tuple[str, str], GroupDelivery] = {}
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.delayed = DelayedMessageIndex()
        self._recovering = True
        self._released_ids: dict[int, bool] = {}  # whether each was dropped
        self._dropped_up_to: dict[str, int] = {}
        self._delayed_snapshot = DelayedMessagesSnapshot(0, [])

    def delivery(self, group: str, topic: str) -> GroupDelivery:
        """The progress of *group* in *topic*; a new group starts at the beginning."""
        found = self.deliveries.get((group, topic))
        if found is None:
            spec = self.topics.get(topic)
            fifo = spec is not None and spec.type == "FIFO"
            found = self.deliveries[group, topic] = GroupDelivery(fifo=fifo, renew_step=self._renew_step)
        return found

    def apply(self, event: Event, number: int) -> None:  # noqa: C901 (one case an event)
        """Change by *event*, which is message *number* of the journal."""
        match event:
            case MessagesLeased():
                self._lease(event, number)
            case Finished(group, topic, ids):
                self.delivery(group, topic).finish(ids)
            case Hidden(group, topic, message, until):
                self.delivery(group, topic).hide(message, number, until)
            case OffsetReset(group, topic, first):
                self.delivery(group, topic).reset_offset(first)
            case GroupConfigured(group, max_attempts, backoff):
                self._configure(GroupSpec(group, max_attempts, backoff))
            case OffsetMoved(group, topic, queue, offset):
                self.offsets[group, topic, queue] = offset
            case TopicMade(topic, kind, queues):
                self.topics[topic] = TopicSpec(topic, kind, queues)
            case TopicDropped(topic, held):
                self._drop(topic, held)
            case Released(ids, dropped):
                self._release(ids, dropped=dropped)
            case TransactionChecked(message, count):
                self._ask(message, count)
            case DeliverySnapshot():
                self._restore(event)
            case DelayedMessagesSnapshot():
                self._delayed_snapshot = event  # it has no message that was released or dropped before it
                self._released_ids.clear()
                self._dropped_up_to.clear()

    def end_recovery(self, now: int) -> tuple[list[int], int]:
        """The journal has been read; *now* in microseconds.

        Returns which messages were held at the last snapshot, and up to which id it knew them; see :meth:`is_free`.
        """
        for delivery in self.deliveries.values():
            delivery.end_recovery(now)
        self._recovering = False
        kept = [number for first, last in self._delayed_snapshot.ids for number in range(first, last + 1)]
        return kept, self._delayed_snapshot.upto

    @property
    def last_held(self) -> int:
        """The largest id in the log of held messages that the journal knows, while it is read."""
        dropped, released = self._dropped_up_to.values(), self._released_ids
        return max(self._delayed_snapshot.upto, max(dropped, default=0), max(released, default=0))

    def last_seen(self) -> Mapping[str, int]:
        """The last message of each topic that a group has seen."""
        found = defaultdict[str, int](int)
        for (_, topic), delivery in self.deliveries.items():
            found[topic] = max(found[topic], delivery.last_seen)
        for (_, topic, _), offset in self.offsets.items():
            found[topic] = max(found[topic], offset)
        return found

    def cut_to(self, topic: str, last_id: int) -> Sequence[Event]:
        """Events after which the groups of *topic* have seen nothing beyond *last_id*."""
        deliveries = ((group, each) for (group, name), each in self.deliveries.items() if name == topic)
        offsets = ((key, offset) for key, offset in self.offsets.items() if key[1] == topic)
        return [
            *(
                read_event(message)
                for group, each in deliveries
                if each.last_seen > last_id
                for message in delivery_snapshot_messages(group, topic, each, last_id)
            ),
            *(OffsetMoved(*key, last_id) for key, offset in offsets if offset > last_id),
        ]

    def take_connections(self, before: BrokerState) -> None:
        """The connections are still there by which messages went out that the state *before* knows too."""
        for key, delivery in self.deliveries.items():
            known = before.deliveries[key].in_flight if key in before.deliveries else ()
            connections = {run.terms.token: run.terms.connection for run in known}
            for run in delivery.in_flight:
                connection = connections.get(run.terms.token, "")
                run.terms = msgspec.structs.replace(run.terms, connection=connection)

    def forget_recovery(self) -> None:
        """Drop what only the recovery needed."""
        self._released_ids.clear()
        self._dropped_up_to.clear()
        self._delayed_snapshot = DelayedMessagesSnapshot(0, [])

    @property
    def size(self) -> int:
        """About how many things there are to know, as a snapshot would list them."""
        return len(self.delayed) + len(self.offsets) + sum(each.in_flight.messages for each in self.deliveries.values())

    def is_free(self, hold: int) -> bool:
        """Whether the held message *hold* was released before the journal was read."""
        return hold in self._released_ids

    def was_committed(self, hold: int) -> bool:
        """Whether the held message *hold*, which :meth:`is_free`, is in its topic, and was not dropped."""
        return not self._released_ids[hold]

    def was_dropped(self, hold: DelayedMessage) -> bool:
        """Whether the topic of *hold* was deleted after it was held, before the journal was read."""
        return hold.id <= self._dropped_up_to.get(hold.topic, 0)

    def asked_before(self, hold: int) -> int:
        """How often was asked about *hold* before the journal was read."""
        return self._delayed_snapshot.asked.get(hold, 0)

    def _lease(self, event: MessagesLeased, number: int) -> None:
        delivery = self.delivery(event.group, event.topic)
        delivery.finish(event.skipped)
        terms = LeaseTerms(number, event.until, event.at, event.client, event.renew, event.attempt_id)
        delivery.lease(event.ids, terms)

    def _configure(self, spec: GroupSpec) -> None:
        if spec == GroupSpec(spec.name):
            self.groups.pop(spec.name, None)
        else:
            self.groups[spec.name] = spec

    def _drop(self, topic: str, held: int) -> None:
        self.topics.pop(topic, None)
        self.delayed.forget_topic(topic)
        if self._recovering:  # the held messages are read after the journal
            self._dropped_up_to[topic] = max(held, self._dropped_up_to.get(topic, 0))
        for key in [key for key in self.deliveries if key[1] == topic]:
            del self.deliveries[key]
        for place in [place for place in self.offsets if place[1] == topic]:
            del self.offsets[place]

    def _release(self, ids: Ids, *, dropped: bool) -> None:
        numbers = [number for first, last in ids for number in range(first, last + 1)]
        if self._recovering:  # the held messages are read after the journal
            self._released_ids.update(dict.fromkeys(numbers, dropped))
        self.delayed.release(numbers, dropped=dropped)

    def _ask(self, hold: int, count: int) -> None:
        found = self.delayed.get(hold)
        if found is not None:
            found.asked = count
        elif self._recovering:
            self._delayed_snapshot.asked[hold] = count

    def _restore(self, event: DeliverySnapshot) -> None:
        runs, delivery = _runs_of(event.flights), self.delivery(event.group, event.topic)
        if event.more:
            delivery.restore_in_flight(runs)
        else:
            delivery.restore(event.pointer, event.ahead, runs)


def delivery_snapshot_messages(
    group: str, topic: str, delivery: GroupDelivery, last_id: int = MAX_ID
) -> Iterator[Message]:
    """The progress of *group* in *topic*, for a snapshot, in its messages up to *last_id*, as messages of the journal:
    one, or several where very many messages are in flight."""
    pointer, ahead, runs = delivery.keep(last_id)
    flights, size, more = list[str](), 0, False
    for run in runs:
        for first in range(run.first, run.last + 1, _FLIGHTS_AT_ONCE):
            if size >= _FLIGHTS_BYTES:
                yield delivery_message(group, topic, pointer, ahead, flights, more=more)
                flights, size, more, ahead = [], 0, True, []
            flights.append(flights_json(_flight(run, first), min(first + _FLIGHTS_AT_ONCE - 1, run.last)))
            size += len(flights[-1])
    yield delivery_message(group, topic, pointer, ahead, flights, more=more)


def _flight(run: InFlightRun, number: int) -> InFlightSnapshot:
    """The entry of message *number* of *run*."""
    terms = run.terms
    return InFlightSnapshot(
        id=number,
        attempts=run.attempts,
        until=terms.until,
        token=terms.token,
        away=run.away,
        client=terms.client,
        renew=terms.renew,
        since=terms.at,
        attempt_id=terms.attempt_id,
    )


def _runs_of(flights: Sequence[InFlightSnapshot]) -> list[InFlightRun]:
    """The messages *flights* of a snapshot, in any order, as runs."""
    runs: list[InFlightRun] = []
    for each in sorted(flights, key=attrgetter("id")):
        terms = LeaseTerms(each.token, each.until, each.since, each.client, each.renew, each.attempt_id)
        run = InFlightRun(each.id, each.id, each.attempts, terms, each.away)
        if runs and runs[-1].is_continued_by(run):
            runs[-1].last = run.last
        else:
            runs.append(run)
    return runs
