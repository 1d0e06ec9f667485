"""Which permission each method of the protocol needs: one table, looked at before any method is called."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Literal

import msgspec

from millstream.messaging.broker.names import full_name
from millstream.messaging.broker.security.access_keys import CallerPermissions
from millstream.messaging.errors import StatusError
from millstream.messaging.protocol import v2
from millstream.messaging.protocol.batch_calls import ACK, RECEIVE, SEND, AckBatchRequest, SendBatchRequest

Permission = Literal["publish", "subscribe", "either", "none"]


class RequiredPermission(msgspec.Struct, frozen=True):
    """The permissions that a method needs: for the topics of its request, and consumer groups where it has any."""

    permission: Permission
    topics: Callable[[Any], Iterable[v2.Resource]] = lambda _request: ()
    groups: Callable[[Any], Iterable[v2.Resource]] = lambda _request: ()


def _topic(request: Any) -> Iterable[v2.Resource]:
    return (request.topic,)


def _queue(request: Any) -> Iterable[v2.Resource]:
    return (request.message_queue.topic,)


def _messages(request: Any) -> Iterable[v2.Resource]:
    return (message.topic for message in request.messages)


def _group(request: Any) -> Iterable[v2.Resource]:
    return (request.group,) if request.HasField("group") else ()


def _batch_topic(batch: SendBatchRequest | AckBatchRequest) -> Iterable[v2.Resource]:
    return (v2.Resource(name=batch.topic, resource_namespace=batch.namespace),)


def _batch_group(batch: AckBatchRequest) -> Iterable[v2.Resource]:
    return (v2.Resource(name=batch.group, resource_namespace=batch.namespace),)


REQUIRED_PERMISSIONS: Final = {
    "QueryRoute": RequiredPermission("either", _topic),
    "Heartbeat": RequiredPermission("none", groups=_group),
    "SendMessage": RequiredPermission("publish", _messages),
    "QueryAssignment": RequiredPermission("subscribe", _topic, _group),
    "ReceiveMessage": RequiredPermission("subscribe", _queue, _group),
    "AckMessage": RequiredPermission("subscribe", _topic, _group),
    "ForwardMessageToDeadLetterQueue": RequiredPermission("subscribe", _topic, _group),
    "PullMessage": RequiredPermission("subscribe", _queue, _group),
    "UpdateOffset": RequiredPermission("subscribe", _queue, _group),
    "GetOffset": RequiredPermission("subscribe", _queue, _group),
    "QueryOffset": RequiredPermission("subscribe", _queue),
    "EndTransaction": RequiredPermission("publish", _topic),
    "Telemetry": RequiredPermission("none"),  # what a client declares is examined as it comes: check_settings
    "NotifyClientTermination": RequiredPermission("none", groups=_group),
    "ChangeInvisibleDuration": RequiredPermission("subscribe", _topic, _group),
    "RecallMessage": RequiredPermission("publish", _topic),
    "SyncLiteSubscription": RequiredPermission("subscribe", _topic, _group),
    SEND.path: RequiredPermission("publish", _batch_topic),
    RECEIVE.path: RequiredPermission("subscribe", _queue, _group),
    ACK.path: RequiredPermission("subscribe", _batch_topic, _batch_group),
}
"""The permissions that each method needs. A method without a row is refused if access control is on."""


def check_call(method: str, request: Any, access: CallerPermissions, namespace: str) -> None:
    """Raise FORBIDDEN unless *access* suffices for the *method* with this *request* in *namespace*."""
    need = REQUIRED_PERMISSIONS.get(method)
    if need is None:
        raise _refusal(access, f"call {method}")
    for name in {full_name(topic, namespace) for topic in need.topics(request)}:
        _check_topic(name, need.permission, access)
    for group in need.groups(request):
        _check_group(full_name(group, namespace), access)


def check_settings(declared: v2.Settings, access: CallerPermissions, namespace: str) -> None:
    """Raise FORBIDDEN unless a client may have all that it *declared* on its telemetry stream."""
    for topic in declared.publishing.topics:
        _check_topic(full_name(topic, namespace), "publish", access)
    for each in declared.subscription.subscriptions:
        _check_topic(full_name(each.topic, namespace), "subscribe", access)
    if declared.subscription.HasField("group"):
        _check_group(full_name(declared.subscription.group, namespace), access)


def check_admin(access: CallerPermissions) -> None:
    """Raise FORBIDDEN unless the caller may look after the broker."""
    if not access.admin:
        raise _refusal(access, "administer topics and groups (admin)")


def _check_topic(name: str, permission: Permission, access: CallerPermissions) -> None:
    publishes = permission in ("publish", "either") and access.may_publish(name)
    if not publishes and not (permission in ("subscribe", "either") and access.may_subscribe(name)):
        verb = "use" if permission == "either" else permission + " to"
        raise _refusal(access, f"{verb} the topic {name[:127]}")


def _check_group(name: str, access: CallerPermissions) -> None:
    if not access.may_use(name):
        raise _refusal(access, f"be a consumer of the group {name[:120]}")


def _refusal(access: CallerPermissions, what: str) -> StatusError:
    return StatusError(
        v2.FORBIDDEN, f"access key {access.name} is not allowed to {what}: see broker.keys in the broker's settings"
    )
