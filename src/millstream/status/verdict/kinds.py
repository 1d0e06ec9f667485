"""The kinds of issues: how severe each is, what it means, and what to do (``docs/explanation/verdict.md``)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from millstream.anchoring.errors import NODE_LOGS

BAD, WARN = "bad", "warn"


class IssueKind(msgspec.Struct, frozen=True):
    """``area`` is the part of the overview that is concerned; texts in braces are filled in by the issue.

    ``{argument}`` is its subject as the argument of a command, ``{subject}`` as the value of an option.
    """

    area: str
    severity: str
    meaning: str
    todo: str


_NO_CHECKS = "It is not known whether these copies are still intact."
_CHECK = "run `millstream mill check{where}`, or let workers check (`millstream mill work`)"

_MAKE_WRITABLE = (
    "mount it writable, or give this user the right to write; if the disk is full, free space and inodes; look for "
    "errors of the disk first"
)

KINDS: Mapping[str, IssueKind] = {
    "store-unreachable": IssueKind(
        "copies",
        BAD,
        "Its copies can be neither read, checked nor repaired, and new content is not copied there.",
        "connect its disk or start its server; the store is asked again every few seconds",
    ),
    "store-not-mounted": IssueKind(
        "copies",
        BAD,
        "The store answers, but its content is gone: usually its disk is not mounted.",
        "mount the disk; if it was replaced by a new one, run `millstream store create {argument} SPACE`",
    ),
    "store-not-configured": IssueKind(
        "copies",
        BAD,
        "Its copies can be neither read, checked nor repaired, and policies copy nothing to it or from it.",
        "add its section to the settings if it is missing there (on all members), and restart the processes of the "
        "node; if it was removed for good, remove it from the policies, then run `millstream mill retire {argument}`",
    ),
    "space-missing": IssueKind(
        "copies",
        BAD,
        "These copies are lost unless the folder or bucket comes back; other stores may hold good copies.",
        "put it back, or run `millstream mill check --store {subject}` and then `millstream mill repair`",
    ),
    "store-read-only": IssueKind(
        "copies",
        BAD,
        "Copies there can be read, but nothing can be copied there or repaired.",
        _MAKE_WRITABLE,
    ),
    "store-full": IssueKind(
        "copies",
        BAD,
        "Soon nothing more can be copied there.",
        "free disk space, or move the store to a larger disk",
    ),
    "findings": IssueKind(
        "checks",
        BAD,
        "The last check found copies that are not what was recorded.",
        "repair them one by one on the page, or with `millstream mill repair`; workers repair what is queued. What was "
        "restored or repaired in another way is counted until its next check: run `millstream mill check`",
    ),
    "report-failed": IssueKind(
        "checks",
        BAD,
        "The last check of this space failed.",
        "run `millstream mill report {where}`, which lists the findings",
    ),
    "report-incomplete": IssueKind(
        "checks",
        BAD,
        "The last check did not cover everything; the state of the rest is unknown.",
        "run `millstream mill report {where}`, which says why, then check again",
    ),
    "unchecked": IssueKind("checks", WARN, _NO_CHECKS, _CHECK),
    "report-stale": IssueKind("checks", WARN, _NO_CHECKS, _CHECK),
    "report-absent": IssueKind("checks", WARN, _NO_CHECKS, _CHECK),
    "stale-checks": IssueKind("checks", WARN, "Damage since then is not detected.", _CHECK),
    "space-not-well": IssueKind(
        "copies",
        BAD,
        "Not every item of this space has all its copies, verified.",
        "run `millstream status`, which names the items, then `millstream protect` or `millstream mill check`",
    ),
    "unprotected": IssueKind(
        "copies",
        WARN,
        "No new or changed item is copied to another store.",
        "run `millstream protect --help`; for a node that keeps no copies on purpose, set "
        '`ignore = ["unprotected"]` in `[verdict]`',
    ),
    "uncovered-space": IssueKind(
        "copies",
        WARN,
        "Its new and changed items are not copied to another store.",
        "add it to a policy, or list it there in `spacesToIgnore`",
    ),
    "held": IssueKind(
        "copies",
        WARN,
        "The plan is not executed until an operator approves it.",
        "review it, then approve it, or fix its source",
    ),
    "plan-rejected": IssueKind(
        "copies",
        WARN,
        "No plan for this space is executed between these stores. Single copies after recorded changes continue.",
        "put the missing items back at the source, or record that they were deleted (`millstream mill forget`), then "
        "run `millstream mill duplicate`; it can still be approved",
    ),
    "vanished": IssueKind(
        "copies",
        WARN,
        "Their copies are kept. It is unknown whether they were deleted on purpose.",
        "put them back at the source, or record that they were deleted: `millstream mill forget {where} ID`",
    ),
    "not-batched": IssueKind(
        "batches",
        BAD,
        "These messages are in no batch and were not rejected, although their window is over. They cannot be proven.",
        "is the batch service running? See `serve.batching`, or `millstream batch serve --log {subject} --output "
        "{where}`; its log lines say why it is suspended. If the log is not to be batched any more, delete "
        "`batching/{where}.state`",
    ),
    "rejected-batches": IssueKind(
        "batches", WARN, "These batches are not anchored; nothing is anchored twice.", "see the reasons on the page"
    ),
    "ledger-stuck": IssueKind(
        "anchors",
        BAD,
        "Batches wait to be anchored, and nothing was added to the ledger. They cannot be proven.",
        "is the batch service running, and the CAS writable? `millstream anchor status` lists what is waiting",
    ),
    "ledger-unsigned": IssueKind(
        "anchors",
        BAD,
        "Proofs of these entries cannot be made, or others cannot see that the ledger has them.",
        "remove the cause, then run `millstream anchor checkpoint --ledger {subject}`, which signs, copies and "
        "publishes what is missing",
    ),
    "ledger-forked": IssueKind(
        "anchors",
        BAD,
        "A witness has cosigned other entries than this ledger has: the node was restored from an older backup, "
        "another node signs with its key, or the ledger was rewritten.",
        f"stop the node and restore the newest state of {NODE_LOGS}; if it is lost, start a ledger with a new key "
        "(docs/formats/ledger-tree.md)",
    ),
    "cosignatures-missing": IssueKind(
        "anchors",
        WARN,
        "Newer messages cannot be proven to readers who demand the quorum of witnesses. Nothing is lost.",
        "`millstream anchor cosign --ledger {subject}` shows how each witness answers; if one is permanently gone, "
        "change the policy (anchoring.witness_policy)",
    ),
    "timestamps-missing": IssueKind(
        "anchors",
        WARN,
        "It cannot be proven when these entries were made, except by the clock of this node. Nothing is lost.",
        "`millstream anchor timestamp --ledger {subject}` asks the authorities and prints how each answers; if one is "
        "permanently gone, change anchoring.timestamp_authorities",
    ),
    "timestamps-ending": IssueKind(
        "anchors",
        WARN,
        "When the certificates that signed these time stamps expire, the time stamps prove nothing.",
        "`millstream anchor timestamp --ledger {subject}` renews them, or prints why it cannot; if no authority has a "
        "newer certificate, add another one to anchoring.timestamp_authorities",
    ),
    "invalid-anchors": IssueKind(
        "anchors", BAD, "Their batches cannot be proven.", "`millstream anchor replay` shows why each is invalid"
    ),
    "observer-behind": IssueKind(
        "anchors",
        WARN,
        "Their content is not verified, and cannot be proven yet.",
        "`millstream anchor observe` verifies them",
    ),
    "following": IssueKind(
        "node",
        BAD,
        "Identifiers of that registry are out of date.",
        "`millstream anchor status` names the entry or file",
    ),
    "dead-letters": IssueKind(
        "queues",
        BAD,
        "They failed permanently and are not retried automatically.",
        "fix the cause, then redrive or discard them",
    ),
    "too-many": IssueKind(
        "queues", WARN, "Tasks arrive faster than they are processed.", "start more workers: `millstream mill work`"
    ),
    "too-old": IssueKind(
        "queues",
        WARN,
        "No worker processes this queue, or its workers are too slow.",
        "start a worker, or one more if some run: `millstream mill work {argument}`",
    ),
    "no-worker": IssueKind(
        "queues",
        WARN,
        "These tasks are processed when a worker runs.",
        "start a worker: `millstream mill work {argument}`",
    ),
    "for-people": IssueKind(
        "queues",
        WARN,
        "The copies and records do not show which copy is right.",
        "decide for each on the page; `millstream mill work bit-error --drain` checks those that are queued again",
    ),
    "lease-without-owner": IssueKind(
        "queues",
        WARN,
        "The worker that leased these tasks has ended. No worker processes them.",
        "start a worker: `millstream mill work {argument}` takes them back",
    ),
    "former-queue": IssueKind(
        "queues",
        BAD,
        "No worker finds them, and no page lists them.",
        "stop the node, then run `MILLSTREAM_QUEUE__BROKER= millstream mill work --drain`, and list and redrive dead "
        "tasks in the same way: `MILLSTREAM_QUEUE__BROKER= millstream queue dead {argument}`",
    ),
    "queue": IssueKind(
        "queues", BAD, "Its tasks can be neither listed nor processed.", "restore its log from a backup"
    ),
    "database": IssueKind(
        "log",
        BAD,
        "Its data can be neither read nor written, and the values shown for it are out of date.",
        "start the server, or correct `{where}` in the settings; it is called again every 10 s",
    ),
    "queue-broker": IssueKind(
        "queues",
        WARN,
        "Workers find new tasks later: they poll the database.",
        "start the broker, or correct `queue.broker` in the settings",
    ),
    "consumer-behind": IssueKind(
        "log",
        WARN,
        "It has not processed these messages.",
        "is it running? `millstream log describe` shows its position",
    ),
    "ingest-disconnected": IssueKind(
        "log",
        BAD,
        "Its messages do not arrive. Those that the broker keeps for this node arrive later.",
        "start the broker, or correct `serve.ingest` in the settings; connecting is tried again at least every minute",
    ),
    "outbox": IssueKind(
        "log",
        BAD,
        "Its messages do not arrive. The rows stay in the outbox and arrive later.",
        "start that database, or correct `serve.relay` in the settings or the row of the outbox; the relay tries again "
        "at least every minute",
    ),
    "writer-refused": IssueKind(
        "log",
        BAD,
        "A log has one writer. Messages sent to this log through this node are refused.",
        "stop the other process, or write through it; if it hangs, the log is free 15 s after it is stopped",
    ),
    "alarm-undelivered": IssueKind(
        "node",
        BAD,
        "This receiver was not notified.",
        "start the receiver, or correct `mill.alarms` in the settings; delivery is retried automatically",
    ),
    "certificate-expired": IssueKind(
        "node",
        BAD,
        "Clients that verify it refuse to connect.",
        "replace the file by a new certificate, with its key; a broker that runs reads it again",
    ),
    "certificate-expiring": IssueKind(
        "node",
        WARN,
        "From then on, clients that verify it refuse to connect.",
        "replace the file by a new certificate, with its key; a broker that runs reads it again",
    ),
    "served-twice": IssueKind(
        "node",
        BAD,
        "Both send alarms, and each refuses messages for the logs that the other writes: a log has one writer.",
        "stop one of them",
    ),
    "role-suspended": IssueKind(
        "node",
        WARN,
        "Its work waits. Nothing is lost.",
        "remove the cause, such as a full disk; the role is tried again every minute",
    ),
    "role-unowned": IssueKind(
        "node",
        BAD,
        "The work of this role is not done until a member owns it.",
        "see the logs of the members that offer it (page Members); let one that drains take roles again with "
        "`millstream node drain ID --cancel`, or start another member",
    ),
    "member-lost": IssueKind(
        "node",
        WARN,
        "Its process was killed or stopped, or did not reach the database for `node.lease`. Other members take its "
        "roles over.",
        "see the logs of the process and of its host; if it does not run, start it there again (`millstream serve` or "
        "`millstream mill work`). The issue ends `verdict.lost_member_age` after the loss",
    ),
    "member-versions": IssueKind(
        "node",
        WARN,
        "Only some members have the functions of the newer version.",
        "upgrade the other members, one after the other: `millstream node drain ID`, then restart the process",
    ),
    "member-settings": IssueKind(
        "node",
        BAD,
        "What is copied, checked, batched or anchored, and where, depends on the member that does the work.",
        "compare the output of `millstream config show` on their hosts, correct the settings, and restart the members "
        "one after the other",
    ),
    "folder-not-writable": IssueKind(
        "node",
        BAD,
        "Nothing can be appended or recorded there.",
        _MAKE_WRITABLE,
    ),
    "disk": IssueKind(
        "node",
        BAD,
        "Without free space nothing can be appended.",
        "free disk space, or move older blocks to a tier (`millstream log tier`); then a log in an SQLite file needs "
        "`millstream log vacuum`",
    ),
    "disk-filling": IssueKind(
        "node",
        BAD,
        "At the rate of the last day the disk is soon full, and nothing can be written there.",
        "free disk space, or stop what fills it; logs can be trimmed (`millstream log trim`), or their older blocks "
        "moved to a tier (`millstream log tier`); then a log in an SQLite file needs `millstream log vacuum`",
    ),
    "clock": IssueKind(
        "node",
        BAD,
        "Receive times, leases and the ages on this page are wrong until the clock is corrected.",
        "set the clock: `timedatectl set-ntp true`. If the clock is right, and a message was appended with a wrong "
        "receive time, trim its log after that message (`millstream log trim`)",
    ),
    "trouble": IssueKind(
        "node", BAD, "Its data is missing or out of date.", "read the message; it is retried automatically"
    ),
}
"""Each kind of issue, by its name."""

STORE_PROBLEMS = frozenset({"store-unreachable", "store-not-mounted", "store-not-configured"})
"""The kinds of issues of a store that cannot be used at all."""
