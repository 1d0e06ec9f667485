"""The verdict as alarms for people, sent by the process that watches the node."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence

from millstream.mill.notices.alarms import Alarm
from millstream.node import Node
from millstream.status.node_view import NodeView
from millstream.status.poller import COUNTERS, StatusPoller
from millstream.status.serving_node import find_serving_node
from millstream.status.verdict.models import Verdict

_log = logging.getLogger(__name__)

_DECIDED = frozenset({"unprotected", "plan-rejected"})
"""Kinds of issues that do not begin or end by themselves: no alarm is sent."""

_BY_WORKERS = frozenset({"dead-letters", "too-many", "too-old"})
"""Kinds of issues of a queue, which the workers of that queue report."""


def verdict_alarms(verdict: Verdict, worked_on: Collection[str]) -> Sequence[Alarm]:
    """An alarm for each issue of *verdict* and for what is unknown, but for what workers tell of.

    *worked_on* are the queues with workers.
    """
    by_workers = {("held", one.subject) for one in verdict.issues if worked_on}
    by_workers |= {(kind, queue) for kind in _BY_WORKERS for queue in worked_on}
    issues = [
        Alarm(one.subject, one.kind, f"{one.what}: {one.todo}", one.count)
        for one in verdict.issues
        if one.kind not in _DECIDED and (one.kind, one.subject) not in by_workers
    ]
    return [*issues, *(Alarm(one.subject, "unknown", f"{one.what}: {one.todo}", 1) for one in verdict.unknown)]


def poller_alarms(view: NodeView, poller: StatusPoller) -> Callable[[], Sequence[Alarm]]:
    """The alarms of a node that *poller* watches, also while its queues cannot be read."""
    last = frozenset[str]()

    def alarms() -> Sequence[Alarm]:
        nonlocal last
        verdict = poller.verdict()
        is_told_by_workers = any(one.kind in _BY_WORKERS or one.kind == "held" for one in verdict.issues)
        if is_told_by_workers and all(one.subject != COUNTERS for one in verdict.unknown):
            try:
                last = frozenset(name for name in view.queues.names() if view.queues.holder(name) is not None)
            except Exception:  # of whatever kind: the alarms are sent all the same
                _log.debug("cannot read which queues have workers", exc_info=True)
        return verdict_alarms(verdict, last)

    return alarms


def unwatched_alarms(node: Node) -> Callable[[], Sequence[Alarm] | None]:
    """The alarms of *node*, found out here while no console watches it; None while one does, which tells of them."""
    found: list[Callable[[], Sequence[Alarm]]] = []

    def alarms() -> Sequence[Alarm] | None:
        if find_serving_node(node.folder) is not None:
            return None
        if not found:
            view = NodeView(node)
            found.append(poller_alarms(view, StatusPoller(view)))
        return found[0]()

    return alarms
