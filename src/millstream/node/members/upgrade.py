"""A newer program beside older members: it changes the tables of the node when no member is left that needs the old."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec
import sqlalchemy as sa

from millstream.core.amounts import counted
from millstream.core.errors import BusyError
from millstream.core.passing_errors import is_passing
from millstream.core.sql import has_table, server_time
from millstream.core.writers_lock import SCHEMA_VERSION
from millstream.node.members import tables as t
from millstream.node.members.member_table import decode_details
from millstream.node.members.membership import RENEWALS, Membership

_log = logging.getLogger(__name__)


class OlderMembersError(BusyError):
    """Members of an earlier version serve the node, and need its tables as they are."""


def require_no_older(connection: sa.Connection) -> None:
    """Raise :class:`OlderMembersError` where a member is alive that knows only earlier versions of the tables."""
    if not has_table(connection, t.members.name):
        return
    alive = sa.and_(t.members.c.ended.is_(None), t.members.c.until >= server_time(connection))
    rows = connection.execute(sa.select(t.members.c.id, t.members.c.details).where(alive).order_by(t.members.c.id))
    older = [
        (row.id, details.version) for row in rows if (details := decode_details(row.details)).schema < SCHEMA_VERSION
    ]
    if older:
        names = ", ".join(f"{name} (millstream {version})" for name, version in older[:5])
        raise OlderMembersError(
            f"this program would change the node's tables to version {SCHEMA_VERSION}, which "
            f"{counted(len(older), 'member')} of an earlier version cannot use: stop {names}"
        )


def await_upgrade(prepare: Callable[[], object], membership: Membership, stopped: Callable[[], bool]) -> None:
    """Open the tables of the node by *prepare*. As long as older members keep it from that, this process is a member
    without roles that waits, by *membership*; it is none any more at the end.

    Raises :class:`OlderMembersError` where it is *stopped* before.
    """
    try:
        prepare()
        return
    except OlderMembersError as error:
        told = str(error)
        _log.warning("waiting: %s", error)
    clock = membership.table.clock
    membership.details = msgspec.structs.replace(membership.details, roles={}, waits=True)
    membership.join()
    with membership:
        while True:
            try:
                membership.end_lost()
                if membership.is_lost:
                    membership.join()
                prepare()
                break
            except Exception as error:  # the database comes back
                if not is_passing(error) or stopped():
                    raise
                if str(error) != told:
                    told = str(error)
                    _log.warning("waiting: %s", error)
            clock.sleep(min(1.0, membership.table.seconds / RENEWALS))
    _log.info("the node's tables have version %d now", SCHEMA_VERSION)
