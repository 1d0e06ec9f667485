"""The metrics of a node, each declared once; ``docs/monitoring`` has alert rules and a dashboard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from millstream.anchoring.registry.follow_state import FollowState
from millstream.core.clock import MICROSECONDS
from millstream.core.metric_collection.collector import MetricsSnapshot
from millstream.core.metric_collection.prometheus import MetricFamily, counter, families_of, gauge
from millstream.log import DATA_KINDS
from millstream.node.members.members_status import MembersStatus, MemberState
from millstream.status.models import Overview
from millstream.status.poller import StatusPoller
from millstream.status.snapshot import (
    ANCHORS,
    JOURNAL,
    LEDGER,
    MANIFEST,
    OBSERVER,
    StatusSnapshot,
    anchor_metrics,
    batch_metrics,
)
from millstream.status.verdict.kinds import KINDS


def status_metrics(poller: StatusPoller, figures: MetricsSnapshot) -> Iterator[MetricFamily]:
    """The metrics that are read from the status of the node, and the *figures* of its parts in this process.

    Those of a part that cannot be read are left out: a 0 would resolve an alert.
    """
    overview, snapshot = poller.overview(), poller.snapshot
    batches, anchors = batch_metrics(snapshot, 0.0), anchor_metrics(snapshot)
    yield gauge("up", "1 while the node answers", 1)
    yield from _log_metrics(snapshot, overview.at)
    yield from _queue_metrics(overview)
    if snapshot.knows(JOURNAL, ANCHORS):
        yield counter("batches_total", "batches handed to the batch writer", batches.batches)
    if snapshot.knows(JOURNAL):
        yield gauge("batches_waiting", "batches waiting to be anchored", batches.waiting)
        yield gauge("batches_rejected", "batches that were rejected", batches.rejected_batches)
    if snapshot.knows(LEDGER):
        yield counter("anchors_total", "entries of the ledger", anchors.anchors)
    if snapshot.knows(ANCHORS):
        yield gauge("anchors_invalid", "invalid content of the ledger", anchors.invalid)
    if snapshot.knows(LEDGER, OBSERVER):
        yield gauge("anchors_behind", "entries that were not read back", anchors.behind)
    unstamped = [({"ledger": each.ledger}, each.unstamped) for each in snapshot.stamping]
    yield gauge("ledger_unstamped_entries", "entries of each ledger without a time stamp", unstamped)
    yield from _cosigning_metrics(snapshot, overview.at)
    if snapshot.members is not None:
        yield from _member_metrics(snapshot.members)
    if snapshot.following is not None:
        yield from _following_metrics(snapshot.following, overview.at)
    if snapshot.knows(MANIFEST):
        yield from _copy_metrics(snapshot, overview.at)
    faults = [({"severity": s}, sum(fault.severity == s for fault in overview.faults)) for s in ("bad", "warn")]
    yield gauge("faults", "current problems", faults)
    kinds = Counter(issue.kind for issue in overview.verdict.issues)
    yield gauge("verdict_issues", "issues of the verdict by kind", [({"kind": kind}, kinds[kind]) for kind in KINDS])
    yield gauge("verdict_unknown", "facts that the verdict could not determine", len(overview.verdict.unknown))
    ages = [({"store": s.store}, _age(overview.at, s.answered_at)) for s in poller.stores.states if s.answered_at]
    yield gauge("store_answer_age_seconds", "time since the last answer of each store", ages)
    if snapshot.free_bytes is not None:
        yield gauge("disk_free_bytes", "left on the disk of the data folder", snapshot.free_bytes)
    yield gauge("status_snapshot_seconds", "how long the last status snapshot took", snapshot.seconds)
    yield from families_of(figures)


def _log_metrics(snapshot: StatusSnapshot, now: int) -> Iterator[MetricFamily]:
    logs = [row for row in snapshot.logs if row.kind in DATA_KINDS]
    yield gauge("log_last_id", "last durable id", [({"log": row.log}, row.last_id) for row in logs])
    yield gauge("log_bytes", "stored bytes", [({"log": row.log}, row.bytes) for row in logs])
    lags = [({"log": lag.log, "consumer": lag.consumer}, lag) for lag in snapshot.lags]
    lag_text = "messages that a consumer has not acknowledged"
    yield gauge("consumer_lag", lag_text, [(labels, lag.lag) for labels, lag in lags])
    ages = [(labels, _age(now, lag.oldest_at)) for labels, lag in lags if lag.oldest_at]
    yield gauge("consumer_oldest_age_seconds", "age of the first of them", ages)


def _queue_metrics(overview: Overview) -> Iterator[MetricFamily]:
    queues = [({"queue": queue.queue}, queue) for queue in overview.queues]
    for state in ("ready", "leased", "delayed", "dead"):
        yield gauge(f"queue_{state}", f"tasks that are {state}", [(at, getattr(queue, state)) for at, queue in queues])
    desired = [(at, queue.desired_workers) for at, queue in queues if queue.desired_workers is not None]
    yield gauge("queue_desired_workers", "recommended workers", desired)


def _copy_metrics(snapshot: StatusSnapshot, now: int) -> Iterator[MetricFamily]:
    checks = snapshot.checks
    yield gauge("copies", "copies on all stores", snapshot.copies.copies)
    yield gauge("copies_checked", "copies that the last check could read", checks.checked)
    yield gauge("copies_failed", "copies whose last check failed", checks.failed)
    if (oldest := checks.oldest_check) is not None:
        yield gauge("copies_oldest_check_age_seconds", "age of the oldest last check", _age(now, oldest))


def _cosigning_metrics(snapshot: StatusSnapshot, now: int) -> Iterator[MetricFamily]:
    """None for a node without witnesses."""
    ledgers = [({"ledger": each.ledger}, each) for each in snapshot.cosigning]
    if not ledgers:
        return
    sizes = [(labels, each.cosigned_size) for labels, each in ledgers]
    yield gauge("ledger_cosigned_entries", "entries below the newest checkpoint with the quorum of witnesses", sizes)
    missing = [(labels, each.missing) for labels, each in ledgers]
    yield gauge("ledger_cosignatures_missing", "cosignatures that the offered checkpoint needs", missing)
    waits = [(labels, each.waited(now) / MICROSECONDS) for labels, each in ledgers]
    yield gauge("ledger_cosignatures_wait_seconds", "how long the offered checkpoint lacks the quorum", waits)
    ages = [(labels, _age(now, each.cosigned_at)) for labels, each in ledgers if each.cosigned_at is not None]
    yield gauge("ledger_cosigned_age_seconds", "time since the newest cosigned checkpoint had its quorum", ages)
    failing = [(labels | {"witness": name}, bad) for labels, each in ledgers for name, bad in each.failing.items()]
    yield gauge("witness_failing", "1 if a witness did not cosign when it was asked last", failing)


def _member_metrics(status: MembersStatus) -> Iterator[MetricFamily]:
    states = Counter(member.state(status.at) for member in status.members)
    text = "members of the node by state, those that ended in the last day too"
    yield gauge("members", text, [({"state": state.value}, states[state]) for state in MemberState])
    yield gauge("members_unowned_roles", "roles that members offer and none of them runs", len(status.unowned))


def _following_metrics(state: FollowState, now: int) -> Iterator[MetricFamily]:
    labels = {"ledger": state.ledger}
    yield gauge("registry_followed_entry", "last observed entry of the followed ledger", [(labels, state.position)])
    yield gauge("registry_followed_behind", "entries of the followed ledger to observe", [(labels, state.behind)])
    yield gauge("registry_follow_failing", "1 if the last attempt failed", [(labels, state.error is not None)])
    if state.checked_at is not None:
        yield gauge(
            "registry_follow_age_seconds", "time since the last attempt", [(labels, _age(now, state.checked_at))]
        )


def _age(now: int, at: int) -> float:
    """Seconds from *at* until *now* (microseconds)."""
    return max(0.0, (now - at) / MICROSECONDS)
