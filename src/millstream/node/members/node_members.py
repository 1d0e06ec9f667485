"""The members of a node: the processes that serve it or work on its queues, where its database is on a server."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec
import sqlalchemy as sa

from millstream import __version__
from millstream.core.cached import locked_cached_property
from millstream.core.clock import MICROSECONDS
from millstream.core.errors import InputError
from millstream.core.writers_lock import SCHEMA_VERSION
from millstream.mill.workers.pools import queues_of
from millstream.node.context import NodeContext
from millstream.node.members.member_table import MemberTable
from millstream.node.members.members_status import WORK, MemberDetails, MembersStatus
from millstream.node.members.membership import Membership
from millstream.node.members.other_workers import OtherWorkers
from millstream.node.members.shared_settings import shared_settings
from millstream.node.members.upgrade import await_upgrade
from millstream.stores.audit.holders import Holders

_log = logging.getLogger(__name__)


class NoMembersError(InputError):
    """The tables of the node are in the file node.db, so it has no members."""


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
            raise NoMembersError(
                "this node has no members: its tables are in the file node.db, so one process serves it (`millstream "
                "status` shows this process). To serve the node with several processes, set node.database"
            )

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
        settings = self._context.settings
        pools = (queues_of(pool, settings.mill.pools) for pool in settings.serve.workers)
        details = self._details(itertools.chain.from_iterable(pools))
        return Membership(self.table, msgspec.structs.replace(details, roles=roles, addresses=addresses))

    @contextlib.contextmanager
    def joined_worker(self, queues: Iterable[str]) -> Iterator[None]:
        """This process, whose workers work on *queues*, as a member without roles for the length of the block, if the
        node :attr:`is_shared`."""
        if not self.is_shared:
            yield
            return
        self._prepare()
        details = msgspec.structs.replace(self._details(queues), command=WORK)
        membership = Membership(self.table, details, rejoins=True)
        membership.join()
        with membership:
            membership.end_lost()  # no other process does that where the node has only workers
            _log.info("this process is the member %s of the node", membership.id)
            yield

    def _details(self, queues: Iterable[str]) -> MemberDetails:
        """This process as one that works on *queues*."""
        settings = self._context.settings
        return MemberDetails(
            host=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            process=Holders().new(),
            schema=SCHEMA_VERSION,
            settings=shared_settings(settings),
            stores=sorted(settings.store_urls),
            queues=sorted(set(queues)),
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
