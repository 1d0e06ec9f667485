"""The topics, consumer groups and clients of the broker that runs in this node.

Each endpoint is a call of the broker's administration (``messaging/broker/admin.py``), which has its path, too.
"""

from __future__ import annotations

import functools
from typing import Any, TypeVar

import msgspec

from millstream.messaging.broker.admin import (
    CLIENTS,
    CONFIGURE_GROUP,
    CREATE_TOPIC,
    DROP_TOPIC,
    GROUP_SPECS,
    GROUPS,
    RECORDED_FIRST,
    RESET_OFFSET,
    STACK_TRACE,
    TOPICS,
    VERIFY,
    AdminCall,
    AdminCallError,
    AdminChange,
    ClientInfo,
    GroupConfigRequest,
    GroupInfo,
    OffsetResetRequest,
    TopicInfo,
    VerificationRequest,
    VerificationResult,
    change_by,
    planned_change,
)
from millstream.messaging.broker.limits import GroupSpec
from millstream.messaging.broker.storage.topic import TopicSpec
from millstream.messaging.errors import TopicNotFoundError
from millstream.rest.app_context import AppContext
from millstream.rest.broker_link import NoBrokerError
from millstream.rest.endpoint import ApiRequest, EndpointRegistry, Listing, Name
from millstream.settings.console import Role

Asked = TypeVar("Asked")
Result = TypeVar("Result")

endpoints = EndpointRegistry()


class TopicsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``topic``: only this one."""

    topic: str = ""


class GroupsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``group``: only this one."""

    group: str = ""


class ClientQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``client_id`` is an id from the list of clients."""

    client_id: Name


class NewTopic(TopicSpec, frozen=True, forbid_unknown_fields=True):
    """A topic to create. ``name`` is 1 to 127 letters, digits and ``_ % -``; ``type`` is NORMAL, FIFO, DELAY or
    TRANSACTION.
    """


class TopicName(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``topic`` is the name of a topic."""

    topic: Name


@endpoints.get(TOPICS.path, TopicsQuery)
def topics(app: AppContext, request: ApiRequest[TopicsQuery, Any]) -> Listing[TopicInfo]:
    """List the topics of the broker in this node; none if no broker runs."""
    return _list(app, TOPICS, request.query.topic)


@endpoints.post(CREATE_TOPIC.path, body=NewTopic)
def create_topic(app: AppContext, request: ApiRequest[Any, NewTopic]) -> TopicInfo:
    """Create a topic if it does not exist, or give it more queues."""
    new = TopicSpec(request.body.name, request.body.type, request.body.queues)
    created = _change(app, request, CREATE_TOPIC, new)
    app.poller.hurry()
    return created


@endpoints.post(DROP_TOPIC.path, body=TopicName)
def delete_topic(app: AppContext, request: ApiRequest[Any, TopicName]) -> str:
    """Delete a topic and the positions of its groups; its messages stay in its log."""
    deleted = _change(app, request, DROP_TOPIC, request.body.topic)
    app.poller.hurry()
    return deleted


@endpoints.get(GROUPS.path, GroupsQuery)
def groups(app: AppContext, request: ApiRequest[GroupsQuery, Any]) -> Listing[GroupInfo]:
    """List the consumer groups of the broker in this node, a row for each of their topics."""
    return _list(app, GROUPS, request.query.group)


@endpoints.get(GROUP_SPECS.path, GroupsQuery)
def group_limits(app: AppContext, request: ApiRequest[GroupsQuery, Any]) -> Listing[GroupSpec]:
    """List the delivery limits of the consumer groups of the broker in this node."""
    return _list(app, GROUP_SPECS, request.query.group)


@endpoints.post(CONFIGURE_GROUP.path, body=GroupConfigRequest)
def configure_group(app: AppContext, request: ApiRequest[Any, GroupConfigRequest]) -> GroupSpec:
    """Set the delivery limits of a consumer group."""
    return _change(app, request, CONFIGURE_GROUP, request.body)


@endpoints.post(RESET_OFFSET.path, body=OffsetResetRequest)
def reset_offset(app: AppContext, request: ApiRequest[Any, OffsetResetRequest]) -> GroupInfo:
    """Set the position of a consumer group in a topic to a message or a time."""
    group = _change(app, request, RESET_OFFSET, request.body)
    app.poller.hurry()
    return group


@endpoints.get(CLIENTS.path, GroupsQuery)
def clients(app: AppContext, request: ApiRequest[GroupsQuery, Any]) -> Listing[ClientInfo]:
    """List the clients of the broker in this node, or the consumers of a group."""
    return _list(app, CLIENTS, request.query.group)


@endpoints.get(STACK_TRACE.path, ClientQuery, Role.OPERATOR)
def stack_trace(app: AppContext, request: ApiRequest[ClientQuery, Any]) -> str:
    """Get the thread stacks of a client."""
    return _ask(app, STACK_TRACE, request.query.client_id)


@endpoints.post(VERIFY.path, body=VerificationRequest)
def verify_message(app: AppContext, request: ApiRequest[Any, VerificationRequest]) -> VerificationResult:
    """Let the listener of a push consumer process a message once; the position of its group does not change."""
    return _change(app, request, VERIFY, request.body)


def _ask(app: AppContext, call: AdminCall[Asked, Result], request: Asked) -> Result:
    if app.broker is None:
        raise NoBrokerError
    return app.broker.ask(call, request)


def _change(app: AppContext, request: ApiRequest[Any, Any], call: AdminCall[Asked, Result], asked: Asked) -> Result:
    """The result of *call*, which the operator audit log records for the user of *request*.

    The creation or deletion of a topic is recorded before it: a repeated call would find nothing to do.
    """
    app.operator_log.check()
    if call in RECORDED_FIRST:
        _record(app, request, planned_change(call, asked, functools.partial(_find_topic, app)))
        return _ask(app, call, asked)
    result = _ask(app, call, asked)
    _record(app, request, change_by(call, asked, result))
    return result


def _record(app: AppContext, request: ApiRequest[Any, Any], change: AdminChange | None) -> None:
    if change is not None:
        app.operator_log.add(request.principal.name, change.action, change.target, **change.facts)


def _find_topic(app: AppContext, name: str) -> TopicSpec | None:
    try:
        (found,) = _ask(app, TOPICS, name)
    except (TopicNotFoundError, AdminCallError) as error:  # of the broker here, or of another process of the node
        if error.exit_code != TopicNotFoundError.exit_code:
            raise
        return None
    return TopicSpec(found.name, found.type, found.queues)


def _list(app: AppContext, call: AdminCall[str, list[Result]], name: str) -> Listing[Result]:
    """All rows where *name* is empty; a node without a broker has none, and does not know any name."""
    found = _ask(app, call, name) if app.broker is not None or name else []
    return Listing(found, total=len(found))
