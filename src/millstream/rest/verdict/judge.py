"""The one function that judges a node: the verdict is a pure function of what was found out about it.

The overview, ``/metrics``, `millstream status` and alarms all show what :func:`judge` returns.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from urllib.parse import urlencode

import msgspec

from millstream.core.amounts import size_text
from millstream.core.clock import MICROSECONDS
from millstream.core.timestamps import format_timestamp
from millstream.log import DATA_KINDS
from millstream.messaging.broker.names import DEAD_LETTERS
from millstream.mill.adoption.status import CopyStatus, SpaceStatus
from millstream.mill.notices.alarms import Alarms
from millstream.mill.providers import QUARANTINE, is_system
from millstream.mill.reports.coverage import SpaceCoverage
from millstream.mill.reports.page import age_text
from millstream.mill.reports.report import ReportResult
from millstream.mill.settings import VerdictSettings
from millstream.mill.tasks import QueueName
from millstream.queue import Depth
from millstream.rest.status_snapshot import StatusSnapshot
from millstream.rest.verdict.copies import CopiesStatus
from millstream.rest.verdict.kinds import BAD, KINDS
from millstream.rest.verdict.models import Issue, IssueAction, Unknown, Verdict
from millstream.rest.verdict.stores import StoreState
from millstream.settings import AlarmSettings

_OLDEST_CHECK = 90 * 24 * 3600 * MICROSECONDS
_BATCHING_GRACE = 300 * MICROSECONDS
_OBSERVER_GRACE = 60 * MICROSECONDS
_NAMED = 5
"""Names that a text lists before it only counts."""


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """One of the looks at a node that go on: when it last came to an end (microseconds), and what prevents the next.

    ``is_late`` says that it should have come to an end again by now.
    """

    name: str
    ended_at: int | None
    error: str = ""
    is_late: bool = False


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What was found out about a node by ``at`` (microseconds). What is None was not found out yet.

    ``unreadable`` says why queues cannot be read; ``patience`` is the longest time (microseconds) after which a message
    is in a batch or rejected. ``alarms`` has the limits of queues.
    """

    at: int
    limits: VerdictSettings
    snapshot: StatusSnapshot
    copies: CopiesStatus | None
    stores: Sequence[StoreState]
    depths: Mapping[str, Depth]
    unreadable: Mapping[str, str]
    alarms: AlarmSettings
    patience: int
    looks: Sequence[Look] = ()


def judge(facts: Facts) -> Verdict:
    """The verdict on a node of which *facts* are known."""
    found = [
        *_stores(facts),
        *_checks(facts),
        *_copies(facts),
        *_batches(facts),
        *_anchors(facts),
        *_queues(facts),
        *_consumers(facts),
        *_machine(facts),
    ]
    order = list(KINDS)
    issues = [issue for issue in found if issue.kind not in facts.limits.ignore]
    issues.sort(key=lambda issue: (issue.severity != BAD, order.index(issue.kind)))
    return Verdict.of(facts.at, issues, list(_unknown(facts)))


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


def _issue(
    kind: str,
    subject: str,
    what: str,
    page: str,
    *,
    since: int | None = None,
    count: int = 1,
    action: IssueAction | None = None,
    where: str = "",
) -> Issue:
    described = KINDS[kind]
    return Issue(
        kind=kind,
        subject=subject,
        severity=described.severity,
        since=since,
        what=what,
        meaning=described.meaning,
        todo=described.todo.replace("{subject}", subject).replace("{where}", where),
        page=page,
        area=described.area,
        count=count,
        action=action,
    )


def _stores(facts: Facts) -> Iterator[Issue]:
    known = _known_copies(facts)
    for state in facts.stores:
        answer, name = state.answer, state.store
        if answer is None or state.hangs:
            continue
        expected = {space: items for (store, space), items in known.items() if store == name}
        page, total = f"/integrity?{urlencode({'store': name})}", sum(expected.values())
        at_stake = f"; {_counted(total, 'copy is', 'copies are')} recorded there" if total else ""
        if answer.problem:
            text = f"the store {name} cannot be used: {answer.problem}{at_stake}"
            yield _issue("store-unreachable", name, text, page, since=state.well_at, count=max(total, 1))
            continue
        there = set(answer.spaces) - answer.empty
        lost = {space: items for space, items in expected.items() if space not in there}
        count = sum(lost.values())
        if lost and not there - {QUARANTINE}:
            text = f"the store {name} lists none of the {_counted(count, 'copy', 'copies')} recorded there"
            yield _issue("store-not-mounted", name, text, page, count=count)
        elif lost:
            text = (
                f"the store {name} does not list {_names('space', lost)} any more: {_counted(count, 'copy', 'copies')}"
            )
            yield _issue("space-missing", name, text, page, count=count)
        if answer.read_only:
            text = f"nothing can be written to the store {name}: {answer.read_only}"
            yield _issue("store-read-only", name, text, page, since=state.well_at)
        if answer.free_bytes is not None and answer.free_bytes < facts.limits.least_free:
            text = f"the disk of the store {name} has {size_text(answer.free_bytes)} free"
            yield _issue("store-full", name, text, page)


def _known_copies(facts: Facts) -> Mapping[tuple[str, str], int]:
    """The items that the manifest knows to be there, by store and space."""
    rows = facts.snapshot.spaces
    return {(r.store, r.space): n for r in rows if (n := r.items - r.missing) > 0 and not is_system(r.space)}


def _checks(facts: Facts) -> Iterator[Issue]:
    snapshot = facts.snapshot
    failed = sum(row.failed for row in snapshot.spaces)
    if failed:
        text = f"{_counted(failed, 'copy is', 'copies are')} damaged, missing or not recorded"
        queued = _open(facts, QueueName.REPAIR)
        text += f"; {_counted(queued, 'repair is', 'repairs are')} queued" if queued else "; no repair is queued"
        yield _issue("findings", "copies", text, "/integrity/findings", count=failed, action=_repair(snapshot))
    if unchecked := sum(row.items - row.checked for row in _unchecked(facts)):
        text = f"{_counted(unchecked, 'copy was', 'copies were')} never checked, or could not be read at the last check"
        yield _issue("unchecked", "copies", text, "/integrity", count=unchecked)
    oldest = snapshot.checks.oldest_check
    if oldest is not None and facts.at - oldest > _OLDEST_CHECK:
        text = f"some copies were last checked {age_text(facts.at - oldest)} ago"
        yield _issue("stale-checks", "copies", text, "/integrity", since=oldest + _OLDEST_CHECK)
    if facts.copies is not None:
        yield from _reports(facts, facts.copies)


def _unchecked(facts: Facts) -> Sequence[SpaceCoverage]:
    """The spaces with copies of which no check found out the state; `protect` reads those of adopted spaces itself."""
    adopted = {space for _, space in facts.copies.adopted} if facts.copies else set()
    return [row for row in facts.snapshot.spaces if row.checked < row.items and row.space not in adopted]


def _repair(snapshot: StatusSnapshot) -> IssueAction | None:
    """The form that repairs what was found, where that is a single item."""
    items = {(row.space, row.content_id) for row in snapshot.findings}
    if len(items) != 1:
        return None
    space, content_id = items.pop()
    return IssueAction("Repair…", "/integrity/repair", {"space": space, "content_id": content_id})


def _reports(facts: Facts, copies: CopiesStatus) -> Iterator[Issue]:
    rows = {(row.store, row.space): row for row in facts.snapshot.spaces}
    failed = {place for place, row in rows.items() if row.failed}
    adopted = {space for _, space in copies.adopted}
    absent, stale = dict[str, list[str]](), dict[str, list[str]]()
    oldest = dict[str, int]()
    for place, row in rows.items():
        store, space = place
        report = copies.reports.get(place)
        is_told = row.checked < row.items  # as copies that were never checked
        if report is None and not is_told and space not in adopted and _is_covered(copies, space, store):
            absent.setdefault(store, []).append(space)
    for (store, space), report in sorted(copies.reports.items()):
        if is_system(space) or ((ended := copies.adopted.get((store, space))) and report.ended_at < ended):
            continue  # a run of `protect` since then says more
        page = f"/integrity/space?{urlencode({'store': store, 'space': space})}"
        where, subject = f"{store} {space}", f"{space} in {store}"
        if report.result is ReportResult.INCOMPLETE and report.listed == 0 and not report.notes:
            continue  # nothing is there, so nothing was left out
        if report.result is ReportResult.INCOMPLETE:
            why = f": {report.notes[0]}" if report.notes else ""
            text = f"the last report on {subject} is INCOMPLETE{why}"
            yield _issue("report-incomplete", subject, text, page, since=report.ended_at, where=where)
        elif report.result is ReportResult.FAILURE and (store, space) not in failed:
            text = f"the last report on {subject} says FAILURE"
            yield _issue("report-failed", subject, text, page, since=report.ended_at, where=where)
        if facts.at - report.ended_at > facts.limits.report_age and rows.get((store, space)) and space not in adopted:
            stale.setdefault(store, []).append(space)
            oldest[store] = min(report.ended_at, oldest.get(store, report.ended_at))
    for store, spaces in sorted(absent.items()):
        text = f"there is no report on {_names('space', spaces)} in the store {store}"
        yield _issue("report-absent", store, text, "/integrity/reports", count=len(spaces), where=f" --store {store}")
    for store, spaces in sorted(stale.items()):
        age = age_text(facts.at - oldest[store])
        text = f"the last report on {_names('space', spaces)} in the store {store} is {age} old"
        since = oldest[store] + facts.limits.report_age
        where = f" --store {store}"
        yield _issue("report-stale", store, text, "/integrity/reports", since=since, count=len(spaces), where=where)


def _is_covered(copies: CopiesStatus, space: str, store: str | None = None) -> bool:
    """Whether a policy copies *space* (from or to *store*)."""
    pairs = [pair for policy in copies.policies.by_account.values() for pair in policy.lookup(space)]
    return any(store in (None, pair.source, pair.destination) for pair in pairs)


def _copies(facts: Facts) -> Iterator[Issue]:
    for hold in facts.snapshot.approvals:
        text = f"a plan for {hold.space} ({hold.pair}) is held: {hold.reason}"
        action = IssueAction("Approve…", f"/integrity/holds/{hold.number}/approve")
        yield _issue("held", f"plan {hold.number}", text, "/integrity#held", since=hold.held_at, action=action)
    if facts.copies is None:
        return
    told = {(row.store, row.space) for row in facts.snapshot.spaces if row.failed}
    told |= {(row.store, row.space) for row in _unchecked(facts)}
    for space in facts.copies.spaces:
        parts = list(_space_faults(space, told))
        if parts:
            page = f"/integrity/space?{urlencode({'store': space.store, 'space': space.space})}"
            text = f"{space.space} from {space.store}: {', '.join(parts)}"
            yield _issue("space-not-well", f"{space.space} in {space.store}", text, page)
    yield from _uncovered(facts, facts.copies)


def _space_faults(space: SpaceStatus, told: Container[tuple[str, str]]) -> Iterator[str]:
    """What `millstream status` finds wrong with *space*, but for copies in *told*, of which another issue speaks."""
    if space.last_code:
        yield f"the last run of protect ended with code {space.last_code}"
    yield from (f"{count:,} {kind}" for kind, count in space.findings.items())
    if space.vanished:
        yield f"{_counted(space.vanished, 'item', 'items')} vanished from the source"
    for copy in space.copies:
        yield from _copy_faults(copy, is_told=(copy.store, space.space) in told)


def _copy_faults(copy: CopyStatus, *, is_told: bool) -> Iterator[str]:
    if copy.pending:
        yield f"{copy.pending:,} not copied to {copy.store}"
    if copy.damaged and not is_told:
        yield f"{copy.damaged:,} in {copy.store} not in order or not read yet"
    yield from (f"{count:,} {kind} in {copy.store}" for kind, count in copy.findings.items())
    if copy.is_overdue:
        yield f"some copies in {copy.store} were not read for more than 31 days"


def _uncovered(facts: Facts, copies: CopiesStatus) -> Iterator[Issue]:
    policies = copies.policies.by_account.values()
    ignored = {space for policy in policies for space in policy.ignored}
    if not copies.troubles and not any(policy.pairs for policy in policies):
        yield _issue("unprotected", "node", "nothing is protected yet: no policy copies anything", "/policies")
        return
    uncovered: dict[str, set[str]] = {}
    listed = [
        (state.store, space)
        for state in facts.stores
        if state.answer is not None
        for space in state.answer.spaces
        if space not in state.answer.empty
    ]
    for store, space in {*_known_copies(facts), *listed}:
        if not is_system(space) and space not in ignored and not _is_covered(copies, space):
            uncovered.setdefault(store, set()).add(space)
    for store, spaces in sorted(uncovered.items()):
        text = f"no policy covers {_names('space', sorted(spaces))} in the store {store}"
        yield _issue("uncovered-space", store, text, "/policies", count=len(spaces))


def _batches(facts: Facts) -> Iterator[Issue]:
    journal, index = facts.snapshot.journal, facts.snapshot.index
    for lag in facts.snapshot.batch_lags:
        due = facts.patience + _BATCHING_GRACE
        if lag.oldest_at is not None and facts.at - lag.oldest_at > due:
            text = (
                f"{_counted(lag.messages, 'message', 'messages')} of {lag.log} were neither batched nor rejected, the "
                f"first received {age_text(facts.at - lag.oldest_at)} ago"
            )
            since = lag.oldest_at + due
            yield _issue("not-batched", lag.log, text, f"/logs/{lag.log}", since=since, count=lag.messages)
    if rejected := index.invalid_batches + journal.rejected:
        text = f"{_counted(rejected, 'batch was', 'batches were')} rejected"
        yield _issue("rejected-batches", "batches", text, "/batches?only=bad", count=rejected)


def _anchors(facts: Facts) -> Iterator[Issue]:
    snapshot, limits = facts.snapshot, facts.limits
    if snapshot.index.invalid_anchors:
        count = snapshot.index.invalid_anchors
        text = f"{_counted(count, 'anchor is', 'anchors are')} invalid as a whole"
        yield _issue("invalid-anchors", "ledger", text, "/anchors?only=bad", count=count)
    waiting, head = snapshot.journal.accepted + snapshot.journal.cut, snapshot.head
    last = max(snapshot.waiting_since or 0, head.time if head else 0)
    if waiting and last and facts.at - last > limits.ledger_age:
        text = f"{_counted(waiting, 'batch waits', 'batches wait')} for an anchor"
        text += f"; the last was made {age_text(facts.at - head.time)} ago" if head else "; there is none yet"
        yield _issue("ledger-stuck", "ledger", text, "/anchors", since=last + limits.ledger_age, count=waiting)
    behind = (head.number if head else 0) - snapshot.position
    if behind > 0 and facts.at - (snapshot.behind_since or 0) > _OBSERVER_GRACE:
        text = f"{_counted(behind, 'anchor is', 'anchors are')} not verified yet"
        yield _issue("observer-behind", "ledger", text, "/anchors", since=snapshot.behind_since, count=behind)
    if (following := snapshot.following) and following.error:
        text = f"the ledger {following.ledger} is invalid or incomplete at entry {following.position:,}: "
        yield _issue("following", following.ledger, text + following.error[:300], "/system")


def _queues(facts: Facts) -> Iterator[Issue]:
    rules = Alarms(facts.alarms.most, facts.alarms.longest / MICROSECONDS)
    for name, depth in facts.depths.items():
        page = f"/queues/{name}"
        for alarm in rules.standing(name, depth):
            since = depth.oldest if alarm.kind == "too-old" else None
            action = _redrive(facts, name) if alarm.kind == "dead-letters" else None
            text = alarm.message.partition(": ")[0]
            yield _issue(alarm.kind, name, text, page, since=since, count=alarm.count, action=action)
    for name, leased in facts.snapshot.orphans.items():
        text = f"{_counted(leased, 'task', 'tasks')} of the queue {name} are leased, and no worker holds the queue"
        yield _issue("lease-without-owner", name, text, f"/queues/{name}", count=leased)
    if (findings := facts.depths.get(QueueName.BIT_ERROR)) and findings.ready:
        text = f"{_counted(findings.ready, 'finding needs', 'findings need')} a decision"
        yield _issue("for-people", QueueName.BIT_ERROR.value, text, "/integrity/findings", count=findings.ready)
    for name, why in facts.unreadable.items():
        yield _issue("queue", name, f"the queue {name} cannot be read: {why}", "/queues")


def _redrive(facts: Facts, name: str) -> IssueAction | None:
    """The form that redrives all dead tasks of a queue, where they have one cause."""
    cause = facts.snapshot.only_cause.get(name)
    return (
        None if cause is None else IssueAction("Redrive…", f"/queues/{name}/redrive", {"by": "cause", "cause": cause})
    )


def _consumers(facts: Facts) -> Iterator[Issue]:
    kinds = {row.log: row.kind for row in facts.snapshot.logs}
    read: dict[str, int] = {}
    for lag in facts.snapshot.lags:
        read[lag.log] = max(read.get(lag.log, 0), lag.pointer)
        late = facts.at - lag.oldest_at if lag.oldest_at is not None else 0
        if lag.lag and late > facts.limits.consumer_age and not lag.log.startswith(DEAD_LETTERS):
            text = (
                f"the consumer {lag.consumer} has not read {_counted(lag.lag, 'message', 'messages')} of {lag.log}, "
                f"the first received {age_text(late)} ago"
            )
            page = f"/logs/{lag.log}"
            yield _issue(
                "consumer-behind", f"{lag.consumer} of {lag.log}", text, page, since=lag.oldest_at, count=lag.lag
            )
    for row in facts.snapshot.logs:
        waiting = min(row.messages, row.last_id - read.get(row.log, 0))
        if row.log.startswith(DEAD_LETTERS) and kinds[row.log] in DATA_KINDS and waiting > 0:
            group = row.log.removeprefix(DEAD_LETTERS)
            text = f"{_counted(waiting, 'message', 'messages')} of the group {group} are dead, in the topic {row.log}"
            yield _issue("dead-letters", row.log, text, f"/logs/{row.log.replace('%', '%25')}", count=waiting)


def _machine(facts: Facts) -> Iterator[Issue]:
    snapshot = facts.snapshot
    troubles = {**snapshot.troubles, **(facts.copies.troubles if facts.copies else {})}
    for what, why in troubles.items():
        yield _issue("trouble", what, f"{what} cannot be read: {why}", "/system")
    if snapshot.free_bytes is not None and snapshot.free_bytes < facts.limits.least_free:
        text = f"the disk of the data folder has {size_text(snapshot.free_bytes)} free"
        yield _issue("disk", "data folder", text, "/system")
    recorded = [row.last_received_at for row in snapshot.logs if row.last_received_at is not None]
    recorded += [snapshot.head.time] if snapshot.head else []
    recorded += [row.newest_check for row in snapshot.spaces if row.newest_check is not None]
    latest = max(recorded, default=facts.at)
    if latest - facts.at > facts.limits.clock_off:
        text = (
            f"the clock says {format_timestamp(facts.at)}, {age_text(latest - facts.at)} before what the node recorded "
            f"last ({format_timestamp(latest)})"
        )
        yield _issue("clock", "clock", text, "/system")


def _unknown(facts: Facts) -> Iterator[Unknown]:
    again = "it is asked again every few seconds"
    for state in facts.stores:
        if not state.hangs and state.answer is not None:
            continue
        last = state.answered_at
        since = f"no answer since {format_timestamp(last)}" if last else "no answer yet"
        page = f"look at its disk or server; {again}"
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
            todo=f"{todo}; {again}",
        )


def _open(facts: Facts, queue: str) -> int:
    return facts.depths[queue].open if queue in facts.depths else 0


def _names(noun: str, names: Iterable[str]) -> str:
    every = sorted(names)
    shown = ", ".join(every[:_NAMED]) + (f" and {len(every) - _NAMED:,} more" if len(every) > _NAMED else "")
    return f"the {noun}{'' if len(every) == 1 else 's'} {shown}"


def _counted(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"
