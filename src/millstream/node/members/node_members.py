"""The members of a node: the processes that serve it, where its database is on a server."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping

import sqlalchemy as sa

from millstream import __version__
from millstream.core.cached import locked_cached_property
from millstream.core.clock import MICROSECONDS
from millstream.node.context import NodeContext
from millstream.node.members.member_table import MemberDetails, MemberTable
from millstream.node.members.membership import Membership
from millstream.stores.audit.holders import Holders


class NodeMembers:
    """Knows the members, and makes this process one."""

    def __init__(self, context: NodeContext, engine: Callable[[], sa.Engine]) -> None:
        self._context = context
        self._engine = engine

    @property
    def is_shared(self) -> bool:
        """Whether several processes may serve the node: those of one whose database is a file are on one host, and
        are not members."""
        return bool(self._context.settings.node.database)

    @locked_cached_property
    def table(self) -> MemberTable:
        """The members in the node's database."""
        context = self._context
        return MemberTable(self._engine(), context.clock, context.settings.node.lease / MICROSECONDS)

    def membership(self, roles: Mapping[str, str]) -> Membership:
        """This process as a member that offers *roles* (with their groups); it has not joined yet."""
        process = Holders().new()
        return Membership(
            self.table,
            MemberDetails(
                host=socket.gethostname(), pid=os.getpid(), version=__version__, process=process, roles=roles
            ),
        )
