"""Find the current problems of a node with their remedies: a pure function of its status."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from millstream.core.amounts import share_text
from millstream.rest.status_models import CheckMetrics, Fault, QueueStatus
from millstream.rest.status_snapshot import LOW_DISK, StatusSnapshot

BAD, WARN = "bad", "warn"
_OLDEST_CHECK = 90 * 24 * 3600 * 1_000_000


def find_issues(
    snapshot: StatusSnapshot, queues: Sequence[QueueStatus], checks: CheckMetrics, unreadable: Mapping[str, str]
) -> Sequence[Fault]:
    """Return the current issues, the most severe first."""
    found = [*_anchoring(snapshot), *_copies(snapshot, checks), *_queues(queues, unreadable), *_machine(snapshot)]
    return sorted(found, key=lambda fault: fault.severity != BAD)


def _anchoring(snapshot: StatusSnapshot) -> Iterator[Fault]:
    index, journal = snapshot.index, snapshot.journal
    if index.invalid_anchors:
        text = f"{index.invalid_anchors:,} anchors are invalid as a whole"
        yield Fault(
            "invalid-anchors",
            BAD,
            text,
            "they count for nothing; `millstream anchor replay` shows why",
            "/anchors?only=bad",
        )
    if index.invalid_batches or journal.rejected:
        text = f"{index.invalid_batches + journal.rejected:,} batches were rejected"
        yield Fault("rejected-batches", WARN, text, "see the reasons; nothing is anchored twice", "/batches?only=bad")
    if snapshot.head and snapshot.head.number > snapshot.position:
        text = f"{snapshot.head.number - snapshot.position:,} anchors are not verified yet"
        yield Fault("observer-behind", WARN, text, "`millstream anchor observe` verifies them", "/anchors")
    if snapshot.following and snapshot.following.error:
        where = f"at entry {snapshot.following.position:,}"
        text = f"the ledger {snapshot.following.ledger} is invalid or incomplete {where}"
        yield Fault("following", BAD, text, snapshot.following.error[:300], "/system")


def _copies(snapshot: StatusSnapshot, checks: CheckMetrics) -> Iterator[Fault]:
    if checks.failed:
        waiting = _counted(checks.repairs_waiting, "repair is queued", "repairs are queued")
        doing = waiting if checks.repairs_waiting else "no repair is queued"
        text = _counted(checks.failed, "copy is", "copies are") + " damaged, missing or not recorded"
        yield Fault("findings", BAD, text, f"{doing}; repair them one by one or with workers", "/integrity/findings")
    if snapshot.holds:
        text = _counted(snapshot.holds, "mass delete or change is", "mass deletes or changes are") + " held"
        yield Fault("held", WARN, text, "not executed until approved", "/integrity#held")
    never = checks.copies - checks.checked
    if never:
        known = "" if checks.coverage is None else f" (coverage {share_text(checks.coverage)})"
        text = f"{never:,} copies were never checked, or could not be read at the last check{known}"
        yield Fault("unchecked", WARN, text, "`millstream mill check` reads every bit", "/integrity")
    if checks.oldest_check is not None and snapshot.at - checks.oldest_check > _OLDEST_CHECK:
        days = (snapshot.at - checks.oldest_check) // (24 * 3600 * 1_000_000)
        text = f"some copies were last checked {days:,} days ago"
        yield Fault("stale-checks", WARN, text, "`millstream mill check` reads every bit", "/integrity")


def _queues(queues: Sequence[QueueStatus], unreadable: Mapping[str, str]) -> Iterator[Fault]:
    for queue in queues:
        if queue.dead:
            text = _counted(queue.dead, "task", "tasks") + f" of the queue {queue.queue} died"
            yield Fault("dead-letters", BAD, text, "not retried automatically", f"/queues/{queue.queue}")
        if queue.queue == "bit-error" and queue.ready:
            text = f"{queue.ready:,} findings need a decision"
            yield Fault(
                "for-people",
                WARN,
                text,
                "the copies and records do not show which copy is right",
                "/integrity/findings",
            )
    for name, why in unreadable.items():
        yield Fault("queue", BAD, f"the queue {name} cannot be read: {why}", "restore its log from a backup", "/queues")


def _machine(snapshot: StatusSnapshot) -> Iterator[Fault]:
    for what, why in snapshot.troubles.items():
        yield Fault("trouble", BAD, f"{what} cannot be read: {why}", "retried automatically", "/system")
    if snapshot.free_bytes is not None and snapshot.free_bytes < LOW_DISK:
        text = f"the disk of the data folder has {snapshot.free_bytes / 1e6:,.0f} MB free"
        yield Fault("disk", BAD, text, "free disk space, or move older blocks to a tier", "/system")


def _counted(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"
