"""Whether another member can do a task for which this process lacks a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

from millstream.core.clock import MICROSECONDS, Clock
from millstream.node.members.members_status import MemberDetails, MembersStatus, MemberState

LEFT_SECONDS = 600.0
"""For how long tasks that need certain stores are left to other members: so long a change of settings may take."""

_FRESH_SECONDS = 5.0


class OtherWorkers:
    """The workers of the other members, of whom *status* tells. Not thread-safe.

    Members differ in their stores only while settings are changed: they are restarted one after the other. If that
    lasts, their tasks fail here as they would without other members, so that people are told.
    """

    def __init__(self, status: Callable[[], MembersStatus | None], clock: Clock) -> None:
        self._status = status
        self._clock = clock
        self._read_at: float | None = None
        self._workers: Sequence[tuple[MemberDetails, float]] = ()
        self._left_since: dict[tuple[str, frozenset[str]], float] = {}

    def can_do(self, queue: str, stores: AbstractSet[str]) -> bool:
        """Whether a member that works on *queue* has all *stores*; no longer so :data:`LEFT_SECONDS` after the first
        yes, or after the first of the members that do so now joined: with them begins another change of settings.

        Raises :class:`~millstream.core.sql.SqlBusyError`.
        """
        now = self._clock.monotonic()
        joined = [at for member, at in self._alive(now) if queue in member.queues and stores <= set(member.stores)]
        if not joined:
            return False
        left_since = self._left_since.setdefault((queue, frozenset(stores)), now)
        return now - max(left_since, min(joined)) < LEFT_SECONDS

    def _alive(self, now: float) -> Sequence[tuple[MemberDetails, float]]:
        """The members that are alive and when their processes joined, as of a few seconds ago at most: many tasks may
        fail at once."""
        if self._read_at is None or now - self._read_at >= _FRESH_SECONDS:
            status, self._read_at = self._status(), now
            if status is not None:
                at, joined = status.at, status.first_joined
                self._workers = [
                    (one.details, now - (at - joined[one.id]) / MICROSECONDS)
                    for one in status.serving
                    if one.state(at) == MemberState.ALIVE
                ]
        return self._workers
