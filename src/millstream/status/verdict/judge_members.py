"""Issues of the members of a node: lost members, roles without an owner, and different versions."""

from __future__ import annotations

from collections.abc import Iterator

from millstream.core.amounts import counted
from millstream.core.clock import MICROSECONDS
from millstream.mill.reports.page import age_text
from millstream.node.members.members_status import Member, MembersStatus, MemberState, UnownedRole
from millstream.status.verdict.facts import Facts
from millstream.status.verdict.issues import make_issue
from millstream.status.verdict.kinds import WARN
from millstream.status.verdict.models import Issue

_UNOWNED_LEASES = 2
"""A role that changes its owner has none for up to a lease."""

SETTINGS_CHANGE = 10 * 60 * MICROSECONDS
"""While settings are changed on purpose, members differ for so long, or for the leases of two members in turn: each is
restarted after it has drained."""


def member_issues(facts: Facts) -> Iterator[Issue]:
    """Issues of the members of the node, if it can have several."""
    status = facts.snapshot.members
    if status is None:
        return
    lost: dict[str, list[Member]] = {}
    for member in status.members:
        if member.state(status.at) == MemberState.LOST and status.at - member.end <= facts.limits.lost_member_age:
            lost.setdefault(member.details.host, []).append(member)
    for host, members in lost.items():
        yield _lost(host, sorted(members, key=lambda member: member.end), status.at)
    for role in status.unowned:
        if status.at - role.since > _UNOWNED_LEASES * status.lease:
            yield _unowned(role, status)
    yield from _versions(status)
    yield from settings_issues(status)


def _lost(host: str, members: list[Member], now: int) -> Issue:
    last, count = members[-1], len(members)
    which = f"the member {last.id} was lost"
    text = which if count == 1 else f"{count:,} members on {host} were lost; {which}"
    text += f" {age_text(now - last.end)} ago: process {last.details.pid} on {host}"
    return make_issue("member-lost", host, text, "/members", since=members[0].end, count=count)


def _unowned(role: UnownedRole, status: MembersStatus) -> Issue:
    text = (
        f"no member runs the role {role.role}, which {counted(len(role.offered_by), 'member offers', 'members offer')}"
    )
    draining = {member.id for member in status.members if member.draining}
    if role.claimed_by is not None:
        text += f"; {role.claimed_by} tries to begin it"
    elif draining.issuperset(role.offered_by):
        text += "; all of them drain"
    for member in status.serving:
        if why := member.details.failed.get(role.role):
            text += f"; {member.id} cannot begin it: {why}"
    return make_issue("role-unowned", role.role, text, "/members", since=role.since)


def _versions(status: MembersStatus) -> Iterator[Issue]:
    by_version: dict[str, list[str]] = {}
    for member in status.serving:
        by_version.setdefault(member.details.version, []).append(member.id)
    if len(by_version) > 1:
        versions = "; ".join(f"{version} ({', '.join(ids)})" for version, ids in sorted(by_version.items()))
        text = f"members of different versions serve the node: {versions}"
        yield make_issue("member-versions", "members", text, "/members", count=len(by_version))


def settings_issues(status: MembersStatus) -> Iterator[Issue]:
    """Parts of the settings that differ between members; only those of one version have comparable checksums.

    That is a warning at first: members are restarted one after the other. A process that was lost and joined again has
    had its settings since it joined first.
    """
    since = status.first_joined
    by_part: dict[tuple[str, str], dict[str, list[Member]]] = {}
    for member in status.serving:
        for part, checksum in member.details.settings.items():
            by_part.setdefault((part, member.details.version), {}).setdefault(checksum, []).append(member)
    texts, began = list[str](), list[int]()
    for (part, _), groups in sorted(by_part.items()):
        if len(groups) > 1:
            names = " differs from ".join(", ".join(member.id for member in members) for members in groups.values())
            texts.append(f"{part} ({names})")
            firsts = (min(since[one.id] for one in members) for members in groups.values())
            began.append(sorted(firsts)[1])
    if texts:
        text = f"members have different settings: {'; '.join(texts)}"
        is_change = status.at - min(began) <= max(SETTINGS_CHANGE, _UNOWNED_LEASES * status.lease)
        yield make_issue(
            "member-settings", "members", text, "/members", since=min(began), count=len(texts),
            severity=WARN if is_change else None,
        )  # fmt: skip
