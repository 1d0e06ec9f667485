"""The requests that a broker refuses, and their status: the rules of the RocketMQ proxy, as functions without side
effects."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from millstream.batching.message_events import TICK_SOURCE
from millstream.core.amounts import format_duration
from millstream.messaging.broker.limits import Limits
from millstream.messaging.broker.names import dead_letter_topic, enum_name
from millstream.messaging.broker.storage.topic import TopicSpec
from millstream.messaging.broker.storage.wire_codec import PREFIX, born_at
from millstream.messaging.errors import StatusError
from millstream.messaging.protocol import v2
from millstream.messaging.protocol.batch_calls import MAX_BATCH

MAX_BODY: Final = 4 << 20
MAX_PROPERTIES: Final = 128
MAX_PROPERTY_BYTES: Final = 16 << 10
MAX_GROUP_BYTES: Final = 63
MAX_ID_CHARACTERS: Final = 255
MAX_HOST_CHARACTERS: Final = 255
ANY_QUEUE: Final = -1
MIN_BORN: Final = -62_135_596_800_000_000
MAX_BORN: Final = 253_402_300_799_999_999
"""The first and the last microsecond that a timestamp of the protocol can have: years 1 to 9999."""

_TOPIC: Final = re.compile(r"[%|a-zA-Z0-9_-]{1,127}")
_GROUP: Final = re.compile(r"[%|a-zA-Z0-9_-]{1,120}")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_RESERVED: Final = frozenset(
    (
        "KEYS", "TAGS", "WAIT", "DELAY", "RETRY_TOPIC", "REAL_TOPIC", "REAL_QID", "TRAN_MSG", "PGROUP", "MIN_OFFSET",
        "MAX_OFFSET", "BUYER_ID", "ORIGIN_MESSAGE_ID", "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG",
        "RECONSUME_TIME", "MSG_REGION", "TRACE_ON", "UNIQ_KEY", "EXTEND_UNIQ_INFO", "MAX_RECONSUME_TIMES",
        "CONSUME_START_TIME", "POP_CK", "POP_CK_OFFSET", "FIRST_POP_TIME", "TRAN_PREPARED_QUEUE_OFFSET", "DUP_INFO",
        "BORN_HOST", "BORN_TIMESTAMP", "INSTANCE_ID", "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "ARRIVE_TIME",
        "PUSH_REPLY_TIME", "CLUSTER", "MSG_TYPE", "INNER_MULTI_QUEUE_OFFSET", "INNER_MULTI_DISPATCH", "TIMER_DELAY_MS",
        "TIMER_DELAY_SEC", "TIMER_DELIVER_MS", "TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS",
        "TIMER_ROLL_TIMES", "TIMER_DEL_UNIQKEY", "TIMER_DELAY_LEVEL", "__SHARDINGKEY",
    )
)  # fmt: skip


def check_client_type(kind: int) -> None:
    """Raise UNSUPPORTED where clients of the *kind* (the protocol's ``ClientType``) need what no topic here has."""
    if kind in (v2.LITE_PUSH_CONSUMER, v2.LITE_SIMPLE_CONSUMER):
        raise StatusError(
            v2.UNSUPPORTED,
            "this broker does not support lite consumers: use a push or simple consumer, with a normal topic in place "
            "of each lite topic",
        )


def check_topic_name(name: str) -> None:
    """Raise ILLEGAL_TOPIC unless *name* can be a topic's."""
    if not _TOPIC.fullmatch(name):
        raise StatusError(
            v2.ILLEGAL_TOPIC, f"invalid topic name {name[:80]!r}: use 1 to 127 characters of a-z A-Z 0-9 _ - % |"
        )


def check_group_name(name: str) -> None:
    """Raise ILLEGAL_CONSUMER_GROUP unless *name* can be a group's, and the name of its dead-letter topic a topic's."""
    if not _GROUP.fullmatch(name) or not _TOPIC.fullmatch(dead_letter_topic(name)):
        raise StatusError(
            v2.ILLEGAL_CONSUMER_GROUP,
            f"invalid group name {name[:80]!r}: use 1 to 120 characters of a-z A-Z 0-9 _ - % | (| counts as three)",
        )


def message_kind(system: v2.SystemProperties) -> int:
    """The type of the message with the properties *system*: what it says, or what the others make it."""
    return system.message_type or _kind_by_properties(system)


def check_message(message: v2.Message, spec: TopicSpec) -> int:
    """The type of *message*, which may go to the topic *spec*. Raises :class:`StatusError` where it may not."""
    system = message.system_properties
    kind = message_kind(system)
    if kind != spec.kind and kind in (v2.LITE, v2.PRIORITY):
        name = enum_name(v2.MessageType, kind)
        raise StatusError(
            v2.UNSUPPORTED, f"this broker does not support {name} messages: use NORMAL, FIFO, DELAY or TRANSACTION"
        )
    check_body(len(message.body))
    if message.user_properties:
        check_properties(message.user_properties)
    check_ids((system.message_id,))
    check_born(born_at(system))
    check_born_host(system.born_host)
    if system.trace_context:
        check_trace_context(system.trace_context)
    group, tag, keys = system.message_group, system.tag, system.keys
    if group:
        check_message_group(group)
    if tag or keys:
        check_keys(keys, tag)
    if kind != spec.kind:
        raise StatusError(
            v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"topic {spec.name} accepts {spec.type} messages, not {enum_name(v2.MessageType, kind)}: send the message "
            "to a topic of its type",
        )
    if kind == v2.FIFO and not system.message_group:
        raise StatusError(
            v2.ILLEGAL_MESSAGE_GROUP, f"topic {spec.name} accepts FIFO messages, which need a message group: set one"
        )
    return kind


def check_delivery_time(message: v2.Message, now: int, limits: Limits) -> int:
    """The time at which the delayed *message* is due, in microseconds; a past time counts as now."""
    if not message.system_properties.HasField("delivery_timestamp"):
        raise StatusError(
            v2.ILLEGAL_DELIVERY_TIME, "the DELAY message has no delivery timestamp: set the time of its delivery"
        )
    stamp = message.system_properties.delivery_timestamp
    due = stamp.seconds * 1_000_000 + stamp.nanos // 1000
    if due > now + limits.max_delay:
        beyond = -(-(due - now - limits.max_delay) // 1000) / 1000
        raise StatusError(
            v2.ILLEGAL_DELIVERY_TIME,
            f"the delay of a message must be at most {limits.max_delay / 3.6e9:g} hours, but by the broker's clock "
            f"this delay is {beyond:,.3f} seconds longer: reduce the delay, and check the clock of the client",
        )
    return max(due, now)


def check_polling_time(seconds: float) -> None:
    """Raise ILLEGAL_POLLING_TIME unless a call may wait for *seconds*."""
    if seconds < 0:
        raise StatusError(v2.ILLEGAL_POLLING_TIME, f"the wait time must not be negative, but is {seconds:g} seconds")


def check_queue(queue: int, spec: TopicSpec) -> None:
    """Raise BAD_REQUEST unless *spec* has this queue; :data:`ANY_QUEUE` stands for all of them."""
    if queue != ANY_QUEUE and not 0 <= queue < spec.queues:
        raise StatusError(
            v2.BAD_REQUEST,
            f"topic {spec.name} has no queue {queue}: use 0 to {spec.queues - 1}, or {ANY_QUEUE} for all queues",
        )


def check_offset(offset: int, topic: str, end: int) -> None:
    """Raise ILLEGAL_OFFSET unless *topic*, whose next message has the offset *end*, may be read from *offset*."""
    if not 0 <= offset <= end:
        raise StatusError(v2.ILLEGAL_OFFSET, f"topic {topic} has no offset {offset}: use 0 to {end}")


def check_invisible(duration: int, limits: Limits, *, shortest: int | None = None) -> int:
    """*duration* (microseconds) if a message may be hidden for so long; *shortest* in place of the limit."""
    least = limits.shortest if shortest is None else shortest
    if not least <= duration <= limits.longest:
        raise StatusError(
            v2.ILLEGAL_INVISIBLE_TIME,
            f"the invisible duration must be {format_duration(least)} to {format_duration(limits.longest)}, not "
            f"{format_duration(duration)}",
        )
    return duration


def _kind_by_properties(system: v2.SystemProperties) -> int:
    if system.HasField("lite_topic"):
        return v2.LITE
    if system.HasField("priority"):
        return v2.PRIORITY
    if system.message_group:
        return v2.FIFO
    return v2.DELAY if system.HasField("delivery_timestamp") else v2.NORMAL


def check_body(size: int) -> None:
    """Raise MESSAGE_BODY_EMPTY or MESSAGE_BODY_TOO_LARGE unless a body may have *size* bytes."""
    if not size:
        raise StatusError(v2.MESSAGE_BODY_EMPTY, "the message has no body: add a body of at least one byte")
    if size > MAX_BODY:
        raise StatusError(
            v2.MESSAGE_BODY_TOO_LARGE,
            f"a body of {size:,} bytes exceeds the limit of {MAX_BODY:,} bytes: split the body, or send a reference to "
            "the content",
        )


def check_properties(pairs: Mapping[str, str]) -> None:
    """Raise a status unless *pairs* may be the user properties of a message."""
    if len(pairs) > MAX_PROPERTIES:
        raise StatusError(
            v2.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the message has {len(pairs):,} properties; the limit is {MAX_PROPERTIES}: remove properties",
        )
    size = 0
    for name, value in pairs.items():
        if problem := _name_problem(name):
            raise StatusError(v2.ILLEGAL_MESSAGE_PROPERTY_KEY, f"invalid property name {name[:80]!r}: {problem}")
        if _CONTROL.search(value):
            raise StatusError(
                v2.ILLEGAL_MESSAGE_PROPERTY_KEY,
                f"the value of property {name[:80]!r} must not contain control characters",
            )
        size += len(name) + len(value)
    if size > MAX_PROPERTY_BYTES:
        raise StatusError(
            v2.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the properties of the message have {size:,} characters; the limit is {MAX_PROPERTY_BYTES:,}: shorten or "
            "remove properties",
        )


def _name_problem(name: str) -> str | None:
    """Why a property cannot have *name*; None if it can."""
    if name in _RESERVED:
        return "the protocol reserves this name; choose another name"
    if name.startswith(PREFIX):
        return f"the broker reserves names that begin with {PREFIX!r}; choose another name"
    if not name.strip() or _CONTROL.search(name):
        return "a name must not be blank or contain control characters"
    return None


def check_count(count: int) -> None:
    """Raise PAYLOAD_TOO_LARGE unless one batch call may have *count* messages."""
    if count > MAX_BATCH:
        raise StatusError(
            v2.PAYLOAD_TOO_LARGE,
            f"the call has {count:,} messages; the limit is {MAX_BATCH:,}: divide them among several calls",
        )


def check_ids(message_ids: Sequence[str]) -> None:
    """Raise ILLEGAL_MESSAGE_ID unless each of *message_ids* can be a message's."""
    if not all(map(str.strip, message_ids)):
        raise StatusError(v2.ILLEGAL_MESSAGE_ID, "the message has no id: give each message an id that is not blank")
    if max(map(len, message_ids), default=0) > MAX_ID_CHARACTERS:
        longest = max(message_ids, key=len)
        raise StatusError(
            v2.ILLEGAL_MESSAGE_ID,
            f"the message id {longest[:80]!r}… has {len(longest):,} characters; the limit is {MAX_ID_CHARACTERS}: "
            "shorten the id",
        )


def check_born(time: int) -> None:
    """Raise BAD_REQUEST unless a message can be born at *time* (microseconds; 0: it does not say)."""
    if not MIN_BORN <= time <= MAX_BORN:
        raise StatusError(
            v2.BAD_REQUEST,
            f"the born timestamp of the message, {time / 1e6:,.0f} seconds since 1970, is not in the years 1 to 9999: "
            "send seconds, not milliseconds, and check the clock of the client",
        )


def check_born_host(host: str) -> None:
    """Raise MESSAGE_PROPERTIES_TOO_LARGE, or BAD_REQUEST for control characters, unless *host* can be a born host."""
    if len(host) > MAX_HOST_CHARACTERS:
        raise StatusError(
            v2.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the born host {host[:80]!r}… has {len(host):,} characters; the limit is {MAX_HOST_CHARACTERS}: send the "
            "name or the address of the host",
        )
    if host == TICK_SOURCE:
        raise StatusError(v2.BAD_REQUEST, f"the born host {host!r} is reserved: send the name of the host")
    if _CONTROL.search(host):
        raise StatusError(v2.BAD_REQUEST, f"invalid born host {host[:80]!r}: it must not contain control characters")


def check_trace_context(context: str) -> None:
    """Raise MESSAGE_PROPERTIES_TOO_LARGE, or BAD_REQUEST for control characters, unless *context* can be a trace
    context."""
    if len(context) > MAX_PROPERTY_BYTES:
        raise StatusError(
            v2.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the trace context has {len(context):,} characters; the limit is {MAX_PROPERTY_BYTES:,}: shorten it",
        )
    if _CONTROL.search(context):
        raise StatusError(v2.BAD_REQUEST, "invalid trace context: it must not contain control characters")


def check_caller_id(name: str, value: str) -> None:
    """Raise BAD_REQUEST unless *value*, the client's id *name* of itself or of its request, is short enough to be
    stored with each delivery."""
    if len(value) > MAX_ID_CHARACTERS:
        raise StatusError(
            v2.BAD_REQUEST,
            f"the {name} {value[:80]!r}… has {len(value):,} characters; the limit is {MAX_ID_CHARACTERS}: shorten it",
        )


def check_message_group(group: str) -> None:
    """Raise ILLEGAL_MESSAGE_GROUP unless *group* can be a message group."""
    if not group.strip() or len(group.encode()) > MAX_GROUP_BYTES or _CONTROL.search(group):
        raise StatusError(
            v2.ILLEGAL_MESSAGE_GROUP,
            f"invalid message group {group[:80]!r}: it must have 1 to {MAX_GROUP_BYTES} bytes, not only spaces, and no "
            "control characters",
        )


def check_keys(keys: Sequence[str], tag: str) -> None:
    """Raise a status unless *keys* and *tag* (empty: none) can be a message's."""
    if tag and (not tag.strip() or "|" in tag or _CONTROL.search(tag)):
        raise StatusError(
            v2.ILLEGAL_MESSAGE_TAG,
            f"invalid tag {tag[:80]!r}: it must not be blank or contain '|' or control characters",
        )
    size = sum(map(len, keys)) + len(tag)
    if size > MAX_PROPERTY_BYTES:
        raise StatusError(
            v2.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the keys and the tag of the message have {size:,} characters; the limit is {MAX_PROPERTY_BYTES:,}: "
            "shorten or remove keys",
        )
    for key in keys:
        if not key.strip() or _CONTROL.search(key):
            raise StatusError(
                v2.ILLEGAL_MESSAGE_KEY, f"invalid key {key[:80]!r}: it must not be blank or contain control characters"
            )
