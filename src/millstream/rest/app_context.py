"""The shared context of console and HTTP interface: one node, and its readers and actions."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.core.documents import shared_key
from millstream.node import Node
from millstream.rest.access_control import AccessControl
from millstream.rest.broker_link import BrokerLink
from millstream.rest.operator_audit_log import OperatorAuditLog
from millstream.rest.sign_ins import SignedOutSessions, SignInAudit
from millstream.settings.console import ConsoleSettings
from millstream.status.history import StatusHistory
from millstream.status.node_view import NodeView
from millstream.status.poller import StatusPoller


class AppContext(NodeView):
    """*node*, watched. *origins* says where each of its settings came from; *broker* is the one in this process."""

    def __init__(
        self, node: Node, *, origins: Mapping[str, str] | None = None, broker: BrokerLink | None = None
    ) -> None:
        super().__init__(node)
        self.origins = origins or {}
        self.broker = broker
        self.started_at = node.clock.now()
        is_shared = node.databases.members.is_shared
        self.operator_log = OperatorAuditLog(node.databases.own, node.clock)
        self.access = AccessControl(
            self.settings,
            node.folder,
            node.clock,
            signed_out=SignedOutSessions(node.databases.own, node.clock),
            audit=SignInAudit(self.operator_log, node.clock, self.settings.session_hours),
            session_key=shared_key(node.databases.documents.document("console/session.key")) if is_shared else None,
        )
        self.poller = StatusPoller(self, history=StatusHistory(node.databases.own))

    @property
    def settings(self) -> ConsoleSettings:
        """The settings of the console."""
        return self.node.settings.console
