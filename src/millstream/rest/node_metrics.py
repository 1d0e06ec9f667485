"""The figures of a node in the text format of Prometheus; ``docs/monitoring`` has alert rules and a dashboard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from millstream.anchoring.registry.follow_state import FollowState
from millstream.core.clock import MICROSECONDS
from millstream.log import DATA_KINDS
from millstream.rest.app_context import AppContext

Samples = Sequence[tuple[Mapping[str, str], float]]


def exposition(app: AppContext) -> str:
    """All figures, a family a metric."""
    return "".join(f"{line}\n" for line in _lines(app))


def _lines(app: AppContext) -> Iterator[str]:
    found, snapshot = app.poller.overview(), app.poller.snapshot
    now = found.at
    yield from _family("up", "1 while the node answers", "gauge", [({}, 1)])
    logs = [row for row in snapshot.logs if row.kind in DATA_KINDS]
    yield from _family("log_last_id", "last durable id", "gauge", [({"log": r.log}, r.last_id) for r in logs])
    yield from _family("log_bytes", "stored bytes", "gauge", [({"log": r.log}, r.bytes) for r in logs])
    lags = [({"log": lag.log, "consumer": lag.consumer}, float(lag.lag)) for lag in snapshot.lags]
    yield from _family("consumer_lag", "messages that a consumer has not acknowledged", "gauge", lags)
    ages = [
        ({"log": lag.log, "consumer": lag.consumer}, _age(now, lag.oldest_at)) for lag in snapshot.lags if lag.oldest_at
    ]
    yield from _family("consumer_oldest_age_seconds", "age of the first of them", "gauge", ages)
    for state in ("ready", "leased", "delayed", "dead"):
        rows = [({"queue": q.queue}, float(getattr(q, state))) for q in found.queues]
        yield from _family(f"queue_{state}", f"tasks that are {state}", "gauge", rows)
    desired = [({"queue": q.queue}, q.desired_workers) for q in found.queues if q.desired_workers is not None]
    yield from _family("queue_desired_workers", "workers that there should be", "gauge", desired)
    yield from _family("batches_total", "batches handed to the batch writer", "counter", [({}, found.batches.batches)])
    yield from _family("batches_waiting", "batches waiting to be anchored", "gauge", [({}, found.batches.waiting)])
    rejected: Samples = [({}, found.batches.rejected_batches)]
    yield from _family("batches_rejected", "batches that were rejected", "gauge", rejected)
    yield from _family("anchors_total", "entries of the ledger", "counter", [({}, found.anchors.anchors)])
    yield from _family("anchors_invalid", "what is invalid in the ledger", "gauge", [({}, found.anchors.invalid)])
    yield from _family("anchors_behind", "entries that were not read back", "gauge", [({}, found.anchors.behind)])
    yield from _following(snapshot.following, now)
    yield from _family("copies", "copies on all stores", "gauge", [({}, found.copies.copies)])
    yield from _family("copies_checked", "copies that the last check could read", "gauge", [({}, found.checks.checked)])
    yield from _family("copies_failed", "copies whose last check failed", "gauge", [({}, found.checks.failed)])
    if found.checks.oldest_check is not None:
        oldest: Samples = [({}, _age(now, found.checks.oldest_check))]
        yield from _family("copies_oldest_check_age_seconds", "age of the oldest last check", "gauge", oldest)
    faults = [({"severity": s}, float(sum(f.severity == s for f in found.faults))) for s in ("bad", "warn")]
    yield from _family("faults", "what is not well", "gauge", faults)
    if snapshot.free_bytes is not None:
        yield from _family(
            "disk_free_bytes", "left on the disk of the data folder", "gauge", [({}, snapshot.free_bytes)]
        )
    yield from _family("survey_seconds", "how long the last survey took", "gauge", [({}, snapshot.seconds)])


def _following(state: FollowState | None, now: int) -> Iterator[str]:
    """The figures of a registry that follows another one; none where it follows nobody."""
    if state is None:
        return
    label = {"ledger": state.ledger}
    yield from _family(
        "registry_followed_entry", "last entry observed of the ledger that is followed", "gauge",
        [(label, state.position)],
    )  # fmt: skip
    yield from _family("registry_followed_behind", "its entries to come", "gauge", [(label, state.behind)])
    failing: Samples = [(label, float(state.error is not None))]
    yield from _family("registry_follow_failing", "1 after an attempt that failed", "gauge", failing)
    if state.checked_at is not None:
        age: Samples = [(label, _age(now, state.checked_at))]
        yield from _family("registry_follow_age_seconds", "time since the last attempt", "gauge", age)


def _age(now: int, at: int | None) -> float:
    return max(0.0, (now - (at or now)) / MICROSECONDS)


def _family(name: str, text: str, kind: str, samples: Samples) -> Iterator[str]:
    yield f"# HELP millstream_{name} {text}"
    yield f"# TYPE millstream_{name} {kind}"
    for labels, value in samples:
        inside = ",".join(f'{label}="{_escape(of)}"' for label, of in labels.items())
        number = int(value) if value == int(value) else value
        yield f"millstream_{name}{{{inside}}} {number}" if inside else f"millstream_{name} {number}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
