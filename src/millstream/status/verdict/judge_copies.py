"""Issues of copies: what checks found, reports, policies and held plans."""

from __future__ import annotations

import shlex
from collections.abc import Container, Iterator, Mapping, Sequence
from urllib.parse import urlencode

from millstream.core.amounts import counted
from millstream.core.clock import MICROSECONDS
from millstream.core.shown_commands import arguments
from millstream.mill.adoption.status import CopyStatus, SpaceStatus
from millstream.mill.configured_stores import is_system
from millstream.mill.duplication.held_items import VANISHED, HeldCount
from millstream.mill.reports.coverage import SpaceCoverage
from millstream.mill.reports.page import age_text
from millstream.mill.reports.report import IntegrityReport, ReportResult
from millstream.mill.tasks import QueueName
from millstream.status.snapshot import StatusSnapshot
from millstream.status.verdict.copies import POLICIES, CopiesStatus
from millstream.status.verdict.facts import Facts
from millstream.status.verdict.issues import make_issue, named
from millstream.status.verdict.judge_stores import known_copies
from millstream.status.verdict.models import Issue, IssueAction

_OLDEST_CHECK = 90 * 24 * 3600 * MICROSECONDS


def check_issues(facts: Facts) -> Iterator[Issue]:
    """Issues of the checks of copies: findings, and missing checks."""
    snapshot = facts.snapshot
    failed = sum(row.failed for row in snapshot.spaces)
    if failed:
        text = f"{counted(failed, 'copy is', 'copies are')} damaged, missing or not recorded"
        queued = _open(facts, QueueName.REPAIR)
        text += f"; {counted(queued, 'repair is', 'repairs are')} queued" if queued else "; no repair is queued"
        since = min((row.checked_at for row in snapshot.findings if row.checked_at is not None), default=None)
        page, action = "/integrity/findings", _repair(snapshot)
        yield make_issue("findings", "copies", text, page, since=since, count=failed, action=action)
    if unchecked := sum(_left_out(facts).values()):
        text = f"{counted(unchecked, 'copy was', 'copies were')} never checked, or could not be read at the last check"
        yield make_issue("unchecked", "copies", text, "/integrity", count=unchecked)
    oldest = snapshot.checks.oldest_check
    if oldest is not None and facts.at - oldest > _OLDEST_CHECK:
        text = f"some copies were last checked {age_text(facts.at - oldest)} ago"
        yield make_issue("stale-checks", "copies", text, "/integrity", since=oldest + _OLDEST_CHECK)
    if facts.copies is not None:
        yield from _reports(facts, facts.copies)


def unchecked_spaces(facts: Facts) -> Sequence[SpaceCoverage]:
    """The spaces with copies of which no check found out the state; `protect` reads those of adopted spaces itself."""
    adopted = {space for _, space in facts.copies.adopted} if facts.copies else set()
    return [row for row in facts.snapshot.spaces if row.checked < row.items and row.space not in adopted]


def _left_out(facts: Facts) -> Mapping[tuple[str, str], int]:
    """How many copies of each space in a store its last check left out: none of those that were recorded since."""
    if facts.copies is None:
        return {}  # it is not known yet when checks began
    began = {place: report.started_at for place, report in facts.copies.reports.items()}
    places = {(row.store, row.space): row for row in unchecked_spaces(facts)}
    unreadable = facts.copies.unreadable  # what was recorded since these checks is not known
    return {place: row.left_out(began.get(place)) for place, row in places.items() if place not in unreadable}


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
    recorded = {(one.store, one.space) for one in copies.spaces if one.items}
    absent, stale = dict[str, list[str]](), dict[str, list[str]]()
    oldest = dict[str, int]()
    for place, row in rows.items():
        store, space = place
        report = copies.reports.get(place)
        is_told = row.checked < row.items or place in copies.unreadable  # as copies that were never checked, or trouble
        if report is None and not is_told and space not in adopted and is_covered(copies, space, store):
            absent.setdefault(store, []).append(space)
    for (store, space), report in sorted(copies.reports.items()):
        if is_system(space) or ((ended := copies.adopted.get((store, space))) and report.ended_at < ended):
            continue  # a run of `protect` since then says more
        page = f"/integrity/space?{urlencode({'store': store, 'space': space})}"
        where, subject = arguments(store, space), f"{space} in {store}"
        if report.result is ReportResult.INCOMPLETE and report.listed == 0 and not report.notes:
            continue  # nothing is there, so nothing was left out
        if _lacks_items_alone(report) and all((source, space) in recorded for source in report.sources):
            continue  # these are counted as they are now: see _copy_faults
        if report.result is ReportResult.INCOMPLETE:
            why = f": {report.notes[0]}" if report.notes else ""
            text = f"the last report on {subject} is INCOMPLETE{why}"
            yield make_issue("report-incomplete", subject, text, page, since=report.ended_at, where=where)
        elif report.result is ReportResult.FAILURE and (store, space) not in failed:
            text = f"the last report on {subject} is FAILURE"
            yield make_issue("report-failed", subject, text, page, since=report.ended_at, where=where)
        if facts.at - report.ended_at > facts.limits.report_age and rows.get((store, space)) and space not in adopted:
            stale.setdefault(store, []).append(space)
            oldest[store] = min(report.ended_at, oldest.get(store, report.ended_at))
    for store, spaces in sorted(absent.items()):
        text = f"there is no report on {named('space', spaces)} in the store {store}"
        yield make_issue(
            "report-absent",
            store,
            text,
            "/integrity/reports",
            count=len(spaces),
            where=f" --store {shlex.quote(store)}",
        )
    for store, spaces in sorted(stale.items()):
        age = age_text(facts.at - oldest[store])
        text = f"the last report on {named('space', spaces)} in the store {store} is {age} old"
        since = oldest[store] + facts.limits.report_age
        where = f" --store {shlex.quote(store)}"
        yield make_issue("report-stale", store, text, "/integrity/reports", since=since, count=len(spaces), where=where)


def _lacks_items_alone(report: IntegrityReport) -> bool:
    """Whether the report is INCOMPLETE for no other reason than items of the source that were not copied yet."""
    is_whole = report.checked and report.checked + report.explained == report.listed and not report.notes
    return bool(report.result is ReportResult.INCOMPLETE and report.absent.count and is_whole)


def is_covered(copies: CopiesStatus, space: str, store: str | None = None) -> bool:
    """Whether a policy copies *space* (from or to *store*)."""
    pairs = [pair for policy in copies.policies.by_account.values() for pair in policy.lookup(space)]
    return any(store in (None, pair.source, pair.destination) for pair in pairs)


def copy_issues(facts: Facts) -> Iterator[Issue]:
    """Held plans, protected spaces that are not in order, and spaces that no policy covers."""
    for hold in facts.snapshot.approvals:
        name, subject, page = f"{hold.space} ({hold.pair})", f"plan {hold.number}", f"/integrity/holds/{hold.number}"
        if hold.rejected_at is not None:
            text = f"the plan for {name} was rejected by {hold.rejected_by}: {hold.rejection}"
            yield make_issue("plan-rejected", subject, text, page, since=hold.rejected_at)
            continue
        text = f"a plan for {name} is held: {hold.reason}"
        action = IssueAction("Approve…", f"{page}/approve")
        yield make_issue("held", subject, text, page, since=hold.held_at, action=action)
    yield from _vanished(facts)
    if facts.copies is None:
        return
    told = {(row.store, row.space) for row in facts.snapshot.spaces if row.failed}
    told |= {(row.store, row.space) for row in unchecked_spaces(facts)}
    for space in facts.copies.spaces:
        is_adopted = (space.store, space.space) in facts.copies.adopted
        parts = list(_space_faults(space, told, facts.at - facts.limits.copy_age, is_adopted=is_adopted))
        if parts:
            page = f"/integrity/space?{urlencode({'store': space.store, 'space': space.space})}"
            text = f"{space.space} from {space.store}: {', '.join(parts)}"
            yield make_issue("space-not-well", f"{space.space} in {space.store}", text, page)
    yield from _uncovered(facts, facts.copies)


def _vanished(facts: Facts) -> Iterator[Issue]:
    """Items that are gone from their source, but for those of held plans, and of `protect`, of which others speak."""
    told = {(hold.source, hold.space) for hold in facts.snapshot.approvals}
    told |= set(facts.copies.adopted) if facts.copies else set()
    found: dict[tuple[str, str], list[HeldCount]] = {}
    for one in facts.snapshot.held_items:
        if one.kind == VANISHED and (one.source, one.space) not in told:
            found.setdefault((one.source, one.space), []).append(one)
    for (store, space), counts in found.items():
        items, since = max(one.items for one in counts), min(one.since for one in counts)
        text = f"{counted(items, 'item')} of {space} vanished from the store {store}"
        text += " without a recorded deletion"
        page = f"/integrity/vanished?{urlencode({'store': store, 'space': space})}"
        where = arguments(store, space)
        yield make_issue("vanished", f"{space} in {store}", text, page, since=since, count=items, where=where)


def _space_faults(
    space: SpaceStatus, told: Container[tuple[str, str]], until: int, *, is_adopted: bool
) -> Iterator[str]:
    """What `millstream status` finds wrong with *space*, but for copies in *told*, of which another issue speaks, and
    for items that were recorded after *until* (microseconds): these are being copied. Copies that were never checked
    are told by `protect` alone, which checks all."""
    if space.last_code:
        killed = " or was killed" if space.last_code == 1 else ""
        yield f"the last run of protect ended with code {space.last_code}{killed}"
    yield from (f"{count:,} {kind}" for kind, count in space.findings.items())
    if space.is_overdue:
        yield "protect has not read the source for more than 31 days"
    if space.is_unended:
        yield "the last run of protect began more than 3 days ago and has not ended"
    if space.vanished:
        yield f"{counted(space.vanished, 'item')} vanished from the source"
    for copy in space.copies:
        damaged = 0 if (copy.store, space.space) in told else copy.damaged - (0 if is_adopted else copy.new)
        yield from _copy_faults(copy, damaged, until)


def _copy_faults(copy: CopyStatus, damaged: int, until: int) -> Iterator[str]:
    if copy.pending and (copy.oldest_pending is None or copy.oldest_pending <= until):
        yield f"{copy.pending:,} not copied to {copy.store}"
    if damaged:
        yield f"{damaged:,} in {copy.store} not in order or not read yet"
    yield from (f"{count:,} {kind} in {copy.store}" for kind, count in copy.findings.items())
    if copy.is_overdue:
        yield f"some copies in {copy.store} were not read for more than 31 days"


def _uncovered(facts: Facts, copies: CopiesStatus) -> Iterator[Issue]:
    policies = copies.policies.by_account.values()
    ignored = {space for policy in policies for space in policy.ignored}
    if POLICIES in copies.troubles:
        return  # nothing is known of what they cover, which another issue tells
    if not any(policy.pairs for policy in policies):
        yield make_issue("unprotected", "node", "no policy copies anything", "/policies")
        return
    uncovered: dict[str, set[str]] = {}
    listed = [
        (state.store, space)
        for state in facts.stores
        if state.answer is not None
        for space in state.answer.spaces
        if space not in state.answer.empty
    ]
    for store, space in {*known_copies(facts), *listed}:
        if not is_system(space) and space not in ignored and not is_covered(copies, space):
            uncovered.setdefault(store, set()).add(space)
    for store, spaces in sorted(uncovered.items()):
        text = f"no policy covers {named('space', sorted(spaces))} in the store {store}"
        yield make_issue("uncovered-space", store, text, "/policies", count=len(spaces))


def _open(facts: Facts, queue: str) -> int:
    return facts.depths[queue].open if queue in facts.depths else 0
