"""This process as a member of its node: it joins, sends heartbeats, and knows by its own clock when it is lost."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

import msgspec

from millstream.core.amounts import counted
from millstream.core.clock import uptime
from millstream.core.errors import InputError, MillstreamError
from millstream.core.leases import Leases
from millstream.core.sql import patience_within, waiting_with
from millstream.node.members.member_table import MemberTable, UnknownMemberError
from millstream.node.members.members_status import SERVE, Member, MemberDetails
from millstream.node.members.shared_settings import has_log_queues
from millstream.stores.audit.holders import Holders, HolderState

RENEWALS = 3
"""How often a member sends a heartbeat within its lease."""

_LEAVING = 2.0
"""Seconds for which a member that ends waits for a database that does not answer."""

_log = logging.getLogger(__name__)


class NeedsQueueBrokerError(InputError):
    """Another process serves the node, and the work queues are of one process alone."""


class Membership:
    """A member of the node in *table*, described by *details*, from :meth:`join` on. Thread-safe.

    Within its block a thread renews it. A lost member stays lost, until it joins again under another id: by itself if
    it *rejoins*.
    """

    def __init__(self, table: MemberTable, details: MemberDetails, *, rejoins: bool = False) -> None:
        self.table, self.details = table, details
        self._rejoins = rejoins
        self.id = ""
        self._state = threading.Lock()
        """Held while :meth:`join` or :meth:`renew` writes down what the database answered, and to change details."""
        self._renewed = 0.0
        self._ended = False
        self._draining = False
        self._roles: set[str] = set()
        self._lost: Callable[[], object] = bool
        self._failing: Callable[[], Mapping[str, str]] = dict
        self._stopping = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._renew_again_and_again, name="membership", daemon=True)

    @property
    def leases(self) -> Leases:
        """The leases of roles as this member takes them."""
        return self.table.leases(self.id)

    @property
    def is_lost(self) -> bool:
        """Whether others count this member as lost, or may do so, by this process's own clock."""
        return self._ended or uptime(self.table.clock) - self._renewed > self.table.seconds

    def join(self) -> None:
        """Become a member, with an id that was never used before."""
        begun = uptime(self.table.clock)
        joined = self.table.join(self.details, before=self.id)
        with self._state:
            self.id, self._renewed, self._ended = joined, begun, False
            self._roles.clear()

    def renew(self) -> bool:
        """Send a heartbeat; False where this member is lost."""
        member, begun, is_lost = self.id, uptime(self.table.clock), self.is_lost
        details = msgspec.structs.replace(self.details, failing=self._failing())
        kept = not is_lost and self.table.renew(member, details, list(self._roles), draining=self._draining)
        with self._state:
            if self.id != member:  # the answer came late: meanwhile this process has joined again
                return True
            if kept:
                self._renewed = begun
            else:
                self._ended = True
        return kept

    def keep(self, role: str) -> None:
        """Renew the lease of *role* from now on."""
        self._roles.add(role)

    def give_up(self, role: str) -> None:
        """Do not renew the lease of *role* any more."""
        self._roles.discard(role)

    def drain(self) -> None:
        """Tell others that this member takes no roles any more, because its process ends: now, and with each
        heartbeat, so that they hear it even if the database does not answer now."""
        self._draining = True
        with contextlib.suppress(UnknownMemberError):  # it is lost already
            self.table.drain(self.id, draining=True)

    def listens(self, what: str, address: str) -> None:
        """Tell others, with the next heartbeat, that this process listens at *address*."""
        with self._state:
            addresses = {**self.details.addresses, what: address}
            self.details = msgspec.structs.replace(self.details, addresses=addresses)

    def cannot_begin(self, role: str, why: str) -> None:
        """Tell others, with the next heartbeat, that this member is not to have *role*."""
        with self._state:
            self.details = msgspec.structs.replace(self.details, failed={**self.details.failed, role: why})

    def offer_again(self, role: str) -> None:
        """Tell others, with the next heartbeat, that this member may have *role* again."""
        with self._state:
            failed = {name: why for name, why in self.details.failed.items() if name != role}
            self.details = msgspec.structs.replace(self.details, failed=failed)

    def reports(self, failing: Callable[[], Mapping[str, str]]) -> None:
        """Tell others, with each heartbeat, what *failing* returns: the roles of this process that fail, and why."""
        self._failing = failing

    def on_loss(self, lost: Callable[[], object]) -> None:
        """Call *lost*, which must not wait, once this member is found to be lost."""
        self._lost = lost

    def end_lost(self) -> Sequence[str]:
        """Count members as lost that send no heartbeat, and those of this machine whose process has ended; their
        ids."""
        return self._end_lost()[1]

    def survivors(self) -> Sequence[Member]:
        """The members that are left after :meth:`end_lost`, in the order in which they joined."""
        return self._end_lost()[0]

    def _end_lost(self) -> tuple[Sequence[Member], Sequence[str]]:
        alive, without_heartbeat = self.table.survivors()
        holders = Holders()
        killed = [
            member.id
            for member in alive
            if member.id != self.id and holders.state(member.details.process) == HolderState.ENDED
        ]
        for name in killed:
            self.table.leave(name, lost=True)
        ended = [*without_heartbeat, *killed]
        for name in ended:
            _log.warning("the member %s of the node is lost: other members take over its roles", name)
        return self.table.alive() if killed else alive, ended

    def require_shared_queues(self) -> None:
        """Raise :class:`NeedsQueueBrokerError` where a member that joined earlier is alive, and it or this one has its
        work queues in logs.

        A member that sends no heartbeat is waited for until it counts as lost.
        """
        mine = has_log_queues(self.details.settings)
        seen: dict[str, int] = {}
        while others := [one for one in self._earlier() if mine or has_log_queues(one.details.settings)]:
            for member in others:
                if member.seen != seen.setdefault(member.id, member.seen):
                    raise NeedsQueueBrokerError(
                        f"process {member.details.pid} on {member.details.host} serves this node ({member.id}), and "
                        f"the work queues {'' if mine else 'of that process '}are stored in logs, which only one "
                        "process can use: stop one of the two processes, or set queue.broker (amqp://… or "
                        "rocketmq://…) for all processes of the node"
                    )
            _log.info("waiting for %s, which may have ended", counted(len(others), "member"))
            self.table.clock.sleep(self.table.seconds / RENEWALS)

    def _earlier(self) -> Sequence[Member]:
        earlier = itertools.takewhile(lambda member: member.id != self.id, self.survivors())
        return [member for member in earlier if member.details.command == SERVE]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._stopping:
            self._stopped = True
            self._stopping.notify_all()
        self._thread.join()
        self.table.close()
        try:
            with waiting_with(patience_within(_LEAVING)):  # after its lease the member counts as lost anyway
                self.table.leave(self.id)
        except MillstreamError as failure:
            _log.warning("the member %s could not leave: %s", self.id, failure)

    def _renew_again_and_again(self) -> None:
        clock, told = self.table.clock, ""
        while True:
            with self._stopping:
                if not self._stopped:
                    clock.wait(self._stopping, self.table.seconds / RENEWALS)
                if self._stopped:
                    return
            member = self.id
            try:
                alive = self.renew()
                if self._rejoins and not alive:
                    self.join()
                    _log.warning("this process was counted as lost (%s), and joined again as %s", member, self.id)
                    self.end_lost()
                    continue
            except Exception as error:  # the database comes back; until then the own clock says what is lost
                _log.warning("the member %s could not renew its lease: %s", member, error)
                alive = not self.is_lost
            if not alive and told != member:
                told = member
                _log.warning("this process was counted as lost (%s): its roles end, and it joins again", member)
                self._lost()
