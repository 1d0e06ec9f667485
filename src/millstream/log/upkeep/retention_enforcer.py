"""Keeping a log within its policy: what has to go is planned, told, and trimmed."""

from __future__ import annotations

import logging

import msgspec

from millstream.core.clock import Clock
from millstream.log.errors import LogInputError
from millstream.log.log import Log
from millstream.log.upkeep.retention import RETENTION_CLOCK, Retention, RetentionPlan, clock_problem

_log = logging.getLogger(__name__)


class RetentionEnforcer:
    """Trims *log* by *policy*, or by the policy that is kept with the log. Safe to run from anywhere, at any time."""

    def __init__(self, log: Log, clock: Clock, policy: Retention | None = None) -> None:
        self._log = log
        self._clock = clock
        self._policy = policy

    def run_once(self, *, dry_run: bool = False, accept_clock: bool = False) -> RetentionPlan:
        """Trim what has to go; with *dry_run* only say what that is.

        With *accept_clock* the clock is believed, however far it stands from the last look at ages. Raises
        :class:`LogInputError` where there is no policy.
        """
        policy = self._policy or self._log.retention
        if policy is None:
            raise LogInputError(
                f"log {self._log.name!r} has no retention policy: give a rule such as --max-age 30d; "
                "--keep-policy stores it with the log"
            )
        plan = self._plan(policy, accept_clock)
        for reason in plan.held:
            _log.warning("%s: %s", self._log.name, reason)
        if dry_run:
            if plan.first_id is not None:
                self._log.require_trimmable(plan.first_id)
            return plan
        if policy.max_age is not None and not plan.held:
            self._log.put_metadata(RETENTION_CLOCK, b"%d" % max(self._clock.now(), self._last_seen or 0))
        if plan.first_id is None:
            return plan
        return msgspec.structs.replace(plan, freed_bytes=self._log.trim(plan.first_id))

    def _plan(self, policy: Retention, accept_clock: bool) -> RetentionPlan:
        if policy.keep_all:
            return RetentionPlan(log=self._log.name, first_id=None)
        info, now, held = self._log.info(), self._clock.now(), []
        wanted = max(self._over_count(policy, info.last_id), self._over_bytes(policy.max_bytes), info.first_id)
        if policy.max_age is not None:
            problem = None if accept_clock else self._distrust(policy.max_age, now)
            if problem is None:
                wanted = max(wanted, self._log.first_block_since(now - policy.max_age))
            else:
                held.append(problem)
        unread = {name: max(pointer + 1, info.first_id) for name, pointer in info.consumers.items()}
        first_id = wanted
        if policy.keep_consumers:
            slowest = min(unread.values(), default=wanted)
            first_id = max(min(wanted, slowest), self._over_bytes(policy.cap_bytes))
        return RetentionPlan(
            log=self._log.name,
            first_id=first_id if first_id > info.first_id else None,
            messages=max(first_id - info.first_id, 0),
            pinned={name: wanted - begin for name, begin in unread.items() if policy.keep_consumers and begin < wanted},
            lost={name: first_id - begin for name, begin in unread.items() if begin < first_id},
            held=tuple(held),
        )

    def _distrust(self, max_age: int, now: int) -> str | None:
        seen = self._last_seen
        return None if seen is None else clock_problem(seen, now, max_age)

    @property
    def _last_seen(self) -> int | None:
        seen = self._log.metadata(RETENTION_CLOCK)
        return int(seen) if seen else None

    def _over_count(self, policy: Retention, last_id: int) -> int:
        return 1 if policy.max_count is None else last_id - policy.max_count + 1

    def _over_bytes(self, most: int | None) -> int:
        """The first id of the blocks, the newest ones, that have at most *most* bytes."""
        if most is None:
            return 1
        blocks = self._log.block_ranges()
        total = sum(block.bytes for block in blocks)
        for block in blocks:
            if total <= most:
                return block.first_id
            total -= block.bytes
        return blocks[-1].last_id + 1 if blocks else 1
