"""The permissions that calls need, and the checks of them before any method is called."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Literal

import msgspec

from millstream.messaging.broker.names import full_name
from millstream.messaging.broker.security.access_keys import CallerPermissions
from millstream.messaging.errors import StatusError
from millstream.messaging.protocol import v2
from millstream.messaging.protocol.batch_calls import AckBatchRequest, SendBatchRequest

MAX_TOPIC_NAME: Final = 127
MAX_GROUP_NAME: Final = 120
"""The characters of full names. Longer ones are refused before they are compared with the permissions of a key."""

Permission = Literal["publish", "subscribe", "either", "none"]


class RequiredPermission(msgspec.Struct, frozen=True):
    """The permissions that a method needs: for the topics of its request, and consumer groups where it has any."""

    permission: Permission
    topics: Callable[[Any], Iterable[v2.Resource]] = lambda _request: ()
    groups: Callable[[Any], Iterable[v2.Resource]] = lambda _request: ()


def topic_of(request: Any) -> Iterable[v2.Resource]:
    """The topic that *request* names."""
    return (request.topic,)


def queue_topic_of(request: Any) -> Iterable[v2.Resource]:
    """The topic of the queue that *request* names."""
    return (request.message_queue.topic,)


def message_topics_of(request: Any) -> Iterable[v2.Resource]:
    """The topics of the messages in *request*."""
    return (message.topic for message in request.messages)


def group_of(request: Any) -> Iterable[v2.Resource]:
    """The consumer group that *request* names, if any."""
    return (request.group,) if request.HasField("group") else ()


def used_group_of(request: Any) -> Iterable[v2.Resource]:
    """The consumer group of *request*. A missing one is a name too: in a namespace it is that of a group."""
    return (request.group,)


def batch_topic_of(batch: SendBatchRequest | AckBatchRequest) -> Iterable[v2.Resource]:
    """The topic of *batch*."""
    return (v2.Resource(name=batch.topic, resource_namespace=batch.namespace),)


def batch_group_of(batch: AckBatchRequest) -> Iterable[v2.Resource]:
    """The consumer group of *batch*."""
    return (v2.Resource(name=batch.group, resource_namespace=batch.namespace),)


CONSUME: Final = RequiredPermission("subscribe", topic_of, used_group_of)
"""For a request of a consumer group that names a topic."""

CONSUME_QUEUE: Final = RequiredPermission("subscribe", queue_topic_of, used_group_of)
"""For a request of a consumer group that names a queue."""

PULL: Final = RequiredPermission("subscribe", queue_topic_of, group_of)
"""For a request that names a queue and, at most, one consumer group."""

PUBLISH: Final = RequiredPermission("publish", topic_of)
"""For a request of a producer that names a topic."""

USE_GROUP: Final = RequiredPermission("none", groups=group_of)
"""For a request that names at most one consumer group, and no topic."""


def check_call(need: RequiredPermission, request: Any, access: CallerPermissions, namespace: str) -> None:
    """Raise FORBIDDEN unless *access* suffices for a method that has this *need*, with *request* in *namespace*."""
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
    if len(name) > MAX_TOPIC_NAME:
        raise StatusError(v2.ILLEGAL_TOPIC, _too_long("topic", name, MAX_TOPIC_NAME))
    publishes = permission in ("publish", "either") and access.may_publish(name)
    if not publishes and not (permission in ("subscribe", "either") and access.may_subscribe(name)):
        verb = "use" if permission == "either" else permission + " to"
        raise _refusal(access, f"{verb} the topic {name[:127]}")


def _check_group(name: str, access: CallerPermissions) -> None:
    if len(name) > MAX_GROUP_NAME:
        raise StatusError(v2.ILLEGAL_CONSUMER_GROUP, _too_long("group", name, MAX_GROUP_NAME))
    if not access.may_use(name):
        raise _refusal(access, f"be a consumer of the group {name[:120]}")


def _too_long(kind: str, name: str, limit: int) -> str:
    return (
        f"invalid {kind} name {name[:80]!r}: it has {len(name):,} characters; the limit is {limit}: use a shorter name"
    )


def _refusal(access: CallerPermissions, what: str) -> StatusError:
    return StatusError(
        v2.FORBIDDEN, f"access key {access.name} is not allowed to {what}: see broker.keys in the broker's settings"
    )
