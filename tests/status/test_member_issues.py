"""Issues of the members of a node, judged by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from millstream.core.clock import MICROSECONDS
from millstream.node.members.members_status import Member, MemberDetails, MembersStatus, UnownedRole
from millstream.settings import AlarmSettings
from millstream.settings.verdict import VerdictSettings
from millstream.status.snapshot import StatusSnapshot
from millstream.status.verdict.facts import Facts
from millstream.status.verdict.judge_machine import machine_issues
from millstream.status.verdict.judge_members import member_issues
from millstream.status.verdict.process import ProcessState
from millstream.stores.audit.holders import process_of

NOW, LEASE = 100_000 * MICROSECONDS, 15 * MICROSECONDS


def member(name: str, *, ended: float | None = None, lost: bool = False, **more: Any) -> Member:
    """A member that *ended* so many seconds ago."""
    return Member(
        id=name,
        since=1,
        seen=NOW,
        until=NOW + LEASE,
        ended=None if ended is None else NOW - round(ended * MICROSECONDS),
        draining=more.pop("draining", False),
        details=MemberDetails(host="web1", pid=7, version="1", failed=more.pop("failed", {})),
        lost=lost,
        **more,
    )


def facts_of(members: Sequence[Member], unowned: tuple[UnownedRole, ...] = ()) -> Facts:
    """What is known of a node with these members."""
    status = MembersStatus(at=NOW, lease=LEASE, members=members, unowned=unowned)
    return Facts(
        at=NOW,
        limits=VerdictSettings(),
        snapshot=StatusSnapshot(at=NOW, seconds=0.0, members=status),
        copies=None,
        stores=(),
        depths={},
        unreadable={},
        alarms=AlarmSettings(),
        patience=0,
    )


def issues(*members: Member, unowned: tuple[UnownedRole, ...] = ()) -> dict[str, tuple[str, int | None, int]]:
    """The text, the beginning and the count of each issue, by its kind."""
    facts = facts_of(members, unowned)
    return {issue.kind: (issue.what, issue.since, issue.count) for issue in member_issues(facts)}


def unowned(since: int, *offered_by: str, claimed_by: str | None = None) -> tuple[UnownedRole]:
    return (UnownedRole(role="upkeep", since=since, offered_by=offered_by, claimed_by=claimed_by),)


def test_members_of_one_host_that_were_lost_are_one_issue_and_those_that_left_are_none() -> None:
    one, two = member("one", ended=600, lost=True), member("two", ended=60, lost=True)
    old, left = member("old", ended=3_601, lost=True), member("left", ended=60)
    text = "2 members on web1 were lost; the member two was lost 60 s ago: process 7 on web1"
    assert issues(two, one, old, left) == {"member-lost": (text, one.ended, 2)}
    assert issues(old, left, member("three")) == {}


def test_a_role_without_an_owner_is_an_issue_after_two_leases_and_says_what_prevents_it() -> None:
    late = NOW - 2 * LEASE - 1
    assert issues(member("one"), unowned=unowned(late + 1, "one")) == {}
    text = "no member runs the role upkeep, which 1 member offers"
    assert issues(member("one"), unowned=unowned(late, "one")) == {"role-unowned": (text, late, 1)}
    drains = member("one", draining=True)
    assert issues(drains, unowned=unowned(late, "one"))["role-unowned"][0] == f"{text}; all of them drain"
    two = unowned(late, "one", "two", claimed_by="two")
    text = "no member runs the role upkeep, which 2 members offer; two tries to begin it"
    assert issues(drains, member("two"), unowned=two)["role-unowned"][0] == text
    cannot = member("one", failed={"upkeep": "a file is missing", "producers": "another"})
    text = "no member runs the role upkeep, which 1 member offers; one cannot begin it: a file is missing"
    assert issues(cannot, unowned=unowned(late, "one"))["role-unowned"][0] == text


def test_roles_of_other_members_that_fail_are_issues_of_the_node() -> None:
    """Their members say so with their heartbeats; of its own roles this process knows the present state."""
    roles = ("ingest pumps", "ingest given-up", "relay orders", "batching events")
    other = MemberDetails(
        host="web", pid=1, version="1", process="web/1/5/a/boot/one", roles=dict.fromkeys(roles, "group"),
        failing={"ingest pumps": "", "ingest given-up": "", "relay orders": "a bad row", "workers": "a full disk"},
    )  # fmt: skip
    own = MemberDetails(
        host="web",
        pid=1,
        version="1",
        process="web/1/5/b/boot/two",
        failing={"ingest tides": "as of the last heartbeat"},
    )
    members = [
        msgspec.structs.replace(member("one"), details=other, owns=dict.fromkeys(("ingest pumps", "relay orders"), 1)),
        msgspec.structs.replace(member("two"), details=own, owns={"ingest tides": 1}),
        msgspec.structs.replace(member("lost", ended=5, lost=True), details=other, owns=dict.fromkeys(roles, 1)),
    ]
    process = ProcessState(process=process_of("web/1/5/c/boot/two"), failing={"batching events": "a damaged state"})
    facts = msgspec.structs.replace(facts_of(members), process=process)
    assert {(issue.kind, issue.what) for issue in machine_issues(facts)} == {
        ("ingest-disconnected", "the MQTT broker whose messages go into the log pumps is not connected (one)"),
        ("outbox", "the database of the outbox whose rows go into the log orders is not read (one): a bad row"),
        ("role-suspended", "the role workers is suspended (one): a full disk"),
        ("role-suspended", "the role batching events is suspended: a damaged state"),
    }
