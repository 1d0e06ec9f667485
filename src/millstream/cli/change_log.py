"""Changes that are made on the command line, in the operator audit log of the node, by the account that made them."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from millstream.core.errors import MillstreamError
from millstream.node import Node
from millstream.settings import Settings

if TYPE_CHECKING:
    import sqlalchemy as sa

    from millstream.core.clock import Clock
    from millstream.messaging.broker.admin import AdminChange
    from millstream.mill.duplication.change_guard import DecisionRecorder

_LONGEST_NAME = 64


def os_user() -> str:
    """``os:NAME``: the account of this process by its effective user id; variables such as ``USER`` are ignored."""
    number = os.geteuid()
    try:
        return f"os:{pwd.getpwuid(number).pw_name}"
    except KeyError:  # an account without an entry, as in containers
        return f"os:{number}"


def record_change(node: Node, action: str, target: str, **facts: Any) -> None:
    """Record that the account of this process did *action* to *target*; durable when this returns.

    Under sudo, the event has the calling user as the fact ``sudo_user``.
    """
    record_change_in(node.databases.own, node.clock, action, target, **facts)


def decision_recorder(node: Node, action: str, **facts: Any) -> DecisionRecorder:
    """:func:`record_change` of a decision about a held plan, in the transaction that makes it."""
    from millstream.rest.operator_audit_log import OperatorAuditLog

    audit_log = OperatorAuditLog(node.databases.own, node.clock)
    return audit_log.decision_recorder(os_user(), action, **_with_caller(facts))


def record_change_in(engine: sa.Engine, clock: Clock, action: str, target: str, **facts: Any) -> None:
    """:func:`record_change` in the tables of a node in the database of *engine*."""
    _add(engine, clock, os_user(), action, target, _with_caller(facts))


def _with_caller(facts: dict[str, Any]) -> dict[str, Any]:
    caller = os.environ.get("SUDO_USER")
    return {**facts, "sudo_user": caller[:_LONGEST_NAME]} if caller else facts


def record_broker_change(node: Node, user: str, change: AdminChange) -> None:
    """Record *change*, which *user* made at the broker of *node* over the network; durable when this returns."""
    _add(node.databases.own, node.clock, user, change.action, change.target, change.facts)


def _add(engine: sa.Engine, clock: Clock, user: str, action: str, target: str, facts: Mapping[str, Any]) -> None:
    from millstream.rest.operator_audit_log import OperatorAuditLog

    OperatorAuditLog(engine, clock).add(user, action, target, **facts)


def prepare_audit_log(node: Node) -> None:
    """Before a change that :func:`record_change` records: raise what the database of *node* does where it does not
    answer, so that the change is not made. A repeated command may find nothing left to change, and would record
    nothing.
    """
    node.databases.prepare()


def require_audit_log(settings: Settings) -> None:
    """:func:`prepare_audit_log` before a change that :func:`record_change_if_node` records.

    ``node.db`` is not asked: it is beside the data, and a command that fails to record a change says so.
    """
    if settings.node.database and is_recorded(settings):
        with Node.open(settings) as node:
            prepare_audit_log(node)


def record_change_if_node(settings: Settings, action: str, target: str, **facts: Any) -> None:
    """:func:`record_change` in the node of *settings*; a bare log store (``--store``) has no audit log."""
    if is_recorded(settings):
        with Node.open(settings) as node:
            record_change(node, action, target, **facts)


def record_freed_space(settings: Settings, action: str, target: str, **facts: Any) -> None:
    """:func:`record_change_if_node` of a change that frees space: it is made also where the node's database has no
    space or does not answer, and then said not to be recorded."""
    import sqlalchemy as sa

    from millstream.core.sql_failures import describe_sql_failure

    try:
        record_change_if_node(settings, action, target, **facts)
    except MillstreamError as error:
        click.echo(f"not recorded in the operator audit log: {error}", err=True)
    except sa.exc.DBAPIError as error:
        click.echo(f"not recorded in the operator audit log: its database {describe_sql_failure(error)}", err=True)


def is_recorded(settings: Settings) -> bool:
    """Whether the command works in a node that has a database, and not on a bare log store (``--store``)."""
    from millstream.core.sql import ANSWERS
    from millstream.node.databases import has_database

    return not on_bare_store() and has_database(settings, patience=ANSWERS)


def on_bare_store() -> bool:
    """Whether the command works on the log store that ``--store`` names, and not in a node."""
    return click.get_current_context().params.get("store") is not None
