"""The members of a node: the processes that serve it, where its database is on a server."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping

import sqlalchemy as sa

from millstream import __version__
from millstream.core.cached import locked_cached_property
from millstream.core.clock import MICROSECONDS
from millstream.core.errors import InputError
from millstream.core.writers_lock import SCHEMA_VERSION
from millstream.mill.workers.pools import queues_of
from millstream.node.context import NodeContext
from millstream.node.members.member_table import MemberTable
from millstream.node.members.members_status import MemberDetails, MembersStatus
from millstream.node.members.membership import Membership
from millstream.node.members.other_workers import OtherWorkers
from millstream.node.members.shared_settings import shared_settings
from millstream.node.members.upgrade import await_upgrade
from millstream.stores.audit.holders import Holders


class NoMembersError(InputError):
    """This node has no members: its tables are in the file node.db, so only one process can serve the node (see
    `millstream status`). To serve the node with several processes, set node.database."""


class NodeMembers:
    """Knows the members, and makes this process one."""

    def __init__(self, context: NodeContext, engine: Callable[[], sa.Engine], prepare: Callable[[], object]) -> None:
        self._context = context
        self._engine = engine
        self._prepare = prepare

    @property
    def is_shared(self) -> bool:
        """Whether several processes may serve the node: those of one whose database is a file are on one host, and
        are not members."""
        return bool(self._context.settings.node.database)

    def require_shared(self) -> None:
        """Raise :class:`NoMembersError` unless :attr:`is_shared`."""
        if not self.is_shared:
            raise NoMembersError(" ".join((NoMembersError.__doc__ or "").split()))

    def status(self) -> MembersStatus | None:
        """The members of the node as they are now; None where it cannot have any.

        Raises :class:`~millstream.core.sql.SqlBusyError`.
        """
        return self.table.status() if self.is_shared else None

    @locked_cached_property
    def table(self) -> MemberTable:
        """The members in the node's database."""
        context = self._context
        return MemberTable(self._engine(), context.clock, context.settings.node.lease / MICROSECONDS)

    def membership(self, roles: Mapping[str, str], addresses: Mapping[str, str]) -> Membership:
        """This process as a member that offers *roles* (with their groups) and listens at *addresses* (by what listens
        there); it has not joined yet."""
        process, settings = Holders().new(), self._context.settings
        return Membership(
            self.table,
            MemberDetails(
                host=socket.gethostname(),
                pid=os.getpid(),
                version=__version__,
                process=process,
                schema=SCHEMA_VERSION,
                roles=roles,
                addresses=addresses,
                settings=shared_settings(settings),
                stores=sorted(settings.store_urls),
                queues=sorted(
                    {queue for pool in settings.serve.workers for queue in queues_of(pool, settings.mill.pools)}
                ),
            ),
        )

    def other_workers(self) -> OtherWorkers:
        """The workers of the other members, for one thread that asks about tasks."""
        return OtherWorkers(self.status, self._context.clock)

    def await_upgrade(self, stopped: Callable[[], bool]) -> None:
        """Open the tables of a node that :attr:`is_shared`; where older members need them as they are, wait for their
        end.

        Raises :class:`~millstream.node.members.upgrade.OlderMembersError` where this process is *stopped* before.
        """
        if self.is_shared:
            await_upgrade(self._prepare, self.membership({}, {}), stopped)
