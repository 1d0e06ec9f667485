"""Which roles of the node this process runs: those that are assigned to it, under leases."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol, Self, TypeAlias

import sqlalchemy as sa

from millstream.core.errors import BusyError, MillstreamError
from millstream.core.leases import Lease, LeaseLostError
from millstream.core.passing_errors import is_passing
from millstream.core.sql import fenced
from millstream.core.writers_lock import NewerSchemaError
from millstream.log.errors import FencedError, WriterBusyError
from millstream.node.members.assignment import assign
from millstream.node.members.members_status import Member
from millstream.node.members.membership import RENEWALS, Membership

EXCLUDED_SECONDS = 600.0
"""For how long a member does not offer a role that it could not begin, or that keeps ending there."""

_LONGEST_PAUSE = 60.0
"""The longest pause before a role is begun again that keeps ending with an error."""

_log = logging.getLogger(__name__)

Fence = Callable[[], AbstractContextManager[object]]
"""Makes a block in which what the thread writes to the node's database fails once the role is another's."""


_Offers: TypeAlias = Mapping[str, Mapping[str, str]]
"""The roles that each member offers, by its id, with their groups."""


class RoleFailingError(MillstreamError):
    """The role keeps failing in this process."""


class RunningRole(Protocol):
    """A role that runs in its own threads."""

    is_lost: bool
    """Whether it has ended because another process owns it now."""

    def stop(self) -> None:
        """Complete running work and begin nothing more. Does not wait."""
        ...

    def end(self) -> None:
        """:meth:`stop`, and wait for it."""
        ...


class RoleScheduler:
    """Runs, of the roles that *membership* offers, those that are assigned to it. *start* begins a role.

    A role that *start* cannot begin, with an error that does not pass, is left to other members for
    :data:`EXCLUDED_SECONDS`; so is one that keeps ending with errors that may pass, if another member offers it. Within
    its block a thread calls :meth:`step` several times within a lease; *failed* gets the error after which no role can
    begin any more.
    """

    def __init__(
        self,
        membership: Membership,
        start: Callable[[str, Fence], RunningRole],
        failed: Callable[[Exception], object],
    ) -> None:
        self._membership, self._start, self._failed = membership, start, failed
        self._running: dict[str, tuple[Lease, RunningRole]] = {}
        self._excluded: dict[str, float] = {}  # until when, on the monotonic clock
        self._left = set[str]()  # those of the excluded that only go to another member as long as there is one
        self._pauses: dict[str, _Pause] = {}
        self._waiting: set[str] = set()
        self._unrecorded: set[str] = set()
        self._woken = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._step_again_and_again, name="role-scheduler", daemon=True)
        membership.on_loss(self._stop_all)

    @property
    def running(self) -> Mapping[str, RunningRole]:
        """The roles that this process owns now."""
        return {name: role for name, (_, role) in list(self._running.items())}

    def step(self) -> None:
        """End the roles that this process should not have, and begin those that it should and that are free."""
        member = self._membership
        if member.is_lost:
            self._end(list(self._running), release=False)
            member.join()
            _log.info("this process is the member %s of the node", member.id)
        now = member.table.clock.monotonic()
        survivors = member.survivors()
        offers = self._offers(survivors)
        alone = [name for name in self._left if not self._is_offered_elsewhere(name, offers)]
        for name in {*alone, *(name for name, end in self._excluded.items() if now >= end)}:
            del self._excluded[name]
            self._left.discard(name)
            member.offer_again(name)
        offers = self._offers(survivors)
        owners = {role: one.id for one in survivors for role in one.owns}
        mine = {role for role, owner in assign(offers, owners).items() if owner == member.id}
        lost = [name for name, (_, role) in self._running.items() if role.is_lost]
        self._end([name for name in self._running if name not in mine or name in lost])
        for name in lost:
            self._pauses.setdefault(name, _Pause()).ended(now)
            self._leave_failing(name, offers)
        for name in sorted(mine - self._running.keys()):
            if not (self._stopped or member.is_lost) and (name not in self._pauses or now >= self._pauses[name].end):
                self._begin(name, offers)
        for name in sorted(self._unrecorded & self._running.keys()):  # again in the next step, if it fails
            member.leases.write(self._running[name][0], unowned_since=lambda _: None)
            self._unrecorded.discard(name)

    def _offers(self, alive: Sequence[Member]) -> _Offers:
        """The roles that each of the members *alive* offers."""
        mine = self._membership
        offers = {}
        for one in alive:
            if not one.draining:
                details = mine.details if one.id == mine.id else one.details
                offers[one.id] = {role: group for role, group in details.roles.items() if role not in details.failed}
        return offers

    def _leave_failing(self, name: str, offers: _Offers) -> None:
        """Leave the role *name*, of which the pauses have become long, to another member that offers it: its disk may
        have room."""
        if self._pauses[name].is_longest and self._is_offered_elsewhere(name, offers):
            self._exclude(name, RoleFailingError("it keeps failing here, with errors that may pass: see the log"))
            self._left.add(name)

    def _is_offered_elsewhere(self, name: str, offers: _Offers) -> bool:
        return any(name in roles for one, roles in offers.items() if one != self._membership.id)

    def _begin(self, name: str, offers: _Offers) -> None:
        began = self._membership.table.clock.monotonic()
        member, leases = self._membership, self._membership.leases
        lease = leases.acquire(name, acquired=lambda now: now)
        if lease is None:
            return
        member.keep(name)
        engine = member.table.database.engine

        def check(connection: sa.Connection) -> None:
            leases.require(connection, lease)

        def fence() -> AbstractContextManager[object]:
            return fenced(engine, check)

        try:
            with fence():
                self._running[name] = lease, self._start(name, fence)
        except Exception as error:
            member.give_up(name)
            with contextlib.suppress(BusyError):
                leases.release(lease)
            if not may_pass(error):
                self._exclude(name, error)
            elif name not in self._waiting:
                _log.warning("the role %s cannot start yet: %s", name, error)
            self._waiting.add(name)
            # No pause where the former owner has not given back yet what it had, such as a log.
            if may_pass(error) and not isinstance(error, WriterBusyError | LeaseLostError | FencedError):
                self._pauses.setdefault(name, _Pause()).failed(began, member.table.clock.monotonic())
                self._leave_failing(name, offers)
        else:
            self._waiting.discard(name)
            self._unrecorded.add(name)
            if name in self._pauses:
                self._pauses[name].begun_at = member.table.clock.monotonic()

    def _exclude(self, name: str, error: Exception) -> None:
        """Leave the role *name* to others: the whole process would end with it, again and again, with all its roles."""
        clock = self._membership.table.clock
        self._excluded[name] = clock.monotonic() + EXCLUDED_SECONDS
        self._membership.cannot_begin(name, str(error).partition("\n")[0] or type(error).__name__)
        _log.error(
            "the role %s cannot begin here, and is left to other members for %.0f minutes: %s",
            name, EXCLUDED_SECONDS / 60, error, exc_info=None if isinstance(error, MillstreamError) else error,
        )  # fmt: skip

    def _end(self, names: list[str], *, release: bool = True) -> None:
        """End the roles *names*, all at once, and give back the lease of each as soon as it has ended.

        A lease that cannot be given back, and that of a role whose end fails, expires, as it is not renewed. Raises the
        first error once all roles have ended.
        """
        failures: list[Exception] = []
        for name in names:
            self._running[name][1].stop()

        def end(name: str) -> None:
            try:
                self._end_one(name, release=release)
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=end, args=[name], name=f"end of {name}") for name in names[1:]]
        for thread in threads:  # a role may anchor what is left for minutes: others need not wait for the next ones
            thread.start()
        for name in names[:1]:
            end(name)
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    def _end_one(self, name: str, *, release: bool) -> None:
        lease, role = self._running[name]
        try:
            role.end()
        finally:
            del self._running[name]
            self._membership.give_up(name)
        if release:
            self._membership.leases.release(lease, unowned_since=lambda now: now)
            _log.info("gave up the role %s", name)

    def _stop_all(self) -> None:
        for role in self.running.values():
            role.stop()
        self.wake()

    def wake(self) -> None:
        """Let the thread make its next step now."""
        with self._woken:
            self._woken.notify_all()

    def stop(self) -> None:
        """Begin no role any more. Does not wait."""
        self._stopped = True
        self._stop_all()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
        self._thread.join()
        self._end(list(self._running), release=not self._membership.is_lost)

    def _step_again_and_again(self) -> None:
        clock, pause = self._membership.table.clock, min(1.0, self._membership.table.seconds / RENEWALS)
        while not self._stopped:
            try:
                self.step()
            except NewerSchemaError as error:  # a newer program has the node: this one was stopped for long
                self._failed(error)
                return
            except Exception as error:  # the database comes back
                _log.warning("could not determine the roles of this process: %s", error)
            with self._woken:
                if not self._stopped:
                    clock.wait(self._woken, pause)
        self._hand_over()

    def _hand_over(self) -> None:
        """Let other members have the roles now: this process may do other work for long before it ends."""
        try:
            try:
                self._membership.drain()
            finally:  # if the database does not answer, the roles end anyway, and their leases expire
                self._end(list(self._running), release=not self._membership.is_lost)
        except Exception as error:  # the next heartbeat says that this member drains
            _log.warning("could not give up the roles of this process in order: %s", error)


class _Pause:
    """Until when a role that ended, or could not begin, with an error that may pass is not begun again: longer each
    time, unless it ran for longer than :data:`_LONGEST_PAUSE`."""

    def __init__(self) -> None:
        self.end = self.begun_at = -math.inf
        self._last = self._next = 0.0

    @property
    def is_longest(self) -> bool:
        """Whether no pause is longer than the last one that began."""
        return self._last >= _LONGEST_PAUSE

    def failed(self, began: float, now: float) -> None:
        """The role could not begin: that was tried from *began* on."""
        if began - self.end > _LONGEST_PAUSE:  # it has run since
            self._next = 0.0
        self.begun_at = now
        self.ended(now)

    def ended(self, now: float) -> None:
        if now - self.begun_at > _LONGEST_PAUSE:
            self._next = 0.0
        self.end, self._last = now + self._next, self._next
        self._next = min(max(1.0, 2 * self._next), _LONGEST_PAUSE)


def may_pass(error: Exception) -> bool:
    """Whether a restart of the role, here or elsewhere, may help: the error passes, or another process has the role or
    the log that it writes."""
    return is_passing(error) or isinstance(error, LeaseLostError | FencedError)
