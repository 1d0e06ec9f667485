"""``millstream status``: the verdict on the node, and the protection of each space."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby

import click
import msgspec
import sqlalchemy as sa

from millstream.cli.common import data_options, echo_line, json_option, print_json
from millstream.cli.examples import example
from millstream.cli.node import member_lines
from millstream.cli.queue import dead_tasks
from millstream.core.amounts import counted, size_text
from millstream.core.errors import MillstreamError, NotFoundError
from millstream.core.shown_commands import arguments
from millstream.core.timestamps import format_timestamp, time_text
from millstream.mill.adoption.adopted_store import adopted_store, find_adopted_store
from millstream.mill.adoption.coverage import NOT_COPIED
from millstream.mill.adoption.reading_times import reading_times
from millstream.mill.adoption.status import VANISHED, CopyStatus, OpenWork, ProtectionStatus, SpaceStatus
from millstream.mill.errors import PolicyError, TaskError
from millstream.mill.policies.repository import Policies
from millstream.mill.reports.archive import last_reports
from millstream.mill.reports.page import age_text
from millstream.mill.reports.report import CopyFinding, ReportResult
from millstream.mill.tasks import QueueName, decode_task
from millstream.node import Node
from millstream.node.context import DATABASE
from millstream.node.missing_databases import MissingDatabases, missing_databases
from millstream.queue import DeadTask
from millstream.settings import Settings
from millstream.status.node_view import NodeView
from millstream.status.poller import StatusPoller
from millstream.status.serving_node import NodeDoesNotAnswerError, ServingNode, ask_verdict, find_serving_node
from millstream.status.verdict.judge_machine import disk_issues
from millstream.status.verdict.kinds import STORE_PROBLEMS
from millstream.status.verdict.models import Issue, Unknown, Verdict
from millstream.status.verdict.store_watch import disk_free
from millstream.stores.protocol import StoreError

_NOT_READABLE = (MillstreamError, OSError, sa.exc.SQLAlchemyError)

MOST_DEAD = 100_000
"""Maximum number of dead tasks of one queue that are counted."""


@example("millstream status --json")
@click.command()
@data_options
@json_option
@click.option("--items", is_flag=True, help="Only list when each protected item and each copy was last read.")
def status(settings: Settings, as_json: bool, items: bool) -> int:
    """Show what is wrong with the node and what is not known, and how well each space is protected.

    For each space: its items, its copies, when they were last read, problems, and pending approvals; at most 20 items
    of each kind of problem are named. For each issue of the node: what is wrong, since when, what it means and what to
    do. The command asks the running node (`millstream serve`); without one it checks the node itself.

    If the node's tables are on a database server, its members (the processes that serve it, see `millstream node ls`)
    are listed too, but not with --json.

    With --json, the command prints one line for each protected space (one line if there is none). The last line also
    has "ok", "issues", "unknown" and "watching" (whether a running node gave the answer). Exit code 0 if there is no
    issue and nothing unknown, 1 otherwise; with --items always 0.
    """
    with Node.open(settings, reads=True) as node:
        if items:
            return _list_items(node, as_json)
        now = node.clock.now()
        verdict, serving = _verdict(node)
        members: Sequence[str] = ()
        is_monitored = False
        spaces, why = list[SpaceStatus](), "nothing is protected yet: see `millstream protect --help`"
        if any(one.subject == DATABASE for one in verdict.unknown):
            why = f"the protected spaces cannot be shown: {DATABASE} is missing"
        try:
            spaces = _protected_spaces(node, verdict, now)
            members, is_monitored = member_lines(node)
        except _NOT_READABLE as error:  # the verdict is shown in any case: it says what is wrong
            subject = "members" if spaces else "protected spaces"
            why = f"the {subject} cannot be shown: {error}"
            if verdict.ok:  # the serving process can read what this one cannot
                verdict = Verdict.of(verdict.at, [], [_not_readable(subject, why)])
    if as_json:
        lines = [{**msgspec.to_builtins(space), "well": space.is_well} for space in spaces] or [{}]
        whole = {
            "ok": verdict.ok,
            "issues": verdict.issues,
            "unknown": verdict.unknown,
            "watching": serving is not None,
        }
        lines[-1] |= msgspec.to_builtins(whole)
        for line in lines:
            print_json(line)
    else:
        for space in spaces:
            for text in status_lines(space, now):
                echo_line(text)
        for text in members:
            echo_line(text)
        for text in verdict_lines(verdict, is_monitored=serving is not None or is_monitored):
            echo_line(text)
    if not spaces and all(one.what != why for one in verdict.unknown):
        echo_line(why, err=True)
    return 0 if verdict.ok else 1


def _verdict(node: Node) -> tuple[Verdict, ServingNode | None]:
    """The verdict on *node*, and the process that gave it; None if this process computed it."""
    serving, issues = find_serving_node(node.folder), list[Issue]()
    try:
        return (_own_verdict(node) if serving is None else ask_verdict(serving, node.folder)), serving
    except NodeDoesNotAnswerError as error:
        what, todo = str(error), "see its log, or restart it; if you stop it, this command checks the node itself"
    except _NOT_READABLE as error:
        what, todo = f"the node cannot be opened: {error}", "start what it names, or correct the settings"
        issues = _disk_issues(node)
        if issues:
            todo = f"free disk space, if the full disk is the cause; otherwise {todo}"
    unknown = Unknown(subject="node", area="node", since=None, what=what, todo=todo)
    return Verdict.of(node.clock.now(), issues, [unknown]), serving


def _own_verdict(node: Node) -> Verdict:
    """The verdict of this process on *node*, which also says which of its databases are lost."""
    missing = missing_databases(node)
    lost = [_databases_lost(node, missing)] if missing.traces else []
    if DATABASE in missing.names and (lost or len(missing.names) == 2):  # tables without rows say nothing of the node
        return Verdict.of(node.clock.now(), _disk_issues(node), lost or [_nothing_yet(node)])
    verdict = StatusPoller(NodeView(node)).verdict()
    return Verdict.of(verdict.at, verdict.issues, [*lost, *verdict.unknown])


def _databases_lost(node: Node, missing: MissingDatabases) -> Unknown:
    names, are_two = " and ".join(missing.names), len(missing.names) == 2
    without = []
    if DATABASE not in missing.names or are_two:
        without.append("messages, queues and ledgers are lost")
    if DATABASE in missing.names:
        rebuild = "`millstream mill rebuild audit-log` and `millstream mill rebuild content-index`"
        rebuild = rebuild if are_two else f"`millstream anchor observe`, {rebuild}"
        without.append(f"{rebuild} record most of {DATABASE} again, but no approvals and times of checks")
    return Unknown(
        subject=missing.names[0],
        area="node",
        since=None,
        what=f"{names} {'are' if are_two else 'is'} missing in {node.folder}, but {missing.traces}",
        todo=f"restore {'both' if are_two else 'it'} from a backup before a process of the node starts, which would "
        f"create {'empty ones' if are_two else 'an empty one'}; without a backup, {'; '.join(without)}; if the node is "
        "new, start `millstream serve`",
    )


def _nothing_yet(node: Node) -> Unknown:
    return Unknown(
        subject="node",
        area="node",
        since=None,
        what=f"nothing is recorded in {node.folder} yet: a new node, or the wrong folder",
        todo="start `millstream serve`, or protect a folder (`millstream protect --help`); or correct --data",
    )


def _not_readable(subject: str, what: str) -> Unknown:
    todo = "run the command with the account, the settings and the release of the process that serves the node"
    return Unknown(subject=subject, area="copies", since=None, what=what, todo=todo)


def _disk_issues(node: Node) -> list[Issue]:
    """What is wrong with the disk of a node that cannot be opened: a full one may be why."""
    limits = node.settings.verdict
    try:
        found = list(disk_issues(disk_free(node.folder), limits))
    except OSError:
        return []
    return [issue for issue in found if issue.kind not in limits.ignore]


def _protected_spaces(node: Node, verdict: Verdict, now: int) -> list[SpaceStatus]:
    """The protection of each space, if the policies can be read; if not, the verdict reports it."""
    try:
        policies = node.policies.current
    except (PolicyError, StoreError):
        policies = Policies()
    work = OpenWork(
        holds=node.stores.change_guard.pending(), problems=_problems(verdict), dead_tasks=_dead_tasks(node.settings)
    )
    reports = partial(last_reports, node.mill.reports.archive)
    return list(ProtectionStatus(node.databases.own, policies, work, reports, now).spaces())


def verdict_lines(verdict: Verdict, *, is_monitored: bool) -> Iterator[str]:
    """*verdict* for people; *is_monitored* is whether a process with a console serves the node, and sends alarms."""
    for one in verdict.unknown:
        yield f"UNKNOWN  {one.what}"
        yield f"  what to do: {one.todo}"
    for issue in verdict.issues:
        since = "" if issue.since is None else f" (since {time_text(issue.since)})"
        yield f"{'ISSUE' if issue.severity == 'bad' else 'WARNING'}  {issue.kind}: {issue.what}{since}"
        yield f"  meaning: {issue.meaning}"
        yield f"  what to do: {issue.todo}"
    if not is_monitored:
        yield (
            "not monitored: no console of this node is running, so alarms are sent only by running workers "
            "(`serve.workers` or `millstream mill work`); see `millstream serve`"
        )
    if verdict.ok:
        yield "no problem is known"
    else:
        count = len(verdict.issues)
        yield f"{count:,} {'issue' if count == 1 else 'issues'}, {len(verdict.unknown):,} unknown"


def _list_items(node: Node, as_json: bool) -> int:
    """Print a line for each item of every protected space; 0."""
    for name, store in node.stores.providers.items():
        adopted = find_adopted_store(store)
        for space in () if adopted is None else store.spaces():
            for item in reading_times(adopted_store(store), node.stores.manifest, name, space):
                if as_json:
                    print_json(item)
                    continue
                times = [f"{name} {format_timestamp(item.last_read_at)}"]
                times += [
                    f"{copy} {'never' if at is None else format_timestamp(at)}"
                    for copy, at in sorted(item.copies.items())
                ]
                echo_line(f"{space}  {item.content_id}: {', '.join(times)}")
    return 0


def _problems(verdict: Verdict) -> dict[str, str]:
    """The stores that cannot be used now, and why."""
    problems = {one.subject: one.what for one in verdict.issues if one.kind in STORE_PROBLEMS}
    return problems | {one.subject.removeprefix("store "): one.what for one in verdict.unknown if one.area == "copies"}


def _dead_tasks(settings: Settings) -> dict[str, Counter[str]]:
    """The dead tasks by space and queue; no worker is disturbed."""
    found: dict[str, Counter[str]] = {}
    for name in QueueName:
        with contextlib.suppress(NotFoundError):  # nothing was ever put on that queue
            for dead in dead_tasks(settings, name, limit=MOST_DEAD):
                found.setdefault(_space_of(dead), Counter())[name.value] += 1
    return found


def _space_of(dead: DeadTask) -> str:
    """The space that a task is about; empty where it cannot be read."""
    try:
        return str(getattr(decode_task(dead.body), "space", ""))
    except TaskError:
        return ""


def status_lines(space: SpaceStatus, now: int) -> Iterator[str]:
    """*space* for people at *now* (microseconds)."""
    yield f"{space.space} (store {space.store}): {counted(space.items, 'item')}, {size_text(space.bytes)}"
    if space.adopted_only is not None:
        yield (
            f"  last run {_age(space.last_run, now)}; every item read within {_age(space.oldest_read, now, '')}; "
            f"{space.adopted_only:,} items have no independent checksum"
        )
    if space.last_code:
        code = f"{space.last_code} or was killed" if space.last_code == 1 else str(space.last_code)
        yield f"  the last run ended with code {code}: run `millstream protect` again to see the cause"
    if space.is_overdue:
        yield "  OVERDUE: no run has read the source for more than 31 days: check what runs `millstream protect`"
    if space.is_unended:
        yield (
            "  OVERDUE: the last run began more than 3 days ago and has not ended: "
            "if none is active, run `millstream protect` again"
        )
    if space.problem:
        yield f"  NOT AVAILABLE: {space.problem}"
    if space.damaged:
        yield f"  missing or damaged in the source: {counted(space.damaged, 'item')}"
    yield from _report_lines(space.report, space.store, space.space)
    for copy in space.copies:
        yield from _copy_lines(copy, space.space, now)
    for kind, count in space.findings.items():
        yield f"  {count:,} {kind}: run `millstream protect` again to see the remedy"
    for queue, count in space.dead_tasks.items():
        yield (
            f"  {counted(count, 'task')} failed permanently: see `millstream queue dead {queue}`, then "
            "`millstream queue redrive`"
        )
    if space.vanished:
        yield _vanished_line(space)
    yield from _name_lines(space.named, {**space.findings, VANISHED: space.vanished})
    if space.excluded:
        yield f"  {space.excluded:,} items were excluded (--exclude) after they had been copied; their copies are kept"
    yield f"  {'OK' if space.is_well else 'NOT OK'}"


def _vanished_line(space: SpaceStatus) -> str:
    vanished = counted(space.vanished, "item")
    if not space.items:
        return (
            f"  the source is empty, but had {vanished}: check that its disk is mounted; no copy is deleted meanwhile"
        )
    command = f"millstream mill forget {arguments(space.store, space.space, options='--vanished')}"
    return (
        f"  {vanished} vanished from the source: put the items back, or approve the deletion of their copies with "
        f"`{command}`"
    )


def _report_lines(report: ReportResult | None, store: str, space: str) -> Iterator[str]:
    if report not in (None, ReportResult.SUCCESS):
        yield f"  the last report on {store} is {report}: see `millstream mill report {arguments(store, space)}`"


def _name_lines(named: Sequence[CopyFinding], counts: Mapping[str, int]) -> Iterator[str]:
    """A line for each of *named*, and the number of further ones of each kind by *counts*."""
    for kind, some in groupby(named, lambda one: one.kind):
        shown = list(some)
        yield from (f"  {kind.upper()}  {one.content_id}: {one.detail}" for one in shown)
        if (more := counts.get(kind, 0) - len(shown)) > 0:
            yield f"  {kind.upper()}  … and {more:,} more"


def _copy_lines(copy: CopyStatus, space: str, now: int) -> Iterator[str]:
    wrong = [
        f"{count:,} {name}"
        for count, name in ((copy.pending, "not copied"), (copy.damaged, "not in order or not read"))
        if count
    ]
    read = f"each read within {_age(copy.oldest_verified, now, '')}{', OVERDUE' if copy.is_overdue else ''}"
    yield f"  copy in {copy.store}: {copy.verified:,} of {copy.items:,} verified, {', '.join([*wrong, read])}"
    if copy.problem:
        yield f"    NOT AVAILABLE: {copy.problem}"
    for kind, count in copy.findings.items():
        yield f"    {count:,} {kind}: run `millstream protect` again to see the remedy"
    yield from (f"  {line}" for line in _name_lines(copy.named, {**copy.findings, NOT_COPIED: copy.pending}))
    yield from (f"  {line}" for line in _report_lines(copy.report, copy.store, space))
    for number in copy.holds:
        yield f"    waits for an approval: `millstream mill approve {number}`"


def _age(moment: int | None, now: int, after: str = " ago") -> str:
    return "unknown" if moment is None else f"{age_text(now - moment)}{after}"
