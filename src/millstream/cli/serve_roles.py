"""The roles of a node's process beside broker and console: ingest, batching, anchoring, workers, producers."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from millstream.cli.node_roles import NodeRoles, Opener
from millstream.cli.role_run import RoleRun
from millstream.node.members.assignment import BROKER_ROLE

if TYPE_CHECKING:
    from millstream.cli.broker_role import BrokerRole
    from millstream.log import Writer
    from millstream.node import Node
    from millstream.node.members.membership import Membership
    from millstream.node.members.role_scheduler import Fence, RoleScheduler

_log = logging.getLogger(__name__)

_MOST_WORDS = 300
"""Characters of an error that are sent with each heartbeat."""


class ServeRoles:
    """The roles of *node* that its settings name (section ``serve``), each in threads of its own within the block.

    Where the node's database is on a server this process becomes a member of the node, and each role of which there is
    one runs in one member. :meth:`stop` asks all to complete running work and to begin nothing more; the end of the
    block waits for that. When one fails, *failed* is called, and the end of the block raises its error. A line is
    logged for each role that begins, and for what it did. With *broker* this process offers to have the node's broker.
    """

    def __init__(self, node: Node, failed: Callable[[], object], *, broker: BrokerRole | None = None) -> None:
        self._node, self._failed, self._broker = node, failed, broker
        self._roles = NodeRoles(node)
        if broker is not None:
            self._roles.write_topics_by(broker.writer_of)
        self._runs: list[RoleRun] = []
        self._scheduler: RoleScheduler | None = None
        self.membership: Membership | None = None
        self._errors: list[Exception] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> ServeRoles:
        with contextlib.ExitStack() as stack:
            if self._node.databases.members.is_shared:
                self.membership = stack.enter_context(self._joined())
            roles = dict(self._roles.everywhere())
            if self.membership is None:
                roles = {**self._roles.owned(), **roles}
            for name, opener in roles.items():
                run = self._run_of(name)
                stack.callback(run.end)
                self._runs.append(run.open(opener))
            for run in self._runs:  # not before every role is known to be one that can begin
                run.start()
            if self.membership is not None:
                self._scheduler = stack.enter_context(self._scheduled(self.membership))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._stack.close()
        if self._errors:
            raise self._errors[0]

    def stop(self) -> None:
        """Begin nothing more. Does not wait."""
        if self._scheduler is not None:
            self._scheduler.stop()
        for run in self._runs:
            run.stop()
        self._roles.stop_workers()

    def write_topics_by(self, find: Callable[[str], Writer | None]) -> None:
        """From now on *find* returns the writers of logs that are topics of this process's broker."""
        self._roles.write_topics_by(find)

    def listens(self, what: str, address: str) -> None:
        """Publish the broker's *address* of this process to the other members, if the node can have some."""
        if self.membership is not None:
            self.membership.listens(what, address)

    @contextlib.contextmanager
    def _joined(self) -> Iterator[Membership]:
        """This process as a member of the node, for the length of the block."""
        broker = self._broker
        membership = self._node.databases.members.membership(
            self._roles.groups(broker=broker is not None), {} if broker is None else broker.addresses
        )
        membership.reports(self._failing)
        membership.join()
        with membership:
            membership.require_shared_queues()
            _log.info("this process is the member %s of the node", membership.id)
            yield membership

    def _scheduled(self, membership: Membership) -> RoleScheduler:
        from millstream.node.members.role_scheduler import RoleScheduler

        openers: dict[str, Opener] = dict(self._roles.owned())
        if self._broker is not None:
            openers[BROKER_ROLE] = self._broker

        def start(name: str, fence: Fence) -> RoleRun:
            return self._run_of(name, fence).open(openers[name]).start()

        return RoleScheduler(membership, start, self._note)

    def _failing(self) -> Mapping[str, str]:
        return {role: why[:_MOST_WORDS] for role, why in self._node.logs.failing_roles().items()}

    def _run_of(self, name: str, fence: Fence | None = None) -> RoleRun:
        return RoleRun(name, self._note, fence, suspended=self._node.logs.suspended_roles, clock=self._node.clock)

    def _note(self, error: Exception) -> None:
        self._errors.append(error)
        self._failed()
