"""The members of a node at one moment, as people and programs are told of them.

All times are of the database's clock, in microseconds.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from millstream.core.clock import MICROSECONDS

SERVE, WORK = "serve", "mill work"
"""The commands whose processes are members: those of the second one have workers, and no roles."""

DAY = 24 * 3600 * MICROSECONDS
"""For how long members that have ended are shown."""


class MemberDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The details of a member. ``process`` is a name that tells its process from all others
    (:class:`~millstream.stores.audit.holders.Holders`), and ``command`` is the one that it runs. ``roles`` maps the
    roles that it offers to their groups: roles of one group have the same owner; those that ``failed`` it could not
    begin, and why, and is not to have for a while. ``addresses`` are those where it
    listens, by what listens there. ``schema`` is the version of the node's tables that it knows; one that ``waits`` has
    no roles until members that know only earlier ones have ended. ``settings`` has a checksum of each part of the
    settings that all members share, ``stores`` has the names of its stores, and ``queues`` those of the queues on which
    its workers work. ``failing`` are the roles that it has and that fail, and why (empty: not known).
    """

    host: str
    pid: int
    version: str
    process: str = ""
    command: str = SERVE
    schema: int = 1
    waits: bool = False
    roles: Mapping[str, str] = msgspec.field(default_factory=dict)
    failed: Mapping[str, str] = msgspec.field(default_factory=dict)
    addresses: Mapping[str, str] = msgspec.field(default_factory=dict)
    settings: Mapping[str, str] = msgspec.field(default_factory=dict)
    stores: Sequence[str] = ()
    queues: Sequence[str] = ()
    failing: Mapping[str, str] = msgspec.field(default_factory=dict)


class MemberState(enum.StrEnum):
    """``draining`` gives its roles up, ``waiting`` has none until older members have ended, ``lost`` gives no sign of
    life or was killed, ``ended`` left in order."""

    ALIVE = "alive"
    DRAINING = "draining"
    WAITING = "waiting"
    LOST = "lost"
    ENDED = "ended"


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A member: ``since`` it joined, last ``seen``, counted as lost after ``until`` without another heartbeat.

    ``ended`` is when it left or was found to be ``lost``; ``owns`` maps its roles to the time since which it owns them.
    """

    id: str
    since: int
    seen: int
    until: int
    ended: int | None
    draining: bool
    details: MemberDetails
    owns: Mapping[str, int] = msgspec.field(default_factory=dict)
    lost: bool = False

    @property
    def end(self) -> int:
        """The time at which it ended, or will be lost without another heartbeat."""
        return self.until if self.ended is None else self.ended

    def state(self, now: int) -> MemberState:
        """How it is at the time *now* of the database."""
        if self.ended is not None:
            return MemberState.LOST if self.lost else MemberState.ENDED
        if self.until < now:
            return MemberState.LOST
        if self.details.waits:
            return MemberState.WAITING
        return MemberState.DRAINING if self.draining else MemberState.ALIVE


class RoleLease(msgspec.Struct, frozen=True, kw_only=True):
    """The lease of a role: held by the member ``holder`` until then, ``acquired`` when.

    ``unowned_since`` is when the role last ended: None while the holder runs it, 0 before it ran for the first time.
    """

    role: str
    holder: str
    until: int
    acquired: int
    unowned_since: int | None


class UnownedRole(msgspec.Struct, frozen=True, kw_only=True):
    """A role that the members ``offered_by`` offer and that no member runs, ``since`` when.

    ``claimed_by`` is the member that holds its lease, but has not begun it yet: what the role needs does not answer.
    """

    role: str
    since: int
    offered_by: Sequence[str]
    claimed_by: str | None = None


class MemberRow(msgspec.Struct, frozen=True, kw_only=True):
    """A member: its ``state``, its process ``pid`` on ``host``, which runs ``command``, ``since`` when it is a member,
    when it was last ``seen``, and when it ``ended``.

    It counts as lost after ``until``. ``addresses`` are those where it listens, by what listens there; ``offers`` are
    the roles that it can have, and ``owns`` those that it has, with the time since which it owns them.
    """

    id: str
    state: MemberState
    host: str
    pid: int
    version: str
    command: str
    since: int
    seen: int
    until: int
    ended: int | None
    draining: bool
    addresses: Mapping[str, str]
    offers: Sequence[str]
    owns: Mapping[str, int]


class MembersStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The members at the time ``at`` of the database, those that ended in the last day too, in the order of joining.

    ``lease`` is how long a member may send no heartbeat (microseconds).
    """

    at: int
    lease: int
    members: Sequence[Member]
    unowned: Sequence[UnownedRole]

    @property
    def serving(self) -> Sequence[Member]:
        """The members that serve the node now, or wait until they may."""
        return [one for one in self.members if one.state(self.at) not in (MemberState.LOST, MemberState.ENDED)]

    @property
    def first_joined(self) -> Mapping[str, int]:
        """When the process of each member joined first, by the member's id: a process that was lost joins again."""
        by_process: dict[str, int] = {}
        for one in self.members:
            process = one.details.process or one.id
            by_process[process] = min(one.since, by_process.get(process, one.since))
        return {one.id: by_process[one.details.process or one.id] for one in self.members}

    @property
    def rows(self) -> Sequence[MemberRow]:
        """The members as they are shown: first those that serve the node, then the others, the latest first."""
        serving = self.serving
        others = [one for one in self.members if one not in serving]
        others.sort(key=lambda one: one.end, reverse=True)
        return [member_row(one, self.at) for one in (*serving, *others)]


def member_row(member: Member, now: int) -> MemberRow:
    """*member* as it is shown at the time *now* of the database."""
    details = member.details
    return MemberRow(
        id=member.id,
        state=member.state(now),
        host=details.host,
        pid=details.pid,
        version=details.version,
        command=details.command,
        since=member.since,
        seen=member.seen,
        until=member.until,
        ended=member.ended,
        draining=member.draining,
        addresses=details.addresses,
        offers=sorted(details.roles),
        owns=member.owns,
    )


def unowned_roles(members: Iterable[Member], leases: Iterable[RoleLease], now: int) -> Sequence[UnownedRole]:
    """The roles that some of *members*, which serve the node, offer and that none runs at the time *now*."""
    offers: dict[str, list[Member]] = {}
    for member in members:
        for role in member.details.roles:
            offers.setdefault(role, []).append(member)
    by_role = {lease.role: lease for lease in leases}
    found = []
    for role, able in sorted(offers.items()):
        lease, since = by_role.get(role), 0
        is_held = lease is not None and lease.until > now
        if lease is not None:
            if is_held and lease.unowned_since is None:
                continue
            since = max(lease.unowned_since or 0, 0 if is_held else lease.until)
        found.append(
            UnownedRole(
                role=role,
                since=since or min(member.since for member in able),
                offered_by=[member.id for member in able],
                claimed_by=lease.holder if lease is not None and is_held else None,
            )
        )
    return found
