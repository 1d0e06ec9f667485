"""Issues of messages on their way: batches, anchors, queues and consumers."""

from __future__ import annotations

from collections.abc import Iterator

from millstream.core.amounts import counted
from millstream.core.clock import MICROSECONDS
from millstream.log import DATA_KINDS
from millstream.messaging.broker.names import DEAD_LETTERS
from millstream.mill.notices.alarms import Alarms
from millstream.mill.reports.page import age_text
from millstream.mill.tasks import QueueName
from millstream.queue import Depth
from millstream.status.ledger_signatures import CosigningLedger, UnsignedLedger
from millstream.status.ledger_timestamps import StampedLedger
from millstream.status.snapshot import JOURNAL, LEDGER, OBSERVER
from millstream.status.verdict.facts import Facts
from millstream.status.verdict.issues import cut, make_issue
from millstream.status.verdict.models import Issue, IssueAction

_BATCHING_GRACE = 300 * MICROSECONDS
_OBSERVER_GRACE = 60 * MICROSECONDS
_SIGNING_GRACE = 60 * MICROSECONDS
_WORKER_GRACE = 60 * MICROSECONDS
_WORKED_ON = frozenset(queue.value for queue in QueueName if queue != QueueName.BIT_ERROR)
"""The queues that workers of the mill process."""


def batch_issues(facts: Facts) -> Iterator[Issue]:
    """Messages that are in no batch, and batches that were rejected."""
    journal, index = facts.snapshot.journal, facts.snapshot.index
    for lag in facts.snapshot.batch_lags:
        due = (facts.patience if lag.patience is None else lag.patience) + _BATCHING_GRACE
        if lag.oldest_at is not None and facts.at - lag.oldest_at > due:
            verb = "was" if lag.messages == 1 else "were"
            text = (
                f"{counted(lag.messages, 'message')} of {lag.log} {verb} neither batched nor rejected, the "
                f"first received {age_text(facts.at - lag.oldest_at)} ago"
            )
            since = lag.oldest_at + due
            yield make_issue(
                "not-batched", lag.log, text, f"/logs/{lag.log}", since=since, count=lag.messages, where=lag.output
            )
    if rejected := index.invalid_batches + journal.rejected:
        text = f"{counted(rejected, 'batch was', 'batches were')} rejected"
        yield make_issue("rejected-batches", "batches", text, "/batches?only=bad", count=rejected)


def anchor_issues(facts: Facts) -> Iterator[Issue]:
    """Issues of the ledgers and their readers."""
    snapshot, limits = facts.snapshot, facts.limits
    if snapshot.index.invalid_anchors:
        count = snapshot.index.invalid_anchors
        text = f"{counted(count, 'anchor is', 'anchors are')} invalid as a whole"
        yield make_issue("invalid-anchors", "ledger", text, "/anchors?only=bad", count=count)
    waiting, head = snapshot.journal.accepted + snapshot.journal.cut, snapshot.head
    last = max(snapshot.waiting_since or 0, head.time if head else 0)
    due = last + facts.anchor_every + limits.ledger_age
    if snapshot.knows(JOURNAL, LEDGER) and waiting and last and facts.at > due:
        text = f"{counted(waiting, 'batch waits', 'batches wait')} for an anchor"
        text += f"; the last was made {age_text(facts.at - head.time)} ago" if head else "; there is none yet"
        yield make_issue("ledger-stuck", "ledger", text, "/anchors", since=due, count=waiting)
    behind = (head.number if head else 0) - snapshot.position
    if snapshot.knows(LEDGER, OBSERVER) and behind > 0 and facts.at - (snapshot.behind_since or 0) > _OBSERVER_GRACE:
        text = f"{counted(behind, 'anchor is', 'anchors are')} not verified yet"
        yield make_issue("observer-behind", "ledger", text, "/anchors", since=snapshot.behind_since, count=behind)
    for ledger in snapshot.unsigned:
        if ledger.problem or (ledger.since is not None and facts.at - ledger.since > _SIGNING_GRACE):
            yield _unsigned(ledger)
    yield from map(_contradicted, (each for each in snapshot.cosigning if each.forks))
    yield from map(_pending, (each for each in snapshot.cosigning if each.is_late))
    yield from map(_unstamped, (each for each in snapshot.stamping if each.is_late))
    for stamped in snapshot.stamping:
        if stamped.ends_at is not None:
            text = f"{counted(stamped.ending, 'time stamp')} of the ledger {stamped.ledger} not renewed"
            text += f", the first ends in {age_text(stamped.ends_at - facts.at)}"
            yield make_issue("timestamps-ending", stamped.ledger, text, "/anchors", count=stamped.ending)
    if (following := snapshot.following) and following.error:
        text = f"the ledger {following.ledger} is invalid or incomplete at entry {following.position:,}: "
        yield make_issue("following", following.ledger, text + cut(following.error), "/system")


def _unsigned(ledger: UnsignedLedger) -> Issue:
    if missing := ledger.entries - ledger.signed:
        verb = "is" if missing == 1 else "are"
        text = f"{counted(missing, 'entry')} of the ledger {ledger.ledger} {verb} not signed"
    else:
        text = f"the newest checkpoint of the ledger {ledger.ledger} is not copied or published"
    text += f": {cut(ledger.problem)}" if ledger.problem else ""
    return make_issue("ledger-unsigned", ledger.ledger, text, "/anchors", since=ledger.since, count=max(1, missing))


def _contradicted(ledger: CosigningLedger) -> Issue:
    (name, problem), count = ledger.forks[0], len(ledger.forks)
    text = f"{counted(count, 'witness contradicts', 'witnesses contradict')} the ledger {ledger.ledger}"
    text += f", such as {name}: {cut(problem)}"
    return make_issue("ledger-forked", ledger.ledger, text, "/anchors", since=ledger.since, count=count)


def _pending(ledger: CosigningLedger) -> Issue:
    needed = counted(ledger.missing, "cosignature")
    text = f"{needed} missing for the newest checkpoint of the ledger {ledger.ledger}"
    text += f": {ledger.away}" if ledger.away else ""
    return make_issue("cosignatures-missing", ledger.ledger, text, "/anchors", since=ledger.since, count=ledger.missing)


def _unstamped(ledger: StampedLedger) -> Issue:
    text = f"{counted(ledger.unstamped, 'entry')} of the ledger {ledger.ledger} without a time stamp"
    text += f": {cut(ledger.problem)}" if ledger.problem else ""
    return make_issue("timestamps-missing", ledger.ledger, text, "/anchors", since=ledger.since, count=ledger.unstamped)


def queue_issues(facts: Facts) -> Iterator[Issue]:
    """Issues of each work queue."""
    rules = Alarms(facts.alarms.most, facts.alarms.longest / MICROSECONDS)
    for name, depth in facts.depths.items():
        page = f"/queues/{name}"
        for alarm in rules.standing(name, depth):
            began = {"too-old": depth.oldest, "dead-letters": facts.snapshot.dead_since.get(name)}
            action = _redrive(facts, name) if alarm.kind == "dead-letters" else None
            text, cause = alarm.message.partition(": ")[0], facts.snapshot.only_cause.get(name)
            text += f": {cut(cause)}" if cause and alarm.kind == "dead-letters" else ""
            yield make_issue(
                alarm.kind, name, text, page, since=began.get(alarm.kind), count=alarm.count, action=action
            )
    yield from map(_unprocessed, _queues_without_worker(facts))
    for name, leased in facts.snapshot.orphans.items():
        tasks, verb = counted(leased, "task"), "is" if leased == 1 else "are"
        text = f"{tasks} of the queue {name} {verb} leased, and no worker holds the queue"
        yield make_issue("lease-without-owner", name, text, f"/queues/{name}", count=leased)
    if (findings := facts.depths.get(QueueName.BIT_ERROR)) and findings.ready:
        text = f"{counted(findings.ready, 'finding needs', 'findings need')} a decision"
        yield make_issue("for-people", QueueName.BIT_ERROR.value, text, "/integrity/findings", count=findings.ready)
    for name, count in facts.snapshot.former_tasks.items():
        text = f"{counted(count, 'task')} left in the log of the queue {name}, which is on a broker now"
        yield make_issue("former-queue", name, text, f"/queues/{name}", count=count)
    for name, why in facts.unreadable.items():
        yield make_issue("queue", name, f"the queue {name} cannot be read: {why}", "/queues")


def _queues_without_worker(facts: Facts) -> Iterator[tuple[str, Depth]]:
    """The queues of the mill whose tasks wait for longer than it takes to start a worker, and that no worker holds."""
    for name in sorted(facts.snapshot.without_worker & _WORKED_ON):
        depth = facts.depths.get(name)
        if depth is None or depth.oldest is None:
            continue
        waits = facts.at - depth.oldest
        if _WORKER_GRACE < waits <= facts.alarms.longest:  # later it is an issue of its own, `too-old`
            yield name, depth


def _unprocessed(queue: tuple[str, Depth]) -> Issue:
    name, depth = queue
    verb = "waits" if depth.ready == 1 else "wait"
    text = f"{counted(depth.ready, 'task')} of the queue {name} {verb}, and no worker processes the queue"
    return make_issue("no-worker", name, text, f"/queues/{name}", since=depth.oldest, count=depth.ready)


def _redrive(facts: Facts, name: str) -> IssueAction:
    """The form that redrives all dead tasks of a queue; where they have one cause, those of that cause."""
    cause = facts.snapshot.only_cause.get(name)
    fields = {"by": "all"} if cause is None else {"by": "cause", "cause": cause}
    return IssueAction("Redrive…", f"/queues/{name}/redrive", fields)


def consumer_issues(facts: Facts) -> Iterator[Issue]:
    """Consumers that are behind, and dead letters of the broker's groups."""
    kinds = {row.log: row.kind for row in facts.snapshot.logs}
    read: dict[str, int] = {}
    for lag in facts.snapshot.lags:
        read[lag.log] = max(read.get(lag.log, 0), lag.pointer)
        late = facts.at - lag.oldest_at if lag.oldest_at is not None else 0
        if lag.lag and late > facts.limits.consumer_age and not lag.log.startswith(DEAD_LETTERS):
            text = (
                f"the consumer {lag.consumer} has not read {counted(lag.lag, 'message')} of {lag.log}, "
                f"the first received {age_text(late)} ago"
            )
            page = f"/logs/{lag.log}"
            yield make_issue(
                "consumer-behind", f"{lag.consumer} of {lag.log}", text, page, since=lag.oldest_at, count=lag.lag
            )
    for row in facts.snapshot.logs:
        waiting = min(row.messages, row.last_id - read.get(row.log, 0))
        if row.log.startswith(DEAD_LETTERS) and kinds[row.log] in DATA_KINDS and waiting > 0:
            group = row.log.removeprefix(DEAD_LETTERS)
            verb = "is" if waiting == 1 else "are"
            text = f"{counted(waiting, 'message')} of the group {group} {verb} dead, in the topic {row.log}"
            yield make_issue("dead-letters", row.log, text, f"/logs/{row.log.replace('%', '%25')}", count=waiting)
