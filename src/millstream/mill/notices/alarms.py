"""Alarms of queues, the change guard and the verdict: each is told when it begins, every hour, and when it is over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from millstream.core.clock import MICROSECONDS
from millstream.queue.protocol import Depth

GUARD = "the change guard"
"""The name in place of a queue's for held plans."""

QUEUES, NODE = "the work queues", "the node"
"""The same for all queues, and for the node, where they cannot be read."""

REMIND = 3600.0
"""Seconds after which an alarm that continues is told again."""


class Alarm(msgspec.Struct, frozen=True):
    """Something that a person should know of a queue; with ``over`` it has passed.

    ``kind`` is ``dead-letters``, ``too-many`` or ``too-old``; or ``held``, with :data:`GUARD` in the place of a queue;
    or that of an issue of the verdict on the node, or ``unknown``, with its subject in that place.
    """

    queue: str
    kind: str
    message: str
    count: int
    over: bool = False

    @property
    def subject(self) -> str:
        """The subject, in a few words."""
        return f"{self.kind} in {self.queue}" + (" (over)" if self.over else "")


class Alarms:
    """Watches queues: dead letters that are not empty (seed document, "Queue Monitors"), more than *most* tasks, and a
    task that has been ready for longer than *longest* seconds without being worked on.

    An alarm is over after *quiet_looks* looks in a row without it.
    """

    def __init__(self, most: int, longest: float, *, quiet_looks: int = 1) -> None:
        self._most, self._longest, self._quiet_looks = most, longest, quiet_looks
        self._told: dict[tuple[str, str], float] = {}
        self._quiet: dict[tuple[str, str], int] = {}
        self._others, self._unread = set[tuple[str, str]](), set[tuple[str, str]]()

    def observe(
        self,
        at: float,
        depths: Mapping[str, Depth],
        held: int | None = 0,
        others: Sequence[Alarm] | None = None,
        unread: Sequence[Alarm] = (),
    ) -> Sequence[Alarm]:
        """What is to be told at *at* (seconds, growing) of queues of these *depths*, of *held* plans, and of *others*.

        None for *held* or *others* where they are not known: those that were told are not over then. *unread* are
        alarms about what could not be read; they are over when it can be.
        """
        found = {
            (alarm.queue, alarm.kind): alarm for name, depth in depths.items() for alarm in self.standing(name, depth)
        }
        if held:
            text = f"{held:,} plans of duplication go too far and are held: see `millstream mill approve`"
            found[GUARD, "held"] = Alarm(GUARD, "held", text, held)
        for other in (*(others or ()), *unread):
            found.setdefault((other.queue, other.kind), other)
        self._others |= {(other.queue, other.kind) for other in others or ()}
        self._unread |= {(one.queue, one.kind) for one in unread}
        due = [alarm for key, alarm in found.items() if at - self._told.get(key, float("-inf")) >= REMIND]
        known = {*depths} if held is None else {*depths, GUARD}
        quiet = [
            key
            for key in self._told
            if key not in found
            and (key[0] in known or key in self._unread or (others is not None and key in self._others))
        ]
        self._quiet = {key: self._quiet.get(key, 0) + 1 for key in quiet}
        over = [_over(*key, is_queue=key[0] in depths) for key in quiet if self._quiet[key] >= self._quiet_looks]
        self._told.update({(alarm.queue, alarm.kind): at for alarm in due})
        for alarm in over:
            del self._told[alarm.queue, alarm.kind]
        return [*due, *over]

    def standing(self, name: str, depth: Depth) -> Sequence[Alarm]:
        """The alarms of the queue *name* at this *depth*, notified or not."""
        alarms = []
        if depth.dead:
            tasks, verb = ("1 task", "is") if depth.dead == 1 else (f"{depth.dead:,} tasks", "are")
            text = f"{tasks} of the queue {name} {verb} dead: see `millstream queue dead {name}`"
            alarms.append(Alarm(name, "dead-letters", text, depth.dead))
        if depth.open > self._most:
            text = f"the queue {name} has {depth.open:,} tasks, more than {self._most:,}: start more workers"
            alarms.append(Alarm(name, "too-many", text, depth.open))
        waits = (depth.as_of - depth.oldest) / MICROSECONDS if depth.oldest is not None else 0.0
        if waits > self._longest:
            text = f"a task of the queue {name} has waited for {waits / 3600:,.1f} h: check that a worker processes it"
            alarms.append(Alarm(name, "too-old", text, depth.ready))
        return alarms


def _over(queue: str, kind: str, *, is_queue: bool) -> Alarm:
    named = f"the queue {queue}" if is_queue else queue
    text = f"{named} is in order again ({kind})"
    if kind == "unknown":
        text = f"the state of {named} is known again"
    elif queue == GUARD:
        text = "no plan is held any more"
    return Alarm(queue, kind, text, 0, over=True)
