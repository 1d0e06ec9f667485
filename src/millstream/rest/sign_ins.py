"""The durable state of sign-ins: ended sessions, and failed attempts by user and address."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from typing import Any

import sqlalchemy as sa

from millstream.core.clock import Clock
from millstream.core.column_types import NAME
from millstream.core.sql import make_tables
from millstream.core.sql_rows import insert_new
from millstream.rest.operator_audit_log import OperatorAuditLog

UNKNOWN = "unknown"
"""The user of a failed sign-in whose name is none of a user. It may be a password typed into the wrong field, so it is
written nowhere."""

MOST_EVENTS = 10
"""Events of one action of one user that are recorded in a minute; the others are counted."""

_WINDOW_SECONDS = 60.0
_REFRESH_SECONDS = 1.0
_MOST_PROGRAMS = 1_000
_log = logging.getLogger(__name__)
metadata = sa.MetaData()

_signed_out = sa.Table(
    "console_signed_out",
    metadata,
    sa.Column("nonce", NAME, primary_key=True),
    sa.Column("expires", sa.BigInteger, nullable=False),
)


class SignedOutSessions:
    """The sessions that were ended before they expired, in the database of *engine*, so that a restart does not revive
    them. Rows of sessions that have expired are deleted. Thread-safe.

    What another process on the same database ended counts here within a second, while the database answers. Looking
    a session up may wait for the database: do it in a thread.
    """

    def __init__(self, engine: sa.Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._ended_here: dict[str, int] = {}
        make_tables(engine, metadata)
        self._recorded = self._read()
        self._read_at = clock.monotonic()
        self._reading = threading.Lock()
        self._adding = threading.Lock()

    def add(self, nonce: str, expires: int) -> None:
        """End the session *nonce*, which would expire at *expires* (microseconds); durable when this returns."""
        now = self._clock.now()
        with self._adding:
            self._ended_here = {n: at for n, at in self._ended_here.items() if at > now} | {nonce: expires}
        with self._engine.begin() as connection:
            connection.execute(sa.delete(_signed_out).where(_signed_out.c.expires <= now))
            connection.execute(insert_new(connection, _signed_out), {"nonce": nonce, "expires": expires})

    def __contains__(self, nonce: str) -> bool:
        now = self._clock.monotonic()
        if now - self._read_at >= _REFRESH_SECONDS and self._reading.acquire(blocking=False):
            try:  # one thread at a time: a server that does not answer must not hold them all
                self._recorded = self._read()
            except sa.exc.SQLAlchemyError as error:  # pages that show this fault must still open
                _log.warning("the sessions that were signed out cannot be read: %s", str(error).partition("\n")[0])
            finally:
                self._read_at = now
                self._reading.release()
        return nonce in self._ended_here or nonce in self._recorded

    def _read(self) -> Collection[str]:
        with self._engine.connect() as connection:
            return frozenset(connection.scalars(sa.select(_signed_out.c.nonce)))


class SignInAudit:
    """Records sign-ins, failed sign-ins and sign-outs in *audit_log*, and failed ones as warnings in the process's log.

    They cannot fill the disk: beyond :data:`MOST_EVENTS` a minute of one action and one user, events are
    only counted, and the next event that is recorded has their number as ``suppressed``. A program that sends a
    password with each request is recorded once in *program_hours* for each address. Thread-safe.
    """

    def __init__(self, audit_log: OperatorAuditLog, clock: Clock, program_hours: float) -> None:
        self._audit_log = audit_log
        self._clock = clock
        self._program_seconds = program_hours * 3600
        self._lock = threading.Lock()
        self._recent: dict[tuple[str, str], list[float]] = {}
        self._suppressed: dict[tuple[str, str], int] = {}
        self._programs: dict[tuple[str, str], float] = {}

    def failed(self, user: str, address: str, reason: str) -> None:
        """A sign-in from *address* as *user*, or as :data:`UNKNOWN`, failed for *reason*."""
        if self._record("failed sign-in", user, address, reason):
            _log.warning("failed sign-in of %s from %s: %s", user, address, reason)

    def signed_in(self, user: str, address: str) -> None:
        """*user* has signed in with a browser at *address*."""
        self._record("sign in", user, address)

    def signed_out(self, user: str, address: str) -> None:
        """*user* has signed out with a browser at *address*."""
        self._record("sign out", user, address)

    def program_signed_in(self, user: str, address: str) -> None:
        """A program at *address* has sent the password of *user* with a request."""
        now = self._clock.monotonic()
        with self._lock:
            last = self._programs.get((user, address))
            if last is not None and now - last < self._program_seconds:
                return
        self._record("sign in", user, address, kind="program")
        with self._lock:
            if len(self._programs) >= _MOST_PROGRAMS:
                self._programs.clear()
            self._programs[user, address] = now

    def _record(self, action: str, user: str, address: str, reason: str = "", **facts: Any) -> bool:
        """Record the event, unless there were too many like it; whether it is recorded."""
        now, key = self._clock.monotonic(), (action, user)
        with self._lock:
            recent = [at for at in self._recent.get(key, ()) if at > now - _WINDOW_SECONDS]
            if len(recent) >= MOST_EVENTS:
                self._suppressed[key] = self._suppressed.get(key, 0) + 1
                return False
            self._recent[key] = [*recent, now]
            suppressed = self._suppressed.pop(key, 0)
        if suppressed:
            facts["suppressed"] = suppressed
        self._audit_log.add(user, action, f"address {address}", reason=reason, **facts)
        return True
