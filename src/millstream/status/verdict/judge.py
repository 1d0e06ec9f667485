"""The one function that judges a node: the verdict is a pure function of what was found out about it.

The overview, ``/metrics``, `millstream status` and alarms all show what :func:`judge` returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from millstream.core.timestamps import format_timestamp
from millstream.status.verdict.facts import Facts
from millstream.status.verdict.judge_copies import check_issues, copy_issues
from millstream.status.verdict.judge_machine import machine_issues
from millstream.status.verdict.judge_members import member_issues
from millstream.status.verdict.judge_messages import anchor_issues, batch_issues, consumer_issues, queue_issues
from millstream.status.verdict.judge_stores import store_issues
from millstream.status.verdict.kinds import BAD, KINDS
from millstream.status.verdict.models import Issue, Unknown, Verdict

_GROUPS: Mapping[str, Callable[[Facts], Iterable[Issue]]] = {
    "stores": store_issues,
    "checks": check_issues,
    "copies": copy_issues,
    "batches": batch_issues,
    "anchors": anchor_issues,
    "queues": queue_issues,
    "consumers": consumer_issues,
    "process and machine": machine_issues,
    "members": member_issues,
}
"""What finds the issues of each part of the node, in the order in which they are shown."""


def judge(facts: Facts) -> Verdict:
    """The verdict on a node of which *facts* are known."""
    found, failed = list[Issue](), list[Unknown]()
    for name, issues_of in _GROUPS.items():
        try:
            for issue in issues_of(facts):
                found.append(issue)
        except Exception as error:  # the other issues are shown all the same
            failed.append(_not_judged(name, error))
    order = list(KINDS)
    issues = [issue for issue in found if issue.kind not in facts.limits.ignore]
    issues.sort(key=lambda issue: (issue.severity != BAD, order.index(issue.kind)))
    return Verdict.of(facts.at, issues, [*failed, *_unknown(facts)])


def dated(verdict: Verdict, first_seen: dict[tuple[str, str], int]) -> Verdict:
    """*verdict*, whose issues without a beginning began when they were first seen, which *first_seen* keeps."""
    keys = {(issue.kind, issue.subject) for issue in verdict.issues}
    for key in first_seen.keys() - keys:
        del first_seen[key]
    issues = [
        msgspec.structs.replace(
            issue, since=first_seen.setdefault((issue.kind, issue.subject), issue.since or verdict.at)
        )
        for issue in verdict.issues
    ]
    return msgspec.structs.replace(verdict, issues=issues)


def _not_judged(part: str, error: Exception) -> Unknown:
    return Unknown(
        subject=f"issues of {part}",
        area="node",
        since=None,
        what=f"issues of {part}: unexpected {type(error).__name__}: {error}",
        todo="this is a bug: please report it; the other issues are shown",
    )


def _unknown(facts: Facts) -> Iterator[Unknown]:
    for state in facts.stores:
        if not state.hangs and state.answer is not None:
            continue
        last = state.answered_at
        since = f"no answer since {format_timestamp(last)}" if last else "no answer yet"
        page = "check the disk or server of the store; the store is checked again every few seconds"
        yield Unknown(
            subject=f"store {state.store}",
            area="copies",
            since=last,
            what=f"the store {state.store}: {since}",
            todo=page,
        )
    for look in facts.looks:
        if not look.is_late and look.ended_at is not None:
            continue
        since = f"not updated since {format_timestamp(look.ended_at)}" if look.ended_at else "not counted yet"
        why = f": {look.error}" if look.error else ""
        todo = "see the log of the process" if look.is_late else "wait for the first count"
        yield Unknown(
            subject=look.name,
            area="node",
            since=look.ended_at,
            what=f"{look.name}: {since}{why}",
            todo=f"{todo}; the node tries again every few seconds",
        )
